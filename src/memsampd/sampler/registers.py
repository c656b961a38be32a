"""General registers: their places in samples, and which of them an instruction writes."""

from __future__ import annotations

import iced_x86
from iced_x86 import OpAccess, Register

_ORDER = "RAX RBX RCX RDX RSI RDI RBP RSP R8 R9 R10 R11 R12 R13 R14 R15"
POSITION = {getattr(Register, name): at for at, name in enumerate(_ORDER.split())}
"""Positions of general registers in samples."""
WRITES = frozenset(
    {OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE}
)
"""Accesses of an operand that write it, or may."""


def written_registers(info: iced_x86.InstructionInfo) -> set[int]:
    """Return the positions of the general registers that an instruction writes, all or a part."""
    return {
        POSITION[full]
        for used in info.used_registers()
        if used.access in WRITES
        and (full := iced_x86.RegisterExt.full_register(used.register)) in POSITION
    }
