"""Work in a thread of its own: what that changes about its thread leaves the tests' as it is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def in_a_thread(work: Callable[[], Result]) -> Result:
    """Do something in a new thread, which ends with it; returns or raises what it does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
