from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.exporters.trace.distinct import DistinctCounter


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=30), max_size=6))
def test_few_are_counted_exactly(parts: list[list[int]]) -> None:
    counter = DistinctCounter(kept=200)
    for part in parts:
        counter.add(np.array(part, np.uint64))
    assert counter.is_exact
    assert counter.count == len({number for part in parts for number in part})


@pytest.mark.parametrize("stride", [1, 64, 4096])
def test_many_are_estimated(stride: int) -> None:
    counter = DistinctCounter(kept=4096)
    numbers = np.arange(300_000, dtype=np.uint64) * np.uint64(stride)
    for part in np.array_split(np.concatenate([numbers, numbers[::-1]]), 20):
        counter.add(part)
    assert not counter.is_exact
    assert str(counter).startswith("~")
    # The standard error is 1 / sqrt(4096) = 1.6 percent; these inputs are fixed.
    assert counter.count == pytest.approx(300_000, rel=0.05)
    assert len(counter._hashes) == 4096
