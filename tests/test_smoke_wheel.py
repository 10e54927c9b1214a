"""Wheels that the gate refuses, and what is missing from those that it takes: no environment."""

import json
import os
import zipfile
from pathlib import Path

import pytest

import puffrun
from puffrun.cli import main
from puffrun.smoke.gate import make_gate_environ
from puffrun.smoke.wheel import Interpreter, allows_python, find_mismatch, open_wheel
from puffrun.smoke.wheel_contents import find_missing_inits, find_missing_modules

HERE = Interpreter((3, 11), "linux_x86_64", (2, 36))
METADATA = "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\nRequires-Python: {python}\n"


def make_wheel(
    directory: Path, name: str = "thing-1.0-py3-none-any.whl", python: str = ">=3.11", **files: str
) -> Path:
    path = directory / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing-1.0.dist-info/METADATA", METADATA.format(python=python))
        archive.writestr("thing-1.0.dist-info/RECORD", "thing/__init__.py,,\nthing/gone.py,,\n")
        for file, text in files.items():
            archive.writestr(f"thing/{file}.py", text)
    return path


FITS = [
    ("py3", "none", "any"),
    ("py2.py3", "none", "any"),
    ("py311", "none", "any"),
    ("cp311", "cp311", "linux_x86_64"),
    ("cp39", "abi3", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    ("cp311", "cp311", "manylinux1_x86_64"),
]
FITS_NOT = [
    ("cp310", "cp310", "linux_x86_64", "it is for cp310, this is Python 3.11"),
    ("py312", "none", "any", "it is for py312"),
    ("py2", "none", "any", "it is for py2"),
    ("cp311", "cp311d", "linux_x86_64", "ABI cp311d"),
    ("cp312", "abi3", "linux_x86_64", "it is for cp312"),
    ("py3", "none", "win_amd64", "platform win_amd64"),
    ("py3", "none", "macosx_11_0_arm64", "platform macosx_11_0_arm64"),
    ("py3", "none", "manylinux_2_39_x86_64", "platform manylinux_2_39_x86_64"),
    ("py3", "none", "manylinux2014_aarch64", "platform manylinux2014_aarch64"),
    ("py3", "none", "musllinux_1_1_x86_64", "platform musllinux"),
]


@pytest.mark.parametrize("tags", FITS, ids="-".join)
def test_tags_that_fit(tags):
    assert find_mismatch(*tags, HERE) is None


@pytest.mark.parametrize("case", FITS_NOT, ids=lambda case: "-".join(case[:3]))
def test_tags_that_do_not_fit(case):
    *tags, words = case
    assert words in (find_mismatch(*tags, HERE) or "")


@pytest.mark.parametrize(
    ("specifier", "allowed"),
    [
        ("", True),
        (">=3.11", True),
        (">=3.8,<3.12", True),
        (">=3.11.5", True),
        ("~=3.8", True),
        (">=3.12", False),
        ("<3.11", False),
        ("==3.10.*", False),
        ("!=3.11.*", False),
        ("nonsense", True),
    ],
)
def test_requires_python(specifier, allowed):
    assert allows_python(specifier, (3, 11)) is allowed


def test_a_good_wheel_is_read(tmp_path):
    make_wheel(tmp_path, __init__="", part="import thing")
    wheel = open_wheel("thing-1.0-py3-none-any.whl", tmp_path)
    assert (wheel.name, wheel.version) == ("thing", "1.0")
    assert wheel.modules == ("thing", "thing.part")
    assert "thing/gone.py" in wheel.recorded


BAD = [
    (["--wheel"], "option `--wheel` requires an argument"),
    (["--wheel", "--help"], "`--wheel` needs a file, found `--help`"),
    (["--wheel", "-x"], "`--wheel` needs a file, found `-x`"),
    (["--wheel", ""], "`--wheel` needs a file"),
    (["--wheel", "dist/nosuch-1.0-py3-none-any.whl"], "there is no file"),
    (["--wheel", "dist"], "`--wheel dist` is a directory"),
    (["--wheel", "dist/notes.txt"], "is not a wheel"),
    (["--wheel", "dist/text-1.0-py3-none-any.whl"], "is not a wheel: File is not a zip file"),
    (["--wheel", "dist/empty-1.0-py3-none-any.whl"], "it has no .dist-info/METADATA"),
    (["--wheel", "dist/other-1.0-cp310-cp310-linux_x86_64.whl"], "it is for cp310"),
    (["--wheel", "dist/other-1.0-py3-none-win_amd64.whl"], "it is for the platform win_amd64"),
    (["--wheel", "dist/new-1.0-py3-none-any.whl"], "it needs Python >=4"),
    (["--wheel", "dist/thing-1.0-py3-none-any.whl"], "which program of thing is to run?"),
    (["--wheel", "dist/thing-1.0-py3-none-any.whl", "train.py"], "is a script outside"),
    (["--wheel", "dist/thing-1.0-py3-none-any.whl", "-c", "x.toml"], "no config outside the wheel"),
    (["--wheel", "dist/thing-1.0-py3-none-any.whl", "--extra-site", "no", "-m", "thing"],
     "`--extra-site no` is no directory"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "words"), BAD, ids=" ".join)
def test_each_bad_wheel_is_exit_2_and_one_line(args, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "notes.txt").write_text("hello")
    (dist / "text-1.0-py3-none-any.whl").write_text("hello")
    with zipfile.ZipFile(dist / "empty-1.0-py3-none-any.whl", "w"):
        pass
    make_wheel(dist)
    make_wheel(dist, "other-1.0-cp310-cp310-linux_x86_64.whl")
    make_wheel(dist, "other-1.0-py3-none-win_amd64.whl")
    make_wheel(dist, "new-1.0-py3-none-any.whl", python=">=4")
    assert main(["smoke", *args]) == 2
    shown = capfd.readouterr()
    first, *_ = shown.err.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert shown.out == ""


MODULES = {
    "thing/__init__.py": "from thing.part import go\n",
    "thing/part.py": "def go():\n    from thing.deep import inner\n    import thing.deep.inner\n",
    "thing/deep/__init__.py": "value = 1\n",
    "thing/deep/inner.py": "from . import value\nfrom .. import go\nfrom .other import x\n",
    "thing/deep/other.py": "x = 'thing.toml'\nhome = 'thing.deep.inner'\nimport json, torch\n",
}


def test_a_whole_wheel_misses_nothing():
    assert find_missing_modules(MODULES) == ()


@pytest.mark.parametrize(
    ("gone", "needed_by"),
    [
        ("thing/part.py", "thing/__init__.py"),
        ("thing/deep/inner.py", "thing/deep/other.py"),  # a text, before the import in part.py
        ("thing/deep/other.py", "thing/deep/inner.py"),
        ("thing/deep/__init__.py", "thing/deep/inner.py"),
    ],
)
def test_a_module_that_is_gone_is_named_with_who_needs_it(gone, needed_by):
    sources = {path: text for path, text in MODULES.items() if path != gone}
    missing = {module.name: module.needed_by for module in find_missing_modules(sources)}
    name = gone.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert missing[name] == needed_by


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (["thing/__init__.py", "thing/demo/train.py"], ("thing/demo/__init__.py",)),
        (
            ["thing/__init__.py", "thing/a/b/c.py"],
            ("thing/a/__init__.py", "thing/a/b/__init__.py"),
        ),
        (["thing/__init__.py", "thing/a/b/__init__.py"], ("thing/a/__init__.py",)),
        (["thing/part.py", "thing/deep/__init__.py"], ("thing/__init__.py",)),
        (["space/part.py", "space/thing/__init__.py"], ()),  # a namespace shared by wheels
        (["space/thing/__init__.py", "space/thing/a/b.py"], ("space/thing/a/__init__.py",)),
        (["thing/__init__.py", "thing/inject/sitecustomize.py"], ()),
        (["thing/__init__.py", "thing/my-template/setup.py", "thing/data/a.json"], ()),
        (["thing/__init__.py", "thing-1.0.data/scripts/run.py", "single.py"], ()),
    ],
)
def test_a_directory_of_modules_without_init_is_named(paths, missing):
    assert find_missing_inits(paths, "thing") == missing


