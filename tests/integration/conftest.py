"""What tests here need: that memsampd may observe, and somebody to observe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import memsampd
from needed import kernel_ticks, lacking
from tracees import BUSY, running

from memsampd.sampler.perf.ticks import Ticks


@pytest.fixture(scope="session", autouse=True)
def may_observe() -> None:
    """A busy child is observed, for a moment; else all tests would fail, each in its own words."""
    with running("sh", "-c", "while :; do :; done") as process:
        options = ("--accesses", "bursts", "--duration", "0.1", "--no-listen")
        done = memsampd("attach", process.pid, *options)
    if done.returncode:
        lacking(f"memsampd may observe nobody here: {done.stderr.strip()}")


@pytest.fixture
def mark(tmp_path: Path) -> str:
    """A word that no other process has in its command line."""
    return f"mark-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def busy(mark: str) -> Iterator[subprocess.Popen[str]]:
    """Works for good, and has the word in its command line."""
    with running(sys.executable, "-c", BUSY, mark) as process:
        yield process


@pytest.fixture(scope="module")
def ticks() -> Iterator[Ticks]:
    """What a trial of the kernel's ticks found."""
    found = kernel_ticks()
    yield found
    found.close()
