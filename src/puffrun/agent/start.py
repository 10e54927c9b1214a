"""Started by path, `python -u start.py FD`: the first frame of the agent, and of a forked rank.

Not `python -m`, and no `-P`: a forked rank keeps this process' flags, and a rank has neither. So
the directory of this file has to go from sys.path before anything else is imported.

A forked rank comes back here and runs its program in this frame, so that it ends as any Python
program does: what it raises goes to the interpreter's own main, with nothing on the stack.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from puffrun.agent.main import main
from puffrun.rank.program import run_program

if __name__ == "__main__":
    outcome = main()
    if isinstance(outcome, int):
        sys.exit(outcome)
    run_program(outcome)
