"""From machine code to recipes: where each instruction finds the data it references.

iced-x86 tells which memory an instruction uses; what it leaves open (the element a repeated string
instruction moves, the lanes a mask leaves active, the area that xsave writes) is settled here. The
C core (``_core/translator/recipe.c``) evaluates a recipe against the registers before it runs.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

import iced_x86
import msgspec
import numpy as np
from iced_x86 import (
    Code,
    FlowControl,
    MemorySize,
    MemorySizeExt,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
)
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.registers import WRITES

REFERENCES_MAXIMUM = 4
CODE_BYTES_MAXIMUM = 15
NO_REGISTER = 0xFF

# Mirrors enum recipe_flag, enum reference_kind and enum mask_kind of _core/translator/recipe.h.
SYSCALL, UNSUPPORTED, REPEATED, PUSHES_FLAGS, NEEDS_VECTORS, PREFETCHES = 1, 2, 4, 8, 16, 32
PLAIN, GATHER, MASKED, COMPRESSED, XSAVE, XSAVEC, BIT, XLAT = range(8)
MASK_NONE, MASK_OPMASK, MASK_SIGNS = range(3)

REFERENCE = np.dtype(
    [
        ("displacement", "<i8"),
        ("size_bytes", "<u2"),
        *(
            (name, "u1")
            for name in [
                "kind",
                "loads",
                "stores",
                "base",
                "index",
                "scale",
                "segment",
                "is_32_bit",
                "mask_kind",
                "mask_register",
                "lanes",
                "lane_bytes",
                "index_bytes",
                "padding",
            ]
        ),
    ]
)
RECIPE = np.dtype(
    [
        ("ip", "<u8"),
        ("code", "u1", CODE_BYTES_MAXIMUM),
        ("length", "u1"),
        ("flags", "u1"),
        ("references", "u1"),
        ("padding", "u1", 6),
        ("reference", REFERENCE, REFERENCES_MAXIMUM),
    ]
)
assert RECIPE.itemsize == _core.RECIPE_BYTES, "decoder.py and _core/translator/recipe.h disagree"

# Positions, as 8-byte words, in struct user_regs_struct.
_WORDS = [
    "R15",
    "R14",
    "R13",
    "R12",
    "RBP",
    "RBX",
    "R11",
    "R10",
    "R9",
    "R8",
    "RAX",
    "RCX",
    "RDX",
    "RSI",
    "RDI",
    "ORIG_RAX",
    "RIP",
    "CS",
    "EFLAGS",
    "RSP",
    "SS",
    "FS_BASE",
    "GS_BASE",
]
WORD_OF_REGISTER = {
    getattr(Register, name): word for word, name in enumerate(_WORDS) if hasattr(Register, name)
} | {
    getattr(Register, narrow): _WORDS.index(wide)
    for narrow, wide in (
        *((f"R{n}D", f"R{n}") for n in range(8, 16)),
        *((f"E{name}", f"R{name}") for name in ["AX", "BX", "CX", "DX", "SI", "DI", "BP", "SP"]),
    )
}
FS_WORD = _WORDS.index("FS_BASE")
_SEGMENT_WORD = {Register.FS: FS_WORD, Register.GS: _WORDS.index("GS_BASE")}

_BLOCK_INSTRUCTIONS = 32  # at the most
_LOADS = {OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}
# cmpxchg writes back what it read where the comparison fails: a store on every path.
_STORES = WRITES

_PUSH_FLAGS = {Mnemonic.PUSHF, Mnemonic.PUSHFD, Mnemonic.PUSHFQ}


MNEMONIC_NAMES = {v: k for k, v in vars(Mnemonic).items() if isinstance(v, int)}
_SORTED = sorted(MNEMONIC_NAMES.values())


def _mnemonics(*prefixes: str) -> set[int]:
    """Mnemonics with these prefixes, without a look at each of 1,900."""
    return {
        getattr(Mnemonic, name)
        for prefix in prefixes
        for name in _SORTED[bisect_left(_SORTED, prefix) : bisect_left(_SORTED, prefix + "~")]
    }


_PREFETCHES = _mnemonics("PREFETCH")
_CACHE_CONTROL = _mnemonics("CLFLUSH", "CLWB", "CLDEMOTE")
_XSAVES = {
    **dict.fromkeys(_mnemonics("XSAVE", "XRSTOR"), XSAVE),
    **dict.fromkeys(_mnemonics("XSAVEC", "XSAVES"), XSAVEC),
}
_COMPRESSING = _mnemonics("VCOMPRESS", "VPCOMPRESS", "VEXPAND", "VPEXPAND")
_SIGN_MASKED = _mnemonics("VMASKMOV", "VPMASKMOV", "MASKMOV")
_BYTE_MASKED = _mnemonics("MASKMOVDQU", "VMASKMOVDQU")
_BROADCASTING = _mnemonics("VBROADCAST", "VPBROADCAST")
_BIT_STRINGS = {Mnemonic.BT, Mnemonic.BTS, Mnemonic.BTR, Mnemonic.BTC}
_STRINGS = {
    getattr(Mnemonic, f"{operation}{size}")
    for operation in ("MOVS", "CMPS", "SCAS", "LODS", "STOS")
    for size in "BWDQ"
}
# Tiles have strides of their own; iret and the like leave user mode's rules; the mask of maskmovq
# is in the x87 registers; the calls of `int` and `sysenter` have other numbers.
_UNSUPPORTED = {
    *_mnemonics("TILE", "IRET", "BNDLDX", "BNDSTX", "XRSTORS", "MASKMOVQ", "CLZERO", "SYSENTER"),
    Mnemonic.INT,
}
_BROADCAST_BITS = re.compile("BROADCAST([0-9]+)_")
_MEMORY_SIZE_NAMES = {v: k for k, v in vars(MemorySize).items() if isinstance(v, int)}


class _Mask(msgspec.Struct, frozen=True):
    kind: int = MASK_NONE
    register: int = 0


def _vector_number(register: iced_x86.Register_) -> int:
    return int(iced_x86.RegisterExt.number(register))


def _mask_of(instruction: iced_x86.Instruction, is_gather: bool) -> _Mask:
    """What decides which lanes of a memory operand are touched."""
    if instruction.op_mask != Register.NONE:
        return _Mask(MASK_OPMASK, _vector_number(instruction.op_mask))
    if is_gather:
        return _Mask(MASK_SIGNS, _vector_number(instruction.op_register(2)))
    if instruction.mnemonic in _SIGN_MASKED:
        implied = instruction.op_kind(0) == OpKind.MEMORY_SEG_RDI
        return _Mask(MASK_SIGNS, _vector_number(instruction.op_register(2 if implied else 1)))
    return _Mask()


def _gather_lanes(instruction: iced_x86.Instruction, index_bytes: int, lane_bytes: int) -> int:
    """Lanes of a gather or scatter: as many as both the data and the index register have."""
    data = next(
        instruction.op_register(i)
        for i in range(instruction.op_count)
        if instruction.op_kind(i) == OpKind.REGISTER
        and iced_x86.RegisterExt.is_vector_register(instruction.op_register(i))
    )
    size = iced_x86.RegisterExt.size
    return int(min(size(data) // lane_bytes, size(instruction.memory_index) // index_bytes))


def _fill_lanes(
    row: np.void, instruction: iced_x86.Instruction, memory: iced_x86.UsedMemory
) -> bool:
    """Settle masks and index vectors; says whether vector registers are needed."""
    element_bytes = int(MemorySizeExt.element_size(memory.memory_size))
    mask = _mask_of(instruction, memory.vsib_size != 0)
    row["mask_kind"], row["mask_register"] = mask.kind, mask.register
    if memory.vsib_size:
        row["kind"] = GATHER
        row["index"] = _vector_number(memory.index)
        row["index_bytes"] = memory.vsib_size
        row["lane_bytes"] = element_bytes
        row["lanes"] = _gather_lanes(instruction, memory.vsib_size, element_bytes)
        return True
    if mask.kind == MASK_NONE:
        return False
    if instruction.mnemonic in _BYTE_MASKED:
        element_bytes = 1
    row["kind"] = COMPRESSED if instruction.mnemonic in _COMPRESSING else MASKED
    row["lanes"] = row["size_bytes"] // element_bytes
    row["lane_bytes"] = element_bytes
    if lanes := _broadcast_lanes(instruction, memory, element_bytes):
        row["lanes"], row["lane_bytes"] = lanes, row["size_bytes"]
    return True


def _broadcast_lanes(
    instruction: iced_x86.Instruction, memory: iced_x86.UsedMemory, element_bytes: int
) -> int:
    """Lanes that all get the same few bytes, which any active one has read; else 0."""
    if MemorySizeExt.is_broadcast(memory.memory_size):
        total = _BROADCAST_BITS.match(_MEMORY_SIZE_NAMES[memory.memory_size])
        assert total is not None
        return int(total.group(1)) // 8 // element_bytes
    if instruction.mnemonic in _BROADCASTING and instruction.op_kind(0) == OpKind.REGISTER:
        return int(iced_x86.RegisterExt.size(instruction.op_register(0))) // element_bytes
    return 0


def _fill_reference(
    row: np.void, instruction: iced_x86.Instruction, memory: iced_x86.UsedMemory
) -> int | None:
    """Describe one memory operand; the recipe flags it adds, or None if that cannot be done."""
    size_bytes = int(MemorySizeExt.size(memory.memory_size))
    flags = 0
    if instruction.mnemonic in _XSAVES:
        row["kind"] = _XSAVES[instruction.mnemonic]
    elif memory.memory_size == MemorySize.UNKNOWN and instruction.mnemonic in _STRINGS:
        size_bytes = int(MemorySizeExt.size(instruction.memory_size))
        flags |= REPEATED
    elif size_bytes == 0:
        return None
    elif instruction.mnemonic == Mnemonic.XLATB:
        row["kind"] = XLAT
    displacement = memory.displacement
    row["displacement"] = displacement - (1 << 64) if displacement >> 63 else displacement
    row["size_bytes"] = size_bytes
    row["loads"] = memory.access in _LOADS
    row["stores"] = memory.access in _STORES
    row["base"] = WORD_OF_REGISTER.get(memory.base, NO_REGISTER)
    if memory.base != Register.NONE and row["base"] == NO_REGISTER:
        return None
    row["index"] = NO_REGISTER
    row["scale"] = memory.scale
    row["segment"] = _SEGMENT_WORD.get(memory.segment, NO_REGISTER)
    row["is_32_bit"] = memory.address_size == iced_x86.CodeSize.CODE32
    if _fill_lanes(row, instruction, memory):
        flags |= NEEDS_VECTORS
    if row["kind"] == GATHER:
        return flags  # the index is a vector
    if _is_bit_string(instruction):
        row["kind"] = BIT
        row["mask_register"] = WORD_OF_REGISTER[
            iced_x86.RegisterExt.full_register(instruction.op1_register)
        ]
    index = (
        iced_x86.RegisterExt.full_register(memory.index) if row["kind"] == XLAT else memory.index
    )
    row["index"] = WORD_OF_REGISTER.get(index, NO_REGISTER)
    if memory.index != Register.NONE and row["index"] == NO_REGISTER:
        return None
    return flags


class RecipeDecoder:
    """Decodes straight-line code into recipes for the native core.

    Args:
        read_code: reads up to so many bytes of the program's code at an address; may return fewer.
    """

    def __init__(self, read_code: Callable[[int, int], bytes]) -> None:
        self._read_code = read_code
        self._info = iced_x86.InstructionInfoFactory()

    def block(self, ip: int) -> NDArray[np.void]:
        """Decode from ``ip`` to the next change of control flow.

        Returns:
            Recipes, shape (n,), dtype :data:`RECIPE`, n >= 1 unless the code cannot be read. What
            is not an instruction is one recipe flagged ``UNSUPPORTED``.
        """
        code = self._read_code(ip, _BLOCK_INSTRUCTIONS * CODE_BYTES_MAXIMUM)
        recipes = np.zeros(_BLOCK_INSTRUCTIONS, RECIPE)
        count = 0
        for instruction in iced_x86.Decoder(64, code, ip=ip):
            if count == _BLOCK_INSTRUCTIONS:
                break
            is_valid = instruction.code != Code.INVALID
            if not is_valid and count > 0:
                break  # perhaps only cut off: decode again when it is reached
            at = instruction.ip - ip
            length = instruction.len if is_valid else min(len(code), CODE_BYTES_MAXIMUM)
            recipe = recipes[count]
            recipe["ip"] = instruction.ip
            recipe["length"] = length
            recipe["code"][:length] = np.frombuffer(code[at : at + length], np.uint8)
            self.describe(recipe, instruction)
            count += 1
            if not is_valid or instruction.flow_control != FlowControl.NEXT:
                break
        return recipes[:count]

    def describe(self, recipe: np.void, instruction: iced_x86.Instruction) -> None:
        """Fill in what the references of an instruction are."""
        mnemonic = instruction.mnemonic
        if mnemonic == Mnemonic.SYSCALL:
            recipe["flags"] = SYSCALL
            return
        if instruction.code == Code.INVALID or mnemonic in _UNSUPPORTED:
            recipe["flags"] = UNSUPPORTED
            return
        if mnemonic in _PREFETCHES:
            recipe["flags"] = PREFETCHES
            return
        if mnemonic in _CACHE_CONTROL:
            return
        flags = PUSHES_FLAGS if mnemonic in _PUSH_FLAGS else 0
        used = [
            m for m in self._info.info(instruction).used_memory() if m.access in _LOADS | _STORES
        ]
        if len(used) > REFERENCES_MAXIMUM:
            recipe["flags"] = UNSUPPORTED
            return
        for row, memory in zip(recipe["reference"], used, strict=False):
            added = _fill_reference(row, instruction, memory)
            if added is None:
                recipe["flags"] = UNSUPPORTED
                return
            flags |= added
        recipe["flags"] = flags
        recipe["references"] = len(used)


def _is_bit_string(instruction: iced_x86.Instruction) -> bool:
    """A bit test in memory whose bit number, in a register, reaches beyond the operand."""
    return (
        instruction.mnemonic in _BIT_STRINGS
        and instruction.op_kind(0) == OpKind.MEMORY
        and instruction.op_kind(1) == OpKind.REGISTER
    )


def describe(code: bytes, ip: int) -> str:
    """One instruction as text, for messages."""
    instruction = next(iter(iced_x86.Decoder(64, code, ip=ip)), None)
    return "unreadable code" if instruction is None else f"{instruction}"
