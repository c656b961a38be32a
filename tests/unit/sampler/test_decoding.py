"""Walks along code in the core, against walks by the decoder alone."""

from __future__ import annotations

import ctypes
import os
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import iced_x86
import pytest
from iced_x86 import FlowControl

from memsampd import _core
from memsampd.sampler.decoding import decode
from memsampd.sampler.process.maps import read_maps

PASSED = (
    FlowControl.NEXT,
    FlowControl.CALL,
    FlowControl.INDIRECT_CALL,
    FlowControl.XBEGIN_XABORT_XEND,
)
BEGINS = 5
Known = dict[int, tuple[int, bool, bool]]


@cache
def libc() -> tuple[int, bytes]:
    """Where the code of the C library lies in this process, and the first 256 KiB of it."""
    ctypes.CDLL("libc.so.6")
    areas = read_maps(os.getpid()).mappings
    area = next(each for each in areas if each.is_executable and "libc.so" in each.path)
    with Path(area.path).open("rb") as file:
        file.seek(area.offset)
        return area.start, file.read(1 << 18)


def instructions() -> list[int]:
    """Addresses of instructions there, as they follow each other."""
    start, code = libc()
    found = iced_x86.Decoder(64, code, ip=start)
    return [each.ip for each in found if not each.is_invalid]


def read(address: int, size_bytes: int) -> bytes:
    start, code = libc()
    return code[address - start :][:size_bytes] if address >= start else b""


def ends(
    known: Known, ip: int, most: int, read: Any, decode: Any, forms: dict[int, int] | None = None
) -> tuple[int, int]:
    """The end of the straight line from an address on, and whether it could not be read."""

    def named(at: int, mapped: bool) -> tuple[int, bool, bool]:
        return at, bool(mapped), False

    forms = {} if forms is None else forms
    names, _ = _core.look_up(
        known, ip.to_bytes(8, "little"), most, {}, forms, read, decode, named, 10_000, lambda: None
    )
    return int.from_bytes(names, "little"), not known[ip][1]


def end_of_line(ip: int) -> int | None:
    """Where a straight line ends, by the decoder alone; None outside of the code, or in a loop."""
    for _ in range(200):
        code = read(ip, 15)
        found = iced_x86.Decoder(64, code, ip=ip).decode()
        if found.is_invalid:
            return None
        if found.flow_control == FlowControl.UNCONDITIONAL_BRANCH:
            ip = found.near_branch_target
        elif found.flow_control in PASSED:
            ip = found.next_ip
        else:
            return ip
    return None


def test_straight_lines_end_where_the_decoder_says() -> None:
    forms: dict[int, int] = {}
    ips = random.Random(5).sample(instructions(), 3000)
    compared = 0
    for ip in ips:
        expected = end_of_line(ip)
        known: Known = {}
        at, *_ = ends(known, ip, 1024, read, decode, forms)
        if expected is not None:
            assert at == expected, f"{ip:#x}"
            assert known[ip] == known[at] == (expected, True, False)
            compared += 1
    assert compared > 2000
    assert len(forms) < 2000  # the decoder is asked once for each


def test_a_line_ends_where_what_follows_is_known() -> None:
    code = bytes.fromhex("90 90 eb02 c3c3 90 7400".replace(" ", ""))  # nop nop jmp +2; nop je

    def read(address: int, size_bytes: int) -> bytes:
        return code[address:][:size_bytes]

    known: Known = {6: (77, True, False), 1: (78, False, False)}  # 1 could not be read before
    assert ends(known, 0, 9, read, decode) == (77, 0)
    assert set(known) == {0, 1, 2, 6}
    assert {known[at] for at in (0, 1, 2, 6)} == {(77, True, False)}
    fresh: Known = {}
    assert ends(fresh, 0, 9, read, decode) == (7, 0)
    assert set(fresh) == {0, 1, 2, 6, 7}
    cut: Known = {}
    assert ends(cut, 0, 2, read, decode) == (1, 0)
    assert set(cut) == {0}  # others are cut elsewhere
    assert ends({}, 9, 9, read, decode) == (0, 1)  # named by its page


def likeliest_before(code: bytes) -> int:
    """Where the last instruction begins that most decoders agree on, the first of equals."""
    found: Counter[int] = Counter()
    for begin in range(BEGINS):
        for each in iced_x86.Decoder(64, code[begin:], ip=begin):
            if each.next_ip == len(code) and not each.is_invalid:
                found[each.ip] += 1
    return found.most_common(1)[0][0] if found else -1


def test_the_last_instruction_is_the_one_that_decoders_agree_on() -> None:
    start, code = libc()
    forms: dict[int, int] = {}
    for ip in random.Random(6).sample(instructions(), 2000):
        before = code[max(ip - start - 48, 0) : ip - start]
        found = _core.last_instruction(before, BEGINS, forms, decode)
        assert found == likeliest_before(before), f"{ip:#x}"
    assert _core.last_instruction(b"", BEGINS, forms, decode) == -1
    with pytest.raises(ValueError, match="too much code"):
        _core.last_instruction(bytes(257), BEGINS, forms, decode)


def test_what_goes_wrong_in_a_walk_is_told() -> None:
    def broken(*_: object) -> tuple[int, int, int]:
        raise KeyError("broken")

    def nonsense(code: bytes, ip: int) -> tuple[int]:
        return (1,)

    with pytest.raises(KeyError):
        ends({}, 0, 9, lambda address, size: b"\x90" * size, broken)
    with pytest.raises(KeyError):
        ends({}, 0, 9, broken, decode)
    with pytest.raises(TypeError):
        ends({}, 0, 9, lambda address, size: b"\x90" * size, nonsense)
