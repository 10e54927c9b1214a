"""Write the waves that the library adds up, as a C table."""

import sys
from pathlib import Path

WAVES = {1: 1.0, 3: 0.5, 7: 0.2}  # frequency: amplitude

rows = "".join(f"    {{{frequency}, {size}}},\n" for frequency, size in WAVES.items())
Path(sys.argv[1]).write_text(f"static const double WAVES[][2] = {{\n{rows}}};\n")
