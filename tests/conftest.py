"""What all tests start from, however they were started."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# An example may take as long as a busy machine lets it.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure() -> None:
    """Programs under test get Ctrl-C, even if a script has put us into the background.

    A shell without job control has what it starts with ``&`` ignore it, and what we start would
    inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
