"""Asking a rank over its unix socket, with a deadline. Nothing is asked that disturbs it."""

import os
import socket
import time
from pathlib import Path

MAX_ANSWER_BYTES = 1 << 26


class NoAnswerError(Exception):
    """The rank could not be asked, or did not answer in time; the text says which."""


def ask(socket_path: Path, handler: str, timeout_s: float) -> str:
    """Ask torch's worker server; return the answer's text.

    Raises:
        NoAnswerError: nobody listens, or the deadline passed.
    """
    deadline = time.monotonic() + timeout_s
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nConnection: close\r\n"
    try:
        with _connect(socket_path, deadline) as connection:
            connection.sendall(f"{request}Content-Length: 0\r\n\r\n".encode())
            answer = _read_all(connection, deadline)
    except TimeoutError:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise NoAnswerError(error.strerror or str(error)) from None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise NoAnswerError(f"it answered {head[:60].decode('latin-1')!r}")
    return body.decode("utf-8", "replace")


def _connect(path: Path, deadline: float) -> socket.socket:
    """Connect by a short path through /proc: a socket's path holds 107 bytes at most."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection


def _read_all(connection: socket.socket, deadline: float) -> bytes:
    answer = bytearray()
    while len(answer) < MAX_ANSWER_BYTES:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = connection.recv(1 << 18)
        if not chunk:
            break
        answer += chunk
    return bytes(answer)
