"""Which of a sample's registers tell an address of its data, and which address that is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register

from memsampd import _core
from memsampd.sampler.data_operands import NOTHING, DataOperands, Operand, Step, packed
from memsampd.sampler.walk.instructions import Compiler
from memsampd.sampler.walk.memory import WalkMemory
from memsampd.sampler.walk.state import State

BASE = 0x401000
RAX, RBX, RCX, RDI = 0, 1, 2, 5
PADDING = 64
R = Register


def memory_of(code: str) -> tuple[bytes, int]:
    """Code between instructions that do nothing, and the address at which it begins."""
    return b"\x90" * PADDING + bytes.fromhex(code) + b"\xc3" * PADDING, BASE + PADDING


def operand_at(code: str, at: int) -> Operand | None:
    """What tells an address at the byte `at` of some code."""
    memory, begin = memory_of(code)

    def read(address: int, size_bytes: int) -> bytes:
        return memory[address - BASE :][:size_bytes] if address >= BASE else b""

    return DataOperands(read).at(begin + at)


@pytest.mark.parametrize(
    ("what", "code", "at", "expected"),
    [
        ("the load before: add rax, [rdi+rcx*8+16]", "480344cf10 4889d8", 5, (RDI, RCX, 8, 16)),
        ("a store before: mov [rdi-8], rax", "488947f8 4889d8", 4, (RDI, NOTHING, 1, -8)),
        (
            "a load that changed its own base, and the next: mov rax, [rax]; mov rcx, [rbx]",
            "488b00 488b0b",
            3,
            (RBX, NOTHING, 1, 0),
        ),
        ("a chase, at its load: mov rax, [rax]", "488b00", 0, (RAX, NOTHING, 1, 0)),
        ("others change: add rcx, 8; mov rcx, [rbx]", "4883c108 488b0b", 0, (RBX, NOTHING, 1, 0)),
        ("over a jump: jmp +0; mov rcx, [rbx]", "eb00 488b0b", 0, (RBX, NOTHING, 1, 0)),
        (
            "a jump ahead is not made: jne +3; mov rcx, [rbx]",
            "7503 488b0b",
            0,
            (RBX, NOTHING, 1, 0),
        ),
        (
            "a jump back is: mov rcx, [rdi]; nop; jne -6; mov rcx, [rbx]",
            "488b0f 90 75fa 488b0b",
            4,
            (RDI, NOTHING, 1, 0),
        ),
        (
            "the base was loaded: mov rbx, [rsp]; mov rcx, [rbx]; mov rcx, [rdi]",
            "488b1c24 488b0b 488b0f",
            0,
            (RDI, NOTHING, 1, 0),
        ),
        (
            "it was loaded, and is made zero: mov rbx, [rsp]; xor ebx, ebx; mov rcx, [rbx+rdi]",
            "488b1c24 31db 488b0c3b",
            0,
            (RBX, RDI, 1, 0, Step(5, RBX, RBX, is_32=True)),
        ),
        ("behind a jump the load above is not the last: jmp +0", "488b0b eb00 4889d8", 5, None),
        ("not over a call: call +0; mov rcx, [rbx]", "e800000000 488b0b", 0, None),
        ("an address is no access: lea rax, [rbx+rcx]", "488d040b 4889d8", 4, None),
        ("the stack: mov rax, [rsp+8]", "488b442408 4889d8", 5, None),
        ("a variable at a fixed place: mov rax, [rip+64]", "488b0540000000 4889d8", 7, None),
        ("of the thread: mov rax, fs:[rbx]", "64488b03 4889d8", 4, None),
        ("for ever: jmp -2", "ebfe", 0, None),
    ],
)
def test_which_registers_tell_an_address(
    what: str, code: str, at: int, expected: tuple[Any, ...] | None
) -> None:
    found = operand_at(code.replace(" ", ""), at)
    if expected is None:
        assert found is None, what
    else:
        base, index, scale, displacement, *steps = expected
        assert found == Operand(base, index, scale, displacement % 2**64, tuple(steps)), what


def test_only_steps_that_make_the_address_are_kept() -> None:
    # shr rcx, 3; add rax, 7; lea rbx, [rbx+rcx*2+16]; mov rax, [rbx]
    found = operand_at("48c1e903 4883c007 488d5c4b10 488b03".replace(" ", ""), 0)
    assert found is not None
    assert (found.base, found.index) == (RBX, NOTHING)
    assert [step.to for step in found.steps] == [RCX, RBX]


def test_what_cannot_be_read_tells_nothing() -> None:
    assert DataOperands(lambda address, size_bytes: b"").at(BASE) is None
    # A page begins at the address, and the one before is not there.
    code, told = bytes.fromhex("488b0b"), Operand(RBX, NOTHING, 1, 0)
    at_page = DataOperands(lambda address, size_bytes: code if address == BASE else b"")
    assert at_page.at(BASE) == told
    assert DataOperands(lambda address, size_bytes: code).at(8) == told


# -- what the core makes of it, against walks, which are held against the CPU ----------------------

WIDE = [R.RAX, R.RBX, R.RCX, R.RDX, R.RSI, R.RBP, R.R8, R.R12, R.R15]
HALF = [R.EAX, R.EBX, R.ECX, R.EDX, R.ESI, R.EBP, R.R8D, R.R12D, R.R15D]


def code(name: str) -> Any:
    return getattr(Code, name)


def instruction(rng: random.Random) -> Instruction:
    """One that reads registers and makes one of them."""
    width, registers = rng.choice([("64", WIDE), ("32", HALF)])
    one, other = rng.choice(registers), rng.choice(registers)
    name = rng.choice(["MOV", "ADD", "SUB", "AND", "OR", "XOR"])
    turn = rng.choice(["SHL", "SHR", "SAR", "ROL", "ROR"])
    constant = rng.choice([0, 1, -1, 63, rng.randrange(-(2**31), 2**31)])
    at = MemoryOperand(rng.choice(WIDE), rng.choice(WIDE), rng.choice([1, 2, 4, 8]), constant, 8)
    kinds = [
        lambda: Instruction.create_reg_reg(code(f"{name}_RM{width}_R{width}"), one, other),
        lambda: Instruction.create_reg_i32(code(f"{name}_RM{width}_IMM32"), one, constant),
        lambda: Instruction.create_reg_i32(code(f"{turn}_RM{width}_IMM8"), one, rng.randrange(70)),
        lambda: Instruction.create_reg_reg(code(f"{turn}_RM{width}_CL"), one, R.CL),
        lambda: Instruction.create_reg_reg(code(f"IMUL_R{width}_RM{width}"), one, other),
        lambda: Instruction.create_reg_reg_i32(
            code(f"IMUL_R{width}_RM{width}_IMM32"), one, other, constant
        ),
        lambda: Instruction.create_reg(
            code(f"{rng.choice(['INC', 'DEC', 'NEG', 'NOT'])}_RM{width}"), one
        ),
        lambda: Instruction.create_reg_mem(code(f"LEA_R{width}_M"), one, at),
        lambda: Instruction.create_reg_reg(
            Code.MOVSXD_R64_RM32, rng.choice(WIDE), rng.choice(HALF)
        ),
        lambda: Instruction.create_reg_reg(code(f"MOVZX_R{width}_RM8"), one, R.SIL),
        lambda: Instruction.create_reg_reg(code(f"MOVSX_R{width}_RM16"), one, R.DX),
        # Nobody follows what these make: an address by it is not told.
        lambda: Instruction.create_reg_reg(Code.MOVZX_R32_RM8, rng.choice(HALF[:4]), R.AH),
        lambda: Instruction.create_reg_reg(Code.ADD_RM16_R16, R.BX, R.DX),
    ]
    return rng.choice(kinds)()


def reader_of(text: bytes) -> Callable[[int, int], bytes]:
    """Reads code that begins at the base."""
    return lambda address, size: text[address - BASE :][:size] if address >= BASE else b""


def walked(text: bytes, registers: list[int]) -> int | None:
    """The address of the last access, by walking there."""
    state = State(
        list(registers), WalkMemory(lambda address, size_bytes: b""), lambda ip, to: False
    )
    compiler, ip = Compiler(reader_of(text)), BASE
    while ip < BASE + len(text):
        ip = compiler.step_at(ip)(state)
    return state.rows[-1][1] if state.rows else None


def test_addresses_are_those_that_the_code_comes_to() -> None:
    rng, told, lone = random.Random(1), 0, 0
    for _ in range(3000):
        encoder, ip = Encoder(64), BASE
        load = MemoryOperand(R.RBX, R.RCX, rng.choice([1, 4, 8]), rng.randrange(-99, 99), 1)
        made = [instruction(rng) for _ in range(rng.randrange(8))]
        for each in [*made, Instruction.create_reg_mem(Code.MOV_R64_RM64, R.RAX, load)]:
            ip += encoder.encode(each, ip)
        text = bytes(encoder.take_buffer())
        operand = DataOperands(reader_of(text)).at(BASE)
        if operand is None:
            lone += 1
            continue
        registers = [rng.choice([rng.getrandbits(64), rng.getrandbits(20)]) for _ in range(16)]
        found = _core.data_addresses(packed(operand), np.array(registers, np.uint64))
        assert int.from_bytes(found, "little") == walked(text, registers), text.hex()
        told += 1
    assert told > 1500
    assert lone > 100


def test_malformed_operands_are_refused() -> None:
    registers = np.zeros(16, np.uint64)
    whole = packed(Operand(RBX, NOTHING, 1, 0, (Step(1, RBX, NOTHING, value=64),)))
    assert int.from_bytes(_core.data_addresses(whole, registers), "little") == 64
    odd = [
        whole[:-1],
        whole + whole,
        packed(Operand(17, NOTHING, 1, 0)),
        packed(Operand(RBX, 17, 1, 0)),
        packed(Operand(RBX, NOTHING, 1, 0, (Step(0, NOTHING, RBX),))),
        packed(Operand(RBX, NOTHING, 1, 0, (Step(0, RBX, 17),))),
        packed(Operand(RBX, NOTHING, 1, 0, (Step(0, RBX, RBX, 17),))),
        whole[:32] + (1 << 62).to_bytes(8, "little") + whole[40:],
    ]
    for each in odd:
        with pytest.raises(ValueError, match="not the operands"):
            _core.data_addresses(each, registers)
