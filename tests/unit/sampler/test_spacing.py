"""Addresses of data by a sample's registers, and how far apart they lie."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsampd import _core
from memsampd.sampler.data_operands import NOTHING, Operand, packed
from memsampd.sampler.records import BranchSamples, Spacing
from memsampd.sampler.spacing import DataSpacing

BASE = 0x401000
RBX = 1
PADDING = 64


def memory_of(code: str) -> tuple[bytes, int]:
    """Code between instructions that do nothing, and the address at which it begins."""
    return b"\x90" * PADDING + bytes.fromhex(code) + b"\xc3" * PADDING, BASE + PADDING


def nearest_octaves(address: list[int]) -> list[float]:
    """By brute force."""
    lines, many = [each // 64 for each in address], len(address)
    return [
        math.log2(1 + min(abs(line - lines[k]) for k in range(len(lines)) if k != at) * many / 50)
        for at, line in enumerate(lines)
    ]


def spacing_of(address: list[int]) -> Spacing | None:
    """Of samples that rbx and a displacement tell the addresses of."""
    registers = np.zeros((len(address), 16), np.uint64)
    registers[:, RBX] = address
    operands = len(address) * packed(Operand(RBX, NOTHING, 1, 64))
    found = _core.spacing_of(_core.data_addresses(operands, registers))
    return None if found is None else Spacing(*found)


@given(st.lists(st.integers(0, 2**47), min_size=8, max_size=60))
def test_spacing_is_the_median_distance_to_the_nearest(address: list[int]) -> None:
    found = spacing_of(address)
    assert found is not None or len(address) >= 16  # so many may be spaced otherwise later
    if found is not None:
        octaves = nearest_octaves(address)
        assert found.octaves == pytest.approx(float(np.median(octaves)))
        assert 0 <= found.error <= (max(octaves) - min(octaves)) / 2 + 1e-9


def test_few_addresses_tell_nothing() -> None:
    assert spacing_of(list(range(7))) is None
    assert spacing_of(8 * [0]) == Spacing(0.0, 0.0)
    nothing = 20 * packed(Operand(NOTHING, NOTHING, 1, 64))
    none_told = _core.data_addresses(nothing, np.zeros((20, 16), np.uint64))
    assert _core.spacing_of(none_told) is None
    for registers in (np.zeros((19, 16), np.uint64), np.zeros((21, 16), np.uint64)):
        with pytest.raises(ValueError, match="not the operands"):
            _core.data_addresses(nothing, registers)


def samples(address: np.ndarray, begin_seconds: float, pid: int = 7) -> BranchSamples:
    """Samples of a load through rbx, behind it."""
    registers = np.zeros((len(address), 16), np.uint64)
    registers[:, RBX] = address
    times = begin_seconds + 0.002 * np.arange(len(address), dtype=np.float64)
    ids = np.full(len(address), pid, np.int32)
    ips = np.full(len(address), BASE + PADDING + 3, np.uint64)
    return BranchSamples(ips, ids, ids, times, 0.002, registers)


def spacing_reader() -> DataSpacing:
    memory, _ = memory_of("488b0b 4889d8")  # mov rcx, [rbx]; mov rax, rbx

    def read(address: int, size_bytes: int) -> bytes:
        return memory[address - BASE :][:size_bytes]

    return DataSpacing(7, read)


def test_spacing_about_a_moment_is_that_of_samples_before_and_after_it() -> None:
    reader, rng = spacing_reader(), np.random.default_rng(1)
    for window, size_bytes in enumerate((1 << 14, 1 << 24)):
        reader.add(samples(rng.integers(0, size_bytes, 50).astype(np.uint64), window))
    small, none, large = (reader.about(at) for at in (0.05, 0.5, 1.05))
    assert small is not None
    assert large is not None
    assert large.octaves > small.octaves + 5
    assert none is None  # between two data
    assert reader.about(-1.0) == reader.between(0.0, 0.0485)
    assert reader.about(9.0) == reader.between(1.0495, 9.0)
    near = reader.about(0.08)  # ten samples before the change: fewer tell
    assert near == reader.between(0.0555, 1.0025)
    assert near is not None
    assert near.octaves == pytest.approx(small.octaves, abs=1.0)


def test_windows_on_larger_data_have_a_larger_spacing() -> None:
    reader, rng = spacing_reader(), np.random.default_rng(1)
    found = []
    for window, size_bytes in enumerate((1 << 14, 1 << 18, 1 << 24)):
        reader.add(samples(rng.integers(0, size_bytes, 50).astype(np.uint64), window))
        found.append(reader.between(window, window + 0.5))
    octaves = [each.octaves for each in found if each is not None]
    assert len(octaves) == 3
    # Fifty of so many lines: the nearest of them lies about the hundredth part of the area away.
    expected = [
        math.log2(1 + (size_bytes / 64) / 100) for size_bytes in (1 << 14, 1 << 18, 1 << 24)
    ]
    assert octaves == pytest.approx(expected, abs=1.0)
    assert reader.between(10.0, 11.0) is None


def test_a_window_in_which_the_data_changed_has_no_spacing() -> None:
    reader, rng = spacing_reader(), np.random.default_rng(2)
    small, large = (rng.integers(0, size, 25).astype(np.uint64) for size in (1 << 14, 1 << 24))
    for window, addresses in enumerate((small, large, np.concatenate([small, large]))):
        reader.add(samples(addresses, window))
    assert reader.between(0.0, 0.5) is not None
    assert reader.between(1.0, 1.5) is not None
    assert reader.between(2.0, 2.5) is None


def test_samples_of_others_and_such_without_registers_tell_nothing() -> None:
    reader, address = spacing_reader(), np.arange(50, dtype=np.uint64) * np.uint64(4096)
    reader.add(samples(address, 0.0, pid=8))
    bare = samples(address, 1.0)
    reader.add(BranchSamples(bare.ip, bare.pid, bare.tid, bare.time_seconds, bare.period_seconds))
    assert reader.between(0.0, 2.0) is None


def test_code_is_decoded_once_it_was_sampled_often_enough_and_what_is_kept_is_bounded() -> None:
    asked = []

    def read(address: int, size_bytes: int) -> bytes:
        asked.append(address)
        return b""

    reader = DataSpacing(7, read)
    once = samples(np.zeros(40, np.uint64), 0.0)
    once = BranchSamples(
        BASE + np.arange(40, dtype=np.uint64),
        once.pid,
        once.tid,
        once.time_seconds,
        0.002,
        once.registers,
    )
    reader.add(once)
    assert reader.between(0.0, 1.0) is None
    assert not asked
    reader.add(once)
    for _ in range(5):
        reader.between(0.0, 1.0)
    assert len(set(asked)) == 2 * 32  # before each, and behind it: a fifth of the samples is left
    for _ in range(3):
        reader.add(once)
    reader.between(0.0, 1.0)
    assert len(set(asked)) == 2 * 40
    seen = len(asked)
    reader.between(0.0, 1.0)
    assert len(asked) == seen
    for page in range(200):
        many = BASE + np.uint64(4096 * page) + np.repeat(np.arange(20, dtype=np.uint64), 2)
        reader.add(
            BranchSamples(
                many, once.pid, once.tid, once.time_seconds + page + 2, 0.002, once.registers
            )
        )
        for _ in range(2):
            reader.between(page + 2.0, page + 2.5)
    assert len(reader._known) <= 4096


def test_samples_tell_addresses_of_their_threads_data() -> None:
    """What no thread can have is left out, and of samples of code that is not known nothing is."""
    reader = spacing_reader()
    address = np.array([1 << 46, (1 << 20) + 8, 0, 1 << 63, *range(4096, 4136)], np.uint64)
    reader.add(samples(address, 0.0))
    tids, told = reader.addresses(0.0, 1.0)
    assert (len(tids), len(told)) == (0, 0)
    assert reader.between(0.0, 1.0) is not None  # learns the code
    tids, told = reader.addresses(0.0, 1.0)
    assert told.tolist() == [each for each in address.tolist() if 0 < each < 1 << 47]
    assert set(tids.tolist()) == {7}
    assert reader.addresses(5.0, 6.0)[1].tolist() == []
