"""Where an instruction finds its operands: functions that read and write them in a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import iced_x86
import numpy as np
from iced_x86 import OpKind, Register

from memsampd.sampler.registers import POSITION
from memsampd.sampler.replica.decoder import (
    BIT,
    FS_WORD,
    GATHER,
    NO_REGISTER,
    WORD_OF_REGISTER,
    XLAT,
    XSAVE,
    XSAVEC,
)
from memsampd.sampler.walk.state import FULL, RAX, RBX, RCX, RDX, THREAD_AREA, State, Step

Get: TypeAlias = Callable[[State], "int | None"]
Set: TypeAlias = Callable[[State, "int | None"], None]

# Positions of the recipes' registers, as words of user_regs_struct, in samples.
_OF_WORD = {WORD_OF_REGISTER[register]: at for register, at in POSITION.items()}
_UNTOLD = (GATHER, BIT, XSAVE, XSAVEC, XLAT)
_HIGH_BYTES = {Register.AH: RAX, Register.BH: RBX, Register.CH: RCX, Register.DH: RDX}


def is_general(instruction: iced_x86.Instruction) -> bool:
    """Whether its operands are general registers, memory and constants only."""
    return all(
        instruction.op_kind(at) != OpKind.REGISTER
        or iced_x86.RegisterExt.full_register(instruction.op_register(at)) in POSITION
        for at in range(instruction.op_count)
    ) and (instruction.memory_base == Register.NONE or _base(instruction) is not None)


def _base(instruction: iced_x86.Instruction) -> int | None:
    base = instruction.memory_base
    if base in (Register.NONE, Register.RIP, Register.EIP):
        return -1
    return POSITION.get(base)  # addresses of 32 bits are nobody's


def address_of(instruction: iced_x86.Instruction) -> Get | None:
    """The address of its memory operand; None where it is of an unusual kind."""
    base, index, scale = _base(instruction), -1, instruction.memory_index_scale
    if instruction.memory_index != Register.NONE:
        found = POSITION.get(instruction.memory_index)
        if found is None:
            return None
        index = found
    if base is None:
        return None
    displacement = instruction.memory_displacement
    if instruction.memory_segment == Register.FS:
        displacement += THREAD_AREA
    elif instruction.memory_segment == Register.GS:
        return None
    if base < 0 and index < 0:
        return lambda state: displacement & FULL
    if index < 0:
        return _based(base, displacement)

    def indexed(state: State) -> int | None:
        first = 0 if base < 0 else state.registers[base]
        second = state.registers[index]
        if first is None or second is None:
            return None
        return (first + second * scale + displacement) & FULL

    return indexed


def _based(base: int, displacement: int) -> Get:
    def address(state: State) -> int | None:
        value = state.registers[base]
        return None if value is None else (value + displacement) & FULL

    return address


def register_of(register: iced_x86.Register_) -> tuple[Get, Set, int]:
    """Read and write a general register; and its bits."""
    position = POSITION[iced_x86.RegisterExt.full_register(register)]
    bits = 8 * iced_x86.RegisterExt.size(register)
    shift = 8 if register in _HIGH_BYTES else 0
    mask = (1 << bits) - 1

    def read(state: State) -> int | None:
        value = state.registers[position]
        return None if value is None else (value >> shift) & mask

    def write(state: State, value: int | None) -> None:
        state.registers[position] = value

    def write_part(state: State, value: int | None) -> None:
        before = state.registers[position]
        if value is not None and before is not None:
            value = (before & ~(mask << shift)) | (value << shift)
        else:
            value = None
        state.registers[position] = value

    return read, write if bits >= 32 else write_part, bits


def memory_of(instruction: iced_x86.Instruction) -> tuple[Get, Set, int] | None:
    """Read and write its memory operand, of any size; None where that is of an unusual kind."""
    size_bytes = iced_x86.MemorySizeExt.size(instruction.memory_size)
    address, ip = address_of(instruction), instruction.ip
    if address is None:
        return None
    return (
        lambda state: state.load(ip, address(state), size_bytes),
        lambda state, value: state.store(ip, address(state), size_bytes, value),
        8 * size_bytes,
    )


def operand_of(instruction: iced_x86.Instruction, at: int) -> tuple[Get, Set, int] | None:
    """Read and write an operand; None where it is of an unusual kind."""
    kind = instruction.op_kind(at)
    if kind == OpKind.REGISTER:
        register = instruction.op_register(at)
        is_known = iced_x86.RegisterExt.full_register(register) in POSITION
        return register_of(register) if is_known else None  # of MMX, or a mask
    if kind == OpKind.MEMORY:
        found = memory_of(instruction)
        return found if found is not None and found[2] <= 64 else None
    try:
        value = instruction.immediate(at)
    except ValueError:
        return None
    return lambda state: value, lambda state, told: None, 64


def copying(read: Get, write: Set, bits: int, next_ip: int) -> Step:
    """A step that writes so many bits of what it reads."""
    mask = (1 << bits) - 1

    def step(state: State) -> int:
        value = read(state)
        write(state, None if value is None else value & mask)
        return next_ip

    return step


def reference_of(row: np.void) -> tuple[Get, int, bool, bool]:
    """Of a recipe: the address, bytes, and whether it loads and stores."""
    base, index = (_OF_WORD.get(int(row[name]), -1) for name in ("base", "index"))
    scale, displacement = int(row["scale"]), int(row["displacement"])
    kind = int(row["kind"])
    segment = int(row["segment"])
    is_told = kind not in _UNTOLD and not row["is_32_bit"] and segment in (NO_REGISTER, FS_WORD)
    if segment == FS_WORD:
        displacement += THREAD_AREA

    def address(state: State) -> int | None:
        if not is_told:
            return None
        first = 0 if base < 0 else state.registers[base]
        second = 0 if index < 0 else state.registers[index]
        if first is None or second is None:
            return None
        return (first + second * scale + displacement) & FULL

    return address, int(row["size_bytes"]), bool(row["loads"]), bool(row["stores"])
