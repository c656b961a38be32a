"""Samples of a process that executes other programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from memsampd.sampler.records import BranchSamples, Counted, no_registers

TIMES = st.lists(st.integers(0, 30), max_size=12).map(sorted)


@given(times=TIMES, execs=TIMES)
def test_each_program_has_the_samples_from_its_exec_on(times: list[int], execs: list[int]) -> None:
    count = len(times)
    samples = BranchSamples(
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
    parts = list(samples.programs())
    assert [part.exec_seconds for part in parts] == [(), *((float(each),) for each in execs)]
    assert np.concatenate([part.ip for part in parts]).tolist() == list(range(count))
    for index, part in enumerate(parts):
        begins = execs[index - 1] if index else -1
        ends = execs[index] if index < len(execs) else 31
        assert all(begins <= each < ends for each in part.time_seconds)
    assert [part.lost for part in parts] == [0] * len(execs) + [3]
    assert [part.throttled for part in parts] == [0] * len(execs) + [2]


@given(count=st.integers(0, 20), part=st.floats(0, 1), is_timed=st.booleans())
def test_two_reads_are_as_one(count: int, part: float, is_timed: bool) -> None:
    numbers = np.arange(count, dtype=np.float64)
    both = BranchSamples(
        ip=np.arange(count, dtype=np.uint64),
        pid=np.full(count, 1, np.int32),
        tid=np.arange(count, dtype=np.int32),
        time_seconds=numbers,
        period_seconds=0.001,
        registers=np.arange(16 * count, dtype=np.uint64).reshape(-1, 16),
        lost=5,
        throttled=3,
        exec_seconds=(1.0, 2.0),
        cpu_seconds=numbers if is_timed else None,
        counted=Counted(*(numbers + at for at in range(4))) if is_timed else None,
        weight=2.0,
    )
    at = round(part * count)
    first = replace(both.part(0, at), lost=2, throttled=3, exec_seconds=(1.0,))
    second = replace(both.part(at, count), lost=3, exec_seconds=(2.0,))
    again = first.followed_by(second)
    for told, expected in zip(flat(again), flat(both), strict=True):
        np.testing.assert_array_equal(told, expected)


def flat(samples: BranchSamples) -> list[Any]:
    """All fields, those of what was counted by themselves."""
    counted = () if samples.counted is None else astuple(samples.counted)
    return [*astuple(replace(samples, counted=None)), *counted]
