"""Waiting in tests, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# For machines that are busy with other things; nothing is asserted on it.
PATIENCE_SECONDS = 500.0


def wait_for(is_so: Callable[[], object], what: str | Callable[[], str] = "") -> Any:
    """Wait until something holds; what it said.

    Args:
        is_so: says whether it does.
        what: is told if it never comes.

    Raises:
        TimeoutError: it never came.
    """
    give_up, pause = time.monotonic() + PATIENCE_SECONDS, 0.001
    while not (said := is_so()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"it never came: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)  # what comes soon is seen soon
    return said
