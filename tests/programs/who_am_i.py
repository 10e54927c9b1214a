"""Writes what it finds around it as JSON, to compare ranks that were executed and forked."""

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

TORCH_BEFORE = "torch" in sys.modules
EACH_RUN = {"MASTER_PORT", "PUFFRUN_AGENT_PID", "TORCHELASTIC_ERROR_FILE"}


class Thing:
    """To be pickled by reference to `__main__`."""

    def __init__(self, value: int) -> None:
        self.value = value


def square(thing: Thing) -> Thing:
    return Thing(thing.value**2)


def pools() -> dict[str, list[int]]:
    results = {}
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            results[method] = [t.value for t in pool.map(square, map(Thing, range(3)))]
    return results


def loader() -> list[int]:
    from torch.utils.data import DataLoader

    batches = DataLoader(list(range(6)), batch_size=3, num_workers=2)
    return [int(value) for batch in batches for value in batch]


def stream(file) -> list:
    kind = type(file.buffer).__name__
    text = [file.name, file.mode, file.encoding, file.errors, file.newlines, file.line_buffering]
    return [*text, file.write_through, kind, file.fileno(), file.closed]


def descriptors() -> dict[str, str]:
    """Those that are open, but for the one that lists them."""
    paths = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return {path.name: str(path.readlink()) for path in sorted(paths)}


def before_torch() -> dict:
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "executable": sys.executable,
        "warnoptions": sys.warnoptions,
        "torch_before": TORCH_BEFORE,
        "main": [
            *(main.__name__, main.__file__, main.__package__, main.__cached__, main.__doc__),
            *(main.__spec__ and main.__spec__.name, type(main.__loader__).__name__),
            *(main.__dict__ is globals(), sorted(n for n in vars(main) if n.startswith("__"))),
        ],
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "signals": {s.name: str(signal.getsignal(s)).split(" at ")[0] for s in signal.Signals},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
        "std": [sys.__stdout__ is sys.stdout, sys.__stderr__ is sys.stderr],
        "descriptors": descriptors(),
        "threads": [t.name for t in threading.enumerate()],
        "main_thread": threading.current_thread() is threading.main_thread(),
        "process": [multiprocessing.current_process().name, multiprocessing.parent_process()],
        "cwd": str(Path.cwd()),
        "umask": os.umask(0o77),
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
        "environment": {k: v for k, v in os.environ.items() if k not in EACH_RUN},
        "is_child_of_agent": os.environ["PUFFRUN_AGENT_PID"] == str(os.getppid()),
        "c_environment": subprocess.check_output(["printenv", "RANK"], text=True),
        "pickled": pickle.loads(pickle.dumps(Thing(4))).value,  # noqa: S301  # our own
        "import_main": __import__("__main__") is main,
    }


def with_torch() -> dict:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    layer = torch.nn.Linear(3, 1)
    layer(torch.ones(2, 3)).sum().backward()
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {
        "threads_set_late": torch.get_num_threads(),
        "total": total.item(),
        "filters": len(warnings.filters),
        "cuda": torch.cuda.is_initialized(),
        "same": sys.modules["torch"] is torch,
        "name": [torch.__name__, torch.__spec__.name, torch.nn.functional.__name__],
        "loader": loader(),
    }


if __name__ == "__main__":
    facts = before_torch() | {"pools": pools()} | with_torch()
    own = {
        "command": Path("/proc/self/cmdline").read_bytes().decode(),
        "random": random.random(),  # noqa: S311  # not for cryptography
        "authkey": multiprocessing.current_process().authkey.hex(),
        "seed": sys.modules["torch"].initial_seed(),
        "drawn": sys.modules["torch"].rand(2).tolist(),
    }
    path = Path(os.environ["PUFFRUN_RUN_DIR"]) / f"facts-{os.environ['RANK']}.json"
    path.write_text(json.dumps({"same": facts, "own": own}))
