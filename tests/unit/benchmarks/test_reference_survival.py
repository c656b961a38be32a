"""The estimators can be run on what references keep."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from reference.records import Stretch, runs_of
from reference.survival import survival_of
from reference.windows import ERROR_SIZES_BYTES, REUSE_EDGES, simulate


def test_a_survival_function_is_the_share_of_longer_distances() -> None:
    reuses = np.zeros(len(REUSE_EDGES) - 1, np.int64)
    reuses[[0, 3]] = 50, 30
    found = survival_of(reuses, cold=20)
    assert found.sampled_accesses == 100
    assert found.never_returned == pytest.approx(0.2)
    assert found([0, 1, 3, 4]).tolist() == pytest.approx([1, 0.5, 0.5, 0.2])


def test_only_first_touches_never_return() -> None:
    found = survival_of(np.zeros(len(REUSE_EDGES) - 1, np.int64), cold=7)
    assert found.never_returned == 1
    with pytest.raises(ValueError, match="no accesses"):
        survival_of(np.zeros(len(REUSE_EDGES) - 1, np.int64), cold=0)


def test_the_models_find_the_exact_curves_of_independent_accesses() -> None:
    """Where every access is drawn alike, what the models assume is true."""
    rng = np.random.default_rng(4)
    lines = np.floor(np.exp(rng.random(1_000_000) * np.log(2000))).astype(np.uint64)
    run = simulate(
        [Stretch(runs_of(lines), len(lines), 0, np.empty(0, np.int64))], quantum_accesses=10**6
    )
    reuses = run.reuses.sum(axis=0)
    survival = survival_of(reuses, len(lines) - int(reuses.sum()))
    sizes = np.array(ERROR_SIZES_BYTES[:6])  # up to 512 of 2000 lines
    for model, misses in ((StatStack(), run.lru[0, :6]), (StatCache(), run.random[0, :6])):
        assert model.curve(survival, sizes).miss_ratio == pytest.approx(
            misses / len(lines), abs=0.004
        )
