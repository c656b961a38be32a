from __future__ import annotations

import math

import numpy as np
import pytest

import access_clock
from memsampd.sampler.records import TwinMeasurement


def stop(at_seconds: float, rate: float) -> access_clock.Stop:
    return access_clock.Stop(at_seconds, TwinMeasurement(int(rate * 1e-3), 1e-3, 0, "call"))


def test_each_stop_stands_for_the_time_nearest_to_it() -> None:
    at = [0.2, 0.4, 1.4]
    weights = access_clock.cell_weights(at, 2.0)
    times = np.arange(0, 2, 1e-4) + 5e-5
    nearest = np.argmin(np.abs(times[:, None] - np.array(at)), axis=1)
    assert weights == pytest.approx(np.bincount(nearest) * 1e-4, abs=2e-4)


def test_the_estimate_is_the_mean_over_time_however_stops_are_spread() -> None:
    """A program of two halves, 1e8 and 9e8 accesses a second, looked at mostly in the first."""
    stops = [stop(at, 1e8) for at in np.arange(0.05, 1.0, 0.05)]
    stops += [stop(at, 9e8) for at in (1.05, 1.95)]
    unknown = access_clock.Stop(1.5, None)
    found, spread = access_clock.estimate([[*stops, unknown]], 2.0)
    assert found == pytest.approx(5e8, rel=0.03)
    assert 0 < spread < 1


def test_without_a_measurement_there_is_no_estimate() -> None:
    assert access_clock.estimate([[], [access_clock.Stop(0.1, None)]], 2.0) == (0.0, math.inf)
