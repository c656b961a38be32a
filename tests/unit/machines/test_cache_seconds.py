"""What an access to the last-level cache takes."""

from __future__ import annotations

import mmap
from contextlib import closing

import pytest

from memsampd import _core
from memsampd.machines.cache_seconds import measure_cache_seconds

MEBIBYTE = 1 << 20


@pytest.mark.parametrize(
    "sizes", [{}, {"L1d": 32 << 10}, {"L2": MEBIBYTE}, {"L3": 8 * MEBIBYTE}, {"L2": 8, "L3": 8}]
)
def test_nothing_is_said_of_unknown_caches(sizes: dict[str, int]) -> None:
    assert measure_cache_seconds(sizes) == {}


@pytest.mark.parametrize("l3_mebibytes", [3, 32, 480])
def test_so_long_takes_an_access_to_l3(l3_mebibytes: int) -> None:
    (seconds,) = measure_cache_seconds(
        {"L1d": 32 << 10, "L2": MEBIBYTE, "L3": l3_mebibytes * MEBIBYTE}
    ).values()
    assert 1e-10 < seconds < 1e-3


def test_a_chase_needs_an_area_and_loads() -> None:
    with closing(mmap.mmap(-1, 4096)) as area:
        assert _core.memory_chase(area, 100, 7) > 0
        with pytest.raises(ValueError, match="a load or more"):
            _core.memory_chase(area, 0, 7)
    with pytest.raises(ValueError, match="a load or more"):
        _core.memory_chase(bytearray(8), 100, 7)
