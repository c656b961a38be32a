"""Where in rows a moment was, by its registers and code; and the rate that such places tell."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from memsampd.sampler.clock.moments import REGISTER_WORDS, Moment
from memsampd.sampler.clock.places import find_places
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.records import TimedStretch
from memsampd.sampler.replica.timing import Place, count_lines, rate_of, time_released

ORIGIN = 0x401000
ReadCode = Callable[[int, int], bytes]


def code_of(code: str) -> ReadCode:
    content = bytes.fromhex(code)
    return lambda address, size: content[address - ORIGIN :][:size] if address >= ORIGIN else b""


def moment(cpu_seconds: float = 0.0, **registers: int) -> Moment:
    words = [0] * 27
    for name, value in ({"RIP": ORIGIN} | registers).items():
        words[REGISTER_WORDS[name]] = value
    return Moment(cpu_seconds, struct.pack("27Q", *words))


def rows_of(*accesses: tuple[int, int]) -> Rows:
    """Rows of (offset of the instruction, address)."""
    ip, address = zip(*accesses, strict=True)
    return Rows(
        np.array(ip, np.uint64) + np.uint64(ORIGIN),
        np.array(address, np.uint64),
        np.full(len(ip), 8, np.uint16),
    )


def agrees(code: str, rows: Rows, **registers: int) -> bool:
    return np.array_equal(find_places(rows, moment(**registers), code_of(code)), [0])


@pytest.mark.parametrize(
    ("code", "registers", "first", "second"),
    [
        ("488b1cce c3", {"RSI": 0x1000, "RCX": 2, "RSP": 0x9000}, (0, 0x1010), (4, 0x9000)),
        ("48ffc1 488b1cce 90 c3", {"RSI": 0x1000, "RCX": 2}, (3, 0x1018), (8, 0)),  # inc rcx
        ("48010b 0f0b", {"RBX": 0x2000}, (0, 0x2000), (0, 0x2000)),  # add [rbx], rcx
        ("ff30 0f0b", {"RAX": 0x3000, "RSP": 0x9000}, (0, 0x3000), (0, 0x8FF8)),  # push [rax]
        ("488d4c0310 488b01 c3", {"RBX": 8, "RAX": 0x100}, (5, 0x118), (8, 0)),  # lea
        ("488b05 10000000 c3", {}, (0, ORIGIN + 0x17), (7, 0)),  # relative to the instruction
        ("31c0 488b00 c3", {"RAX": 8}, (2, 0), (5, 0)),  # xor eax, eax
        ("f3a4 c3", {"RCX": 0, "RSP": 8}, (2, 8), (0, 0)),  # rep movsb of nothing
    ],
)
def test_addresses_follow_from_registers(
    code: str, registers: dict[str, int], first: tuple[int, int], second: tuple[int, int]
) -> None:
    assert agrees(code, rows_of(first, second), **registers)
    assert not agrees(code, rows_of((first[0], first[1] + 8), second), **registers)


@pytest.mark.parametrize(
    ("code", "ip"),
    [("488b00 488b00 c3", 3), ("64488b00 64488b00 c3", 4)],  # what was loaded; the base of fs
)
def test_what_is_not_known_agrees_with_any_address(code: str, ip: int) -> None:
    first = 0x5000 if ip == 3 else 0x77
    for second in (1, 2):
        assert agrees(code, rows_of((0, first), (ip, second), (ip + ip, 0)), RAX=0x5000)


def test_the_rows_tell_the_way_at_a_branch() -> None:
    code = "7504 488b03 c3 488b01 c3"  # jne +4; mov rax, [rbx]; ret; mov rax, [rcx]; ret
    for first in ((2, 0x100), (6, 0x200)):
        rows = rows_of(first, (first[0] + 3, 0))
        assert agrees(code, rows, RBX=0x100, RCX=0x200)
        assert not agrees(code, rows, RBX=0x108, RCX=0x208)


def test_a_return_goes_behind_the_call() -> None:
    # call +5; mov rax, [rbx]; ud2; mov rax, [rcx]; ret
    code = code_of("e805000000 488b03 0f0b 488b01 c3")
    rows = rows_of((0, 0x8FF8), (10, 0x200), (13, 0x8FF8), (5, 0x100))
    later = moment(RIP=ORIGIN + 13, RSP=0x8FF8, RBX=0x100)
    assert find_places(rows, later, code).tolist() == [2]
    other = moment(RIP=ORIGIN + 13, RSP=0x8FF8, RBX=0x108)
    assert find_places(rows, other, code).tolist() == []


@pytest.mark.parametrize("code", ["0f05 488b00", "ffe0", "7503 488b00 0f05"])
def test_what_the_code_does_not_tell_has_no_place(code: str) -> None:
    """A system call; jmp rax; one of two ways is not known."""
    assert find_places(rows_of((2, 0), (3, 0)), moment(), code_of(code)).tolist() == []


LOOP = "488b1cce 48ffc1 4839f9 75f4 c3"  # mov rbx,[rsi+8rcx]; inc rcx; cmp rcx,rdi; jne; ret


def loop_rows(first: int, last: int) -> Rows:
    index = np.arange(first, last, dtype=np.uint64)
    count = last - first
    return Rows(np.full(count, ORIGIN, np.uint64), 0x1000 + 8 * index, np.full(count, 8, np.uint16))


def test_a_moment_is_found_where_its_next_access_is_made() -> None:
    rows = loop_rows(10, 500)
    for ip, index, expected in ((0, 30, 20), (4, 30, 21), (7, 31, 21), (10, 31, 21)):
        later = moment(RIP=ORIGIN + ip, RSI=0x1000, RCX=index, RDI=1000)
        assert find_places(rows, later, code_of(LOOP)).tolist() == [expected]
    before = moment(RSI=0x1000, RCX=9, RDI=1000)
    assert find_places(rows, before, code_of(LOOP)).tolist() == []


def test_what_repeats_has_several_places() -> None:
    once = loop_rows(0, 500)
    rows = Rows(np.tile(once.ip, 2), np.tile(once.address, 2), np.tile(once.size_bytes, 2))
    later = moment(RSI=0x1000, RCX=7, RDI=1000)
    assert find_places(rows, later, code_of(LOOP)).tolist() == [7, 507]


def loop_moments(*at: tuple[float, int]) -> list[Moment]:
    return [moment(seconds, RSI=0x1000, RCX=index, RDI=9000) for seconds, index in at]


def test_a_released_thread_is_timed_from_its_first_place_to_the_last() -> None:
    rows, code = loop_rows(0, 8000), code_of(LOOP)
    moments = loop_moments((1e-4, 900), (2e-4, 1900), (4e-4, 3900), (9e-4, 9999))  # beyond
    timed = time_released(moments, rows, code, 1e-5, 64)
    assert isinstance(timed, TimedStretch)
    assert (timed.accesses, timed.hits, timed.method) == (3000, 4, "moments")
    assert np.isclose(timed.cpu_seconds, 3e-4 - 2e-5)
    lost = time_released(loop_moments((1e-4, 900), (9e-4, 9999)), rows, code, 1e-5, 64)
    assert isinstance(lost, Untimed)
    assert (lost.reason, lost.hits) == ("not-found", 2)


def test_places_that_make_no_sense_are_refused() -> None:
    first = Place(900, 1e-4, 0)
    assert rate_of([first, Place(1900, 2e-4, 1)], 1e-5) == (1000, 2e-4 - 1e-4 - 1e-5)
    assert rate_of([first, Place(800, 2e-4, 1)], 1e-5) == "order"
    assert rate_of([first, Place(1900, 1.05e-4, 1)], 1e-5) == "dense"
    assert rate_of([first, Place(1900, 2e-4, 1), Place(1910, 4e-4, 2)], 1e-5) == "uneven"


def test_an_access_that_crosses_counts_for_each_line() -> None:
    address, size = np.array([60, 64, 0], np.uint64), np.array([8, 8, 200], np.uint16)
    assert count_lines(address, size, 64) == 2 + 1 + 4
