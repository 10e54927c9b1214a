"""The launchers that puffrun is compared with, in a virtual environment of their own.

torch and puffrun are borrowed from the environment that this runs in, by path files, so nothing
is installed twice and all launchers run the same torch; pip is told never to bring another.
"""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import puffrun

HOME = Path(__file__).resolve().parents[2] / "bench-results" / "peers"
PEERS = {"accelerate": "1.15.0", "torchrunx": "0.4.0"}
NEEDS = (
    *("cloudpickle", "fabric", "numpy"),  # torchrunx
    *("huggingface-hub", "packaging", "psutil", "pyyaml", "safetensors"),  # accelerate
)
LIMIT_S = 600.0


def ensure_peers() -> Path:
    """Return the environment's bin directory; makes the environment when it is not there yet."""
    stamp, wanted = HOME / "installed", f"{PEERS} {NEEDS} {version('torch')} {sys.executable}"
    if not stamp.exists() or stamp.read_text() != wanted:
        _make(stamp, wanted)
    return HOME / "bin"


def _make(stamp: Path, wanted: str) -> None:
    print(f"installing {', '.join(PEERS)} from PyPI into {HOME.name}/", file=sys.stderr)
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", HOME)
    python = HOME / "bin" / "python"
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    site.joinpath("borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    site.joinpath("puffrun.pth").write_text(f"{Path(puffrun.__file__).parents[1]}\n")
    constraints = HOME / "constraints.txt"
    constraints.write_text(f"torch=={version('torch')}\n")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        python,
    ]
    _run(*pip, "install", "--no-deps", *(f"{name}=={number}" for name, number in PEERS.items()))
    _run(*pip, "install", "--constraint", constraints, *NEEDS)
    stamp.write_text(wanted)


def _run(*argv: str | Path) -> str:
    done = subprocess.run(
        [os.fspath(part) for part in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"`{' '.join(map(str, argv))}` exited {done.returncode}:\n{done.stderr}")
    return done.stdout.strip()
