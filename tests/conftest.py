"""What all tests start from, however they were started."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from needed import lacking

from memsampd.errors import MemsampdError
from memsampd.sampler.perf.source import TaskClockSource

# An example may take as long as a busy machine lets it.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure() -> None:
    """Programs under test get Ctrl-C, even if a script has put us into the background.

    A shell without job control has what it starts with ``&`` ignore it, and what we start would
    inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    """A command that a test runs in this process leaves nothing for later tests' programs."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before) - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]


@pytest.fixture(scope="session")
def perf_events() -> None:
    """The kernel's events may be opened: filters of containers refuse them, and so may a sysctl."""
    try:
        TaskClockSource(os.getpid()).close()
    except MemsampdError as error:
        lacking(f"no perf event can be opened: {error}")


@pytest.fixture
def never() -> Iterator[int]:
    """A descriptor from which there is never anything to read."""
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Names that are no UTF-8 may be in what was captured; pytest-xdist sends UTF-8 only."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
