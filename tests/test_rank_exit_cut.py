"""Which libraries have something to say at the end: real ones, compiled here."""

import _ctypes
import subprocess
from pathlib import Path

import pytest
from programs.endings import LIBRARIES

from puffrun.rank.exit_cut import ends_by_itself, list_libraries


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_with_an_end_of_its_own_is_known(name: str, tmp_path: Path) -> None:
    library = tmp_path / f"{name}.so"
    compiler = ["g++", "-xc++"] if name == "static" else ["gcc", "-xc"]
    command = [*compiler, "-shared", "-fPIC", "-", "-o", library]
    subprocess.run(command, input=LIBRARIES[name], text=True, check=True, timeout=60)
    assert ends_by_itself(str(library)) == (name != "silent")


def test_coverage_is_an_end_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "covered.so"
    command = ["gcc", "-xc", "--coverage", "-shared", "-fPIC", "-", "-o", library]
    source = LIBRARIES["silent"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60, cwd=tmp_path)
    assert ends_by_itself(str(library))


@pytest.mark.parametrize(
    "image", [b"", b"text", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(90)]
)
def test_what_is_no_library_is_in_doubt(image: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.so").write_bytes(image)
    assert ends_by_itself(str(tmp_path / "odd.so"))
    assert ends_by_itself(str(tmp_path / "gone.so (deleted)"))


def test_what_is_loaded_is_listed() -> None:
    assert _ctypes.__file__ in list_libraries()
    assert not ends_by_itself(_ctypes.__file__), "Python's own extensions have no end"
