"""The estimate of write-backs, and the exact simulation that it is judged by."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd.models.write_backs import most_written_back, written_back
from write_backs import exact_traffic


def simulated(accesses: list[tuple[int, bool]], size_lines: int) -> tuple[int, int]:
    """Lines fetched and written back by an LRU cache, access by access."""
    cache: OrderedDict[int, bool] = OrderedDict()
    fetched = written = 0
    for line, is_store in accesses:
        if line not in cache:
            fetched += 1
            if len(cache) == size_lines:
                written += cache.popitem(last=False)[1]
        cache[line] = cache.pop(line, False) or is_store
    return fetched, written + sum(cache.values())


@given(
    st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=200),
    st.integers(1, 14),
)
def test_the_exact_simulation_is_exact(accesses: list[tuple[int, bool]], size: int) -> None:
    lines = np.array([line for line, _ in accesses], np.uint64)
    stores = np.array([is_store for _, is_store in accesses])
    (exact,) = exact_traffic(lines, stores, [size])
    fetched, written = simulated(accesses, size)
    assert (exact.fetched, exact.written_back) == pytest.approx(
        (fetched / len(accesses), written / len(accesses))
    )
    assert exact.written_back <= most_written_back(exact.fetched, exact.write_share) + 1e-12


@pytest.mark.parametrize("stored", [0, 1, 3, 4])
def test_lines_that_are_read_or_written_and_stay_alike(stored: int) -> None:
    lines = np.tile(np.arange(4096), 4).astype(np.uint64)
    stores = lines % 4 < stored
    (exact,) = exact_traffic(lines, stores, [256])
    assert written_back(exact.fetched, exact.write_share) == pytest.approx(exact.written_back)
