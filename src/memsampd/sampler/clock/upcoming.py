"""The accesses of an instruction whose registers are known, and the registers after it."""

from __future__ import annotations

from dataclasses import dataclass

import iced_x86
from iced_x86 import Mnemonic, OpAccess, OpKind, Register, RegisterExt

_MASK = (1 << 64) - 1
_INFO = iced_x86.InstructionInfoFactory()

# cmpxchg writes back what it read where the comparison fails: a store on every path.
_READS = {OpAccess.READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}
_WRITES = {OpAccess.WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}
_CERTAIN = _READS | _WRITES
_REPEATED = {OpAccess.COND_READ, OpAccess.COND_WRITE}


@dataclass(frozen=True, slots=True)
class Upcoming:
    """An access to come.

    Attributes:
        ip: address of the instruction.
        address: first byte; None where it depends on what is not known.
    """

    ip: int
    address: int | None


Values = dict[int, int | None]
"""Of the full registers; None: not known."""


def next_accesses(instruction: iced_x86.Instruction, values: Values) -> list[Upcoming] | None:
    """Its references, loads first; of a repeated one the first; None where that is not certain."""
    is_repeated = _is_repeated(instruction)
    if is_repeated and values[Register.RCX] is None:
        return None
    loads: list[Upcoming] = []
    stores: list[Upcoming] = []
    for memory in _INFO.info(instruction).used_memory():
        if memory.access == OpAccess.NO_MEM_ACCESS:
            continue
        if memory.access not in (_REPEATED if is_repeated else _CERTAIN):
            return None
        upcoming = Upcoming(instruction.ip, _effective(memory, values))
        if memory.access in _READS | {OpAccess.COND_READ}:
            loads.append(upcoming)
        if memory.access in _WRITES | {OpAccess.COND_WRITE}:
            stores.append(upcoming)
    if is_repeated:
        return (loads + stores)[:1] if values[Register.RCX] else []
    return loads + stores


def _is_repeated(instruction: iced_x86.Instruction) -> bool:
    return instruction.is_string_instruction and (
        instruction.has_rep_prefix or instruction.has_repne_prefix
    )


def _effective(memory: iced_x86.UsedMemory, values: Values) -> int | None:
    if memory.segment in (Register.FS, Register.GS):
        return None
    address = memory.displacement
    for register, scale in ((memory.base, 1), (memory.index, memory.scale)):
        if register in (Register.NONE, Register.RIP):
            continue  # iced has added the instruction pointer already
        value = values.get(register)
        if value is None:
            return None
        address += value * scale
    return int(address & _MASK)


def _lea(instruction: iced_x86.Instruction, values: Values) -> int | None:
    """What lea computes; iced does not count it as a reference."""
    result = instruction.memory_displacement
    for register, scale in (
        (instruction.memory_base, 1),
        (instruction.memory_index, instruction.memory_index_scale),
    ):
        if register in (Register.NONE, Register.RIP):
            continue
        value = values.get(register)
        if value is None:
            return None
        result += value * scale
    return int(result)


def follow_registers(instruction: iced_x86.Instruction, values: Values) -> None:
    """Registers after an instruction: what is not plain arithmetic is not known any more."""
    result = _result(instruction, values)
    for used in _INFO.info(instruction).used_registers():
        if used.access not in (OpAccess.NONE, OpAccess.READ, OpAccess.NO_MEM_ACCESS):
            full = RegisterExt.full_register(used.register)
            if full == Register.RSP and instruction.stack_pointer_increment:
                stack = values[full]
                values[full] = (
                    None if stack is None else stack + instruction.stack_pointer_increment
                )
            elif full in values:
                values[full] = None
    if result is not None:
        values[RegisterExt.full_register(instruction.op0_register)] = result


def _result(instruction: iced_x86.Instruction, values: Values) -> int | None:
    """What an instruction writes to its first operand, a register of 32 or 64 bits."""
    target = instruction.op0_register
    if instruction.op_count == 0 or instruction.op0_kind != OpKind.REGISTER:
        return None
    if not (RegisterExt.is_gpr64(target) or RegisterExt.is_gpr32(target)):
        return None
    old, other = values[RegisterExt.full_register(target)], _operand(instruction, values)
    match instruction.mnemonic:
        case Mnemonic.MOV | Mnemonic.LEA:
            result = other
        case Mnemonic.XOR if instruction.op1_register == target:
            result = 0
        case Mnemonic.INC if old is not None:
            result = old + 1
        case Mnemonic.DEC if old is not None:
            result = old - 1
        case Mnemonic.ADD if old is not None and other is not None:
            result = old + other
        case Mnemonic.SUB if old is not None and other is not None:
            result = old - other
        case _:
            result = None
    if result is None:
        return None
    return result & (_MASK if RegisterExt.is_gpr64(target) else _MASK >> 32)


def _operand(instruction: iced_x86.Instruction, values: Values) -> int | None:
    """The second operand, unless memory is read for it."""
    if instruction.op_count < 2:
        return None
    match instruction.op1_kind:
        case OpKind.REGISTER:
            return values.get(RegisterExt.full_register(instruction.op1_register))
        case OpKind.MEMORY if instruction.mnemonic == Mnemonic.LEA:
            return _lea(instruction, values)
        case OpKind.MEMORY:
            return None
        case _:
            return int(instruction.immediate(1))
