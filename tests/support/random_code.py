"""Random machine code over all operand forms, for executors to run against each other."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import iced_x86
from iced_x86 import Code, FlowControl, Mnemonic, OpKind, Register

# Where the target has its code and data, relative to each other and in bytes.
DATA_BYTES = 1 << 18
MIDDLE = DATA_BYTES // 2
INDICES = 1024  # small numbers, to index vectors with

_LEGACY_PREFIXES = b"\x66\xf2\xf3\xf0\x64\x67"


_NOT_PREFIXES = [
    byte
    for byte in range(256)
    if byte & 0xF0 != 0x40 and byte not in b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3"
]


def _named(*prefixes: str) -> set[int]:
    return {
        value
        for name, value in vars(Mnemonic).items()
        if isinstance(value, int) and name.startswith(prefixes)
    }


# What differs from run to run, what only the kernel may do, what hides or sets the trap flag, and
# what the executors refuse alike (there are tests of that).
_EXCLUDED = _named(
    *("RDTSC", "RDRAND", "RDSEED", "RDPID", "CPUID", "RDPMC", "SYSCALL", "SYSENTER", "INT"),
    *("POPF", "HLT", "IN", "OUT", "LMSW", "LLDT", "LTR", "SLDT", "STR", "SGDT", "SIDT", "SMSW"),
    *("WRFSBASE", "WRGSBASE", "RDFSBASE", "RDGSBASE", "XRSTOR", "FXRSTOR", "FRSTOR", "LDMXCSR"),
    *("VLDMXCSR", "FLDCW", "FLDENV", "TPAUSE", "UMWAIT", "UMONITOR", "MWAIT", "MONITOR", "PTWRITE"),
    *(
        "XBEGIN",
        "XABORT",
        "XEND",
        "XTEST",
        "ENCL",
        "UD",
        "SWAPGS",
        "XSAVE",
        "CLI",
        "STI",
        "LSL",
        "LAR",
    ),
    *("VERR", "VERW", "ENQCMD", "SENDUIPI", "STUI", "CLUI", "TESTUI", "UIRET", "WRPKRU", "ENTER"),
    *(
        "LSS",
        "LFS",
        "LGS",
        "XGETBV",
        "FNSTENV",
        "FNSAVE",
        "FXSAVE",
        "XSAVEOPT",
        "MOVDIR",
        "LOADALL",
    ),
    *("STTILECFG", "LDTILECFG", "TILE", "TDP", "WBNOINVD", "PCONFIG", "CLZERO", "HRESET", "PBNDKB"),
) - {Mnemonic.INC, Mnemonic.INCSSPD, Mnemonic.INSERTPS, Mnemonic.INSERTQ}
_STRINGS = _named("MOVS", "CMPS", "SCAS", "LODS", "STOS")
_HIGH = {Register.ES, Register.CS, Register.SS, Register.DS, Register.FS, Register.GS}


@dataclass
class Place:
    """Where code and data will lie."""

    code: int
    data: int


class RandomCode:
    """Draws instructions.

    Args:
        seed: of the random numbers.
        place: where code and data will lie.
    """

    def __init__(self, seed: int, place: Place) -> None:
        self._rng = random.Random(seed)
        self._place = place
        self._code = bytearray()
        self._info = iced_x86.InstructionInfoFactory()

    def draw(self, instructions: int) -> bytes:
        """So many instructions and what sets them up; a system call ends them."""
        self._code = bytearray(_load_vectors(self._place))
        for _ in range(instructions):
            choice = self._rng.random()
            if choice < 0.08:
                self._add_branch()
            elif choice < 0.12:
                self._add_call()
            else:
                self._add_any()
        return bytes(self._code) + b"\x0f\x05"

    @property
    def _ip(self) -> int:
        return self._place.code + len(self._code)

    def _random_bytes(self) -> bytes:
        rng = self._rng
        modrm = bytes([rng.randrange(256), rng.randrange(256)])
        tail = modrm + bytes(rng.randrange(256) for _ in range(12))
        opcode = bytes([rng.choice(_NOT_PREFIXES)])
        prefix = bytes([rng.choice(_LEGACY_PREFIXES)]) if rng.random() < 0.25 else b""
        kind = rng.random()
        if kind < 0.55:
            rex = bytes([0x40 | rng.randrange(16)]) if rng.random() < 0.7 else b""
            escape = rng.choice([b"", b"", b"\x0f", b"\x0f", b"\x0f\x38", b"\x0f\x3a"])
            return prefix + rex + escape + opcode + tail
        if kind < 0.75:
            two = rng.random() < 0.3
            head = (
                bytes([0xC5, rng.randrange(256)])
                if two
                else bytes(
                    [0xC4, rng.randrange(8) << 5 | rng.choice([1, 2, 3]), rng.randrange(256)]
                )
            )
            return head + opcode + tail
        payload = bytes(
            [
                rng.randrange(16) << 4 | rng.choice([1, 2, 3]),
                rng.randrange(256) | 4,
                rng.randrange(256),
            ]
        )
        return b"\x62" + payload + opcode + tail

    def _add_any(self) -> None:
        while True:
            code = bytearray(self._random_bytes())
            decoder = iced_x86.Decoder(64, bytes(code), ip=self._ip)
            instruction = decoder.decode()
            if not _is_wanted(instruction):
                continue
            offsets = decoder.get_constant_offsets(instruction)
            setup = self._set_up(instruction)
            if setup is None:
                continue
            code = code[: instruction.len]
            if offsets.has_displacement:
                self._aim(code, instruction, offsets, len(setup))
            self._code += setup + code
            return

    def _aim(
        self,
        code: bytearray,
        instruction: iced_x86.Instruction,
        offsets: iced_x86.ConstantOffsets,
        setup_bytes: int,
    ) -> None:
        """Make a displacement one that leads into the data."""
        at, size = offsets.displacement_offset, offsets.displacement_size
        if instruction.is_ip_rel_memory_operand:
            target = self._place.data + MIDDLE + self._rng.randrange(-512, 512) // 64 * 64
            value = target - (self._ip + setup_bytes + instruction.len)
        elif size == 8:
            value = self._place.data + MIDDLE
        elif size == 4:
            value = self._rng.randrange(-512, 512) // 64 * 64
        else:
            value = self._rng.choice([0, 64, -64])
        code[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def _set_up(self, instruction: iced_x86.Instruction) -> bytes | None:
        """Instructions that make an instruction's addresses lead into the data."""
        middle = self._place.data + MIDDLE
        wanted: dict[int, int] = {}
        setup = b""
        if instruction.mnemonic in _STRINGS and not _is_vector(instruction):
            wanted = {6: middle, 7: middle + 4096 * self._rng.choice([-1, 0, 1])}
            wanted[1] = self._rng.randrange(40)
            setup += self._rng.choice([b"\xfc", b"\xfc", b"\xfd"])
        elif instruction.is_stack_instruction:
            wanted[4] = middle
        if any(
            instruction.op_kind(i) == OpKind.MEMORY_SEG_RDI for i in range(instruction.op_count)
        ):
            wanted[7] = middle
        if any(instruction.op_kind(i) == OpKind.MEMORY for i in range(instruction.op_count)):
            base, index = instruction.memory_base, instruction.memory_index
            if base == Register.NONE and instruction.memory_displ_size != 8:
                return None
            if base not in (Register.NONE, Register.RIP):
                number = iced_x86.RegisterExt.number(base)
                if 4 in wanted and number == 4:
                    return None
                scale = instruction.memory_index_scale if index == base else 0
                wanted[number] = middle // (1 + scale) // 64 * 64
            if index != Register.NONE and iced_x86.RegisterExt.is_gpr(index) and index != base:
                wanted[iced_x86.RegisterExt.number(index)] = self._rng.randrange(8) * 64
            elif iced_x86.RegisterExt.is_vector_register(index):
                setup += self._load_index(iced_x86.RegisterExt.number(index))
        for number, value in wanted.items():
            setup += _move_constant(number, value)
        return self._relocated(setup)

    def _load_index(self, number: int) -> bytes:
        """vmovdqu64 zmm, [small numbers]: its displacement is relative to where it will stand."""
        first = 0x62
        second = 0xF1 ^ (0x80 if number & 8 else 0) ^ (0x10 if number & 16 else 0)
        code = bytes([first, second, 0xFE, 0x48, 0x6F, 5 | (number & 7) << 3])
        return code + b"INDX"

    def _relocated(self, setup: bytes) -> bytes:
        at = setup.find(b"INDX")
        if at < 0:
            return setup
        displacement = self._place.data + INDICES - (self._ip + at + 4)
        return setup[:at] + struct.pack("<i", displacement) + setup[at + 4 :]

    def _add_branch(self) -> None:
        """A branch over the next instruction, which is a nop or an increment of memory."""
        skipped = self._rng.choice(
            [b"\x90", b"\x48\xff\xc0", b"\x0f\x1f\x40\x00", b"\xf9", b"\xf8"]
        )
        opcode = self._rng.choice([*range(0x70, 0x80), 0xE3, 0xE2, 0xE1, 0xE0, 0xEB])
        self._code += bytes([opcode, len(skipped)]) + skipped

    def _add_call(self) -> None:
        stack = _move_constant(4, self._place.data + MIDDLE)
        kind = self._rng.randrange(4)
        if kind == 0:  # call over a nop to a pop
            padding = self._rng.choice([b"", b"\x66\x66\x48"])  # as calls of __tls_get_addr have
            self._code += stack + padding + b"\xe8\x01\x00\x00\x00\x90\x58"
        elif kind == 1:  # push an address, ret to it
            self._code += stack + b"\x48\x8d\x05\x02\x00\x00\x00\x50\xc3"
        elif kind == 2:  # through a register
            self._code += b"\x4c\x8d\x1d\x03\x00\x00\x00\x41\xff\xe3"
        else:  # through memory, with an immediate to drop
            self._code += stack + b"\x48\x8d\x05\x07\x00\x00\x00\x48\x89\x04\x24\xff\x24\x24\x90"


