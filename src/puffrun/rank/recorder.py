"""Records the exception that ends a rank, at the moment it is raised.

An uncaught exception does not end a Python process that has a live non-daemon thread, and an
exit code says nothing of the reason. So the rank writes errors/rank-N.json before interpreter
shutdown begins, and wakes the launcher through a FIFO.

It listens to the audit event `sys.excepthook`, which CPython raises before it calls whatever
`sys.excepthook` is then: a program's own hook is neither replaced nor needed. The cost is one
string comparison an audit event (measured: 33,000 events while torch is imported, 2 ms).
Imported by file path at start-up: standard library only, and the expensive parts when needed.
"""

import _thread
import os
import sys
from types import FrameType, ModuleType, TracebackType

TYPE_CHECKING = False  # `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import FrameSummary

MAX_MESSAGE_CHARS = 20_000
MAX_TRACEBACK_CHARS = 200_000  # of a message of megabytes, the start and the end
TRIES = 5  # a handler of the program's own may raise into the recording
SPARE_FD = 30  # from where on a descriptor is kept for a rank that has used up its own
MAX_FRAMES = 100
MAX_RELATED = 5  # causes of an exception, and members of a group
MAX_RELATED_FRAMES = 20
MAX_RELATED_CHARS = 500
_PACKAGE_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # pathlib is slow to import
_BELOW_MAIN = (f"{_PACKAGE_DIR}/agent/start.py", f"{_PACKAGE_DIR}/rank/program.py")
STDLIB_DIR = os.path.dirname(os.__file__)  # noqa: PTH120  # pathlib is slow to import


def install(run_dir: str, rank: int) -> None:
    """Record the exception that ends this process, and only this process, not a fork of it."""
    pid = os.getpid()
    main_thread = _thread.get_ident()
    spare = _Spare()

    def on_audit(event: str, args: tuple[object, ...]) -> None:
        if event != "sys.excepthook":
            return
        if (os.getpid(), _thread.get_ident()) != (pid, main_thread) or _python_is_running():
            return
        _, _, value, trace = args
        if isinstance(value, BaseException):
            spare.give_back()
            _try_to_record(run_dir, rank, value, trace)

    sys.addaudithook(on_audit)


class _Spare:
    """A descriptor to give back when it is needed: "too many open files" ends ranks too."""

    def __init__(self) -> None:
        import fcntl

        self._fd = -1
        try:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._is = os.fstat(fd)
            try:
                self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, SPARE_FD)
            finally:
                os.close(fd)
        except OSError:  # hardly any descriptors are allowed here
            return

    def give_back(self) -> None:
        """Close it, unless the program has closed it and opened something else there."""
        try:
            if self._fd >= 0 and os.path.samestat(os.fstat(self._fd), self._is):
                os.close(self._fd)
        except OSError:
            return
        finally:
            self._fd = -1


def note_crashes(path: str) -> None:
    """Let a fault in native code leave the Python stack; a program's own faulthandler wins."""
    import faulthandler

    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    if not faulthandler.is_enabled():  # PYTHONFAULTHANDLER=1
        faulthandler.enable(fd)


def skip_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Skip the frames below `__main__` in a rank that was forked; an executed one has none."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _BELOW_MAIN:
        trace = trace.tb_next
    return trace


