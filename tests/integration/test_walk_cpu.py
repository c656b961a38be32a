"""What walks say of registers and memory, against the CPU that runs the same code."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register
from tracees import compile_c

from memsampd.sampler.walk.instructions import Compiler
from memsampd.sampler.walk.memory import WalkMemory
from memsampd.sampler.walk.state import RSP, State

SOURCE = Path(__file__).parents[1] / "support" / "native_steps.c"
MEMORY, MEMORY_BYTES, CODE = 0x20000000, 8192, 0x400000
CASES, LENGTH = 3000, 12
R = Register
# rdi and r9 say where memory operands are, rsp is the stack: none of them is changed.
WIDE = [R.RAX, R.RBX, R.RCX, R.RDX, R.RSI, R.RBP, R.R8, R.R10, R.R11, R.R12, R.R13, R.R14, R.R15]
HALF = [R.EAX, R.EBX, R.ECX, R.EDX, R.ESI, R.EBP, R.R8D, R.R10D, R.R11D, R.R12D, R.R13D, R.R14D]
WORD = [R.AX, R.BX, R.CX, R.DX, R.SI, R.BP, R.R8W, R.R10W, R.R11W]
BYTE = [R.AL, R.BL, R.CL, R.DL, R.SIL, R.R8L, R.R10L]
BYTE_HIGH = [R.AL, R.BL, R.CL, R.DL, R.AH, R.BH, R.CH, R.DH]
VECTOR = [R.XMM0, R.XMM1, R.XMM2]
WIDTHS = {"64": WIDE, "32": HALF, "16": WORD, "8": BYTE}
CONDITIONS = [
    "O",
    "NO",
    "B",
    "AE",
    "E",
    "NE",
    "BE",
    "A",
    "S",
    "NS",
    "P",
    "NP",
    "L",
    "GE",
    "LE",
    "G",
]

Make = Callable[[random.Random], list[Instruction]]


def initial_memory() -> bytes:
    return bytes((i * 37 + (i >> 8) * 11) & 0xFF for i in range(MEMORY_BYTES))


def operand(rng: random.Random) -> MemoryOperand:
    index = rng.choice([R.NONE, R.R9])
    return MemoryOperand(R.RDI, index, rng.choice([1, 2, 4, 8]), rng.randint(-500, 500), 8)


def code(name: str) -> Any:
    return getattr(Code, name)


def two(name: str) -> Make:
    """An operation of two operands: registers, memory or a constant."""

    def make(rng: random.Random) -> list[Instruction]:
        width = rng.choice(list(WIDTHS))
        registers = WIDTHS[width]
        one, other = rng.choice(registers), rng.choice(registers)
        way = rng.randrange(4)
        if width == "8" and way == 0:
            one, other = rng.choice(BYTE_HIGH), rng.choice(BYTE_HIGH)
        if way == 0:
            made = Instruction.create_reg_reg(code(f"{name}_RM{width}_R{width}"), one, other)
        elif way == 1:
            made = Instruction.create_reg_mem(
                code(f"{name}_R{width}_RM{width}" if name != "TEST" else f"CMP_R{width}_RM{width}"),
                one,
                operand(rng),
            )
        elif way == 2:
            made = Instruction.create_mem_reg(
                code(f"{name}_RM{width}_R{width}"), operand(rng), other
            )
        else:
            wide = {"64": "IMM32", "32": "IMM32", "16": "IMM16", "8": "IMM8"}[width]
            limit = 1 << (min(int(width), 32) - 1)
            value = rng.choice([0, 1, -1, rng.randrange(-limit, limit)])
            made = Instruction.create_reg_i32(code(f"{name}_RM{width}_{wide}"), one, value)
        return [made]

    return make


def one(name: str) -> Make:
    def make(rng: random.Random) -> list[Instruction]:
        width = rng.choice(["64", "32"] if name == "BSWAP" else list(WIDTHS))
        form = f"{name}_R{width}" if name == "BSWAP" else f"{name}_RM{width}"
        if name != "BSWAP" and rng.random() < 0.3:
            return [Instruction.create_mem(code(form), operand(rng))]
        return [Instruction.create_reg(code(form), rng.choice(WIDTHS[width]))]

    return make


def shift(name: str) -> Make:
    def make(rng: random.Random) -> list[Instruction]:
        width = rng.choice(["64", "32"])
        register = rng.choice(WIDTHS[width])
        if rng.random() < 0.5:
            return [Instruction.create_reg_reg(code(f"{name}_RM{width}_CL"), register, R.CL)]
        form = code(f"{name}_RM{width}_IMM8")
        return [Instruction.create_reg_i32(form, register, rng.randrange(0, 70))]

    return make


def conditional(rng: random.Random) -> list[Instruction]:
    condition = rng.choice(CONDITIONS)
    if rng.random() < 0.5:
        return [Instruction.create_reg(code(f"SET{condition}_RM8"), rng.choice(BYTE))]
    return [
        Instruction.create_reg_reg(
            code(f"CMOV{condition}_R64_RM64"), rng.choice(WIDE), rng.choice(WIDE)
        )
    ]


def moves(rng: random.Random) -> list[Instruction]:
    at = operand(rng)
    return [
        rng.choice(
            [
                Instruction.create_reg_mem(Code.MOVZX_R32_RM8, rng.choice(HALF), at),
                Instruction.create_reg_mem(Code.MOVSX_R64_RM16, rng.choice(WIDE), at),
                Instruction.create_reg_mem(Code.MOVSXD_R64_RM32, rng.choice(WIDE), at),
                Instruction.create_reg_reg(Code.MOVSX_R32_RM8, rng.choice(HALF), rng.choice(BYTE)),
                Instruction.create_reg_mem(Code.LEA_R64_M, rng.choice(WIDE), at),
                Instruction.create_reg_mem(Code.LEA_R32_M, rng.choice(HALF), at),
                Instruction.create(rng.choice([Code.CDQE, Code.CDQ, Code.CQO])),
                Instruction.create_mem_i32(Code.MOV_RM64_IMM32, at, rng.randrange(-(2**31), 2**31)),
            ]
        )
    ]


def products(rng: random.Random) -> list[Instruction]:
    keep = Instruction.create_reg_i32(Code.OR_RM64_IMM8, R.R8, 1)
    small = Instruction.create_reg_i32(Code.AND_RM64_IMM32, R.R8, 0xFFFF)
    clear = Instruction.create_reg_reg(Code.XOR_RM32_R32, R.EDX, R.EDX)
    halves = rng.choice([Code.MUL_RM32, Code.IMUL_RM32])
    wholes = rng.choice([Code.MUL_RM64, Code.IMUL_RM64])
    return rng.choice(
        [
            [Instruction.create_reg_reg(Code.IMUL_R64_RM64, rng.choice(WIDE), rng.choice(WIDE))],
            [
                Instruction.create_reg_reg_i32(
                    Code.IMUL_R32_RM32_IMM32, rng.choice(HALF), rng.choice(HALF), -77
                )
            ],
            [Instruction.create_reg(halves, rng.choice(HALF))],
            [Instruction.create_reg(wholes, rng.choice(WIDE))],
            [keep, clear, Instruction.create_reg(Code.DIV_RM64, R.R8)],
            [keep, clear, Instruction.create_reg(Code.DIV_RM32, R.R8D)],
            [
                small,
                keep,
                Instruction.create(Code.CQO),
                Instruction.create_reg(Code.IDIV_RM64, R.R8),
            ],
            [
                small,
                keep,
                Instruction.create(Code.CDQ),
                Instruction.create_reg(Code.IDIV_RM32, R.R8D),
            ],
        ]
    )


def bits(rng: random.Random) -> list[Instruction]:
    made = rng.choice(
        [
            Code.TZCNT_R64_RM64,
            Code.LZCNT_R64_RM64,
            Code.POPCNT_R64_RM64,
            Code.BSF_R64_RM64,
            Code.BSR_R64_RM64,
        ]
    )
    if rng.random() < 0.4:
        tested = Instruction.create_reg_reg(Code.BT_RM64_R64, rng.choice(WIDE), rng.choice(WIDE))
        return [tested, Instruction.create_reg(Code.SETB_RM8, R.R10L)]
    return [Instruction.create_reg_reg(made, rng.choice(WIDE), rng.choice(WIDE))]


def stack(rng: random.Random) -> list[Instruction]:
    return [
        Instruction.create_reg(Code.PUSH_R64, rng.choice(WIDE)),
        Instruction.create_i32(Code.PUSHQ_IMM8, -3),
        Instruction.create_reg(Code.POP_R64, rng.choice(WIDE)),
        Instruction.create_reg(Code.POP_R64, rng.choice(WIDE)),
    ]


def vectors(rng: random.Random) -> list[Instruction]:
    one, other = rng.choice(VECTOR), rng.choice(VECTOR)
    two_ways = rng.choice(
        [
            Code.PCMPEQB_XMM_XMMM128,
            Code.PUNPCKLQDQ_XMM_XMMM128,
            Code.PXOR_XMM_XMMM128,
            Code.PAND_XMM_XMMM128,
            Code.POR_XMM_XMMM128,
            Code.PMINUB_XMM_XMMM128,
        ]
    )
    return [
        Instruction.create_reg_mem(Code.MOVDQU_XMM_XMMM128, one, operand(rng)),
        Instruction.create_reg_reg(Code.MOVQ_XMM_RM64, other, rng.choice(WIDE)),
        Instruction.create_reg_reg(two_ways, one, other),
        Instruction.create_mem_reg(Code.MOVUPS_XMMM128_XMM, operand(rng), one),
        Instruction.create_reg_reg(Code.PMOVMSKB_R32_XMM, rng.choice(HALF), one),
        Instruction.create_reg_reg(Code.MOVQ_RM64_XMM, rng.choice(WIDE), one),
        Instruction.create_reg_reg(Code.ADDPD_XMM_XMMM128, other, one),  # nobody works it out
        Instruction.create_reg_reg(Code.MOVQ_RM64_XMM, rng.choice(WIDE), other),
    ]


KINDS: list[Make] = [
    *map(two, ["ADD", "SUB", "CMP", "AND", "OR", "XOR", "ADC", "SBB", "MOV", "TEST"]),
    *map(one, ["INC", "DEC", "NEG", "NOT", "BSWAP"]),
    *map(shift, ["SHL", "SHR", "SAR", "ROL", "ROR"]),
    *[conditional] * 6,
    moves,
    moves,
    products,
    bits,
    stack,
    vectors,
]


def encoded(instructions: Sequence[Instruction]) -> bytes:
    encoder, ip = Encoder(64), CODE
    for each in instructions:
        ip += encoder.encode(each, ip)
    return bytes(encoder.take_buffer())


@dataclass
class Case:
    code: bytes
    registers: list[int]


def cases(rng: random.Random) -> list[Case]:
    interesting = [0, 1, 2**63, 2**64 - 1, 2**31, 2**32 - 1, 0x80, 0x7F]
    made = []
    for _ in range(CASES):
        text = encoded([each for _ in range(LENGTH) for each in rng.choice(KINDS)(rng)])
        registers = [
            rng.choice([rng.getrandbits(64), rng.getrandbits(8), rng.choice(interesting)])
            for _ in range(16)
        ]
        registers[5] = MEMORY + 4096  # rdi
        registers[9] = rng.randrange(0, 64)  # r9
        registers[RSP] = MEMORY + 7168
        made.append(Case(text, registers))
    return made


def native(program: Path, wanted: Sequence[Case]) -> list[tuple[tuple[int, ...], bytes]]:
    asked = b"".join(
        struct.pack("I", len(case.code)) + case.code + struct.pack("16Q", *case.registers)
        for case in wanted
    )
    told = subprocess.run([str(program)], input=asked, capture_output=True, check=True).stdout
    size = 128 + MEMORY_BYTES
    assert len(told) == size * len(wanted)
    return [
        (struct.unpack_from("16Q", told, at), told[at + 128 : at + size])
        for at in range(0, len(told), size)
    ]


def walked(case: Case) -> State:
    """The state after the code, as steps have it."""
    before = initial_memory()

    def read(address: int, size_bytes: int) -> bytes:
        if CODE <= address < CODE + len(case.code):
            return case.code[address - CODE :][:size_bytes]
        return before[address - MEMORY :][:size_bytes] if address >= MEMORY else b""

    state = State(list(case.registers), WalkMemory(read), lambda ip, target: False)
    compiler, ip = Compiler(read), CODE
    while ip < CODE + len(case.code):
        ip = compiler.step_at(ip)(state)
    return state


def test_all_that_is_known_is_what_the_cpu_does(tmp_path: Path) -> None:
    program = compile_c(tmp_path, SOURCE.read_text(), "-O1", "-w", "-no-pie")
    rng = random.Random(os.environ.get("WALK_SEED", "1"))
    wanted = cases(rng)
    known = words = known_words = 0
    for case, (registers, memory) in zip(wanted, native(program, wanted), strict=True):
        state = walked(case)
        told = {at: value for at, value in enumerate(state.registers) if value is not None}
        assert told == {at: registers[at] for at in told}, case
        known += len(told)
        touched = {address & ~7 for _, address, _, is_write in state.rows if is_write}
        for address in touched:
            value = state.memory.load(address, 8)
            words += 1
            if value is not None:
                known_words += 1
                at = address - MEMORY
                assert value == int.from_bytes(memory[at : at + 8], "little"), (case, hex(address))
    assert known > 0.75 * 16 * CASES, "most is known"
    assert known_words > 0.5 * words > 0


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("480301", [(8, False)]),  # add rax, [rcx]
        ("480101", [(8, False), (8, True)]),  # add [rcx], rax
        ("488901", [(8, True)]),  # mov [rcx], rax
        ("0f1001", [(16, False)]),  # movups xmm0, [rcx]
        ("c5fe6f01", [(32, False)]),  # vmovdqu ymm0, [rcx]
        ("488d01", []),  # lea rax, [rcx]
        ("480f1f00", []),  # nop [rax]
        ("0f1809", []),  # prefetcht0 [rcx]
        ("f00fc101", [(4, False), (4, True)]),  # lock xadd [rcx], eax
        ("8701", [(4, False), (4, True)]),  # xchg [rcx], eax
        ("66490f6e01", [(8, False)]),  # movq xmm0, [r9]
        ("f20f5801", [(8, False)]),  # addsd xmm0, [rcx]
        ("48ff31", [(8, False), (8, True)]),  # push [rcx]
        ("488f01", [(8, False), (8, True)]),  # pop [rcx]
        ("c9", [(8, False)]),  # leave
    ],
)
def test_references_of_an_instruction(text: str, rows: list[tuple[int, bool]]) -> None:
    data = bytes.fromhex(text)
    state = walked(Case(data, [MEMORY + 4096] * 16))
    assert [(size, is_write) for _, _, size, is_write in state.rows] == rows
