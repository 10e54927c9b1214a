"""The agent's side of the zygote, against a zygote that is gone."""

import os
import socket

import pytest

from puffrun.agent.link import Link
from puffrun.agent.zygote import Zygote


@pytest.mark.parametrize("request_unread", [False, True])
def test_a_zygote_that_is_killed_ends_the_agent_and_the_launcher_hears_why(
    request_unread: bool,  # noqa: FBT001
) -> None:
    launcher, link_end = socket.socketpair()
    ours, theirs = socket.socketpair()
    if request_unread:  # then the stream ends with ECONNRESET instead of end-of-file
        ours.sendall(b"{}\n")
    theirs.close()
    pid = os.fork()
    if pid == 0:
        try:
            Zygote(1, ours, Link(link_end), [])._listen()
        finally:
            os._exit(9)  # what _listen never comes to
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    launcher.settimeout(10)
    assert b"was killed" in launcher.recv(4096)
    for end in (launcher, link_end, ours):
        end.close()