def _python_is_running() -> bool:
    """Whether Python code is still on the stack: then the exception does not end the process."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to look at the stack
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def _try_to_record(run_dir: str, rank: int, value: BaseException, trace: object) -> None:
    """Whatever goes wrong here must not hide the program's own traceback.

    CPython drops that one for good when an audit hook raises a RuntimeError. The program's signal
    handlers run on in here, and may raise: torch's does when a worker of a DataLoader dies. That
    is tried again; a full disk or a run directory that is gone is not.
    """
    failure: BaseException | None = None
    for _ in range(TRIES):
        try:
            with PythonsOwnModules():
                record(run_dir, rank, value, trace if isinstance(trace, TracebackType) else None)
        except OSError as error:
            failure = error
            break
        except BaseException as error:  # noqa: BLE001  # what a handler raises may be anything
            failure = error
        else:
            return
    if sys.stderr is not None and not sys.stderr.closed:
        sys.stderr.write(f"puffrun: could not record the exception of rank {rank}: {failure}\n")


class PythonsOwnModules:
    """While entered, imports find Python's own modules, though the program has some of that name.

    A json.py next to the program's script comes first on its path; it need not be JSON.
    """

    def __enter__(self) -> None:
        self._path = sys.path[:]
        self._hidden = {name: m for name, m in list(sys.modules.items()) if _shadows(name, m)}
        sys.path[:] = [entry for entry in sys.path if entry.startswith(STDLIB_DIR)]
        for name in self._hidden:
            del sys.modules[name]

    def __exit__(self, *_exception: object) -> None:
        sys.path[:] = self._path
        sys.modules.update(self._hidden)


def _shadows(name: str, module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    is_pythons = name.partition(".")[0] in sys.stdlib_module_names
    return is_pythons and isinstance(path, str) and not path.startswith(STDLIB_DIR)


def record(run_dir: str, rank: int, value: BaseException, trace: TracebackType | None) -> None:
    """Write errors/rank-N.json atomically and wake the launcher.

    Raises:
        OSError: the run directory cannot be written.
    """
    import time

    at = time.time_ns()  # before the imports that take milliseconds: it decides who was first
    import json
    import traceback

    trace = skip_our_frames(trace)
    summaries = traceback.extract_tb(trace)[-MAX_FRAMES:]
    document = {
        "rank": rank,
        "pid": os.getpid(),
        "at": at,
        "type": type(value).__qualname__,
        "message": _message(value),
        "traceback": _traceback_text(value, trace),
        "frames": [_as_frame(s) for s in summaries],
        "related": _related(value),
    }
    path = f"{run_dir}/errors/rank-{rank}.json"
    temporary_path = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary_path, "w", encoding="utf-8", errors="backslashreplace") as file:  # noqa: PTH123
            json.dump(document, file)
            file.flush()
        os.replace(temporary_path, path)  # noqa: PTH105  # pathlib is slow to import
    except OSError:  # a full disk: what there is of it helps nobody
        if os.path.exists(temporary_path):  # noqa: PTH110
            os.unlink(temporary_path)  # noqa: PTH108
        raise
    _wake(f"{run_dir}/wake", f"error {rank}\n")
    if isinstance(value, KeyboardInterrupt):
        _restore_sigint_exit()


def _restore_sigint_exit() -> None:
    """Keep the exit status of an uncaught KeyboardInterrupt: death by SIGINT, not exit 1.

    CPython notes an unhandled KeyboardInterrupt when code that was compiled from a string or file
    ends with one, and forgets it when the next such code starts: imports above did that.
    """
    try:
        exec("raise KeyboardInterrupt")  # noqa: S102
    except KeyboardInterrupt:
        return


def _related(value: BaseException) -> list[dict[str, object]]:
    """Describe what lies behind an exception: the chain to its root, a group's members."""
    chain: list[tuple[str, BaseException]] = []
    seen = {id(value)}
    found = _find_behind(value)
    while found is not None and id(found[1]) not in seen:
        seen.add(id(found[1]))
        chain.append(found)
        found = _find_behind(found[1])
    members = value.exceptions[:MAX_RELATED] if isinstance(value, BaseExceptionGroup) else ()
    told = [*(("member", each) for each in members), *chain[-MAX_RELATED:]]
    return [_as_related(relation, each) for relation, each in told]


def _find_behind(value: BaseException) -> tuple[str, BaseException] | None:
    """Find what Python shows above an exception: its cause, else what it was raised in."""
    if value.__cause__ is not None:
        return "cause", value.__cause__
    if value.__context__ is not None and not value.__suppress_context__:
        return "context", value.__context__
    return None


def _as_related(relation: str, value: BaseException) -> dict[str, object]:
    import traceback

    summaries = traceback.extract_tb(skip_our_frames(value.__traceback__))[-MAX_RELATED_FRAMES:]
    return {
        "relation": relation,
        "type": type(value).__qualname__,
        "message": _message(value)[:MAX_RELATED_CHARS],
        "frames": [_as_frame(s) for s in summaries],
    }


def _as_frame(summary: "FrameSummary") -> dict[str, object]:
    return {
        "path": summary.filename,
        "line": summary.lineno or 0,
        "function": summary.name,
        "code": summary.line or "",
    }


def _insist(read: "Callable[[], str]") -> "str | BaseException":
    """Read a text; what fails may be the program's own `__str__`, or a signal's handler, once."""
    failure: BaseException = ValueError()
    for _ in range(TRIES):
        try:
            return read()
        except BaseException as error:  # noqa: BLE001  # either may do anything
            failure = error
    return failure


def _message(value: BaseException) -> str:
    text = _insist(lambda: str(value)[:MAX_MESSAGE_CHARS])
    if isinstance(text, str):
        return text
    return f"<its message could not be read: {type(text).__name__}>"


def _traceback_text(value: BaseException, trace: TracebackType | None) -> str:
    import traceback

    text = _insist(lambda: "".join(traceback.format_exception(type(value), value, trace)))
    if not isinstance(text, str):
        text = "".join(traceback.format_tb(trace))
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def _wake(fifo_path: str, line: str) -> None:
    """Tell the launcher to look; it looks by itself too, only later."""
    try:
        fd = os.open(fifo_path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(fd, line.encode())
    except OSError:
        return
    finally:
        os.close(fd)
