"""`agree` and `barrier`: the same answer on every rank, or the same error."""

from collections.abc import Iterator
from contextlib import contextmanager

from puffrun.errors import DisagreementError
from puffrun.library.agreement.meeting import DEFAULT_TIMEOUT_S, Meetings, find_meetings

LEAVING = (KeyboardInterrupt, SystemExit, GeneratorExit)


@contextmanager
def agree(name: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[None]:
    """Run the block on every rank; an exception in it on one rank is an error on all.

    Raises:
        DisagreementError: at least one rank raised in the block, is gone, or did not come within
            `timeout_s`. Its text is the same on all ranks; where a rank raised, it is chained.
    """
    meetings = find_meetings(timeout_s)
    if meetings is None:
        yield
        return
    topic = f"agree `{name}`"
    with sharing_errors(meetings, topic, timeout_s):
        yield
    meetings.meet(topic, timeout_s=timeout_s)


@contextmanager
def sharing_errors(meetings: Meetings, topic: str, timeout_s: float) -> Iterator[None]:
    """Bring an exception of the block to the meeting `topic`; without one, do nothing yet.

    A rank that is about to end (SystemExit, KeyboardInterrupt) says so and does not wait. A
    DisagreementError has reached all ranks already.
    """
    try:
        yield
    except DisagreementError:
        raise
    except LEAVING as error:
        meetings.leave(topic, error)
        raise
    except BaseException as error:  # noqa: BLE001  # also DCP's CheckpointException, no Exception
        meetings.meet(topic, error=error, timeout_s=timeout_s)


def barrier(name: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
    """Wait until every rank is at the barrier of this name.

    Raises:
        DisagreementError: a rank is at another call, is gone, or did not come within `timeout_s`
            seconds; says who, and where it is.
    """
    meetings = find_meetings(timeout_s)
    if meetings is not None:
        meetings.meet(f"barrier `{name}`", timeout_s=timeout_s)
