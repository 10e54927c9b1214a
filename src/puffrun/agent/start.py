"""Started by path, `python -u start.py FD`: the first frame of the agent, and of a preloaded rank.

Not `python -m`, and no `-P`: a preloaded rank keeps this process' flags, and a rank has neither.
So the directory of this file has to go from sys.path before anything else is imported.
"""

import sys

if not sys.flags.safe_path:
    del sys.path[0]

from puffrun.agent.main import main

if __name__ == "__main__":
    sys.exit(main())
