"""Whether windows that ran the same code all went at one rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from memsampd.estimate.window_rates import RatesByCode, WindowRates
from memsampd.sampler.rates import CodeRate


def test_windows_that_agree_tell_their_rate_once_there_are_some() -> None:
    rates = WindowRates()
    for number in range(7):
        assert not rates.add(1e9 * (1 + 0.01 * (number % 3)))
    assert math.isnan(rates.steady())
    assert rates.add(9e9)  # one that is far off is no matter
    assert math.exp(rates.steady()) == pytest.approx(1.01e9, rel=0.02)


def test_windows_that_do_not_agree_tell_none() -> None:
    rates = WindowRates()
    for number in range(8):
        rates.add(1e9 * (1 + number % 2))
    assert math.isnan(rates.steady())


def test_what_they_tell_follows_the_latest() -> None:
    rates = WindowRates()
    told = [rates.add(rate) for rate in np.repeat([1e9, 2e9], [8, 120])]
    assert np.flatnonzero(told).tolist() == [7, 15, 31, 63, 127]
    assert math.exp(rates.steady()) == pytest.approx(2e9)


def test_windows_on_other_data_tell_nothing_of_these() -> None:
    """Of a loop on a small array and on a large one, which goes now faster, now slower."""
    rates = WindowRates()
    for number in range(32):
        if number % 3:
            rates.add(1e9, 2.0)
        else:
            rates.add(1e8 * (1 + number % 2), 10.0)
    assert math.exp(rates.steady(2.5)) == pytest.approx(1e9)
    assert math.isnan(rates.steady(10.0))
    assert math.isnan(rates.steady())  # of any: a third of them is far off
    unknown = WindowRates()
    for _ in range(8):
        unknown.add(1e9)
    assert math.exp(unknown.steady(10.0)) == pytest.approx(1e9)


def test_codes_that_ran_first_are_forgotten() -> None:
    rates = RatesByCode(2)
    for code in (1, 2, 3):
        assert [rates.add(CodeRate(code, 3e8, 1)) for _ in range(8)] == [False] * 7 + [True]
    assert math.isnan(rates.steady(1))
    assert [math.exp(rates.steady(code)) for code in (2, 3)] == pytest.approx([3e8, 3e8])
    assert math.isnan(rates.steady(-1))
