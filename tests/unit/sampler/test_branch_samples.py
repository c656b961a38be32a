"""Samples of a process that executes other programs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsampd.sampler.records import BranchSamples, no_registers

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
