"""From windows and counted bursts to their records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from memsampd.daemon.learners import Learners
from memsampd.daemon.tracer import CountedBurst
from memsampd.daemon.waiting import WaitingBurst
from memsampd.estimate.estimator import Estimator
from memsampd.estimate.events import BurstRecord, WindowRecord, code_bytes
from memsampd.phases.records import Window
from memsampd.sampler.process.mapped import MemoryUse
from memsampd.sampler.rates import Stretch
from memsampd.sampler.records import Spacing


def window_record(
    window: Window,
    phase: int,
    predicted: int | None,
    *,
    learners: Learners,
    since_start: Callable[[float], float],
    sampled_share: float,
    memory: MemoryUse | None,
) -> WindowRecord:
    """Make the record of a window; its pace is learned.

    Args:
        window: that has ended.
        phase: it belongs to.
        predicted: the phase that was expected.
        learners: know its rates and where its data lay.
        since_start: makes seconds since the attach of CLOCK_MONOTONIC times.
        sampled_share: of the time, in which samples were taken.
        memory: what the target has, and was given in the window.
    """
    start, end = window.start_seconds, window.end_seconds
    rates = learners.clock.rates(start, end)
    spacing = learners.spacing.between(start, end)
    learners.paces.add_window(rates, window.samples, phase, spacing)
    return WindowRecord(
        index=window.index,
        start_seconds=since_start(start),
        end_seconds=since_start(end),
        cpu_seconds=window.cpu_seconds,
        phase=phase,
        samples=window.samples,
        sampled_share=sampled_share,
        lost=window.lost,
        throttled=window.throttled,
        predicted_phase=predicted,
        code=code_bytes(window.code),
        rates=rates,
        spacing=spacing,
        speed=learners.clock.speed(start, end),
        memory=memory,
    )


def burst_record(
    waiting: WaitingBurst,
    window: int,
    phase: int,
    *,
    since_start: Callable[[float], float],
    now_seconds: float,
    spacing: Spacing | None,
) -> BurstRecord:
    """Make the record of a burst, not timed yet.

    Args:
        waiting: the burst.
        window: the window of its moment.
        phase: that window's.
        since_start: makes seconds since the attach of CLOCK_MONOTONIC times.
        now_seconds: CLOCK_MONOTONIC.
        spacing: how far apart data lay about its moment.
    """
    counted, burst = waiting.counted, waiting.counted.burst
    return BurstRecord.of(
        burst,
        counted.histogram,
        writes=burst.writes,
        window=window,
        phase=phase,
        time_seconds=since_start(burst.time_seconds),
        analysed_seconds=since_start(now_seconds),
        code=code_bytes(waiting.code) if len(counted.code_ips) else b"",
        spacing=spacing,
    )


def timed(
    record: BurstRecord, counted: CountedBurst, estimator: Estimator, learners: Learners
) -> BurstRecord:
    """The record, with the time that the samples about the burst tell, if they do.

    Args:
        record: of the burst.
        counted: the burst.
        estimator: tells which rates are possible.
        learners: their clock knows the samples, and their paces learn what it finds.
    """
    burst = counted.burst
    if not record.accesses:
        return record
    stretch = Stretch(
        burst.time_seconds,
        burst.tid,
        record.accesses * np.array(burst.stretch_shares[: len(burst.stretch)]),
        burst.stretch,
        burst.stretch_ip[: len(burst.stretch)],
        counted.code_ip,
        estimator.possible_rates(record),
        estimator.modelled_rate(record),
    )
    found = learners.clock.measure(stretch, counted.close_samples)
    if found is None:
        return record
    time, code = found
    learners.paces.add(code, time.accesses_per_cpu_second)
    return replace(record, timed=time, timed_code=code)
