"""Signals by name, as people know them."""

import signal


def signal_name(signum: int) -> str:
    """Name a signal: 15 is `SIGTERM`, 37 is `SIGRTMIN+3`, an unknown one `signal 99`."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        pass
    if signal.SIGRTMIN < signum < signal.SIGRTMAX:
        return f"SIGRTMIN+{signum - signal.SIGRTMIN}"
    return f"signal {signum}"
