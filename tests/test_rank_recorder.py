"""The recorder in real interpreters: it records what ends a rank, and changes nothing else."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import clean_environ, wait_for

from puffrun.hands.session import INJECT_DIR
from puffrun.rundir import RunDir

RANK = 3
LIMIT_S = 60


@dataclass
class Done:
    """How a program ended; `error` is what was recorded, None if nothing was."""

    code: int
    out: str
    err: str
    error: dict | None = None


@dataclass
class Rank:
    """Runs programs as the agent runs a rank; this process stands for the agent."""

    dir: Path
    run_dir: RunDir
    popens: list["subprocess.Popen[str]"] = field(default_factory=list)

    def write(self, name: str, code: str) -> Path:
        path = self.dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    def start(self, *argv: str, plain: bool = False, **env: str) -> "subprocess.Popen[str]":
        """Start python with `argv`; `plain`: without puffrun."""
        users = env.pop("PYTHONPATH", None)
        path = [*([] if plain else [str(INJECT_DIR)]), *([] if users is None else [users])]
        if path:
            env["PYTHONPATH"] = ":".join(path)
        env |= {
            "RANK": str(RANK),
            "PUFFRUN_RUN_DIR": str(self.run_dir.path),
            "PUFFRUN_AGENT_PID": str(os.getpid()),
        }
        popen = subprocess.Popen(
            [sys.executable, *argv],
            cwd=self.dir,
            env=clean_environ() | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
        )
        self.popens.append(popen)
        return popen

    def run(self, *argv: str, plain: bool = False, **env: str) -> Done:
        popen = self.start(*argv, plain=plain, **env)
        out, err = popen.communicate(timeout=LIMIT_S)
        done = Done(popen.returncode, out, err, self.error)
        self.error_path.unlink(missing_ok=True)
        return done

    def run_code(self, code: str, **env: str) -> Done:
        self.write("train.py", code)
        return self.run("train.py", **env)

    @property
    def error_path(self) -> Path:
        return self.run_dir.error_path(RANK)

    @property
    def error(self) -> dict | None:
        return json.loads(self.error_path.read_text()) if self.error_path.exists() else None


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    directory = tmp_path / "project"
    directory.mkdir()
    made = Rank(directory, RunDir.create(tmp_path / "run", tmp_path))
    try:
        yield made
    finally:
        for popen in made.popens:
            popen.kill()
            popen.communicate()


QUIET_CORE = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"

# how a program ends by an exception: (code, type, a part of the message)
ENDINGS = {
    "raise": ("raise ValueError('boom')", "ValueError", "boom"),
    "no message": ("raise ValueError", "ValueError", ""),
    "import": ("import no_such_module_here", "ModuleNotFoundError", "no_such_module_here"),
    "syntax": ("a = = 1", "SyntaxError", "invalid syntax"),
    "recursion": ("def f(): f()\nf()", "RecursionError", "maximum recursion depth"),
    "assert": ("assert 1 == 2, 'unequal'", "AssertionError", "unequal"),
    "system error": ("raise SystemError('x')", "SystemError", "x"),
    "from an error": (
        "try:\n  1/0\nexcept ZeroDivisionError as e:\n  raise OSError('outer') from e",
        "OSError",
        "outer",
    ),
    "group": ("raise ExceptionGroup('many', [ValueError('a')])", "ExceptionGroup", "many (1 sub"),
    "nested class": ("class A:\n  class B(Exception): pass\nraise A.B('b')", "A.B", "b"),
    "bad str": (
        "class E(Exception):\n  def __str__(self): raise OSError\nraise E",
        "E",
        "could not be read: OSError",
    ),
    "odd text": (
        "raise ValueError('früh \\udcff \\x00 \\x1b[31m')",
        "ValueError",
        "früh \udcff \0",
    ),
    "str that exits": (
        "class E(Exception):\n  def __str__(self): raise SystemExit\nraise E",
        "E",
        "could not be read: SystemExit",
    ),
    "handler that raises into the recording": (
        """
        import sys
        first = []
        def handle(event, args):
            if event == "open" and "rank-3.json" in str(args[0]) and not first:
                first.append(1)
                raise RuntimeError("a worker is dead")
        sys.addaudithook(handle)
        raise ValueError("boom")
        """,
        "ValueError",
        "boom",
    ),
    "keyboard": ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
    "sigint": ("import os; os.kill(os.getpid(), 2); input()", "KeyboardInterrupt", ""),
    "base": ("class E(BaseException): pass\nraise E('deep')", "E", "deep"),
    "in finally": (
        "try:\n  raise ValueError(1)\nfinally:\n  raise KeyError('two')",
        "KeyError",
        "two",
    ),
    "runtime error": ("raise RuntimeError('would be swallowed')", "RuntimeError", "swallowed"),
    "own hook": (
        "import sys\nsys.excepthook = lambda *_: print('mine')\nraise ValueError('boom')",
        "ValueError",
        "boom",
    ),
    "own hook that fails": (
        "def hook(*_): 1/0\nimport sys\nsys.excepthook = hook\nraise ValueError('a')",
        "ValueError",
        "a",
    ),
    "own hook gone": ("import sys\ndel sys.excepthook\nraise ValueError('b')", "ValueError", "b"),
    "atexit": (
        "import atexit\natexit.register(print, 'bye')\nraise ValueError('c')",
        "ValueError",
        "c",
    ),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_what_ends_a_rank_is_recorded_and_nothing_looks_different(rank: Rank, name: str) -> None:
    code, kind, message = ENDINGS[name]
    path = rank.write("train.py", code)
    plain = rank.run("train.py", plain=True)
    done = rank.run("train.py")
    assert (done.code, done.out, done.err) == (plain.code, plain.out, plain.err)
    assert plain.error is None
    error = done.error
    assert error is not None
    assert (error["rank"], error["type"]) == (RANK, kind)
    assert error["pid"] == rank.popens[-1].pid
    assert message in error["message"]
    if "hook" not in name:
        assert error["traceback"].encode("utf-8", "backslashreplace").decode() in done.err
    if kind != "SyntaxError":
        assert error["frames"][0]["path"] == str(path)
        assert error["frames"][0]["line"] >= 1


# how a program goes on, or ends without an exception: nothing may be recorded
NO_ENDINGS = {
    "ends": "print('done')",
    "exits": "import sys; sys.exit(3)",
    "exits with text": "import sys; sys.exit('cannot go on')",
    "raises SystemExit": "raise SystemExit(4)",
    "exits hard": "import os; os._exit(5)",
    "segfaults": QUIET_CORE + "import ctypes; ctypes.string_at(0)",
    "is killed": "import os; os.kill(os.getpid(), 9)",
    "catches": "try:\n  raise ValueError\nexcept ValueError: pass",
    "prints a traceback": "import traceback\ntry:\n  1/0\nexcept Exception: traceback.print_exc()",
    "calls the hook": "import sys\ntry:\n  1/0\nexcept Exception: sys.excepthook(*sys.exc_info())",
    "a thread raises": """
        import threading
        thread = threading.Thread(target=lambda: 1/0)
        thread.start(); thread.join()
    """,
    "a bare thread raises": """
        import _thread, threading
        began = threading.Event()
        def fail(): began.set(); 1/0
        _thread.start_new_thread(fail, ())
        began.wait()
        while _thread._count(): threading.Event().wait(0.01)
    """,
    "code in a native thread raises": """
        import ctypes, _thread, threading
        began = threading.Event()
        _thread.start_new_thread(ctypes.pythonapi.PyRun_SimpleString, (b"began.set(); 1/0",))
        began.wait()
        while _thread._count(): threading.Event().wait(0.01)
    """,
    "code in C raises": """
        import ctypes
        ctypes.pythonapi.PyRun_SimpleString(b"1/0")
        print("goes on")
    """,
    "a callback raises": """
        import ctypes
        ctypes.CFUNCTYPE(None)(lambda: 1/0)()
    """,
    "an exit handler raises": "import atexit; atexit.register(lambda: 1/0)",
    "a destructor raises": "class A:\n  def __del__(self): 1/0\nA()",
    "a fork raises": """
        import os, sys
        if os.fork() == 0: raise ValueError("in the fork")
        os.wait()
    """,
    "a child interpreter raises": """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "raise ValueError('in the child')"])
    """,
    "a forked process raises": """
        import multiprocessing as mp
        def work(): raise ValueError("in the worker")
        p = mp.get_context("fork").Process(target=work); p.start(); p.join(); print(p.exitcode)
    """,
    "a spawned process raises": """
        import multiprocessing as mp
        def work(): raise ValueError("in the worker")
        if __name__ == "__main__":
            p = mp.get_context("spawn").Process(target=work); p.start(); p.join(); print(p.exitcode)
    """,
    "a forkserver's process raises": """
        import multiprocessing as mp
        def work(): raise ValueError("in the worker")
        if __name__ == "__main__":
            p = mp.get_context("forkserver").Process(target=work); p.start(); p.join()
            print(p.exitcode)
    """,
    "a pool's task raises": """
        from concurrent.futures import ProcessPoolExecutor
        def work(): raise ValueError("in the pool")
        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as pool: print(type(pool.submit(work).exception()))
    """,
    "asyncio's task raises": """
        import asyncio
        async def die(): 1/0
        async def main(): print(await asyncio.gather(die(), return_exceptions=True))
        asyncio.run(main())
    """,
}


def without_addresses(text: str) -> list[str]:
    """What differs between any two runs: addresses, process and thread numbers, timing."""
    return re.sub(r"0x[0-9a-f]+|Process-\d+|Thread-\d+|\b\d{4,}\b", "N", text).splitlines()


@pytest.mark.parametrize("name", NO_ENDINGS)
def test_what_does_not_end_a_rank_is_not_recorded(rank: Rank, name: str) -> None:
    rank.write("train.py", NO_ENDINGS[name])
    plain = rank.run("train.py", plain=True)
    done = rank.run("train.py")
    assert done.error is None
    assert (done.code, without_addresses(done.out)) == (plain.code, without_addresses(plain.out))
    assert without_addresses(done.err) == without_addresses(plain.err)


def test_a_module_is_recorded_too(rank: Rank) -> None:
    rank.write("pack/__init__.py", "")
    rank.write("pack/train.py", "def main(): raise ValueError('in a module')\nmain()")
    done = rank.run("-m", "pack.train")
    assert done.code == 1
    assert done.error is not None
    assert done.error["message"] == "in a module"
    assert done.error["frames"][-1]["function"] == "main"
    assert done.error["frames"][-1]["code"] == "def main(): raise ValueError('in a module')"


@pytest.mark.parametrize(
    "linger",
    [
        "import threading; threading.Thread(target=threading.Event().wait).start()",
        "import atexit, threading; atexit.register(threading.Event().wait)",
        "import threading, sys; sys.excepthook = lambda *_: threading.Event().wait()",
    ],
    ids=["a thread", "an exit handler", "a hook"],
)
def test_it_is_recorded_and_told_at_once_though_the_rank_lingers(rank: Rank, linger: str) -> None:
    os.mkfifo(rank.run_dir.wake_path)
    wake = os.open(rank.run_dir.wake_path, os.O_RDWR | os.O_NONBLOCK)
    try:
        rank.write("train.py", linger + "\nraise ValueError('boom')")
        popen = rank.start("train.py")
        error = wait_for(lambda: rank.error, "the record")
        assert error["message"] == "boom"
        told = wait_for(lambda: readable(wake) and os.read(wake, 99), "the wake-up")
        assert told == b"error %d\n" % RANK
        assert popen.poll() is None
    finally:
        os.close(wake)


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_a_pipe_that_nobody_reads_does_not_keep_the_rank(rank: Rank) -> None:
    os.mkfifo(rank.run_dir.wake_path)
    assert rank.run_code("raise ValueError").error is not None


def fill(fd: int) -> None:
    while select.select([], [fd], [], 0)[1]:
        os.write(fd, b"x" * 4096)


def test_a_full_pipe_does_not_keep_the_rank(rank: Rank) -> None:
    os.mkfifo(rank.run_dir.wake_path)
    wake = os.open(rank.run_dir.wake_path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fill(wake)
        assert rank.run_code("raise ValueError").error is not None
    finally:
        os.close(wake)


def test_a_long_message_and_a_long_traceback_are_cut(rank: Rank) -> None:
    deep = "def f(n):\n  if n == 0: raise ValueError('x' * 1_000_000)\n  f(n - 1)\nf(400)"
    error = rank.run_code(deep).error
    assert error is not None
    assert len(error["message"]) == 20_000
    assert len(error["frames"]) == 100
    assert error["frames"][-1]["line"] == 2, "the innermost frames are what is kept"


CHAINED = """
def load():
    raise ZeroDivisionError("root")
