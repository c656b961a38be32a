"""What all tests start from, however they were started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Programs under test get Ctrl-C, even if a script has put us into the background.

    A shell without job control has what it starts with ``&`` ignore it, and what we start would
    inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