def _is_vector(instruction: iced_x86.Instruction) -> bool:
    return any(
        instruction.op_kind(i) == OpKind.REGISTER
        and iced_x86.RegisterExt.is_vector_register(instruction.op_register(i))
        for i in range(instruction.op_count)
    )


def _cpu_flags() -> set[str]:
    with open("/proc/cpuinfo") as cpuinfo:
        return set(cpuinfo.read().partition("flags")[2].partition("\n")[0].split())


# Instruction sets as iced-x86 and /proc/cpuinfo name them; the rest would only end each case early.
_BASELINE = ("INTEL8086", "INTEL186", "INTEL286", "INTEL386", "INTEL486", "X64", "MULTIBYTENOP")
_FPU = ("FPU", "FPU287", "FPU387", "CMOV", "PAUSE")
_BY_FLAG = {
    **{name: name.lower() for name in ("MMX", "SSE", "SSE2", "SSSE3", "SSE4_1", "SSE4_2", "FMA")},
    **{name: name.lower() for name in ("POPCNT", "BMI1", "BMI2", "ADX", "MOVBE", "AES", "F16C")},
    **{name: name.lower() for name in ("AVX", "AVX2", "VAES", "GFNI", "PCLMULQDQ", "VPCLMULQDQ")},
    **{f"AVX512{name}": f"avx512{name.lower()}" for name in ("F", "BW", "DQ", "VL", "CD")},
    **{"SSE3": "pni", "LZCNT": "abm", "SHA": "sha_ni", "CMPXCHG16B": "cx16", "CX8": "cx8"},
    **{"AVX512_VBMI": "avx512vbmi", "AVX512_VBMI2": "avx512_vbmi2", "XSAVE": "xsave"},
    **{"AVX512_VNNI": "avx512_vnni", "AVX512_BITALG": "avx512_bitalg", "XSAVEC": "xsavec"},
}
_FEATURES = {
    getattr(iced_x86.CpuidFeature, name)
    for name in (
        *_BASELINE,
        *_FPU,
        *(name for name, flag in _BY_FLAG.items() if flag in _cpu_flags()),
    )
    if hasattr(iced_x86.CpuidFeature, name)
}


