"""Samples of stack distances: what is kept, and what is read from it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from memsampd.models.stack_samples import StackSamples


def drawn(count: int, seed: int = 1) -> NDArray[np.uint32]:
    rng = np.random.default_rng(seed)
    reuse = np.exp(rng.uniform(np.log(16), np.log(1 << 18), count)).astype(np.uint32)
    return np.column_stack([reuse, (reuse * rng.random(count)).astype(np.uint32)])


def test_of_many_an_even_part_is_kept() -> None:
    pairs = drawn(100_000)
    samples = StackSamples.of(pairs)
    assert 1024 <= len(samples.reuse) <= 2048
    assert np.quantile(samples.reuse, [0.1, 0.5, 0.9]) == pytest.approx(
        np.quantile(pairs[:, 0], [0.1, 0.5, 0.9]), rel=0.01
    )
    again = StackSamples.of(pairs[::-1])
    assert np.array_equal(again.reuse, samples.reuse)
    assert np.array_equal(again.stack, samples.stack)


@pytest.mark.parametrize(
    ("reuse", "stack"), [([16, 17], [3]), ([17, 16], [1, 1]), ([16], [17]), ([16], [-1])]
)
def test_what_no_burst_shows_is_refused(reuse: list[int], stack: list[int]) -> None:
    with pytest.raises(ValueError, match="stack"):
        StackSamples(np.array(reuse), np.array(stack))


def test_of_nothing_is_nothing() -> None:
    samples = StackSamples.of(np.zeros((0, 2), np.uint32))
    assert not len(samples.reuse)
    assert not len(samples.stack)
