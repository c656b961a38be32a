"""The fs base, where it is told by memory that is laid out by hand."""

from __future__ import annotations

from memsampd.sampler.process.maps import AddressSpace, Mapping
from memsampd.sampler.walk.memory import PAGE_BYTES
from memsampd.sampler.walk.thread_area import find_thread_area

SMALL, STACK, HEAP = 0x7F0000000000, 0x7F1000000000, 0x550000000000
SPACE = AddressSpace(
    (
        Mapping(HEAP, HEAP + 4 * PAGE_BYTES, "rw-p", 0, "00:00", 0, "[heap]"),
        Mapping(SMALL, SMALL + 2 * PAGE_BYTES, "rw-p", 0, "00:00", 0, ""),
        Mapping(STACK, STACK + 8 * PAGE_BYTES, "rw-p", 0, "00:00", 0, ""),
    )
)


class Memory:
    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def block(self, address: int) -> None:
        self.words |= {address: address, address + 16: address}

    def read(self, address: int, size_bytes: int) -> bytes:
        words = [self.words.get(at, 0) for at in range(address, address + size_bytes, 8)]
        return b"".join(word.to_bytes(8, "little") for word in words)


def found(memory: Memory, stack: int, *, is_first: bool) -> int | None:
    return find_thread_area(memory.read, SPACE, stack, is_first)


def test_the_first_thread_has_one_in_a_small_area() -> None:
    memory = Memory()
    memory.block(SMALL + 0x1740)
    memory.block(HEAP + 64)  # what the program may have made itself
    memory.words[SMALL + 8] = SMALL + 8  # points to itself, but once
    assert found(memory, STACK + 64, is_first=True) == SMALL + 0x1740


def test_of_two_nobody_knows() -> None:
    memory = Memory()
    memory.block(SMALL + 0x740)
    memory.block(SMALL + 0x1740)
    assert found(memory, STACK + 64, is_first=True) is None
    assert found(Memory(), STACK + 64, is_first=True) is None


def test_others_have_it_above_their_stack() -> None:
    memory = Memory()
    memory.block(STACK + 7 * PAGE_BYTES + 0x6C0)
    stack = STACK + 6 * PAGE_BYTES
    assert found(memory, stack, is_first=False) == STACK + 7 * PAGE_BYTES + 0x6C0
    memory.block(STACK + 64)  # below: in frames that have ended
    assert found(memory, stack, is_first=False) == STACK + 7 * PAGE_BYTES + 0x6C0
    assert found(memory, 0x1000, is_first=False) is None
