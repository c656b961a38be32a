"""The comparison of runs finds every difference, and only those."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from memsampd.sampler.process.maps import AddressSpace, parse_maps
from memsampd.sampler.records import AccessChunk
from memsampd.sampler.replica.comparison import Run
from programs.equality import Comparison, compare, share_in
from programs.workload import ANONYMOUS

SPACE = AddressSpace(
    parse_maps(
        "1000-2000 r-xp 00000000 00:01 7 /usr/bin/gzip\n"
        "2000-3000 r-xp 00000000 00:00 0\n"
        "3000-4000 rw-p 00000000 00:01 7 /usr/bin/gzip\n"
        "7000-8000 r-xp 00000000 00:00 0 [vdso]\n"
    )
)


def run(rows: int = 10, end: str = "full", first_ip: int = 0x1000) -> Run:
    chunk = AccessChunk(
        ip=np.arange(first_ip, first_ip + rows, dtype=np.uint64),
        address=np.arange(100, 100 + rows, dtype=np.uint64),
        size_bytes=np.full(rows, 8, np.uint16),
        is_write=np.arange(rows) % 2 == 0,
    )
    return Run(chunk, 2 * rows, 0, end, 0x1000, 0)


def changed(one: Run, name: str, row: int) -> Run:
    column = getattr(one.rows, name).copy()
    column[row] = not column[row] if column.dtype == bool else column[row] + 1
    return dataclasses.replace(one, rows=msgspec.structs.replace(one.rows, **{name: column}))


def test_equal_runs_do_not_differ() -> None:
    assert compare(run(), run()) is None


@pytest.mark.parametrize("name", ["ip", "address", "size_bytes", "is_write"])
@pytest.mark.parametrize("row", [0, 5, 9])
def test_a_row_that_differs_is_found_and_shown(name: str, row: int) -> None:
    difference = compare(changed(run(), name, row), run())
    assert difference is not None
    assert difference.index == row
    assert f"> {row}: ip" in str(difference)


@pytest.mark.parametrize(
    ("tested", "reference", "is_fine"),
    [
        ((5, "unsupported"), (10, "full"), True),
        ((5, "hold"), (10, "full"), True),
        ((5, "full"), (10, "full"), True),
        ((5, "modified"), (10, "full"), True),
        ((5, "syscall"), (10, "full"), False),
        ((5, "fault"), (10, "full"), False),
        ((5, "exit"), (10, "syscall"), False),
        ((10, "full"), (5, "full"), True),
        ((10, "full"), (5, "hold"), True),
        ((10, "full"), (5, "syscall"), False),
        ((10, "full"), (5, "exit"), False),
    ],
)
def test_stopping_early_needs_a_reason(
    tested: tuple[int, str], reference: tuple[int, str], is_fine: bool
) -> None:
    assert (compare(run(*tested), run(*reference)) is None) == is_fine


def test_the_share_in_a_file_counts_its_code_only() -> None:
    ip = np.array([0x1000, 0x1FFF, 0x2000, 0x3000], np.uint64)
    assert share_in(ip, "/gzip", SPACE) == 0.5
    assert share_in(ip, ANONYMOUS, SPACE) == 0.25
    assert share_in(ip[:0], "/gzip", SPACE) == 0.0


def test_a_difference_behind_a_look_at_the_clock_is_no_difference() -> None:
    looked = run()
    looked.rows.ip[6] = 0x7000
    comparison = Comparison()
    assert comparison.add(changed(looked, "address", 8), looked, "/gzip", SPACE) == 6
    assert comparison.difference is None
    assert (comparison.clock_pairs, comparison.accesses, comparison.instructions) == (1, 6, 12)
    comparison.add(changed(looked, "address", 5), looked, "/gzip", SPACE)
    assert comparison.difference is not None
    assert comparison.difference.index == 5


def test_enough_is_enough_only_in_the_code_that_is_meant() -> None:
    comparison = Comparison()
    comparison.add(run(), run(), ANONYMOUS, SPACE)
    assert not comparison.is_enough(20)
    comparison.add(run(first_ip=0x2000), run(first_ip=0x2000), ANONYMOUS, SPACE)
    assert comparison.is_enough(40)
    assert not comparison.is_enough(41)
