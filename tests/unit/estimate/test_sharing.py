"""Sharing windows among bursts, against a version that goes sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsampd import _core
from memsampd.estimate.sharing import burst_shares

BACKGROUND = 1 / 16384  # as the core has it


def brute_force(
    index: NDArray[np.int64],
    code: NDArray[np.float64],
    taken: NDArray[np.int64],
    ran: NDArray[np.float64],
) -> NDArray[np.float64]:
    shares = np.zeros((len(index), len(taken)))
    for w in range(len(index)):
        least = min(abs(int(index[w]) - int(at)) for at in taken) + 1
        near = [1 / (1 + ((int(index[w]) - int(at)) / least) ** 2) for at in taken]
        shares[w] = share_samples(code[w], ran, np.array(near))
    return shares


def share_samples(
    hits: NDArray[np.float64], ran: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    samples = [b for b, times in enumerate(hits) for _ in range(int(times))] or range(len(hits))
    shares = np.zeros(len(ran))
    for b in samples:
        there = [each[b] / each.sum() if each.any() else 1 / len(hits) for each in ran]
        claims = (np.array(there) + BACKGROUND) ** 2 * weights
        shares += claims / claims.sum() / len(samples)
    return shares


@given(st.data())
def test_against_brute_force(data: st.DataObject) -> None:
    windows, bursts, bins = (data.draw(st.integers(1, most)) for most in (5, 6, 4))
    hits = st.integers(0, 9)
    code = np.array([[data.draw(hits) for _ in range(bins)] for _ in range(windows)], float)
    ran = np.array([[data.draw(hits) for _ in range(bins)] for _ in range(bursts)], float)
    index = np.array([data.draw(st.integers(0, 50)) for _ in range(windows)])
    taken = np.array([data.draw(st.integers(0, 50)) for _ in range(bursts)])
    shares = burst_shares(index, code, taken, ran)
    np.testing.assert_allclose(shares, brute_force(index, code, taken, ran))
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_samples_go_to_bursts_that_ran_their_code() -> None:
    """However far away; the nearest are the same code's."""
    ran = np.array([[128, 0], [128, 0], [0, 128]], float)
    shares = burst_shares(np.array([5]), np.array([[45, 5]], float), np.array([4, 6, 20]), ran)[0]
    assert shares[2] == pytest.approx(0.1, rel=0.2)
    assert shares[0] == pytest.approx(shares[1])


def test_a_burst_that_ran_much_else_gets_less_of_what_it_shares() -> None:
    """The one half and half with code that the window did not run, the other this code alone."""
    ran = np.array([[64, 64], [128, 0]], float)
    shares = burst_shares(np.array([5]), np.array([[50, 0]], float), np.array([5, 5]), ran)[0]
    assert shares == pytest.approx([1 / 5, 4 / 5], rel=0.01)  # the square of 1 : 2


def test_where_all_ran_the_same_code_only_the_distance_counts() -> None:
    code = np.array([[10, 20, 30]], float)
    shares = burst_shares(np.array([10]), code, np.array([8, 14]), np.tile(code, (2, 1)))[0]
    weights = np.array([1 / (1 + (2 / 3) ** 2), 1 / (1 + (4 / 3) ** 2)])
    np.testing.assert_allclose(shares, weights / weights.sum())


def test_code_that_no_burst_ran_is_like_any_kind_of_code() -> None:
    """However many bursts ran one kind, and however near they are."""
    ran = np.array([[128, 0, 0], [128, 0, 0], [0, 128, 0]], float)
    code = np.array([[0, 0, 50], [25, 0, 25]], float)
    taken, kinds = np.array([4, 5, 40]), np.array([0.5, 0.5, 1.0])
    shares = burst_shares(np.array([5, 5]), code, taken, ran, kinds=kinds)
    assert shares[0] == pytest.approx([0.25, 0.25, 0.5])
    assert shares[1, 2] == pytest.approx(0.25, rel=0.01)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_where_no_code_is_known_only_the_distance_counts() -> None:
    shares = burst_shares(
        np.array([5]), np.zeros((1, 2)), np.array([5, 9]), np.zeros((2, 2)), kinds=np.zeros(2)
    )
    assert shares[0, 0] > shares[0, 1]


def test_shapes_that_do_not_fit_together_are_refused() -> None:
    one, code = np.zeros(1, np.int64), np.ones((1, 3))
    with pytest.raises(ValueError, match="do not fit"):
        _core.share_windows(one, code, one, code[:, :2], np.ones(1), np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="do not fit"):
        _core.share_windows(one, code, one[:0], code[:0], np.ones(0), np.ones(0), np.ones(0))
