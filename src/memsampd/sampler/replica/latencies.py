"""Latencies of instructions, in cycles: what the core model waits for.

They are those of usual cores of Intel and AMD since 2017 (Fog's instruction tables, uops.info),
which differ by a cycle or two. Loads are not in them: the model (``_core/translator/core_model.h``)
adds these.
"""

from __future__ import annotations

import re

import iced_x86
from iced_x86 import Mnemonic, OpKind, RegisterExt

from memsampd.sampler.replica.decoder import MNEMONIC_NAMES

# By the begin of the mnemonic; the first that matches.
_LATENCIES: tuple[tuple[str, int], ...] = (
    (r"I?DIV$", 14),
    (r"I?MUL$|MULX", 3),
    (r"V?(DIV|SQRT)[SP]S", 11),
    (r"V?(DIV|SQRT)[SP]D|F(I|)DIV|FSQRT", 14),
    (r"V?(RCP|RSQRT)", 5),
    (r"VFN?M(ADD|SUB)|VPDP", 4),
    (r"V?(ADD|SUB|MUL|MIN|MAX|ADDSUB|CMP)[SP][SD]$|V?U?COMIS", 4),
    (r"F(I|)(ADD|SUB|MUL)|FCOM|FUCOM", 5),
    (r"F(SIN|COS|PTAN|PATAN|YL2X|2XM1|PREM|SCALE|BLD|BSTP)", 60),
    (r"V?CVT|V?ROUND|V?DPP", 5),
    (r"V?P(MUL|MADD|SADBW)|V?PHMINPOS", 4),
    (r"V?MOV(D|Q|MSKP[SD])$|V?PMOVMSKB|V?P(EXTR|INSR)|V?PTEST|V?TESTP", 3),
    (r"V?H(ADD|SUB)P|V?PH(ADD|SUB)", 5),
    (r"VPERM|VINSERT|VEXTRACT|VBROADCAST|VPBROADCAST|VPERM2|VPGATHER|VGATHER", 3),
    (r"V?AES|V?PCLMUL|SHA", 4),
    (r"V?PCMP[EI]STR", 10),
    (r"BS[FR]|PDEP|PEXT|CRC32|SHLD|SHRD|RC[LR]|POPCNT|[LT]ZCNT", 3),
    (r"CMPXCHG|XADD", 8),
    (r"CPUID|RDTSC|RDPMC|XGETBV|XSAVE|XRSTOR|FXSAVE|FXRSTOR|RDRAND|RDSEED|PAUSE", 100),
    (r"[LMS]FENCE", 20),
    (r"NOP|ENDBR|PREFETCH", 0),
)
_PLAIN_MOVES = r"(MOV|V?MOV[AU]P[SD]|V?MOVDQ[AU]\d*)$"
_LOCKED_CYCLES = 18


def latency_cycles(instruction: iced_x86.Instruction) -> int:
    """Cycles from when what it reads is there, loaded data too, to when what it writes is."""
    name = MNEMONIC_NAMES[instruction.mnemonic]
    if re.match(_PLAIN_MOVES, name):
        return 0  # cores rename registers, and the model adds loads
    if name in ("MOVD", "MOVQ", "VMOVD", "VMOVQ") and not _crosses(instruction):
        return 1
    cycles = next((cycles for pattern, cycles in _LATENCIES if re.match(pattern, name)), 1)
    swaps = instruction.mnemonic == Mnemonic.XCHG and OpKind.MEMORY in (
        instruction.op_kind(number) for number in range(instruction.op_count)
    )
    return cycles + (_LOCKED_CYCLES if instruction.has_lock_prefix or swaps else 0)


def _crosses(instruction: iced_x86.Instruction) -> bool:
    """Whether it moves from a general register to a vector, or back."""
    kinds = {
        bool(RegisterExt.is_vector_register(instruction.op_register(number)))
        for number in range(instruction.op_count)
        if instruction.op_kind(number) == OpKind.REGISTER
    }
    return kinds == {False, True}
