"""What integer instructions do: each is made a function that does it to a state."""

from __future__ import annotations

import iced_x86
from iced_x86 import Mnemonic

from memsampd.sampler.walk.arithmetic import (
    Maker,
    and_of_zero,
    arithmetic,
    bit_scan,
    bit_test,
    combining,
    divide,
    multiply,
    shift,
    signed_value,
    single,
    with_carry,
)
from memsampd.sampler.walk.flags import is_met
from memsampd.sampler.walk.operands import address_of, copying, operand_of, register_of
from memsampd.sampler.walk.state import FULL, RAX, RBP, RDX, RSP, State, Step, pop_value, push_value

_SINGLES = ("inc", "dec", "neg", "not", "bswap")
_SHIFTS = ("shl", "shr", "sar", "rol", "ror")


def _move(instruction: iced_x86.Instruction) -> Step | None:
    to, source = operand_of(instruction, 0), operand_of(instruction, 1)
    if to is None or source is None:
        return None
    (_, write, to_bits), (read, _, bits), next_ip = to, source, instruction.next_ip
    if instruction.mnemonic not in (Mnemonic.MOVSX, Mnemonic.MOVSXD):
        return copying(read, write, to_bits, next_ip)
    mask = (1 << to_bits) - 1

    def extend(state: State) -> int:
        value = read(state)
        write(state, None if value is None else signed_value(value, bits) & mask)
        return next_ip

    return extend


def _lea(instruction: iced_x86.Instruction) -> Step | None:
    address = address_of(instruction)
    if address is None:
        return None
    _, write, bits = register_of(instruction.op0_register)
    return copying(address, write, bits, instruction.next_ip)


def _widen(from_bits: int, to_bits: int, *, into_rdx: bool) -> Maker:
    """The sign of rax made more bits of it, or all of rdx."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        next_ip, mask = instruction.next_ip, (1 << to_bits) - 1
        from_mask = (1 << from_bits) - 1

        def step(state: State) -> int:
            value = state.registers[RAX]
            if value is not None:
                value = signed_value(value & from_mask, from_bits)
            if into_rdx:
                state.registers[RDX] = None if value is None else (value >> from_bits) & from_mask
            else:
                state.registers[RAX] = None if value is None else value & mask
            return next_ip

        return step

    return make


def _conditional_move(instruction: iced_x86.Instruction) -> Step | None:
    to, source = operand_of(instruction, 0), operand_of(instruction, 1)
    if to is None or source is None or to[2] < 32:
        return None
    (read_to, write, _), read, next_ip = to, source[0], instruction.next_ip
    condition = instruction.condition_code

    def step(state: State) -> int:
        moved, kept = read(state), read_to(state)
        met = is_met(condition, state.flags)
        write(state, None if met is None else moved if met else kept)
        return next_ip

    return step


def _conditional_set(instruction: iced_x86.Instruction) -> Step | None:
    to = operand_of(instruction, 0)
    if to is None:
        return None
    write, condition, next_ip = to[1], instruction.condition_code, instruction.next_ip

    def step(state: State) -> int:
        met = is_met(condition, state.flags)
        write(state, None if met is None else int(met))
        return next_ip

    return step


def _stack(instruction: iced_x86.Instruction) -> Step | None:
    operand = operand_of(instruction, 0)
    ip, next_ip = instruction.ip, instruction.next_ip
    if operand is None or instruction.stack_pointer_increment not in (8, -8):
        return None
    read, write, _ = operand
    pushes = instruction.mnemonic == Mnemonic.PUSH

    def push(state: State) -> int:
        value = read(state)
        push_value(state, ip, None if value is None else value & FULL)
        return next_ip

    def pop(state: State) -> int:
        write(state, pop_value(state, ip))
        return next_ip

    return push if pushes else pop


def _leave(instruction: iced_x86.Instruction) -> Step | None:
    ip, next_ip = instruction.ip, instruction.next_ip

    def step(state: State) -> int:
        state.registers[RSP] = state.registers[RBP]
        state.registers[RBP] = pop_value(state, ip)
        return next_ip

    return step


def _nothing(instruction: iced_x86.Instruction) -> Step | None:
    next_ip = instruction.next_ip
    return lambda state: next_ip


MAKERS: dict[int, Maker] = {
    **dict.fromkeys((Mnemonic.MOV, Mnemonic.MOVZX, Mnemonic.MOVSX, Mnemonic.MOVSXD), _move),
    Mnemonic.LEA: _lea,
    Mnemonic.ADD: combining(arithmetic("add", lambda a, b: a + b)),
    Mnemonic.SUB: combining(arithmetic("sub", lambda a, b: a - b)),
    Mnemonic.CMP: combining(arithmetic("sub", lambda a, b: a - b), stores=False),
    Mnemonic.AND: combining(and_of_zero),
    Mnemonic.TEST: combining(and_of_zero, stores=False),
    Mnemonic.OR: combining(arithmetic("logic", lambda a, b: a | b)),
    Mnemonic.XOR: combining(arithmetic("logic", lambda a, b: a ^ b)),
    Mnemonic.ADC: combining(with_carry("add", 1)),
    Mnemonic.SBB: combining(with_carry("sub", -1)),
    **{getattr(Mnemonic, name.upper()): single(name) for name in _SINGLES},
    **{getattr(Mnemonic, name.upper()): shift(name) for name in _SHIFTS},
    Mnemonic.IMUL: multiply,
    Mnemonic.MUL: multiply,
    Mnemonic.DIV: divide,
    Mnemonic.IDIV: divide,
    Mnemonic.CDQE: _widen(32, 64, into_rdx=False),
    Mnemonic.CDQ: _widen(32, 32, into_rdx=True),
    Mnemonic.CQO: _widen(64, 64, into_rdx=True),
    Mnemonic.PUSH: _stack,
    Mnemonic.POP: _stack,
    Mnemonic.LEAVE: _leave,
    Mnemonic.BT: bit_test,
    Mnemonic.BSF: bit_scan(lambda value, bits: (value & -value).bit_length() - 1),
    Mnemonic.TZCNT: bit_scan(lambda value, bits: (value & -value).bit_length() - 1),
    Mnemonic.BSR: bit_scan(lambda value, bits: value.bit_length() - 1),
    Mnemonic.LZCNT: bit_scan(lambda value, bits: bits - value.bit_length()),
    Mnemonic.POPCNT: bit_scan(lambda value, bits: value.bit_count()),
    **dict.fromkeys((Mnemonic.NOP, Mnemonic.ENDBR64, Mnemonic.PAUSE), _nothing),
    **{
        value: _conditional_move if name.startswith("CMOV") else _conditional_set
        for name, value in vars(Mnemonic).items()
        if name.startswith(("CMOV", "SET")) and name not in ("SETSSBSY",)
    },
}
