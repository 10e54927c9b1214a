"""`make bench`: run the benchmarks named in argv (default: all), print tables, write JSON.

A claim is a ratio of two things measured in one run, in turn, never an absolute time.
"""

import importlib
import json
import platform
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "bench-results"


def main() -> int:
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    known = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    names = sys.argv[1:] or known
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no benchmark `{unknown[0]}`; there are {', '.join(known)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in names:
        print(f"\n== {name}", flush=True)
        began = time.monotonic()
        result = importlib.import_module(f"bench_{name}").main()
        document = {
            "benchmark": name,
            "machine": platform.platform(),
            "python": platform.python_version(),
            "took_s": round(time.monotonic() - began, 1),
            "result": result,
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
