"""What is kept of a reference comes back, and says the same in several ways."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
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
)


@pytest.fixture
def reference() -> store.Reference:
    rng = np.random.default_rng(3)
    accesses = np.array([1000, 1000, 700])
    fine = np.sort(rng.integers(0, 700, (3, len(FINE_SIZES_BYTES))), axis=1)[:, ::-1]
    reuses = rng.multinomial(690, np.full(len(REUSE_EDGES) - 1, 1 / (len(REUSE_EDGES) - 1)), size=3)
    return store.Reference(
        name="example",
        accesses=accesses,
        lru=fine[:, ::4],
        random=rng.integers(0, 700, (3, len(ERROR_SIZES_BYTES))),
        distinct_lines=70_000,
        made={"command": "a 'b'", "packages": {}},
        instructions=np.array([2000, 2500, 1 << 33]),
        lru_fine=fine,
        reuses=reuses,
        cold=accesses - reuses.sum(axis=1),
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


def test_what_is_saved_is_loaded(reference: store.Reference, tmp_path: Path) -> None:
    store.save(reference, tmp_path / "example.npz")
    kept = store.load(tmp_path / "example.npz")
    for name in ("name", "distinct_lines", "made", "total_accesses"):
        assert getattr(kept, name) == getattr(reference, name)
    for name in ("accesses", "lru", "random", "instructions", "lru_fine", "reuses", "cold"):
        assert np.array_equal(getattr(kept, name), getattr(reference, name)), name
    assert kept.branches is not None
    assert reference.branches is not None
    assert kept.branches.objects == reference.branches.objects
    for name in ("object_index", "offset", "instructions", "starts", "block", "counts"):
        before, after = getattr(reference.branches, name), getattr(kept.branches, name)
        assert np.array_equal(before, after), name


def test_the_same_reference_makes_the_same_file(reference: store.Reference, tmp_path: Path) -> None:
    store.save(reference, tmp_path / "one.npz")
    store.save(reference, tmp_path / "two.npz")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_samples_make_a_table_of_blocks_by_windows(reference: store.Reference) -> None:
    assert reference.branches is not None
    assert reference.branches.table().tolist() == [[3, 0, 1], [0, 0, 0], [300, 2, 9]]


def test_the_sizes_of_each_kind_nest() -> None:
    assert set(ERROR_SIZES_BYTES) < set(LRU_SIZES_BYTES) < set(FINE_SIZES_BYTES)
    assert np.all(np.diff(FINE_SIZES_BYTES) > 0)
    assert all(size % 64 == 0 for size in FINE_SIZES_BYTES)
    assert np.all(np.diff(REUSE_EDGES) > 0)
    assert REUSE_EDGES[0] == 0


def test_a_reference_without_blocks_is_not_saved(
    reference: store.Reference, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="lacks"):
        store.save(replace(reference, branches=None), tmp_path / "example.npz")


def test_another_format_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "new.npz", "w") as file:
        file.writestr("about.json", json.dumps({"format": 3}))
    with pytest.raises(ValueError, match="make it again"):
        store.load(tmp_path / "new.npz")
