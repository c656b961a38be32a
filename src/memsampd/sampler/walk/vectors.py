"""What vector instructions do that carry pointers and compare strings; all others' is not known."""

from __future__ import annotations

from collections.abc import Callable

import iced_x86
from iced_x86 import Mnemonic, OpKind

from memsampd.sampler.walk.arithmetic import Maker
from memsampd.sampler.walk.operands import Get, Set, copying, memory_of, operand_of
from memsampd.sampler.walk.state import FULL, State, Step


def number_of(register: iced_x86.Register_) -> int | None:
    """Which vector register it is part of; None of others."""
    if not iced_x86.RegisterExt.is_vector_register(register):
        return None
    return iced_x86.RegisterExt.number(register)


def _operand(instruction: iced_x86.Instruction, at: int) -> tuple[Get, Set, int] | None:
    """Read and write a vector register, memory of any size, or a general register."""
    if instruction.op_kind(at) == OpKind.MEMORY:
        return memory_of(instruction)
    number = number_of(instruction.op_register(at))
    if number is None:
        return operand_of(instruction, at)
    bits = 8 * iced_x86.RegisterExt.size(instruction.op_register(at))
    mask = (1 << bits) - 1

    def read(state: State) -> int | None:
        value = state.vectors.get(number)
        return None if value is None else value & mask

    def write(state: State, value: int | None) -> None:
        state.vectors[number] = value

    return read, write, bits


def _move(instruction: iced_x86.Instruction) -> Step | None:
    if instruction.op_count != 2 or instruction.op_mask != iced_x86.Register.NONE:
        return None
    to, source = _operand(instruction, 0), _operand(instruction, 1)
    if to is None or source is None:
        return None
    (_, write, bits), read, next_ip = to, source[0], instruction.next_ip
    if instruction.mnemonic in (Mnemonic.MOVQ, Mnemonic.VMOVQ):
        bits = 64
    elif instruction.mnemonic in (Mnemonic.MOVD, Mnemonic.VMOVD):
        bits = 32
    return copying(read, write, bits, next_ip)


def _combining(work: Callable[[int, int, int], int], *, clears: bool = False) -> Maker:
    """Of two sources, the first of which is also the result without VEX."""

    def make(instruction: iced_x86.Instruction) -> Step | None:
        count = instruction.op_count
        to, one, other = (_operand(instruction, at) for at in (0, count - 2, count - 1))
        if instruction.op_mask != iced_x86.Register.NONE or not (to and one and other):
            return None
        (_, write, bits), read_first, read_second = to, one[0], other[0]
        next_ip = instruction.next_ip
        is_zero = clears and (
            instruction.op_kind(count - 1) == OpKind.REGISTER
            and instruction.op_register(count - 2) == instruction.op_register(count - 1)
        )

        def step(state: State) -> int:
            first, second = read_first(state), read_second(state)
            if is_zero:
                first = second = 0
            if first is None or second is None:
                write(state, None)
            else:
                write(state, work(first, second, bits))
            return next_ip

        return step

    return make


def _equal_bytes(first: int, second: int, bits: int) -> int:
    ones, others = (each.to_bytes(bits // 8, "little") for each in (first, second))
    same = bytes(255 if a == b else 0 for a, b in zip(ones, others, strict=True))
    return int.from_bytes(same, "little")


def _least_bytes(first: int, second: int, bits: int) -> int:
    ones, others = (each.to_bytes(bits // 8, "little") for each in (first, second))
    return int.from_bytes(bytes(map(min, ones, others)), "little")


def _low_words(first: int, second: int, bits: int) -> int:
    return first & FULL | (second & FULL) << 64 if bits == 128 else 0


def _signs(instruction: iced_x86.Instruction) -> Step | None:
    """Pmovmskb."""
    to, source = _operand(instruction, 0), _operand(instruction, 1)
    if to is None or source is None:
        return None
    write, (read, _, bits), next_ip = to[1], source, instruction.next_ip

    def step(state: State) -> int:
        value = read(state)
        told = None
        if value is not None:
            data = value.to_bytes(bits // 8, "little")
            told = sum(1 << at for at, byte in enumerate(data) if byte & 0x80)
        write(state, told)
        return next_ip

    return step


_MOVES = "MOVUPS MOVAPS MOVDQA MOVDQU MOVUPD MOVAPD MOVQ MOVD"

VECTOR_MAKERS: dict[int, Maker] = {
    getattr(Mnemonic, prefix + name): maker
    for prefix in ("", "V")
    for name, maker in (
        *((each, _move) for each in _MOVES.split()),
        *((each, _combining(lambda a, b, _: a ^ b, clears=True)) for each in ("PXOR", "XORPS")),
        ("POR", _combining(lambda a, b, _: a | b)),
        ("PAND", _combining(lambda a, b, _: a & b)),
        ("PCMPEQB", _combining(_equal_bytes)),
        ("PMINUB", _combining(_least_bytes)),
        ("PUNPCKLQDQ", _combining(_low_words)),
        ("PMOVMSKB", _signs),
    )
    if not (prefix and name == "PUNPCKLQDQ")
}
"""Makers by mnemonic; those of an extension that is written with a mask are nobody's."""
