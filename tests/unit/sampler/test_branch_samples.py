"""Samples of a process that executes other programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsampd.sampler.records import FEWEST_PROGRAM_SAMPLES, BranchSamples, no_registers

TIMES = st.lists(st.integers(0, 30), max_size=60).map(sorted)
EXECS = st.lists(st.integers(0, 30), max_size=6).map(sorted)


def samples_at(times: Sequence[int], execs: Sequence[float]) -> BranchSamples:
    """Samples whose addresses are their places, some lost, of a process that executes programs."""
    count = len(times)
    return BranchSamples(
        ip=np.arange(count, dtype=np.uint64),
        pid=np.full(count, 1, np.int32),
        tid=np.full(count, 1, np.int32),
        time_seconds=np.array(times, np.float64),
        period_seconds=0.001,
        registers=no_registers(),
        lost=3,
        throttled=2,
        exec_seconds=tuple(map(float, execs)),
    )


@given(times=TIMES, execs=EXECS)
def test_each_program_has_the_samples_from_its_exec_on(times: list[int], execs: list[int]) -> None:
    count, samples = len(times), samples_at(times, execs)
    parts = list(samples.programs())
    ends = [*(sum(time < each for time in times) for each in execs), count]
    ran = list(zip(execs, ends, ends[1:], strict=False))
    kept = [each for each in ran[:-1] if each[2] - each[1] >= FEWEST_PROGRAM_SAMPLES] + ran[-1:]
    assert [part.exec_seconds for part in parts] == [(), *((float(each[0]),) for each in kept)]
    assert [part.ip.tolist() for part in parts] == [
        list(range(first, end)) for first, end in ((0, ends[0]), *(each[1:] for each in kept))
    ]
    told = sum(len(part) for part in parts)
    assert [part.lost for part in parts] == [0] * (len(parts) - 1) + [3]
    assert [part.left_out for part in parts] == [0] * (len(parts) - 1) + [count - told]
    assert [part.throttled for part in parts] == [0] * (len(parts) - 1) + [2]


def test_a_process_that_executes_all_the_time_is_two_programs_a_read() -> None:
    samples = samples_at(range(100), np.arange(10.5, 100, 2).tolist())
    before, now = samples.programs()
    assert (len(before), before.exec_seconds, before.left_out) == (11, (), 0)
    assert (len(now), now.exec_seconds, now.left_out) == (1, (98.5,), 88)
