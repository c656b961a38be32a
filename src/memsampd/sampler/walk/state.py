"""What a walk knows of a thread: values of registers and flags, as far as they are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.walk.flags import Flags
from memsampd.sampler.walk.memory import WalkMemory

RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP = range(8)
"""Positions of registers, as in samples; r8 to r15 follow."""
USER_END = 1 << 47
"""Addresses from here on are nobody's memory."""
THREAD_AREA = 1 << 50
"""Stands for the fs base in steps, as samples do not tell it."""
FULL = (1 << 64) - 1
_AREA_BYTES = 1 << 40  # on either side of the fs base, at most


class WalkEndError(Exception):
    """A walk cannot go on.

    Attributes:
        end: why.
        detail: the same, for people.
    """

    def __init__(self, end: BurstEnd, detail: str = "") -> None:
        super().__init__(detail)
        self.end = end
        self.detail = detail


@dataclass(slots=True)
class State:
    """A thread in the middle of a walk.

    Attributes:
        registers: 16 values, in the order of samples; None where unknown.
        memory: what loads find.
        guess: whether a jump that depends on what is not known is taken: asked with its address
            and its target.
        thread_area: the fs base, where it was found; else words of that area are told apart and not
            known.
        flags: what set them last; None where unknown.
        vectors: values of vector registers by number; those that are not here are unknown.
        rows: references so far: instruction, address, bytes, whether it is a store.
        unknown_rows: references whose addresses are not known: they are not among the rows.
        guesses: jumps that were guessed.
        prefetches: software prefetches met.
        repeats: elements that string instructions moved.
        repeated_ip: the repeated instruction that the walk is in the midst of.
    """

    registers: list[int | None]
    memory: WalkMemory
    guess: Callable[[int, int], bool]
    thread_area: int | None = None
    flags: Flags | None = None
    vectors: dict[int, int | None] = field(default_factory=dict)
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)
    unknown_rows: int = 0
    guesses: int = 0
    prefetches: int = 0
    repeats: int = 0
    repeated_ip: int | None = None

    def place(self, address: int | None) -> int | None:
        """Where an address really is."""
        if address is None or self.thread_area is None:
            return address
        offset = address - THREAD_AREA
        return self.thread_area + offset if -_AREA_BYTES < offset < _AREA_BYTES else address

    def refer(self, ip: int, address: int | None, size_bytes: int, is_write: bool) -> None:
        """Note a reference."""
        address = self.place(address)
        if address is None:
            self.unknown_rows += 1
        else:
            self.rows.append((ip, address, size_bytes, is_write))

    def load(self, ip: int, address: int | None, size_bytes: int) -> int | None:
        """Load a value, and note it."""
        address = self.place(address)
        self.refer(ip, address, size_bytes, False)
        if address is None or address >= USER_END:
            return None
        return self.memory.load(address, size_bytes)

    def store(self, ip: int, address: int | None, size_bytes: int, value: int | None) -> None:
        """Store a value of any size, and note it."""
        address = self.place(address)
        self.refer(ip, address, size_bytes, True)
        if address is not None and address < USER_END:
            self.memory.store(address, size_bytes, value)


Step: TypeAlias = Callable[[State], int]
"""Does an instruction; returns the address of the next one."""


def known(target: int | None) -> int:
    """A value without which a walk cannot go on.

    Raises:
        WalkEndError: it is not known.
    """
    if target is None:
        raise WalkEndError(BurstEnd.UNREADABLE, "a jump to where is not known")
    return target


def plus(value: int | None, more: int) -> int | None:
    """A sum of 64 bits; None where it is not known."""
    return None if value is None else (value + more) & FULL


def push_value(state: State, ip: int, value: int | None) -> None:
    """Store a value below the stack pointer, and move that."""
    address = plus(state.registers[RSP], -8)
    state.store(ip, address, 8, value)
    state.registers[RSP] = address


def pop_value(state: State, ip: int) -> int | None:
    """Load the value at the stack pointer, and move that."""
    address = state.registers[RSP]
    value = state.load(ip, address, 8)
    state.registers[RSP] = plus(address, 8)
    return value
