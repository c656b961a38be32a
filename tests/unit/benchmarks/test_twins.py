"""The comparison of executors finds every difference, and only those."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from memsampd.sampler.process.maps import AddressSpace, parse_maps
from memsampd.sampler.records import Burst, BurstEnd
from programs.twins import Comparison, compare, share_in
from programs.workload import ANONYMOUS

SPACE = AddressSpace(
    parse_maps(
        "1000-2000 r-xp 00000000 00:01 7 /usr/bin/gzip\n"
        "2000-3000 r-xp 00000000 00:00 0\n"
        "3000-4000 rw-p 00000000 00:01 7 /usr/bin/gzip\n"
        "7000-8000 r-xp 00000000 00:00 0 [vdso]\n"
    )
)


def burst(rows: int = 10, end: BurstEnd = BurstEnd.FULL, first_ip: int = 0x1000) -> Burst:
    return Burst(
        ip=np.arange(first_ip, first_ip + rows, dtype=np.uint64),
        address=np.arange(100, 100 + rows, dtype=np.uint64),
        size_bytes=np.full(rows, 8, np.uint16),
        is_write=np.arange(rows) % 2 == 0,
        pid=1,
        tid=1,
        time_seconds=0.0,
        instructions=2 * rows,
        prefetches=0,
        end=end,
    )


def changed(one: Burst, name: str, row: int) -> Burst:
    column = getattr(one, name).copy()
    column[row] = not column[row] if column.dtype == bool else column[row] + 1
    return dataclasses.replace(one, **{name: column})


def test_equal_bursts_do_not_differ() -> None:
    assert compare(burst(), burst()) is None


@pytest.mark.parametrize("name", ["ip", "address", "size_bytes", "is_write"])
@pytest.mark.parametrize("row", [0, 5, 9])
def test_a_row_that_differs_is_found_and_shown(name: str, row: int) -> None:
    difference = compare(changed(burst(), name, row), burst())
    assert difference is not None
    assert difference.index == row
    assert f"> {row}: ip" in str(difference)


@pytest.mark.parametrize(
    ("tested", "reference", "is_fine"),
    [
        ((5, BurstEnd.UNSUPPORTED), (10, BurstEnd.FULL), True),
        ((5, BurstEnd.DEADLINE), (10, BurstEnd.FULL), True),
        ((5, BurstEnd.SYSCALL), (10, BurstEnd.FULL), False),
        ((5, BurstEnd.FAULT), (10, BurstEnd.FULL), False),
        ((5, BurstEnd.EXIT), (10, BurstEnd.SYSCALL), False),
        ((10, BurstEnd.FULL), (5, BurstEnd.SYSCALL), True),
        ((10, BurstEnd.FULL), (5, BurstEnd.DEADLINE), True),
        ((10, BurstEnd.FULL), (5, BurstEnd.EXIT), False),
    ],
)
def test_stopping_early_needs_a_reason(
    tested: tuple[int, BurstEnd], reference: tuple[int, BurstEnd], is_fine: bool
) -> None:
    assert (compare(burst(*tested), burst(*reference)) is None) == is_fine


def test_the_share_in_a_file_counts_its_code_only() -> None:
    ip = np.array([0x1000, 0x1FFF, 0x2000, 0x3000], np.uint64)
    assert share_in(ip, "/gzip", SPACE) == 0.5
    assert share_in(ip, ANONYMOUS, SPACE) == 0.25
    assert share_in(ip[:0], "/gzip", SPACE) == 0.0


def test_a_difference_behind_a_look_at_the_clock_is_no_difference() -> None:
    looked = burst()
    looked.ip[6] = 0x7000
    comparison = Comparison()
    assert comparison.add(changed(looked, "address", 8), looked, "/gzip", SPACE) == 6
    assert comparison.difference is None
    assert (comparison.clock_pairs, comparison.accesses, comparison.instructions) == (1, 6, 12)
    comparison.add(changed(looked, "address", 5), looked, "/gzip", SPACE)
    assert comparison.difference is not None
    assert comparison.difference.index == 5


def test_enough_is_enough_only_in_the_code_that_is_meant() -> None:
    comparison = Comparison()
    comparison.add(burst(), burst(), ANONYMOUS, SPACE)
    assert not comparison.is_enough(20)
    comparison.add(burst(first_ip=0x2000), burst(first_ip=0x2000), ANONYMOUS, SPACE)
    assert comparison.is_enough(40)
    assert not comparison.is_enough(41)
