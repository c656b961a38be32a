"""Branches by names that outlive their process, in the order in which reads tell what happened."""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any

import numpy as np
import pytest
from tracees import BUSY, running

from memsampd.daemon.branches import MappedBranches, named_branches
from memsampd.sampler.perf.rings import SAMPLE_DTYPE, TaskEvent
from memsampd.sampler.perf.source import TaskClockSource, branch_samples
from memsampd.sampler.records import BranchSamples

NONE = branch_samples(np.empty(0, SAMPLE_DTYPE), 2e-3)


class Told:
    """A branch source that tells what it is told to, a read after the other."""

    name, period_seconds, notes, ended = "told", 2e-3, (), False

    def __init__(self, reads: list[tuple[BranchSamples, tuple[TaskEvent, ...]]]) -> None:
        self._reads = deque(reads)
        self._events: tuple[TaskEvent, ...] = ()

    def read(self, timeout_seconds: float) -> BranchSamples:
        samples, self._events = self._reads.popleft()
        return samples

    def take_events(self) -> tuple[TaskEvent, ...]:
        events, self._events = self._events, ()
        return events


@pytest.mark.usefixtures("perf_events")
def test_the_last_samples_of_a_child_have_the_names_of_its_code() -> None:
    maps = named_branches(os.getpid())
    with running(sys.executable, "-c", BUSY) as child:
        with TaskClockSource(child.pid) as source:
            while len(samples := source.read(0.1)) < 5:
                pass
        names = maps.lookup(child.pid, samples.ip)
    pid = child.pid
    end = TaskEvent("exit", pid, pid, os.getpid(), 1.0, "")
    # The end comes with samples of before; those that are younger than a read wait for the next.
    told: Any = Told([(samples, (end,)), (samples, ()), (NONE, ())])
    branches = MappedBranches(os.getpid(), told, maps)
    for _ in range(2):
        branches.read(0.0)
        assert np.array_equal(maps.lookup(pid, samples.ip), names)
    branches.read(0.0)
    assert not np.array_equal(maps.lookup(pid, samples.ip), names)  # it was forgotten
