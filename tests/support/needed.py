"""What tests need of a machine: they are skipped without it, or fail in continuous integration."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

from memsampd.sampler.perf.ticks import Ticks, try_ticks

TRIALS = 20


def lacking(message: str) -> NoReturn:
    """Skip the test, or let it fail in continuous integration, for what is not to be had here."""
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def kernel_ticks() -> Ticks:
    """What a trial of the kernel's ticks found, to be closed; on a busy machine some find none."""
    for _ in range(TRIALS):
        found = try_ticks()
        if found.event is not None:
            return found
        if "none of" not in found.why_not:  # they are refused
            break
    lacking(found.why_not)


def tool(name: str, package: str) -> str:
    """Path of a program of a Debian package."""
    path = shutil.which(name)
    if path is None:
        lacking(f"{name} is not installed (Debian package: {package})")
    return path
