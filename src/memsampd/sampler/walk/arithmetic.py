"""What arithmetic does to registers, memory and flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import iced_x86
from iced_x86 import Mnemonic, OpKind, Register

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.walk.flags import Flags, Kind
from memsampd.sampler.walk.operands import operand_of
from memsampd.sampler.walk.state import RAX, RDX, State, Step, WalkEndError

Maker: TypeAlias = Callable[[iced_x86.Instruction], "Step | None"]
"""Makes the step of an instruction; None where its operands are of an unusual kind."""
Combine: TypeAlias = Callable[[State, "int | None", "int | None"], "int | None"]
"""Makes one value of two, and sets flags."""

_CANARY = 0x28  # from the fs base: what functions compare to see whether their frame is whole


def signed_value(value: int, bits: int) -> int:
    """A value of some bits with its sign."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _is_canary(instruction: iced_x86.Instruction) -> bool:
    return instruction.memory_segment == Register.FS and instruction.memory_displacement == _CANARY


def combining(combine: Callable[[int], Combine], *, stores: bool = True) -> Maker:
    """Of two operands: the first is changed."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        to, source = operand_of(instruction, 0), operand_of(instruction, 1)
        if to is None or source is None:
            return None
        (read_to, write, bits), read, next_ip = to, source[0], instruction.next_ip
        act, mask = combine(bits), (1 << bits) - 1
        is_same = _is_same_register(instruction) and instruction.mnemonic in (
            Mnemonic.XOR,
            Mnemonic.SUB,
        )
        is_whole = is_same or _is_canary(instruction)

        def step(state: State) -> int:
            first, second = read_to(state), read(state)
            if is_whole:
                first = second = 0
            result = act(state, first, None if second is None else second & mask)
            if stores:
                write(state, result)
            return next_ip

        return step

    return make


def _is_same_register(instruction: iced_x86.Instruction) -> bool:
    return (
        instruction.op0_kind == instruction.op1_kind == OpKind.REGISTER
        and instruction.op0_register == instruction.op1_register
    )


def arithmetic(kind: Kind, work: Callable[[int, int], int]) -> Callable[[int], Combine]:
    """Work of two known operands, and its flags."""

    def of_width(bits: int) -> Combine:
        mask = (1 << bits) - 1

        def act(state: State, first: int | None, second: int | None) -> int | None:
            if first is None or second is None:
                state.flags = None
                return None
            result = work(first, second) & mask
            state.flags = Flags(kind, first, second, result, bits)
            return result

        return act

    return of_width


def and_of_zero(bits: int) -> Combine:
    """And, which knows what comes of a zero."""
    usual = arithmetic("logic", lambda a, b: a & b)(bits)

    def act(state: State, first: int | None, second: int | None) -> int | None:
        if first == 0 or second == 0:
            first = second = 0
        return usual(state, first, second)

    return act


def with_carry(kind: Kind, sign: int) -> Callable[[int], Combine]:
    """Adc and sbb."""

    def of_width(bits: int) -> Combine:
        mask = (1 << bits) - 1

        def act(state: State, first: int | None, second: int | None) -> int | None:
            carry = None if state.flags is None else state.flags.carry
            if first is None or second is None or carry is None:
                state.flags = None
                return None
            whole = first + sign * (second + carry)
            result = whole & mask
            state.flags = Flags("shift", 0, int(not 0 <= whole <= mask), result, bits)
            return result

        return act

    return of_width


def single(kind: str) -> Maker:
    """Of one operand, which is changed: inc, dec, neg, not, bswap."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        operand = operand_of(instruction, 0)
        if operand is None:
            return None
        (read, write, bits), next_ip = operand, instruction.next_ip
        mask = (1 << bits) - 1

        def step(state: State) -> int:
            value = read(state)
            if value is None:
                if kind in ("inc", "dec", "neg"):
                    state.flags = None
                write(state, None)
                return next_ip
            if kind == "inc" or kind == "dec":
                result = (value + (1 if kind == "inc" else -1)) & mask
                carry = None if state.flags is None else state.flags.carry
                carried = None if carry is None else int(carry)
                state.flags = Flags("inc" if kind == "inc" else "dec", 0, carried, result, bits)
            elif kind == "neg":
                result = -value & mask
                state.flags = Flags("sub", 0, value, result, bits)
            elif kind == "not":
                result = ~value & mask
            else:
                result = int.from_bytes(value.to_bytes(bits // 8, "little"), "big")
            write(state, result)
            return next_ip

        return step

    return make


def shift(kind: str) -> Maker:
    """Shifts and rotations."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        to, source = operand_of(instruction, 0), operand_of(instruction, 1)
        if to is None or source is None:
            return None
        (read, write, bits), count_of, next_ip = to, source[0], instruction.next_ip
        counts = 63 if bits == 64 else 31

        def step(state: State) -> int:
            value, count = read(state), count_of(state)
            if value is None or count is None:
                state.flags = None
                write(state, None)
                return next_ip
            count &= counts
            if not count:
                write(state, value)
                return next_ip
            result, carry = _shifted(kind, value, count, bits)
            has_all = kind in ("shl", "shr", "sar")
            state.flags = Flags("shift" if has_all else "carry", 0, carry, result, bits)
            write(state, result)
            return next_ip

        return step

    return make


def _shifted(kind: str, value: int, count: int, bits: int) -> tuple[int, int]:
    """What a shift gives, and the last bit that it shifts out."""
    mask = (1 << bits) - 1
    match kind:
        case "shl":
            whole = value << count
            return whole & mask, whole >> bits & 1
        case "shr":
            return value >> count, value >> (count - 1) & 1
        case "sar":
            signed = signed_value(value, bits)
            return (signed >> count) & mask, signed >> (count - 1) & 1
        case "rol":
            count %= bits
            result = (value << count | value >> (bits - count)) & mask
            return result, result & 1
        case _:
            count %= bits
            result = (value >> count | value << (bits - count)) & mask
            return result, result >> (bits - 1)


def multiply(instruction: iced_x86.Instruction) -> Step | None:
    """Imul of two or three operands; others by their operand and rax."""
    if instruction.op_count == 1:
        return _multiply_wide(instruction)
    to = operand_of(instruction, 0)
    first, second = (operand_of(instruction, instruction.op_count - each) for each in (2, 1))
    if to is None or first is None or second is None:
        return None
    write, bits, next_ip = to[1], to[2], instruction.next_ip
    read_first, read_second, mask = first[0], second[0], (1 << to[2]) - 1

    def step(state: State) -> int:
        one, other = read_first(state), read_second(state)
        state.flags = None
        write(state, None if one is None or other is None else (one * other) & mask)
        return next_ip

    return step if bits <= 64 else None


def _multiply_wide(instruction: iced_x86.Instruction) -> Step | None:
    operand = operand_of(instruction, 0)
    if operand is None or operand[2] < 32:
        return None
    read, _, bits = operand
    mask, next_ip = (1 << bits) - 1, instruction.next_ip
    signed = instruction.mnemonic == Mnemonic.IMUL

    def step(state: State) -> int:
        one, other = state.registers[RAX], read(state)
        state.flags = None
        low = high = None
        if one is not None and other is not None:
            one &= mask
            if signed:
                one, other = signed_value(one, bits), signed_value(other, bits)
            low, high = one * other & mask, one * other >> bits & mask
        state.registers[RAX], state.registers[RDX] = low, high
        return next_ip

    return step


def divide(instruction: iced_x86.Instruction) -> Step | None:
    """Div and idiv of 32 and 64 bits."""
    operand = operand_of(instruction, 0)
    if operand is None or operand[2] < 32:
        return None
    read, _, bits = operand
    mask, next_ip = (1 << bits) - 1, instruction.next_ip
    signed = instruction.mnemonic == Mnemonic.IDIV

    def step(state: State) -> int:
        low, high, by = state.registers[RAX], state.registers[RDX], read(state)
        state.flags = None
        quotient = rest = None
        if low is not None and high is not None and by is not None:
            whole = (low & mask) | (high & mask) << bits
            if signed:
                whole, by = signed_value(whole, 2 * bits), signed_value(by, bits)
            if by == 0:
                raise WalkEndError(BurstEnd.FAULT, "a division by zero")
            quotient = abs(whole) // abs(by) * (1 if (whole < 0) == (by < 0) else -1)
            rest = whole - quotient * by & mask
            quotient &= mask
        state.registers[RAX], state.registers[RDX] = quotient, rest
        return next_ip

    return step


def bit_test(instruction: iced_x86.Instruction) -> Step | None:
    """Bt of registers; of memory the word that it looks at may be another one."""
    to, source = operand_of(instruction, 0), operand_of(instruction, 1)
    if instruction.op0_kind != OpKind.REGISTER or to is None or source is None:
        return None
    read, bits, count_of, next_ip = to[0], to[2], source[0], instruction.next_ip

    def step(state: State) -> int:
        value, count = read(state), count_of(state)
        state.flags = None
        if value is not None and count is not None:
            state.flags = Flags("carry", 0, value >> (count % bits) & 1, 0, bits)
        return next_ip

    return step


def bit_scan(work: Callable[[int, int], int]) -> Maker:
    """Where the first bit is; of zero nothing is told, as not all of them define it."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        to, source = operand_of(instruction, 0), operand_of(instruction, 1)
        if to is None or source is None:
            return None
        write, bits, read, next_ip = to[1], source[2], source[0], instruction.next_ip
        is_scan = instruction.mnemonic in (Mnemonic.BSF, Mnemonic.BSR)

        def step(state: State) -> int:
            value = read(state)
            state.flags = None
            if value and is_scan:  # ZF tells whether there is a bit
                state.flags = Flags("zero", 0, None, 1, bits)
            write(state, work(value, bits) if value else None)
            return next_ip

        return step

    return make
