"""Samples in quick succession: of a thread that runs, with its bursts, and without a trace."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import compile_c, descriptors, result_of, running, sleeping, tracer_of, traces_left
from waiting import PATIENCE_SECONDS

from memsampd.daemon.tracer import CaptureOrder, CaptureResult, TracerThread
from memsampd.sampler.perf.closely import SAMPLES, CloseSampler
from memsampd.sampler.records import BranchSamples

SAMPLE_SECONDS = 2e-5

# Counts in a register, without an end; what it reads is in a page.
COUNTER = """
#include <stdint.h>
#include <stdio.h>
int main(void)
{
    static volatile uint64_t word[64];
    printf("ready\\n");
    fflush(stdout);
    for (uint64_t i = 0; i < UINT64_MAX; i++)
        (void)word[i % 64];
    return 0;
}
"""


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with running(compile_c(tmp_path, COUNTER)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def sampler(never: int) -> Iterator[CloseSampler]:
    with closing(CloseSampler(never)) as sampler:
        yield sampler


def sampled(sampler: CloseSampler, tid: int) -> BranchSamples:
    """As many as it takes, on a busy machine, until there are two."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        samples = sampler.sample(tid)
        assert samples is not None
        if len(samples) > 1:
            return samples
        assert time.monotonic() < give_up


def test_a_register_goes_on_from_sample_to_sample(
    counter: subprocess.Popen[str], never: int
) -> None:
    before = descriptors()
    with closing(CloseSampler(never)) as sampler:
        samples = sampled(sampler, counter.pid)
    assert set(samples.tid.tolist()) == {counter.pid}
    assert (np.diff(samples.time_seconds) > 0).all()
    assert len(samples) <= SAMPLES + 1  # one of the last time may come late
    values = samples.registers.view(np.int64)
    # It stands still where the host takes the CPU away between two ticks.
    goes_on = (np.diff(values, axis=0) >= 0).all(axis=0) & (values[-1] > values[0])
    assert goes_on.any()
    assert descriptors() == before
    assert traces_left(counter.pid) == []


def test_samples_are_of_the_time_in_which_they_were_asked_for(
    counter: subprocess.Popen[str], sampler: CloseSampler
) -> None:
    last = sampled(sampler, counter.pid).time_seconds[-1]
    for _ in range(4):
        asked = time.monotonic()
        assert asked > last
        samples = sampled(sampler, counter.pid)
        assert len(samples) <= SAMPLES + 1
        assert samples.time_seconds[0] >= asked
        last = samples.time_seconds[-1]


def test_one_thread_after_another(
    counter: subprocess.Popen[str], sampler: CloseSampler, tmp_path: Path
) -> None:
    with running(compile_c(tmp_path, COUNTER)) as other:
        for process in (counter, other, counter):
            samples = sampled(sampler, process.pid)
            assert set(samples.tid.tolist()) == {process.pid}


def test_a_thread_that_sleeps_is_left_alone(sampler: CloseSampler) -> None:
    with sleeping() as process:
        for _ in range(2):
            samples = sampler.sample(process.pid)
            assert samples is not None
            assert len(samples) == 0
    assert sampler.sample(process.pid) is None  # it has ended


def test_it_ends_at_once_when_it_is_cancelled(counter: subprocess.Popen[str]) -> None:
    fd = os.eventfd(1)
    try:
        with closing(CloseSampler(fd)) as sampler:
            assert sampler.sample(counter.pid) is not None
    finally:
        os.close(fd)


def taken(tracer: TracerThread, order: CaptureOrder) -> CaptureResult:
    """What comes of it, at last: a hold of a busy machine may see nothing."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        tracer.order(order)
        result = result_of(tracer)
        if result.counted is not None:
            return result
        assert time.monotonic() < give_up


def test_a_burst_brings_them_along_and_is_charged_for_them(
    counter: subprocess.Popen[str],
) -> None:
    order = CaptureOrder({counter.pid: 1}, 0.0, 10_000, 0.05, patience_seconds=10.0)
    with tracer_of(counter) as tracer:
        without = taken(tracer, order)
        assert without.counted is not None
        assert without.counted.close_samples is None
        assert without.cost.hit_seconds == 0.0
        told = taken(tracer, replace(order, sample_seconds=SAMPLE_SECONDS))
    assert told.counted is not None
    samples = told.counted.close_samples
    assert samples is not None
    assert told.cost.hit_seconds == pytest.approx(len(samples) * SAMPLE_SECONDS)
    assert counter.poll() is None


def open_events() -> int:
    """Perf events that this process has."""
    found = 0
    for fd in descriptors():
        with suppress(FileNotFoundError):  # by which they were looked for
            found += "perf_event" in os.readlink(f"/proc/self/fd/{fd}")
    return found


def take_until_one_more_is_open(tracer: TracerThread, order: CaptureOrder, before: int) -> None:
    """It stays open when a thread had the CPU for as long as it was sampled."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while open_events() == before:
        assert time.monotonic() < give_up
        taken(tracer, order)


def is_sampled(tracer: TracerThread, order: CaptureOrder) -> bool:
    """Take a burst; whether its thread was sampled before: not after many with few moments."""
    counted = taken(tracer, order).counted
    assert counted is not None
    return counted.close_samples is not None


def test_no_event_stays_open_where_it_is_dear_or_of_no_use(
    counter: subprocess.Popen[str],
) -> None:
    order = CaptureOrder({counter.pid: 1}, 0.0, 10_000, 0.05, patience_seconds=10.0)
    closely, before = replace(order, sample_seconds=SAMPLE_SECONDS), open_events()
    with tracer_of(counter) as tracer:
        while not is_sampled(tracer, replace(closely, is_thinned=True)):
            pass
        assert open_events() == before
        take_until_one_more_is_open(tracer, closely, before)
        taken(tracer, order)
        assert open_events() == before
        take_until_one_more_is_open(tracer, closely, before)
        # There is no such code.
        tracer.order(replace(closely, seek_ips=(0x1000,), seek_seconds=0.05))
        assert result_of(tracer).error is not None
        assert open_events() == before
        take_until_one_more_is_open(tracer, closely, before)
        # Of bursts that do not go on behind their ends, registers are known at few moments.
        while is_sampled(tracer, closely):
            pass
        assert open_events() == before
