"""Reading curves at sizes that they have, and between."""

from __future__ import annotations

import numpy as np
import pytest

from memsampd.exporters.curves import CurvePoint, at_size
from memsampd.models.records import MissRatioCurve

SIZES = np.array([1024, 4096, 48 << 10, 1 << 20])
RATIOS = np.array([0.8, 0.4, 0.2, 0.1])
CURVE = MissRatioCurve(SIZES, RATIOS, RATIOS / 2, RATIOS + 0.1, "lru", 64, 1000)


@pytest.mark.parametrize("at", range(4))
def test_at_its_sizes_a_curve_is_read_as_it_is(at: int) -> None:
    expected = CurvePoint(RATIOS[at], RATIOS[at] / 2, RATIOS[at] + 0.1)
    assert at_size(CURVE, int(SIZES[at])) == expected


def test_between_them_it_is_read_on_a_logarithmic_scale() -> None:
    point = at_size(CURVE, 2048)
    assert point is not None
    assert (point.miss_ratio, point.low, point.high) == pytest.approx((0.6, 0.3, 0.7))


@pytest.mark.parametrize("size_bytes", [1023, (1 << 20) + 1])
def test_beyond_them_nothing_is_known(size_bytes: int) -> None:
    assert at_size(CURVE, size_bytes) is None