def _is_wanted(instruction: iced_x86.Instruction) -> bool:
    if instruction.code == Code.INVALID or instruction.flow_control != FlowControl.NEXT:
        return False
    if not set(instruction.cpuid_features()) <= _FEATURES:
        return False
    if instruction.mnemonic in _EXCLUDED or instruction.is_privileged:
        return False
    if instruction.has_lock_prefix or instruction.segment_prefix == Register.GS:
        return False
    for i in range(instruction.op_count):
        kind = instruction.op_kind(i)
        if kind == OpKind.REGISTER and instruction.op_register(i) in _HIGH:
            return False
        # 32-bit addresses do not reach the data.
        if kind not in (OpKind.REGISTER, OpKind.MEMORY) and "ESI" in _kind_name(kind):
            return False
        if "EDI" in _kind_name(kind):
            return False
        if kind == OpKind.MEMORY and iced_x86.RegisterExt.size(instruction.memory_base) == 4:
            return False
        if kind == OpKind.MEMORY and iced_x86.RegisterExt.size(instruction.memory_index) == 4:
            return False
    return True


_KIND_NAMES = {v: k for k, v in vars(OpKind).items() if isinstance(v, int)}


def _kind_name(kind: int) -> str:
    return _KIND_NAMES[kind]


def _move_constant(number: int, value: int) -> bytes:
    return bytes([0x48 | number >> 3, 0xB8 | number & 7]) + struct.pack("<Q", value)


def _load_vectors(place: Place) -> bytes:
    """Fill vector registers and opmasks from the data, as far as this CPU has them."""
    flags = _cpu_flags()
    code = _move_constant(0, place.data)
    if "avx512bw" in flags:
        for number in range(32):
            second = 0xF1 ^ (0x80 if number & 8 else 0) ^ (0x10 if number & 16 else 0)
            code += bytes([0x62, second, 0xFE, 0x48, 0x6F, 0x80 | (number & 7) << 3])
            code += struct.pack("<i", 64 * number)
        for number in range(1, 8):
            code += bytes([0xC4, 0xE1, 0xF8, 0x90, 0x80 | number << 3])
            code += struct.pack("<i", 8 * number)
    elif "avx2" in flags:
        for number in range(16):
            second = 0xE1 ^ (0x80 if number & 8 else 0)
            code += bytes([0xC4, second, 0x7E, 0x6F, 0x80 | (number & 7) << 3])
            code += struct.pack("<i", 32 * number)
    return code
