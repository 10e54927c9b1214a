"""Opening a wheel: is it one, and is it for this interpreter? (PyPA: binary distributions)."""

import os
import platform
import re
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from puffrun.errors import UsageError

_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-(?P<build>\d[^-]*))?"
    r"-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<|~=)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")


@dataclass(frozen=True)
class Wheel:
    """A wheel that this interpreter can install. `files` are all members of the archive."""

    path: Path
    name: str
    version: str
    files: tuple[str, ...]
    recorded: tuple[str, ...]  # what its RECORD says that it has

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module that `import` can reach: all packages above it have an `__init__.py`."""
        present = set(self.files)
        found = []
        for file in self.files:
            *parents, last = file.split("/")
            packages = ["/".join([*parents[: i + 1], "__init__.py"]) for i in range(len(parents))]
            if not last.endswith(".py") or not present.issuperset(packages):
                continue
            stem = last.removesuffix(".py")
            found.append(".".join(parents if stem == "__init__" else [*parents, stem]))
        return tuple(module for module in found if module)

    def read_sources(self) -> dict[str, str]:
        """Read every Python file of the archive, by its path in it."""
        with zipfile.ZipFile(self.path) as archive:
            return {
                name: archive.read(name).decode("utf-8", "replace")
                for name in self.files
                if name.endswith(".py")
            }


@dataclass(frozen=True)
class Interpreter:
    """What decides which wheels fit: `machine` as in platform tags, `glibc` as (2, 36)."""

    version: tuple[int, int]
    machine: str
    glibc: tuple[int, int] | None


def detect_interpreter() -> Interpreter:
    """Describe the Python that runs this."""
    library, version = platform.libc_ver()
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    glibc = (numbers[0], numbers[1]) if library == "glibc" and len(numbers) > 1 else None
    machine = re.sub(r"[-.]", "_", sysconfig.get_platform())
    return Interpreter((sys.version_info[0], sys.version_info[1]), machine, glibc)


def open_wheel(text: str, cwd: Path, interpreter: Interpreter | None = None) -> Wheel:
    """Open the wheel that `--wheel` names, relative to where the user stands.

    Raises:
        UsageError: it is not there, is no wheel, or is for another platform or Python.
    """
    path = _find_file(text, cwd)
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise UsageError(
            f"`--wheel {text}` is not a wheel: a name is NAME-VERSION-PYTHON-ABI-PLATFORM.whl",
            hint="`python -m build --wheel` writes one into dist/",
        )
    here = interpreter or detect_interpreter()
    reason = find_mismatch(named["python"], named["abi"], named["platform"], here)
    if reason is not None:
        raise UsageError(f"`--wheel {text}` cannot be installed here: {reason}")
    return _read(path, text, named["name"], named["version"], here)


def _find_file(text: str, cwd: Path) -> Path:
    if not text or text.startswith("-"):
        raise UsageError(
            f"`--wheel` needs a file, found `{text}`", hint="`puffrun smoke --wheel dist/NAME.whl`"
        )
    path = Path(os.path.abspath(cwd / text))  # noqa: PTH100 - links are kept
    if path.is_dir():
        raise UsageError(f"`--wheel {text}` is a directory", hint=_suggest(path))
    if path.exists() and not path.is_file():
        raise UsageError(f"`--wheel {text}` is not a regular file", hint=_suggest(path.parent))
    if not path.is_file():
        raise UsageError(f"`--wheel {text}`: there is no file {path}", hint=_suggest(path.parent))
    return path


def _suggest(directory: Path) -> str:
    found = directory.glob("*.whl") if directory.is_dir() else ()
    near = sorted(filter(Path.is_file, found), key=lambda path: path.stat().st_mtime)
    return f"did you mean `{near[-1]}`?" if near else "`python -m build --wheel` writes one"


def _read(path: Path, text: str, name: str, version: str, here: Interpreter) -> Wheel:
    try:
        with zipfile.ZipFile(path) as archive:
            files = tuple(n for n in archive.namelist() if not n.endswith("/"))
            info = next((n for n in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", n)), None)
            if info is None:
                raise UsageError(f"`--wheel {text}` is not a wheel: it has no .dist-info/METADATA")
            metadata = archive.read(info).decode("utf-8", "replace")
            record = info.replace("METADATA", "RECORD")
            recorded = archive.read(record).decode("utf-8", "replace") if record in files else ""
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise UsageError(f"`--wheel {text}` is not a wheel: {error}") from None
    wanted = HeaderParser().parsestr(metadata).get("Requires-Python", "")
    if not allows_python(wanted, here.version):
        raise UsageError(
            f"`--wheel {text}` cannot be installed here: it needs Python {wanted}, "
            f"this is {here.version[0]}.{here.version[1]}"
        )
    rows = tuple(line.split(",")[0].strip('"') for line in recorded.splitlines() if line)
    return Wheel(path, name, version, files, rows)


def find_mismatch(pythons: str, abis: str, platforms: str, here: Interpreter) -> str | None:
    """Say which tag does not fit this interpreter, or None; each may be a set: `py2.py3`."""
    if not any(_fits_python(tag, abis, here) for tag in pythons.split(".")):
        return f"it is for {pythons}, this is Python {here.version[0]}.{here.version[1]}"
    own = f"cp{here.version[0]}{here.version[1]}"
    if not any(abi in ("none", "abi3", own) for abi in abis.split(".")):
        return f"it is for the ABI {abis}, this is {own}"
    if not any(_fits_platform(tag, here) for tag in platforms.split(".")):
        return f"it is for the platform {platforms}, this is {here.machine}"
    return None


def _fits_python(tag: str, abis: str, here: Interpreter) -> bool:
    found = re.fullmatch(r"(py|cp)(\d)(\d*)", tag)
    if found is None or int(found[2]) != here.version[0]:
        return False
    minor = int(found[3]) if found[3] else 0
    if found[1] == "py" or "abi3" in abis.split("."):
        return minor <= here.version[1]
    return minor == here.version[1]


def _fits_platform(tag: str, here: Interpreter) -> bool:
    if tag in ("any", here.machine):
        return True
    machine = here.machine.removeprefix("linux_")
    if here.glibc is None or not tag.startswith("manylinux") or not tag.endswith(f"_{machine}"):
        return False
    kind = tag.removesuffix(f"_{machine}")
    numbers = re.fullmatch(r"manylinux_(\d+)_(\d+)", kind)
    needed = (int(numbers[1]), int(numbers[2])) if numbers else _MANYLINUX.get(kind)
    return needed is not None and needed <= here.glibc


def allows_python(specifier: str, version: tuple[int, int]) -> bool:
    """Tell whether a Requires-Python allows this minor version; what is not understood allows."""
    for clause in specifier.split(",") if specifier.strip() else ():
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            continue
        numbers = [int(part) for part in found[2].split(".")]
        wanted = (numbers[0], numbers[1] if len(numbers) > 1 else 0)
        if not _meets(found[1], version, wanted, patch=len(numbers) > 2):  # noqa: PLR2004 - X.Y
            return False
    return True


def _meets(
    operator: str, version: tuple[int, int], wanted: tuple[int, int], *, patch: bool
) -> bool:
    """Compare minor versions; where a patch level is named, the same minor version may pass."""
    if version == wanted:
        return patch or operator in (">=", "<=", "==", "~=")
    return {
        ">=": version > wanted,
        ">": version > wanted,
        "<=": version < wanted,
        "<": version < wanted,
        "!=": True,
        "==": False,
        "~=": version > wanted and not patch,
    }[operator]
