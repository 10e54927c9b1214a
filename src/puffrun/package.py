"""What this package is: its version, and where it lies. Whoever needs that may import it."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE_DIR = Path(__file__).parent
