"""Recipes of hand-picked encodings (assembled with GNU as) against what the manuals say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from memsampd import _core
from memsampd.sampler.replica import decoder
from memsampd.sampler.replica.decoder import NO_REGISTER, RECIPE, RecipeDecoder, describe

IP = 0x1000
R8, RAX, RBX, RCX, RDX, RSI, RDI = 9, 10, 5, 11, 12, 13, 14
RBP, RSP, FS_BASE, GS_BASE, NONE = 4, 19, 21, 22, NO_REGISTER
PLAIN, GATHER, MASKED = decoder.PLAIN, decoder.GATHER, decoder.MASKED
COMPRESSED, XSAVE, XSAVEC = decoder.COMPRESSED, decoder.XSAVE, decoder.XSAVEC
OPMASK, SIGNS = decoder.MASK_OPMASK, decoder.MASK_SIGNS


@dataclass(frozen=True)
class Ref:
    """One expected reference; what is left out is as in most instructions."""

    direction: str
    size_bytes: int
    base: int
    displacement: int = 0
    index: int = NONE
    scale: int = 1
    segment: int = NONE
    is_32_bit: int = 0
    kind: int = PLAIN
    mask_kind: int = 0
    mask_register: int = 0
    lanes: int = 0
    lane_bytes: int = 0
    index_bytes: int = 0


def recipe(code: str) -> np.void:
    """The first recipe of some code at ``IP``."""
    row: np.void = RecipeDecoder(lambda address, size: bytes.fromhex(code)).block(IP)[0]
    return row


def references(row: np.void) -> list[Ref]:
    """What the recipe holds, in a form to compare."""
    return [
        Ref(
            "L" * int(r["loads"]) + "S" * int(r["stores"]),
            **{name: int(r[name]) for name in Ref.__dataclass_fields__ if name != "direction"},
        )
        for r in row["reference"][: row["references"]]
    ]


def masked(direction: str, size: int, lane: int, lanes: int, k: int, base: int = RAX) -> Ref:
    return Ref(
        direction,
        size,
        base,
        kind=MASKED,
        mask_kind=OPMASK,
        mask_register=k,
        lanes=lanes,
        lane_bytes=lane,
    )


PLAIN_CASES = {
    "push %rbx": ("53", [Ref("S", 8, RSP, -8)]),
    "pop %rbx": ("5b", [Ref("L", 8, RSP)]),
    "pop (%rax)": ("8f00", [Ref("S", 8, RAX), Ref("L", 8, RSP)]),
    "pop 8(%rsp): the store is behind the increment": (
        "8f442408",
        [Ref("S", 8, RSP, 16), Ref("L", 8, RSP)],
    ),
    "call .+5": ("e800000000", [Ref("S", 8, RSP, -8)]),
    "call *8(%rax)": ("ff5008", [Ref("L", 8, RAX, 8), Ref("S", 8, RSP, -8)]),
    "jmp *(%rax)": ("ff20", [Ref("L", 8, RAX)]),
    "ret": ("c3", [Ref("L", 8, RSP)]),
    "leave": ("c9", [Ref("L", 8, RBP)]),
    "enter $16,$0": ("c8100000", [Ref("S", 8, RSP, -8)]),
    "mov 0x10(%rip),%rax": ("488b0510000000", [Ref("L", 8, NONE, IP + 7 + 0x10)]),
    "mov %fs:0x28,%rax": ("64488b042528000000", [Ref("L", 8, NONE, 0x28, segment=FS_BASE)]),
    "mov %rax,%gs:(%rbx,%rcx,4)": (
        "654889048b",
        [Ref("S", 8, RBX, index=RCX, scale=4, segment=GS_BASE)],
    ),
    "mov (%eax),%ebx": ("678b18", [Ref("L", 4, RAX, is_32_bit=1)]),
    "mov -8(%rbp,%rcx,8),%al": ("8a44cdf8", [Ref("L", 1, RBP, -8, index=RCX, scale=8)]),
    "mov 0xffffffffffffff00,%rax": ("488b042500ffffff", [Ref("L", 8, NONE, -256)]),
    "movabs 0x1122334455667788,%al": (
        "a08877665544332211",
        [Ref("L", 1, NONE, 0x1122334455667788)],
    ),
    "movsl": ("a5", [Ref("S", 4, RDI), Ref("L", 4, RSI)]),
    "cmpsb": ("a6", [Ref("L", 1, RSI), Ref("L", 1, RDI)]),
    "lock addq $1,(%rdi)": ("f048830701", [Ref("LS", 8, RDI)]),
    "lock cmpxchg %rcx,(%rdx)": ("f0480fb10a", [Ref("LS", 8, RDX)]),
    "cmpxchg16b (%rdi)": ("480fc70f", [Ref("LS", 16, RDI)]),
    "xchg %rax,(%rsi)": ("488706", [Ref("LS", 8, RSI)]),
    "vmovups %zmm1,(%rax)": ("62f17c481108", [Ref("S", 64, RAX)]),
    "vaddps (%rax){1to16},%zmm1,%zmm2": ("62f174585810", [Ref("L", 4, RAX)]),
    "fldt (%rax)": ("db28", [Ref("L", 10, RAX)]),
    "fstpt (%rax)": ("db38", [Ref("S", 10, RAX)]),
    "fxsave (%rax)": ("0fae00", [Ref("S", 512, RAX)]),
    "movdir64b (%rax),%rbx": ("660f38f818", [Ref("L", 64, RAX), Ref("S", 64, RBX)]),
    "xsavec (%rsp)": ("0fc72424", [Ref("S", 0, RSP, kind=XSAVEC)]),
    "xsave (%rsp)": ("0fae2424", [Ref("LS", 0, RSP, kind=XSAVE)]),
    "xrstor (%rsp)": ("0fae2c24", [Ref("L", 0, RSP, kind=XSAVE)]),
    "bt $3,(%rdi)": ("480fba2703", [Ref("L", 8, RDI)]),
    **{
        f"{name}: no reference": (code, [])
        for name, code in {
            "nopw 0(%rax,%rax)": "660f1f0400",
            "lea 8(%rax),%rbx": "488d5808",
            "endbr64": "f30f1efa",
            "clflush (%rax)": "0fae38",
            "vzeroupper": "c5f877",
        }.items()
    },
}


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_plain(name: str) -> None:
    code, expected = PLAIN_CASES[name]
    row = recipe(code)
    assert references(row) == expected
    assert int(row["flags"]) == 0
    assert int(row["ip"]) == IP
    assert int(row["length"]) == len(code) // 2
    assert bytes(row["code"][: row["length"]]).hex() == code


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("f3a4", [Ref("S", 1, RDI), Ref("L", 1, RSI)], id="rep movsb"),
        pytest.param("f348ab", [Ref("S", 8, RDI)], id="rep stosq"),
        pytest.param("f2ae", [Ref("L", 1, RDI)], id="repne scasb"),
        pytest.param("f3a6", [Ref("L", 1, RSI), Ref("L", 1, RDI)], id="repe cmpsb"),
        pytest.param(
            "67f3a4",
            [Ref("S", 1, RDI, is_32_bit=1), Ref("L", 1, RSI, is_32_bit=1)],
            id="addr32 rep movsb",
        ),
    ],
)
def test_repeated(code: str, expected: list[Ref]) -> None:
    row = recipe(code)
    assert references(row) == expected
    assert int(row["flags"]) == decoder.REPEATED


VECTOR_CASES = {
    "vpgatherdd %ymm2,(%rax,%ymm1,4),%ymm0": (
        "c4e26d900488",
        Ref("L", 4, RAX, 0, 1, 4, NONE, 0, GATHER, SIGNS, 2, 8, 4, 4),
    ),
    "vgatherqps %xmm2,(%rax,%xmm1,4),%xmm0: as many lanes as indices": (
        "c4e269930488",
        Ref("L", 4, RAX, 0, 1, 4, NONE, 0, GATHER, SIGNS, 2, 2, 4, 8),
    ),
    "vpgatherdq (%rax,%ymm17,8),%zmm16{%k3}": (
        "62e2fd439004c8",
        Ref("L", 8, RAX, 0, 17, 8, NONE, 0, GATHER, OPMASK, 3, 8, 8, 4),
    ),
    "vpscatterqd %ymm1,(%rax,%zmm2,4){%k1}": (
        "62f27d49a10c90",
        Ref("S", 4, RAX, 0, 2, 4, NONE, 0, GATHER, OPMASK, 1, 8, 4, 8),
    ),
    "vmovdqu32 (%rax),%zmm1{%k2}": ("62f17e4a6f08", masked("L", 64, 4, 16, 2)),
    "vmovss (%rax),%xmm1{%k1}": ("62f17e091008", masked("L", 4, 4, 1, 1)),
    "vpmovdb %zmm1,(%rax){%k1}": ("62f27e493108", masked("S", 16, 1, 16, 1)),
    "vaddps (%rax){1to8},%ymm1,%ymm2{%k1}": ("62f174395810", masked("L", 4, 4, 8, 1)),
    "vcvtps2pd (%rax){1to8},%zmm2{%k1}": ("62f17c595a10", masked("L", 4, 4, 8, 1)),
    "vbroadcastss (%rax),%zmm1{%k1}": ("62f27d491808", masked("L", 4, 4, 16, 1)),
    "vbroadcastf32x4 (%rax),%zmm1{%k1}": ("62f27d491a08", masked("L", 16, 16, 16, 1)),
    "vmovdqu8 %zmm1,64(%rax){%k1}": (
        "62f17f497f4801",
        Ref("S", 64, RAX, 64, NONE, 1, NONE, 0, MASKED, OPMASK, 1, 64, 1, 0),
    ),
    "vmaskmovps (%rax),%ymm1,%ymm2": (
        "c4e2752c10",
        Ref("L", 32, RAX, 0, NONE, 1, NONE, 0, MASKED, SIGNS, 1, 8, 4, 0),
    ),
    "vpmaskmovq %xmm3,%xmm1,(%rax)": (
        "c4e2f18e18",
        Ref("S", 16, RAX, 0, NONE, 1, NONE, 0, MASKED, SIGNS, 1, 2, 8, 0),
    ),
    "maskmovdqu %xmm1,%xmm2": (
        "660ff7d1",
        Ref("S", 16, RDI, 0, NONE, 1, NONE, 0, MASKED, SIGNS, 1, 16, 1, 0),
    ),
    "vpcompressd %zmm1,(%rdi){%k1}": (
        "62f27d498b0f",
        Ref("S", 64, RDI, 0, NONE, 1, NONE, 0, COMPRESSED, OPMASK, 1, 16, 4, 0),
    ),
    "vpexpandd (%rdi),%zmm1{%k1}{z}": (
        "62f27dc9890f",
        Ref("L", 64, RDI, 0, NONE, 1, NONE, 0, COMPRESSED, OPMASK, 1, 16, 4, 0),
    ),
}


@pytest.mark.parametrize("name", VECTOR_CASES)
def test_vectors(name: str) -> None:
    code, expected = VECTOR_CASES[name]
    row = recipe(code)
    assert references(row) == [expected]
    assert int(row["flags"]) == decoder.NEEDS_VECTORS


@pytest.mark.parametrize(
    ("code", "flags"),
    [
        pytest.param("0f05", decoder.SYSCALL, id="syscall"),
        pytest.param("cd80", decoder.UNSUPPORTED, id="int $0x80"),
        pytest.param("0f34", decoder.UNSUPPORTED, id="sysenter"),
        pytest.param("48cf", decoder.UNSUPPORTED, id="iretq"),
        pytest.param("c4e27b4b0418", decoder.UNSUPPORTED, id="tileloadd"),
        pytest.param("0ff7d1", decoder.UNSUPPORTED, id="maskmovq"),
        pytest.param("06", decoder.UNSUPPORTED, id="invalid"),
        pytest.param("0f1808", decoder.PREFETCHES, id="prefetcht0"),
    ],
)
def test_without_references(code: str, flags: int) -> None:
    row = recipe(code)
    assert (int(row["flags"]), int(row["references"])) == (flags, 0)


@pytest.mark.parametrize(("code", "size_bytes"), [("9c", 8), ("669c", 2)])
def test_pushed_flags_are_marked(code: str, size_bytes: int) -> None:
    row = recipe(code)
    assert int(row["flags"]) == decoder.PUSHES_FLAGS
    assert references(row) == [Ref("S", size_bytes, RSP, -size_bytes)]


def test_a_block_ends_with_the_first_branch() -> None:
    block = RecipeDecoder(lambda address, size: bytes.fromhex("5053c35b")).block(IP)
    assert block["ip"].tolist() == [IP, IP + 1, IP + 2]


def test_a_cut_off_instruction_ends_the_block_before_it() -> None:
    block = RecipeDecoder(lambda address, size: bytes.fromhex("50488b")).block(IP)
    assert block["ip"].tolist() == [IP]


def test_unreadable_code_gives_no_recipe() -> None:
    assert len(RecipeDecoder(lambda address, size: b"").block(IP)) == 0
    assert describe(b"", IP) == "unreadable code"


def test_layout_equals_the_cores() -> None:
    assert RECIPE.itemsize == _core.RECIPE_BYTES