def test_our_own_sources_lack_no_init():
    root = Path(puffrun.__file__).parent
    paths = [path.relative_to(root.parent).as_posix() for path in root.rglob("*.py")]
    assert find_missing_inits(paths, "puffrun") == ()
    without = [path for path in paths if path != "puffrun/demo/__init__.py"]
    assert find_missing_inits(without, "puffrun") == ("puffrun/demo/__init__.py",)


def test_the_gate_is_red_on_a_package_without_init(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    make_wheel(tmp_path, __init__="", gone="", **{"demo/train": ""})
    argv = ["smoke", "--json", "--wheel", "thing-1.0-py3-none-any.whl", "-m", "thing.demo.train"]
    assert main(argv) == 1
    (check,) = json.loads(capfd.readouterr().out)["checks"]
    assert [finding["title"] for finding in check["findings"]] == [
        "`thing/demo/__init__.py` is missing from the wheel"
    ]


def test_what_is_no_regular_file_is_not_suggested(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("thing-1.0-py3-none-any.whl")
    assert main(["smoke", "--wheel", "thing-1.0-py3-none-any.whl", "-m", "thing"]) == 2
    shown = capfd.readouterr().err
    assert "is not a regular file" in shown
    assert "did you mean" not in shown
    make_wheel(tmp_path, "thing-2.0-py3-none-any.whl")
    assert main(["smoke", "--wheel", "thing-1.0-py3-none-any.whl", "-m", "thing"]) == 2
    assert "thing-2.0-py3-none-any.whl" in capfd.readouterr().err


def test_lazy_names_of_a_package_count_as_its_own():
    sources = {
        "thing/__init__.py": "_HOMES = {'go': 'thing.part'}\ndef __getattr__(name):\n    ...\n",
        "thing/user.py": "from thing import go\n",
    }
    assert find_missing_modules(sources) == ()


def test_the_gates_environment_leads_nowhere_else():
    environ = {
        "PATH": "/usr/bin",
        "HOME": "/home/a",
        "PYTHONPATH": "/checkout/src",
        "VIRTUAL_ENV": "/checkout/.venv",
        "PUFFRUN_RUN_DIR": "/checkout/.puffrun/runs/1",
        "GITHUB_ACTIONS": "true",
        "PIP_NO_INDEX": "1",
    }
    assert make_gate_environ(environ, Path("/gate/venv")) == {
        "PATH": "/gate/venv/bin:/usr/bin",
        "HOME": "/home/a",
        "PIP_NO_INDEX": "1",
        "PYTHONNOUSERSITE": "1",
        "NO_COLOR": "1",
    }
