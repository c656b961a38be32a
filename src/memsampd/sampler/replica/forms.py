"""What instructions of one form have in common, for the translator (``_core/translator/forms.h``).

The native core takes instructions apart only as far as their bytes go. What a form means it asks
here, once, by a sample whose explicit registers have known numbers: what the sample uses besides
them is implied by the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import iced_x86
import numpy as np
from iced_x86 import Code, FlowControl, Mnemonic, OpAccess, Register
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.registers import WRITES
from memsampd.sampler.replica.decoder import (
    BIT,
    GATHER,
    MASK_OPMASK,
    MASK_SIGNS,
    NO_REGISTER,
    RECIPE,
    REFERENCE,
    REFERENCES_MAXIMUM,
    SYSCALL,
    UNSUPPORTED,
    WORD_OF_REGISTER,
    RecipeDecoder,
)
from memsampd.sampler.replica.latencies import latency_cycles

# Mirror the enums of _core/translator/forms.h.
_FIELD_REG, _FIELD_RM, _FIELD_VVVV, _FIELD_REG_BYTE, _FIELD_RM_BYTE = 1, 2, 4, 8, 16
_READS_FLAGS, _WRITES_FLAGS, _CLEARS_SAME, _USES_X87 = 1, 2, 4, 8
_REG, _RM, _VVVV, _BASE, _INDEX = 9, 10, 12, 13, 14
_NEXT, _BRANCH, _SHORT_BRANCH, _JUMP, _CALL, _JUMP_INDIRECT, _CALL_INDIRECT, _RETURN, _STOP = range(
    9
)

FORM_REFERENCE = np.dtype(
    [("reference", REFERENCE), ("is_explicit", "u1"), ("mask_field", "u1"), ("padding", "u1", 6)]
)
FORM = np.dtype(
    [
        ("key", "<u8"),
        ("implicit_used", "<u2"),
        ("implicit_written", "<u2"),
        ("implicit_read", "<u2"),
        ("stack_delta", "<i2"),
        ("used", "u1"),
        ("written", "u1"),
        ("read", "u1"),
        ("vector_read", "u1"),
        ("vector_written", "u1"),
        ("effects", "u1"),
        ("latency_cycles", "u1"),
        ("immediate_bytes", "u1"),
        ("flow", "u1"),
        ("flags", "u1"),
        ("references", "u1"),
        ("displacement_scale", "u1"),
        ("padding", "u1", 4),
        ("reference", FORM_REFERENCE, REFERENCES_MAXIMUM),
    ]
)
assert FORM.itemsize == _core.FORM_BYTES, "forms.py and _core/translator/forms.h disagree"

_MACHINE_ORDER = [
    *("RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI"),
    *(f"R{number}" for number in range(8, 16)),
]
_NUMBER_OF_WORD = {
    WORD_OF_REGISTER[getattr(Register, name)]: number for number, name in enumerate(_MACHINE_ORDER)
}
# What is written only perhaps stays as it was otherwise: so it is read.
_READS = {
    OpAccess.READ,
    OpAccess.READ_WRITE,
    OpAccess.COND_READ,
    OpAccess.READ_COND_WRITE,
    OpAccess.COND_WRITE,
}
_CLEARING = {
    getattr(Mnemonic, name)
    for name in (
        *("XOR", "SUB", "PXOR", "VPXOR", "XORPS", "XORPD", "VXORPS", "VXORPD", "VPXORD", "VPXORQ"),
        *("PSUBB", "PSUBW", "PSUBD", "PSUBQ", "VPSUBB", "VPSUBW", "VPSUBD", "VPSUBQ"),
    )
}
_SHIFTS = {
    getattr(Mnemonic, name)
    for name in ("SHL", "SHR", "SAR", "ROL", "ROR", "RCL", "RCR", "SHLD", "SHRD")
}
_FLOWS = {
    FlowControl.NEXT: _NEXT,
    FlowControl.CONDITIONAL_BRANCH: _BRANCH,
    FlowControl.UNCONDITIONAL_BRANCH: _JUMP,
    FlowControl.INDIRECT_BRANCH: _JUMP_INDIRECT,
    FlowControl.CALL: _CALL,
    FlowControl.INDIRECT_CALL: _CALL_INDIRECT,
    FlowControl.RETURN: _RETURN,
    FlowControl.EXCEPTION: _STOP,
}
_SHORT_BRANCHES = {
    getattr(Mnemonic, name) for name in ("JRCXZ", "JECXZ", "JCXZ", "LOOP", "LOOPE", "LOOPNE")
}
# What the translator moves to another address must not depend on where it stands, and the far
# transfers leave the code segment.
_NOT_MOVABLE = {
    getattr(Mnemonic, name)
    for name in (
        *("XBEGIN", "RETF", "SYSRET", "SYSEXIT", "WRFSBASE", "WRGSBASE"),
        *("INCSSPD", "INCSSPQ", "RSTORSSP", "SAVEPREVSSP", "SETSSBSY", "CLRSSBSY", "UIRET"),
        *("SENDUIPI", "HRESET", "VMCALL", "VMMCALL", "ENCLU", "WRSSD", "WRSSQ"),
    )
    if hasattr(Mnemonic, name)
}
# What their samples do not tell: how deep enter nests is in its immediate, where these stores go
# in a register field.
_NOT_TOLD = {getattr(Mnemonic, name) for name in ("ENTER", "MOVDIR64B", "ENQCMD", "ENQCMDS")}
_PLAIN_STACK = {Mnemonic.PUSH, Mnemonic.POP, Mnemonic.CALL, Mnemonic.RET, Mnemonic.PUSHFQ}


Used: TypeAlias = Sequence[iced_x86.UsedRegister]
_MERGED_BELOW_BYTES = 4  # narrower parts of a general register keep the rest of it
_LEGACY_PREFIXES = frozenset(b"\x66\x67\xf0\xf2\xf3\x64\x65\x26\x2e\x36\x3e")


def _number(register: iced_x86.Register_) -> int | None:
    """Number in machine code of a general register of any width, else None."""
    whole = iced_x86.RegisterExt.full_register(register)
    word = WORD_OF_REGISTER.get(whole)
    return None if word is None else _NUMBER_OF_WORD.get(word)


class FormDecoder:
    """Describes forms to the native core."""

    def __init__(self) -> None:
        self._recipes = RecipeDecoder(lambda address, size_bytes: b"")
        self._info = iced_x86.InstructionInfoFactory()

    def describe(self, key: int, sample: bytes, operands_bytes: int) -> NDArray[np.void]:
        """What the core must know of one form.

        Args:
            key: the core's name of it.
            sample: an instruction of it, as ``form_sample`` builds them.
            operands_bytes: where its immediates begin.

        Returns:
            One row, shape (), dtype :data:`FORM`; flagged ``UNSUPPORTED`` if it is no instruction.
        """
        form = np.zeros((), FORM)
        form["key"] = key
        form["displacement_scale"] = 1
        instruction = next(
            (
                instruction
                for variant in _variants(sample)
                if (instruction := iced_x86.Decoder(64, variant).decode()).code != Code.INVALID
            ),
            None,
        )
        if instruction is None or instruction.len < operands_bytes:
            form["flags"] = UNSUPPORTED
            return form
        form["immediate_bytes"] = instruction.len - operands_bytes
        recipe = np.zeros(1, RECIPE)[0]
        self._recipes.describe(recipe, instruction)
        form["flags"] = recipe["flags"]
        if form["flags"] & (SYSCALL | UNSUPPORTED):
            return form
        used = self._info.info(instruction).used_registers()
        if not _settle_flow(form, instruction) or _moves_segments(used):
            form["flags"] = UNSUPPORTED
            return form
        _settle_registers(form, used)
        _settle_dependences(form, instruction, used)
        form["references"] = recipe["references"]
        for row, reference in zip(form["reference"], recipe["reference"], strict=True):
            _settle_reference(row, reference)
        form["displacement_scale"] = _displacement_scale(sample, operands_bytes)
        return form


def _moves_segments(used_registers: Used) -> bool:
    """Whether it writes FS or GS: addresses by these are told by what was there at the begin."""
    return any(
        used.register in (Register.FS, Register.GS) and used.access in WRITES
        for used in used_registers
    )


def _settle_flow(form: NDArray[np.void], instruction: iced_x86.Instruction) -> bool:
    flow = _FLOWS.get(instruction.flow_control)
    if instruction.mnemonic == Mnemonic.INT3:
        flow = _STOP
    if flow is None or instruction.mnemonic in _NOT_MOVABLE | _NOT_TOLD:
        return False
    if instruction.is_jmp_far or instruction.is_call_far:
        return False
    if instruction.is_jmp_far_indirect or instruction.is_call_far_indirect:
        return False
    if instruction.mnemonic in _SHORT_BRANCHES:
        flow = _SHORT_BRANCH
    form["flow"] = flow
    if instruction.mnemonic in _PLAIN_STACK:
        form["stack_delta"] = instruction.stack_pointer_increment
    return True


def _settle_registers(form: NDArray[np.void], used_registers: Used) -> None:
    fields = {_REG: _FIELD_REG, _RM: _FIELD_RM, _VVVV: _FIELD_VVVV}
    byte_fields = {_REG: _FIELD_REG_BYTE, _RM: _FIELD_RM_BYTE}
    for used in used_registers:
        number = _number(used.register)
        if number is None or number in (_BASE, _INDEX):
            continue
        writes = used.access in WRITES
        if number in fields:
            form["used"] |= fields[number]
            if iced_x86.RegisterExt.size(used.register) == 1:
                form["used"] |= byte_fields.get(number, 0)
            if writes:
                form["written"] |= fields[number]
        else:
            form["implicit_used"] |= 1 << number
            if writes:
                form["implicit_written"] |= 1 << number


def _settle_dependences(
    form: NDArray[np.void], instruction: iced_x86.Instruction, used_registers: Used
) -> None:
    fields = {_REG: _FIELD_REG, _RM: _FIELD_RM, _VVVV: _FIELD_VVVV}
    # A field that says "none" also says "the first"; and where that is implied, it says so.
    vector_fields = {**fields, 0: _FIELD_VVVV}
    for used in used_registers:
        number = _number(used.register)
        size_bytes = iced_x86.RegisterExt.size(used.register)
        reads = used.access in _READS or (number is not None and size_bytes < _MERGED_BELOW_BYTES)
        if Register.ST0 <= used.register <= Register.ST7:
            form["effects"] |= _USES_X87
        elif number is None:
            if not iced_x86.RegisterExt.is_vector_register(used.register):
                continue
            field = vector_fields.get(iced_x86.RegisterExt.number(used.register), 0)
            form["vector_read"] |= field if reads else 0
            form["vector_written"] |= field if used.access in WRITES else 0
        elif number in fields:
            form["read"] |= fields[number] if reads else 0
        elif number not in (_BASE, _INDEX) and reads:
            form["implicit_read"] |= 1 << number
    form["latency_cycles"] = latency_cycles(instruction)
    is_shift = instruction.mnemonic in _SHIFTS  # the sample's, by 0, leaves flags as they are
    form["effects"] |= (
        (_READS_FLAGS if instruction.rflags_read else 0)
        | (_WRITES_FLAGS if instruction.rflags_modified or is_shift else 0)
        | (_CLEARS_SAME if instruction.mnemonic in _CLEARING else 0)
    )


def _settle_reference(row: np.void, reference: np.void) -> None:
    row["reference"] = reference
    base, index = int(reference["base"]), int(reference["index"])
    base = _NUMBER_OF_WORD.get(base, NO_REGISTER)
    if reference["kind"] != GATHER:
        index = _NUMBER_OF_WORD.get(index, NO_REGISTER)
    row["is_explicit"] = base == _BASE and index == _INDEX
    row["reference"]["base"], row["reference"]["index"] = base, index
    if reference["kind"] == BIT:
        row["mask_field"] = _FIELD_REG
    if reference["mask_kind"] == MASK_OPMASK:
        return  # the core knows its number
    if reference["mask_kind"] == MASK_SIGNS:
        row["mask_field"] = {_RM: _FIELD_RM, _VVVV: _FIELD_VVVV}.get(
            int(reference["mask_register"]), 0
        )


def _variants(sample: bytes) -> Iterator[bytes]:
    """The sample, and itself with operands that are opmasks: those have no high numbers."""
    yield sample
    at = next(i for i, byte in enumerate(sample) if byte not in _LEGACY_PREFIXES)
    if sample[at] not in (0xC4, 0x62):
        return
    fields = ((at + 1, 0x80), (at + 1, 0x20), (at + 2, 0x40))
    for narrow in range(1, 1 << len(fields)):
        variant = bytearray(sample)
        for number, (position, bit) in enumerate(fields):
            if narrow >> number & 1:
                variant[position] |= bit
        yield bytes(variant)


def _displacement_scale(sample: bytes, operands_bytes: int) -> int:
    """By what an 8-bit displacement is multiplied (EVEX)."""
    at = next(i for i, byte in enumerate(sample) if byte not in _LEGACY_PREFIXES)
    modrm = operands_bytes - 6
    if sample[at] != 0x62 or modrm <= at or sample[modrm] >> 6 != 2:
        return 1
    short = bytearray(sample)
    short[modrm] = (sample[modrm] & 0x3F) | 0x40
    short[modrm + 2] = 1
    for variant in _variants(bytes(short)):
        instruction = iced_x86.Decoder(64, variant).decode()
        if not instruction.is_invalid:
            return int(instruction.memory_displacement) or 1
    return 1
