"""Its directory has a json.py and a traceback.py that are not Python's."""

import json
import os

if __name__ == "__main__":
    assert json.MINE
    print(f"rank {os.environ['RANK']} up", flush=True)
    raise ValueError("the true cause")
