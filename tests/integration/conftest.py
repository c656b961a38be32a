"""What all tests here need: that memsampd may observe."""

from __future__ import annotations

import pytest
from commands import memsampd
from needed import lacking
from tracees import running


@pytest.fixture(scope="session", autouse=True)
def may_observe() -> None:
    """A busy child is observed, for a moment; else all tests would fail, each in its own words."""
    with running("sh", "-c", "while :; do :; done") as process:
        options = ("--accesses", "bursts", "--duration", "0.1", "--no-listen")
        done = memsampd("attach", process.pid, *options)
    if done.returncode:
        lacking(f"memsampd may observe nobody here: {done.stderr.strip()}")
