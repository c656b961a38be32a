"""The windows of a reference: equal, complete, and exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from reference.records import Block, Stretch, runs_of
from reference.windows import ERROR_SIZES_BYTES, FINE_SIZES_BYTES, REUSE_EDGES, simulate


def stream(accesses: int) -> NDArray[np.uint64]:
    rng = np.random.default_rng(5)
    near = rng.integers(0, 30, accesses)
    far = rng.integers(0, 700, accesses)
    return np.where(rng.random(accesses) < 0.6, near, far).astype(np.uint64)


def stretches(
    pieces: Sequence[NDArray[np.uint64]], quantum: int | None = None
) -> Iterator[Stretch]:
    """Cut pieces where a quantum ends, as the tracer does."""
    fed = 0
    for piece in pieces:
        ends = range(quantum - fed % quantum, len(piece), quantum) if quantum else ()
        for part in np.split(piece, ends):
            yield Stretch(runs_of(part), len(part), 3 * len(part), np.empty(0, np.int64))
        fed += len(piece)


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


def test_misses_of_each_window_are_those_of_a_list() -> None:
    lines = stream(3050)
    pieces = np.split(lines, [1, 7, 1000, 1000, 2900])
    run = simulate(stretches(pieces, 100), windows=10, quantum_accesses=100)
    # 31 quanta in at most 10 windows: 4 quanta a window, 2 and a half in the last.
    assert run.accesses.tolist() == [400] * 7 + [250]
    assert run.instructions.tolist() == [1200] * 7 + [750]
    assert run.distinct_lines == len(np.unique(lines))
    for column in range(len(FINE_SIZES_BYTES)):
        missed = lru_misses(lines, FINE_SIZES_BYTES[column] // 64)
        expected = [int(part.sum()) for part in np.split(missed, range(400, 3050, 400))]
        assert run.lru_fine[:, column].tolist() == expected


def test_reuse_distances_are_those_between_touches() -> None:
    lines = stream(3050)
    run = simulate(stretches([lines], 100), windows=10, quantum_accesses=100)
    last: dict[int, int] = {}
    expected = np.zeros_like(run.reuses)
    for time, line in enumerate(lines.tolist()):
        if line in last:
            distance = time - last[line] - 1
            expected[time // 400, np.searchsorted(REUSE_EDGES, distance, side="right") - 1] += 1
        last[line] = time
    assert np.array_equal(run.reuses, expected)


def test_random_replacement_misses_what_it_must() -> None:
    lines = stream(4000)
    run = simulate(stretches([lines], 1000), windows=4, quantum_accesses=1000)
    distinct = len(np.unique(lines))
    total = run.random.sum(axis=0)
    fits = np.array(ERROR_SIZES_BYTES) // 64 >= distinct
    assert fits.any()
    assert (total[fits] == distinct).all()
    assert (total[~fits] > distinct).all()
    assert (np.diff(total) <= 0).all()


def test_a_seed_decides_what_random_replacement_does() -> None:
    lines = stream(4000)
    once, again, other = (
        simulate(stretches([lines]), seed=seed).random[0, 0] for seed in (1, 1, 2)
    )
    assert once == again != other


@pytest.mark.parametrize("accesses", [1, 99, 100, 101, 1000])
def test_no_access_is_lost_and_no_window_empty(accesses: int) -> None:
    run = simulate(stretches([stream(accesses)], 100), windows=3, quantum_accesses=100)
    assert run.accesses.sum() == accesses
    assert (run.accesses > 0).all()
    assert len(run.accesses) <= 3


def test_samples_are_sorted_by_window_and_block() -> None:
    blocks = [Block("b", 7, 2), Block("a", 9, 3), Block("b", 7, 2), Block("a", 1, 5)]
    pieces = [
        Stretch(runs_of(stream(100)), 100, 300, np.array(samples, np.int64))
        for samples in ([1, 0], [2, 2, 0, 3], [], [3])
    ]
    found = simulate(pieces, blocks, windows=2, quantum_accesses=100).branches
    assert found.objects == ("a", "b")
    assert found.object_index.tolist() == [0, 0, 1]
    assert found.offset.tolist() == [1, 9, 7]
    assert found.instructions.tolist() == [5, 3, 2]
    # Blocks 0 and 2 are one, translated twice.
    assert found.table().tolist() == [[1, 1, 4], [1, 0, 0]]


def test_too_many_samples_are_thinned_evenly() -> None:
    samples = np.repeat(np.arange(2), [15_000, 5_000])
    pieces = [Stretch(runs_of(stream(10)), 10, 10, samples) for _ in range(4)]
    blocks = [Block("a", 0, 1), Block("a", 5, 1)]
    table = simulate(pieces, blocks, windows=4, quantum_accesses=10).branches.table()
    assert table.sum() == pytest.approx(4000, abs=300)
    assert table[:, 0] / table.sum(axis=1) == pytest.approx(0.75, abs=0.06)


def test_a_stretch_beyond_its_quantum_is_refused() -> None:
    with pytest.raises(ValueError, match="quantum"):
        simulate(stretches([stream(150)]), quantum_accesses=100)


def test_an_error_of_the_source_ends_the_simulation() -> None:
    def pieces() -> Iterator[Stretch]:
        yield from stretches([stream(150)], 100)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        simulate(pieces(), quantum_accesses=100)


def test_runs_that_cannot_be_fed_end_the_simulation() -> None:
    odd = Stretch(b"odd", 100, 100, np.empty(0, np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="multiple"):
        simulate([odd] * 100, quantum_accesses=100)
