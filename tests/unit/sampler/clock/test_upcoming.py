"""Next accesses from registers and code, and where a replay makes them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from memsampd.sampler.clock.moments import REGISTER_WORDS, Moment
from memsampd.sampler.clock.records import Rows, Untimed
from memsampd.sampler.clock.replay import find_moment, time_replayed
from memsampd.sampler.clock.upcoming import Course, Upcoming, upcoming_courses
from memsampd.sampler.records import TimedStretch

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


def upcoming(code: str, **registers: int) -> list[Course]:
    return upcoming_courses(moment(**registers), code_of(code))


@pytest.mark.parametrize(
    ("code", "registers", "expected"),
    [
        ("488b1cce c3", {"RSI": 0x1000, "RCX": 2, "RSP": 0x9000}, [0x1010, 0x9000]),  # load, ret
        ("48ffc1 488b1cce 90 c3", {"RSI": 0x1000, "RCX": 2}, [0x1018, 0]),  # inc rcx first
        ("48010b c3", {"RBX": 0x2000}, [0x2000, 0x2000, 0]),  # add [rbx], rcx
        ("ff30 c3", {"RAX": 0x3000, "RSP": 0x9000}, [0x3000, 0x8FF8, 0x8FF8]),  # push [rax]
        ("488d4c0310 488b01 c3", {"RBX": 8, "RAX": 0x100}, [0x118, 0]),  # lea rcx, [rbx+rax+16]
        ("488b05 10000000 c3", {}, [ORIGIN + 0x17, 0]),  # relative to the instruction pointer
        ("488b00 488b00 c3", {"RAX": 0x5000}, [0x5000, None, 0]),  # what was loaded is not known
        ("64488b00 c3", {"RAX": 8}, [None, 0]),  # the base of fs is not known
        ("31c0 488b00 c3", {"RAX": 8}, [0, 0]),  # xor eax, eax
        ("f3a4 c3", {"RSI": 0x10, "RDI": 0x20, "RCX": 3}, [0x10]),  # rep movsb: the first load
        ("f3a4 c3", {"RSI": 0x10, "RDI": 0x20, "RCX": 0, "RSP": 8}, [8]),  # none at all
    ],
)
def test_a_course_follows_from_registers(
    code: str, registers: dict[str, int], expected: list[int | None]
) -> None:
    (course,) = upcoming(code, **registers)
    assert [access.address for access in course] == expected


def test_both_ways_of_a_branch_are_followed_to_their_first_access() -> None:
    # jne +4; mov rax, [rbx]; ret; mov rax, [rcx]; ret
    courses = upcoming("7504 488b03 c3 488b01 c3", RBX=0x100, RCX=0x200)
    assert {course[0] for course in courses} == {
        Upcoming(ORIGIN + 2, 0x100),
        Upcoming(ORIGIN + 6, 0x200),
    }


def test_what_the_code_does_not_tell_has_no_course() -> None:
    assert upcoming("0f05 488b00") == []  # a system call
    assert upcoming("ffe0") == []  # jmp rax
    assert upcoming("7503 488b00 0f05") == []  # one of two ways is not known


LOOP = "488b1cce 48ffc1 4839f9 75f4 c3"  # mov rbx,[rsi+8rcx]; inc rcx; cmp rcx,rdi; jne; ret


def loop_rows(first: int, last: int) -> Rows:
    index = np.arange(first, last, dtype=np.uint64)
    count = last - first
    return Rows(np.full(count, ORIGIN, np.uint64), 0x1000 + 8 * index, np.full(count, 8, np.uint16))


def same(later: Moment) -> Callable[[int, int], bytes]:
    return lambda rows, ip: later.registers


def test_a_moment_is_found_where_its_next_access_is_made() -> None:
    rows = loop_rows(10, 500)
    for ip, index, expected in ((0, 30, 20), (4, 30, 21), (7, 31, 21), (10, 31, 21)):
        later = moment(RIP=ORIGIN + ip, RSI=0x1000, RCX=index, RDI=1000)
        assert find_moment(rows, later, code_of(LOOP), same(later)) == expected


def test_a_moment_that_the_replay_does_not_come_to_is_none() -> None:
    later = moment(RSI=0x1000, RCX=9, RDI=1000)
    assert find_moment(loop_rows(10, 500), later, code_of(LOOP), same(later)) is None


def repeated_rows() -> Rows:
    once = loop_rows(0, 100)
    return Rows(np.tile(once.ip, 5), np.tile(once.address, 5), np.tile(once.size_bytes, 5))


def test_registers_decide_between_several_places() -> None:
    later = moment(RSI=0x1000, RCX=7, RDI=1000, RDX=3)
    assert find_moment(repeated_rows(), later, code_of(LOOP), same(later)) is None  # five times

    def registers_at(rows: int, ip: int) -> bytes:
        assert ip == ORIGIN
        return moment(RSI=0x1000, RCX=rows % 100, RDI=1000, RDX=rows // 100).registers

    assert find_moment(repeated_rows(), later, code_of(LOOP), registers_at) == 307


def test_other_registers_at_the_only_place_are_not_the_moment() -> None:
    later = moment(RSI=0x1000, RCX=30, RDI=1000)
    other = moment(RSI=0x1000, RCX=30, RDI=1000, R15=1).registers
    assert find_moment(loop_rows(10, 500), later, code_of(LOOP), lambda rows, ip: other) is None


def test_a_replay_is_timed_to_the_last_moment_that_it_comes_to() -> None:
    moments = [
        moment(0.010, RSI=0x1000, RCX=10, RDI=1000),
        moment(0.011, RSI=0x1000, RCX=60, RDI=1000),
        moment(0.012, RSI=0x1000, RCX=900, RDI=1000),  # beyond the rows
    ]
    code = code_of(LOOP)

    def registers_at(rows: int, ip: int) -> bytes:
        return moment(RSI=0x1000, RCX=10 + rows, RDI=1000).registers

    timed = time_replayed(moments, loop_rows(10, 500), code, 1e-5, registers_at)
    assert isinstance(timed, TimedStretch)
    assert (timed.accesses, timed.hits, timed.method) == (50, 3, "replay")
    assert np.isclose(timed.cpu_seconds, 0.001 - 1e-5)
    for some, reason in ((moments[::2], "not-found"), (moments[:1], "few-moments")):
        lost = time_replayed(some, loop_rows(10, 500), code, 1e-5, registers_at)
        assert isinstance(lost, Untimed)
        assert lost.reason == reason
