"""Samples with registers and stack, as the kernel lays them out."""

from __future__ import annotations

import random
import struct

import pytest

from memsampd.sampler.walk.memory import PAGE_BYTES, WalkMemory
from memsampd.sampler.walk.thread_samples import first_sample

REGISTERS = tuple(range(100, 116))


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("IHH", kind, 2, 8 + len(body)) + body


def record_of_sample(stack: bytes = b"", known: int = 0, abi: int = 2) -> bytes:
    body = struct.pack("QQIIQQ", 7, 0x401000, 41, 42, 1_500_000_000, abi)
    body += struct.pack("16Q", *REGISTERS) if abi else b""
    body += struct.pack("Q", len(stack)) + stack
    return record(9, body + (struct.pack("Q", known) if stack else b""))


def test_a_sample_behind_other_records() -> None:
    fork = record(7, bytes(24))
    sample = first_sample(fork + record_of_sample(b"abcdefgh" * 2, 8))
    assert sample is not None
    assert (sample.tid, sample.ip, sample.time_seconds) == (42, 0x401000, 1.5)
    assert sample.registers == REGISTERS
    assert sample.stack == b"abcdefgh"  # what the kernel could not read is not told


def test_samples_without_a_stack() -> None:
    sample = first_sample(record_of_sample())
    assert sample is not None
    assert sample.stack == b""


def test_samples_without_registers_are_none() -> None:
    assert first_sample(record_of_sample(abi=0)) is None
    assert first_sample(record_of_sample(abi=1)) is None  # of 32-bit code
    assert first_sample(b"") is None


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes(seed: int) -> None:
    """Whatever comes, nothing is read beyond it."""
    rng = random.Random(seed)
    whole = record(7, bytes(24)) + record_of_sample(bytes(64), 64)
    for _ in range(2000):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        sample = first_sample(bytes(data))
        if sample is not None:
            assert len(sample.registers) == 16
            assert len(sample.stack) <= 64


def test_the_stack_of_the_sample_counts() -> None:
    """Not what is there when it is read; beside it only what can be read is known."""
    pages = {1: b"\xff" * PAGE_BYTES}
    memory = WalkMemory(lambda address, size: pages.get(address >> 12, b"")[:size])
    stack = 2 * PAGE_BYTES - 16
    memory.prepare(stack, b"\x01" * 64)
    assert memory.load(stack, 8) == memory.load(stack + 56, 8) == 0x0101010101010101
    assert memory.load(stack - 8, 8) == (1 << 64) - 1
    assert memory.load(stack + 64, 8) is None  # its page cannot be read
    assert pages[1] == b"\xff" * PAGE_BYTES