try:
    try:
        load()
    except ZeroDivisionError as error:
        raise OSError("middle") from error
except OSError:
    raise ExceptionGroup("top", [ValueError("a"), KeyError("b")])
"""


def test_what_lies_behind_an_exception_is_recorded_too(rank: Rank) -> None:
    error = rank.run_code(CHAINED).error
    assert error is not None
    assert [(r["relation"], r["type"], r["message"]) for r in error["related"]] == [
        ("member", "ValueError", "a"),
        ("member", "KeyError", "'b'"),
        ("context", "OSError", "middle"),
        ("cause", "ZeroDivisionError", "root"),
    ]
    assert error["related"][-1]["frames"][-1]["function"] == "load"


@pytest.mark.parametrize(
    "code",
    [
        "try: 1/0\nexcept ZeroDivisionError: raise ValueError from None",
        "a = ValueError(1)\na.__cause__ = KeyError(2)\na.__cause__.__cause__ = a\nraise a",
    ],
    ids=["hidden", "circular"],
)
def test_a_chain_is_followed_as_python_shows_it(rank: Rank, code: str) -> None:
    error = rank.run_code(code).error
    assert error is not None
    assert [r["type"] for r in error["related"]] == (["KeyError"] if "KeyError" in code else [])


# in the program's way: never


@pytest.mark.parametrize("name", ["json", "traceback", "time", "linecache", "importlib", "string"])
def test_a_program_may_have_a_module_of_that_name(rank: Rank, name: str) -> None:
    rank.write(f"{name}.py", "raise RuntimeError('not the one you mean')")
    rank.write("train.py", "print('up', flush=True)\nraise ValueError('the true cause')")
    plain = rank.run("train.py", plain=True)
    done = rank.run("train.py")
    assert (done.code, done.out) == (plain.code, plain.out)
    assert "ValueError: the true cause" in done.err
    assert done.error is not None
    assert done.error["message"] == "the true cause"


def test_a_program_that_uses_its_own_json(rank: Rank) -> None:
    rank.write("json.py", "answer = 42")
    done = rank.run_code("import json\nassert json.answer == 42\nraise RuntimeError('the cause')")
    assert "RuntimeError: the cause" in done.err
    assert done.code == 1
    assert done.error is not None
    assert done.error["message"] == "the cause"


def test_a_run_directory_that_is_gone_hides_no_traceback(rank: Rank) -> None:
    done = rank.run_code(
        f"import shutil; shutil.rmtree({str(rank.run_dir.path)!r})\nraise RuntimeError('boom')"
    )
    assert done.code == 1
    assert "RuntimeError: boom" in done.err
    assert "could not record" in done.err


@pytest.mark.parametrize("option", ["-S", "-I", "-E"])
def test_without_site_a_program_runs_all_the_same(rank: Rank, option: str) -> None:
    rank.write("train.py", "print('up')\nraise ValueError")
    done = rank.run(option, "train.py")
    assert (done.code, done.out, done.error) == (1, "up\n", None)


# what the program and its children see

SHOW = """
import json, os, sys
print(json.dumps({"path": sys.path, "PYTHONPATH": os.environ.get("PYTHONPATH"),
                  "site": getattr(sys.modules.get("sitecustomize"), "__file__", None),
                  "user": os.environ.get("USER_SITE")}))
