"""The windows of a reference: equal, complete, and exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from reference import store
from reference.windows import ERROR_SIZES_BYTES, LRU_SIZES_BYTES, simulate


def stream(accesses: int) -> NDArray[np.uint64]:
    rng = np.random.default_rng(5)
    near = rng.integers(0, 30, accesses)
    far = rng.integers(0, 700, accesses)
    return np.where(rng.random(accesses) < 0.6, near, far).astype(np.uint64)


def lru_misses(lines: NDArray[np.uint64], size_lines: int) -> NDArray[np.bool_]:
    """Keep a list of the lines, the newest first: an LRU cache as one would explain it."""
    stack: list[int] = []
    missed = np.empty(len(lines), dtype=np.bool_)
    for i, line in enumerate(lines.tolist()):
        missed[i] = line not in stack[:size_lines]
        if line in stack:
            stack.remove(line)
        stack.insert(0, line)
    return missed


def test_misses_of_each_window_are_those_of_a_list(tmp_path: Path) -> None:
    lines = stream(3050)
    pieces = np.split(lines, [1, 7, 1000, 1000, 2900])
    run = simulate(pieces, windows=10, quantum_accesses=100)
    # 31 quanta in at most 10 windows: 4 quanta a window, 2 and a half in the last.
    assert run.accesses.tolist() == [400] * 7 + [250]
    assert run.distinct_lines == len(np.unique(lines))
    for column in range(len(LRU_SIZES_BYTES)):
        missed = lru_misses(lines, LRU_SIZES_BYTES[column] // 64)
        expected = [int(part.sum()) for part in np.split(missed, range(400, 3050, 400))]
        assert run.lru[:, column].tolist() == expected


def test_random_replacement_misses_what_it_must() -> None:
    lines = stream(4000)
    run = simulate([lines], windows=4, quantum_accesses=1000)
    distinct = len(np.unique(lines))
    total = run.random.sum(axis=0)
    fits = np.array(ERROR_SIZES_BYTES) // 64 >= distinct
    assert fits.any()
    assert (total[fits] == distinct).all()
    assert (total[~fits] > distinct).all()
    assert (np.diff(total) <= 0).all()


def test_a_seed_decides_what_random_replacement_does() -> None:
    lines = stream(4000)
    once, again, other = (simulate([lines], seed=seed).random[0, 0] for seed in (1, 1, 2))
    assert once == again != other


@pytest.mark.parametrize("accesses", [1, 99, 100, 101, 1000])
def test_no_access_is_lost_and_no_window_empty(accesses: int) -> None:
    run = simulate([stream(accesses)], windows=3, quantum_accesses=100)
    assert run.accesses.sum() == accesses
    assert (run.accesses > 0).all()
    assert len(run.accesses) <= 3


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    run = simulate([stream(2500)], windows=10, quantum_accesses=100)
    store.save_old("example", run, {"command": "a 'b'", "packages": {}}, tmp_path / "example.json")
    kept = store.load(tmp_path / "example.json")
    assert kept.name == "example"
    assert kept.made == {"command": "a 'b'", "packages": {}}
    assert kept.total_accesses == 2500
    assert kept.distinct_lines == run.distinct_lines
    for name in ("accesses", "lru", "random"):
        assert np.array_equal(getattr(kept, name), getattr(run, name))


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="make it again"):
        store.load(tmp_path / "old.json")
