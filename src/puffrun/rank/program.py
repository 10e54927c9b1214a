"""Runs a program in a forked rank as `python -u script …` or `python -u -m module …` would.

The program's `__main__` is a new module; what it raises is raised through to the interpreter's
own main, so that exit codes, hooks and exit handlers are Python's own affair. Only the frames
below `__main__` are ours: they are taken off the traceback that `sys.excepthook` gets.
"""

import builtins
import importlib
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

from puffrun.rank import recorder, server
from puffrun.rank.birth import Birth, become_rank
from puffrun.rank.exit_cut import list_libraries, prepare_cut
from puffrun.rank.shelf import Shelf

TOP_LEVEL = ("torch", "torchgen", "functorch")  # put aside until the program imports one


def run_program(birth: Birth) -> None:
    """Become the rank and run its program, to the end or to what it raises."""
    imported_with = dict(os.environ)
    become_rank(birth)
    run_dir = birth.env["PUFFRUN_RUN_DIR"]
    recorder.install(run_dir, birth.rank)
    recorder.note_crashes(f"{run_dir}/ranks/rank-{birth.rank}.crash")
    pid = os.getpid()

    def take_in_torch() -> None:
        importlib.import_module("torch").default_generator.seed()  # drawn once a process
        if os.getpid() == pid:
            server.install(run_dir, birth.rank)

    Shelf.take(TOP_LEVEL, imported_with, then=take_in_torch)
    prepare_cut(birth.env, list_libraries())
    _run_as_main(birth.argv)


def _run_as_main(argv: tuple[str, ...]) -> None:
    sys.orig_argv = list(argv)
    _make_main_module()
    try:
        if argv[2] == "-m":
            _run_module(argv[3], list(argv[4:]))
        else:
            _run_script(argv[2], list(argv[2:]))
    except BaseException:
        hook = getattr(sys, "excepthook", None)
        if callable(hook):
            sys.excepthook = _hide_our_frames(hook)
        raise


def _make_main_module() -> None:
    """Put a `__main__` into sys.modules as Python's start does."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # what spawned children call theirs in what they send back
        sys.modules["__mp_main__"] = main


def _run_module(name: str, args: list[str]) -> None:
    sys.argv = ["-m", *args]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  # as Python spells it
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001  # what `python -m` itself calls


def _run_script(path: str, argv: list[str]) -> None:
    sys.argv = argv
    if pkgutil.get_importer(path) is not None:  # a directory or an archive with a __main__
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # noqa: SLF001  # the same
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120  # as Python spells it
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {reason}\n")
        sys.exit(2)
    variables = sys.modules["__main__"].__dict__
    loader = SourceFileLoader("__main__", path)
    variables.update(__file__=path, __cached__=None, __loader__=loader)
    exec(compile(source, path, "exec", dont_inherit=True), variables)  # noqa: S102  # what we are for


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _hide_our_frames(hook: Hook) -> Hook:
    def show(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> Any:
        trace = recorder.skip_our_frames(trace)
        return hook(kind, value.with_traceback(trace), trace)

    return show