"""


@pytest.mark.parametrize("users", [None, "/opt/mine", "/opt/a:/opt/b", ":/opt/a", "/opt/a:", "."])
def test_path_and_environment_are_as_the_user_set_them(rank: Rank, users: str | None) -> None:
    env = {} if users is None else {"PYTHONPATH": users}
    code = SHOW + "sys.stdout.flush()\nimport subprocess\n"
    code += "subprocess.run([sys.executable, '-c', sys.argv[1]])"
    rank.write("train.py", code)
    plain = rank.run("train.py", SHOW, plain=True, **env)
    done = rank.run("train.py", SHOW, **env)
    mine, theirs = done.out.splitlines(), plain.out.splitlines()
    assert [without_site(line) for line in mine] == [without_site(line) for line in theirs]
    assert mine[1] == theirs[1], "a child of the rank sees nothing of it"


def without_site(line: str) -> dict:
    fields: dict = json.loads(line)
    del fields["site"]
    return fields


def test_the_users_own_sitecustomize_runs_in_ours_place(rank: Rank) -> None:
    rank.write(
        "site/sitecustomize.py",
        "import os\nos.environ['USER_SITE'] = os.environ.get('USER_SITE', '') + 'ran'",
    )
    site_dir = str(rank.dir / "site")
    rank.write("train.py", SHOW + "raise ValueError('boom')")
    done = rank.run("train.py", PYTHONPATH=site_dir)
    shown = json.loads(done.out)
    assert shown["user"] == "ran", "once"
    assert shown["site"] == str(rank.dir / "site" / "sitecustomize.py")
    assert shown["PYTHONPATH"] == site_dir
    assert done.error is not None


@pytest.mark.parametrize("fault", ["import no_such_module_here", "raise ValueError('site')", "1/0"])
def test_a_faulty_sitecustomize_of_the_user_is_told_as_ever(rank: Rank, fault: str) -> None:
    rank.write("site/sitecustomize.py", fault)
    rank.write("train.py", "print('up')\nraise ValueError('boom')")
    env = {"PYTHONPATH": str(rank.dir / "site")}
    plain = rank.run("train.py", plain=True, **env)
    done = rank.run("train.py", **env)
    assert (done.code, done.out) == (plain.code, plain.out)
    assert done.err == plain.err
    assert done.error is not None


def test_a_stranger_with_our_environment_is_no_rank(rank: Rank) -> None:
    """RANK and its kin are inherited by all that a rank starts, and by debug shells."""
    code = """
        import os, subprocess, sys
        os.environ["PYTHONPATH"] = sys.argv[1]
        subprocess.run([sys.executable, "-c", "raise ValueError"])
    """
    rank.write("train.py", code)
    assert rank.run("train.py", str(INJECT_DIR)).error is None


def test_a_crash_in_native_code_leaves_the_python_stack_in_its_file(rank: Rank) -> None:
    code = "import ctypes\ndef deep(): ctypes.string_at(0)\ndeep()"
    done = rank.run_code(QUIET_CORE + code)
    assert done.code == -signal.SIGSEGV
    assert done.err == ""
    crash = rank.run_dir.path / "ranks" / f"rank-{RANK}.crash"
    assert "in deep" in crash.read_text()
