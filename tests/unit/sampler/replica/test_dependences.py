"""Which registers the modelled core takes an instruction to wait for, and to set."""

from __future__ import annotations

import pytest

from memsampd import _core
from memsampd.sampler.replica import common_forms

_GENERAL = [
    *("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"),
    *(f"r{number}" for number in range(8, 16)),
]
_NAMES = [*_GENERAL, *(f"zmm{number}" for number in range(32)), "flags", "x87"]


def _names(registers: int) -> set[str]:
    return {name for number, name in enumerate(_NAMES) if registers >> number & 1}


def _dependences(code: str) -> list[set[str]]:
    """Registers that it reads, of which its address is made, and that it sets."""
    raw = bytes.fromhex(code)
    (described,) = common_forms.describe([raw])
    return [_names(each) for each in _core.dependences(raw, described["form"].tobytes())]


@pytest.mark.parametrize(
    ("code", "reads", "sets"),
    [
        # Registers that the opcode names.
        pytest.param("58", "", "rax", id="pop rax"),
        pytest.param("415e", "", "r14", id="pop r14"),
        pytest.param("415c", "", "r12", id="pop r12"),
        pytest.param("4156", "r14", "", id="push r14"),
        pytest.param("4154", "r12", "", id="push r12"),
        pytest.param("41b801000000", "", "r8", id="mov r8d, 1"),
        pytest.param("41bc01000000", "", "r12", id="mov r12d, 1"),
        pytest.param("49ba0102030405060708", "", "r10", id="movabs r10"),
        pytest.param("490fca", "r10", "r10", id="bswap r10"),
        pytest.param("4d93", "rax r11", "rax r11", id="xchg rax, r11"),
        pytest.param("4990", "rax r8", "rax r8", id="xchg rax, r8"),
        pytest.param("90", "", "", id="nop"),
        # Parts of registers: what they do not write stays.
        pytest.param("b401", "rax", "rax", id="mov ah, 1"),
        pytest.param("40b401", "rsp", "rsp", id="mov spl, 1"),
        pytest.param("41b401", "r12", "r12", id="mov r12b, 1"),
        pytest.param("0fb6d4", "rax", "rdx", id="movzx edx, ah"),
        pytest.param("400fb6d4", "rsp", "rdx", id="movzx edx, spl"),
        pytest.param("0fb6d6", "rdx", "rdx", id="movzx edx, dh"),
        pytest.param("88fc", "rbx rax", "rax", id="mov ah, bh"),
        pytest.param("89e5", "rsp", "rbp", id="mov ebp, esp"),
        # Vector registers from 16 on.
        pytest.param("62f17440 58c2", "zmm17 zmm2", "zmm0", id="vaddps zmm0, zmm17, zmm2"),
        pytest.param("62f17c40 58c2", "zmm16 zmm2", "zmm0", id="vaddps zmm0, zmm16, zmm2"),
        pytest.param("62f17c48 58c2", "zmm0 zmm2", "zmm0", id="vaddps zmm0, zmm0, zmm2"),
        pytest.param("62f17548 efc1", "", "zmm0", id="vpxord zmm0, zmm1, zmm1"),
        pytest.param("62f17540 efc1", "zmm17 zmm1", "zmm0", id="vpxord zmm0, zmm17, zmm1"),
        pytest.param("62b17540 efc1", "", "zmm0", id="vpxord zmm0, zmm17, zmm17"),
        pytest.param("62f17440 580488", "zmm17", "zmm0", id="vaddps zmm0, zmm17, [rax + rcx*4]"),
    ],
)
def test_registers_are_those_that_it_names(code: str, reads: str, sets: str) -> None:
    data, _, results = _dependences(code)
    assert data == set(reads.split())
    assert results == set(sets.split())


@pytest.mark.parametrize(
    ("code", "address"),
    [
        pytest.param("62f2fd49 921408", "rax zmm1", id="vgatherdpd zmm2{k1}, [rax + ymm1]"),
        pytest.param("62f2fd41 921408", "rax zmm17", id="vgatherdpd zmm2{k1}, [rax + ymm17]"),
        pytest.param("62f2fd41 a21408", "rax zmm17", id="vscatterdpd [rax + ymm17]{k1}, zmm2"),
        pytest.param("62f17440 580488", "rax rcx", id="vaddps zmm0, zmm17, [rax + rcx*4]"),
    ],
)
def test_addresses_are_made_of_those_that_it_names(code: str, address: str) -> None:
    assert _dependences(code)[1] == set(address.split())
