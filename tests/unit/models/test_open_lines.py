"""Lines that bursts leave open: chosen evenly, and the words that stand for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd.models.open_lines import OpenLine, line_of_access, open_lines
from memsampd.sampler.line_choice import LineChoice


def of_all(
    address: Sequence[int] | NDArray[np.uint64], least: int, count: int, rng: random.Random
) -> tuple[OpenLine, ...]:
    """Lines of a burst all of whose references are given."""
    given = np.array(address, np.uint64)
    return open_lines(np.arange(len(given)), given, len(given), 64, least, count, rng)


def naive(address: list[int], least: int) -> set[int]:
    """Lines whose last access is so long ago, by the definition."""
    last = {each >> 6: at for at, each in enumerate(address)}
    return {line for line, at in last.items() if len(address) - 1 - at >= least}


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 4000), max_size=400), st.integers(0, 200), st.integers(0, 99))
def test_all_are_open_and_all_can_be_chosen(address: list[int], least: int, seed: int) -> None:
    rng = random.Random(seed)
    told = of_all(address, least, 1000, rng)
    assert {each.words[0] >> 6 for each in told} == naive(address, least)
    for each in told:
        line = each.words[0] >> 6
        touched = {a >> 3 << 3 for a in address if a >> 6 == line}
        assert each.least_accesses == least
        assert each.touched == len(touched)
        assert {word >> 6 for word in each.words} == {line}
        assert len(set(each.words)) == len(each.words) == (1 if len(touched) >= 6 else 4)
        assert set(each.words) <= touched or set(each.words) >= touched
        assert all(word % 8 == 0 for word in each.words)


def test_the_choice_is_even() -> None:
    address = np.arange(100, dtype=np.uint64) << np.uint64(6)
    rng = random.Random(1)
    chosen = Counter(
        each.words[0] >> 6 for _ in range(2000) for each in of_all(address, 50, 5, rng)
    )
    assert set(chosen) == set(range(50))
    assert min(chosen.values()) > 120  # of 200 on average
    assert max(chosen.values()) < 300


def test_the_word_touched_least_often_is_watched() -> None:
    often, rarely = [0, 0, 8, 8, 16, 24, 24, 32, 32, 40, 40], [4096 + 64 * i for i in range(100)]
    (told,) = of_all(often + rarely, 100, 5, random.Random(1))
    assert told.words == (16,)


def test_only_the_last_visit_counts() -> None:
    away = [(1 + i % 50) << 12 for i in range(5000)]
    address = np.array([0, 8, 16, 24, 32, 40, *away, 48, *away], np.uint64)
    told = of_all(address, 4900, 9, random.Random(1))
    (line,) = (each for each in told if each.words[0] < 64)
    assert line.touched == 1
    assert line.words[0] == 48
    assert len(line.words) == 4


def test_some_lines_of_a_burst_are_enough() -> None:
    """All references to these: their words are all there."""
    address = np.arange(400_000, dtype=np.uint64) << np.uint64(3)
    rng = random.Random(1)
    at = np.flatnonzero(LineChoice.of(0.1, 64, rng).has(address))
    assert 0.05 < len(at) / len(address) < 0.2
    told = open_lines(at, address[at], len(address), 64, 200_000, 64, rng)
    assert len(told) == 64
    assert all(each.touched == 8 and len(each.words) == 1 for each in told)
    assert all(each.words[0] < 200_000 << 3 for each in told)


def test_the_line_of_one_access() -> None:
    address = 0x7F0000001234
    line = line_of_access(address, 64, random.Random(1))
    assert len(line.words) == len(set(line.words)) == 4
    assert address // 8 * 8 in line.words
    assert {word // 64 for word in line.words} == {address // 64}
    assert all(word % 8 == 0 for word in line.words)
    assert (line.touched, line.least_accesses, line.touches) == (1, 1, 1)
