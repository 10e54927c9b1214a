"""What a rank that is in no collective does instead, in words."""

from collections.abc import Sequence

from puffrun.diagnose.places import split_at_user
from puffrun.evidence.rank_evidence import RankEvidence
from puffrun.evidence.thread_stacks import ThreadStack, find_main
from puffrun.outcome import Frame

# (end of the file's path, function or "" for any) → what it does; the first that fits counts
_BY_FRAME = (
    ("/multiprocessing/pool.py", "", "waits for a process pool"),
    ("/torch/utils/data/dataloader.py", "", "waits for its data loader"),
    ("/multiprocessing/queues.py", "", "waits in queue.get of a child process"),
    ("/multiprocessing/connection.py", "", "waits for a message of a child process"),
    ("/multiprocessing/popen_fork.py", "", "waits for a child process"),
    ("/multiprocessing/process.py", "join", "waits for a child process"),
    ("/subprocess.py", "", "waits for a child process"),
    ("/queue.py", "get", "waits in queue.get"),
    ("/queue.py", "put", "waits in queue.put"),
    ("/concurrent/futures/_base.py", "", "waits for a future"),
    ("/asyncio/base_events.py", "", "waits in its event loop"),
    ("/threading.py", "join", "waits for a thread"),
    ("/threading.py", "_shutdown", "is at its end, but a non-daemon thread still runs"),
    ("/threading.py", "", "waits for a lock"),
    ("/ssl.py", "", "waits for the network"),
    ("/socket.py", "", "waits for the network"),
    ("/selectors.py", "", "waits for input"),
)  # fmt: skip - a table
_BY_WAIT = (
    ("nanosleep", "sleeps"),
    ("futex", "waits for a lock"),
    ("do_wait", "waits for a child process"),
    ("do_exit", "is exiting"),
    ("wait_for_partner", "waits for the other end of a pipe"),  # open() of a FIFO
    ("pipe_read", "waits for a pipe"),
    ("pipe_write", "waits for the reader of a pipe"),
    ("unix_stream", "waits for a socket"),
    ("tcp", "waits for the network"),
    ("inet", "waits for the network"),
    ("sk_wait", "waits for a socket"),
    ("epoll", "waits for input"),
    ("poll", "waits for input"),
    ("select", "waits for input"),
    ("locks", "waits for a file's lock"),
    ("flock", "waits for a file's lock"),
    ("nfs", "waits for a network file system"),
    ("rpc", "waits for a network file system"),
    ("read", "reads a file"),
    ("write", "writes a file"),
)
_CHILD_WAITS = ("waits for a child process", "waits for a message of a child process")
MAX_CHILDREN = 2


def describe_doing(evidence: RankEvidence) -> str:
    """Say in a few words what a rank's main thread does; "" when nothing is known."""
    native = evidence.native
    if native.state == "T":
        return "is stopped (SIGSTOP)"
    if native.state == "t":
        return "is held by a debugger"
    main = find_main(evidence.threads)
    kernel = _from_kernel(evidence)
    if evidence.holds_gil:
        return _describe_gil(main, kernel)
    words = (_from_frames(main.frames) if main else "") or kernel
    if words in _CHILD_WAITS and native.children:
        return f"{words}: {', '.join(native.children[:MAX_CHILDREN])}"
    return words


def _describe_gil(main: ThreadStack | None, kernel: str) -> str:
    what = {"sleeps": "sleep", "computes": "running"}.get(kernel, kernel)
    if main is not None and main.owns_gil:
        return f"holds the GIL in native code ({what or 'running'})"
    return f"did not give the GIL away in time ({what or 'running'})"


def _from_frames(frames: Sequence[Frame]) -> str:
    called, _ = split_at_user(frames)
    for path, function, words in _BY_FRAME:
        if any(f.path.endswith(path) and function in ("", f.function) for f in called):
            return words
    return ""


def _from_kernel(evidence: RankEvidence) -> str:
    native = evidence.native
    if native.state == "R":
        return "computes"
    words = next((words for part, words in _BY_WAIT if part in native.wait), "")
    if native.state == "D":
        return f"is in uninterruptible sleep ({words or native.wait or 'unknown'})"
    return words
