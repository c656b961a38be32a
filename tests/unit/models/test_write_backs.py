"""The estimate of write-backs, and the exact simulation that it is judged by."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracing_rows import invented, write_trace

from memsampd.models.write_backs import most_written_back, written_back
from write_backs import ExactTraffic, constant_error, exact_traffic, main, missed_means


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


def traffic(written_back_share: float, write_share: float) -> ExactTraffic:
    """Of a cache that misses a tenth."""
    return ExactTraffic(0.1, 0.1 * written_back_share, write_share)


def test_an_estimate_is_to_know_more_than_a_constant() -> None:
    shares = (0.1, 0.3, 0.4)
    same = [traffic(each, 0.3) for each in shares]
    assert constant_error(same) == pytest.approx((1.3 / 1.1 - 1 + 1 - 1.3 / 1.4) / 3)
    assert missed_means(same) == ["8.4% off on average, goal 7.6%"]  # it is such a constant itself
    assert missed_means([traffic(each, each) for each in shares]) == []
    wrong = [traffic(each, 1 - each) for each in (0.0, 1.0)]
    assert missed_means(wrong) == ["75.0% off on average", "75.0% off on average, goal 22.5%"]
    assert missed_means([]) == []


def test_traces_of_one_name_are_all_judged(tmp_path: Path) -> None:
    paths = [tmp_path / folder / "x" for folder in ("one", "other")]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        write_trace(path, [[invented(50, seed)]])
    main([*map(str, paths), "--json", str(tmp_path / "told")])
    assert list(json.loads((tmp_path / "told").read_text())["traces"]) == [*map(str, paths)]
