"""What is kept of a reference comes back, and says the same in several ways."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from reference import store
from reference.windows import (
    ERROR_SIZES_BYTES,
    FINE_SIZES_BYTES,
    LRU_SIZES_BYTES,
    REUSE_EDGES,
    BlockSamples,
    RunMisses,
)


@pytest.fixture
def run() -> RunMisses:
    rng = np.random.default_rng(3)
    fine = np.sort(rng.integers(0, 700, (3, len(FINE_SIZES_BYTES))), axis=1)[:, ::-1]
    reuses = rng.multinomial(690, np.full(len(REUSE_EDGES) - 1, 1 / (len(REUSE_EDGES) - 1)), size=3)
    return RunMisses(
        accesses=np.array([1000, 1000, 700]),
        instructions=np.array([2000, 2500, 1 << 33]),
        lru_fine=fine,
        random=rng.integers(0, 700, (3, len(ERROR_SIZES_BYTES))),
        reuses=reuses,
        distinct_lines=70_000,
        branches=BlockSamples(
            objects=("/usr/bin/example", ""),
            object_index=np.array([0, 0, 1]),
            offset=np.array([0x40, 0x10, 0x7FFF_0000_0000]),
            instructions=np.array([3, 1, 50]),
            starts=np.array([0, 2, 2, 5]),
            block=np.array([0, 2, 0, 1, 2]),
            counts=np.array([3, 1, 300, 2, 9]),
        ),
    )


MADE = {"command": "a 'b'", "packages": {}}


def test_what_is_saved_is_loaded(run: RunMisses, tmp_path: Path) -> None:
    store.save("example", run, MADE, tmp_path / "example.npz")
    kept = store.load(tmp_path / "example.npz")
    assert (kept.name, kept.made) == ("example", MADE)
    assert kept.distinct_lines == 70_000
    assert kept.total_accesses == 2700
    for name in ("accesses", "lru", "random", "instructions", "lru_fine", "reuses"):
        assert np.array_equal(getattr(kept, name), getattr(run, name)), name
    assert (kept.reuses.sum(axis=1) + kept.cold).tolist() == [1000, 1000, 700]
    assert kept.branches.objects == run.branches.objects
    for name in ("object_index", "offset", "instructions", "starts", "block", "counts"):
        before, after = getattr(run.branches, name), getattr(kept.branches, name)
        assert np.array_equal(before, after), name


def test_the_same_run_makes_the_same_file(run: RunMisses, tmp_path: Path) -> None:
    for name in ("one", "two"):
        store.save("example", run, MADE, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_samples_make_a_table_of_blocks_by_windows(run: RunMisses) -> None:
    assert run.branches.table().tolist() == [[3, 0, 1], [0, 0, 0], [300, 2, 9]]


def test_the_sizes_of_each_kind_nest() -> None:
    assert set(ERROR_SIZES_BYTES) < set(LRU_SIZES_BYTES) < set(FINE_SIZES_BYTES)
    assert np.all(np.diff(FINE_SIZES_BYTES) > 0)
    assert all(size % 64 == 0 for size in FINE_SIZES_BYTES)
    assert np.all(np.diff(REUSE_EDGES) > 0)
    assert REUSE_EDGES[0] == 0


def test_another_format_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "new.npz", "w") as file:
        file.writestr("about.json", json.dumps({"format": 3}))
    with pytest.raises(ValueError, match="make it again"):
        store.load(tmp_path / "new.npz")
