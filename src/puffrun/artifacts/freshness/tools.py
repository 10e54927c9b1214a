"""What a tool is, told by its own `--version`, so that a new compiler makes artifacts stale."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from puffrun.artifacts.freshness.hashing import HashCache, hash_file, make_signature
from puffrun.process import run_captured

VERSION_TIMEOUT_S = 20.0
MAX_VERSION_CHARACTERS = 4000
ELF = b"\x7fELF"
# programs that answer for another one, whose file may change while theirs does not
WRAPPERS = frozenset({"ccache", "sccache", "distcc", "icecc", "colorgcc", "busybox"})
INSTALL_PATH = re.compile(r"(InstalledDir|Configured with|COLLECT_)[:=_]?.*/")


def find_tool(tool: str, root_dir: Path, env: Mapping[str, str]) -> str | None:
    """Find the tool that the build command would find; None when there is none."""
    if "/" in tool:
        tool = os.path.join(root_dir, tool)  # noqa: PTH118  # `..` must keep its meaning
    return shutil.which(tool, path=env.get("PATH", os.defpath))


def identify_tool(
    tool: str, root_dir: Path, env: Mapping[str, str], cache: HashCache
) -> str | None:
    """Tell a tool's version and real name; None when it is not on PATH.

    Starts a process only when the tool's file changed since it was last asked, or when the tool
    is a script or a wrapper, whose answer depends on more than its own file.
    """
    path = find_tool(tool, root_dir, env)
    if path is None:
        return None
    real_path = Path(path).resolve()
    if not _answers_for_itself(real_path):
        return _ask_version(path, real_path, env)
    signature = make_signature(real_path.stat())
    return cache.text(f"tool {path}", signature, lambda: _ask_version(path, real_path, env))


def _answers_for_itself(real_path: Path) -> bool:
    try:
        with real_path.open("rb") as file:
            is_elf = file.read(len(ELF)) == ELF
    except OSError:
        return False  # may be run, but not read
    return is_elf and real_path.name not in WRAPPERS


def _ask_version(path: str, real_path: Path, env: Mapping[str, str]) -> str:
    """Run `--version`; a tool that has none is known by its content."""
    try:
        captured = run_captured(
            [path, "--version"], env={**env, "LC_ALL": "C"}, timeout_s=VERSION_TIMEOUT_S
        )
    except OSError:
        captured = None
    if captured is None or captured.returncode != 0:
        return f"{_hash_content(real_path)}\n{real_path.name}"
    text = (captured.stdout or captured.stderr).decode(errors="replace")
    lines = [line for line in text.splitlines() if not INSTALL_PATH.match(line)]
    return "\n".join([*lines, real_path.name])[:MAX_VERSION_CHARACTERS]


def _hash_content(real_path: Path) -> str:
    try:
        return f"content {hash_file(real_path)}"
    except OSError:
        return f"stat {make_signature(real_path.stat())}"
