import os

from puffrun.hands.recorded_errors import empty_fifo


def test_a_wake_up_that_was_taken_already_is_no_trouble() -> None:
    """Whoever waits for a record takes it, in the same round in which the loop was to."""
    reader, writer = os.pipe2(os.O_NONBLOCK)
    try:
        os.write(writer, b"error 1\n")
        empty_fifo(reader)
        empty_fifo(reader)
    finally:
        os.close(reader)
        os.close(writer)
