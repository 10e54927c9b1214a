"""What the evidence means: the hang verdict, who makes the others wait. Pure."""

from puffrun.diagnose.hang_verdict import conclude_hang
from puffrun.diagnose.lateness import Lateness, add_lateness
from puffrun.diagnose.waits import ends_with_exception, is_elsewhere

__all__ = ["Lateness", "add_lateness", "conclude_hang", "ends_with_exception", "is_elsewhere"]
