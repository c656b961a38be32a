"""Which of a sampled thread's registers tell an address of its data."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import iced_x86
import msgspec
from iced_x86 import FlowControl, Mnemonic, OpAccess, OpKind, Register

from memsampd import _core
from memsampd.sampler.decoding import FORMS, decode
from memsampd.sampler.process.code_names import ReadMemory
from memsampd.sampler.registers import POSITION, written_registers

NOTHING = len(POSITION)
"""Where a register would stand: its value is 0."""
_MOST_STEPS = 16  # of one address
_WRAP = 1 << 64
_NO_ACCESS = (OpAccess.NONE, OpAccess.NO_MEM_ACCESS)
# Instructions have no marks at their ends: they are decoded from some places before, which meet
# after a few instructions nearly always.
_BEFORE_BYTES, _BEGINS = 48, 5
_PAGE_BYTES = 4096
_AFTER_BYTES, _AFTER = 64, 24  # how far on an access is looked for: bytes at a time, instructions
# What a step does, as the core has it (_core/phases/data_address.c).
_SET, _ADD, _SUB, _AND, _OR, _XOR, _MUL, _SHL, _SHR, _SAR, _ROL, _ROR = range(12)
_TWO_OPERANDS = {
    Mnemonic.MOV: _SET,
    Mnemonic.ADD: _ADD,
    Mnemonic.SUB: _SUB,
    Mnemonic.AND: _AND,
    Mnemonic.OR: _OR,
    Mnemonic.XOR: _XOR,
    Mnemonic.IMUL: _MUL,
    Mnemonic.SHL: _SHL,
    Mnemonic.SHR: _SHR,
    Mnemonic.SAR: _SAR,
    Mnemonic.ROL: _ROL,
    Mnemonic.ROR: _ROR,
}
_ONE_OPERAND = {
    Mnemonic.INC: (_ADD, 1),
    Mnemonic.DEC: (_SUB, 1),
    Mnemonic.NEG: (_MUL, -1),
    Mnemonic.NOT: (_XOR, -1),
}
_EXTENSIONS = {Mnemonic.MOVZX: _SHR, Mnemonic.MOVSX: _SAR, Mnemonic.MOVSXD: _SAR}
_WORDS, _STEP = struct.Struct("=5Q"), struct.Struct("=6BxxQ")
_HIGH_BYTES = frozenset({Register.AH, Register.BH, Register.CH, Register.DH})


class Step(msgspec.Struct, frozen=True):
    """What an instruction does to a register: ``to = to (what) (source + index * scale + value)``.

    Attributes:
        what: as the core has it.
        to: position of the register.
        source: position of another, or ``NOTHING``.
        index: the same.
        scale: what it is multiplied by.
        is_32: only the lower halves take part, and the upper one becomes 0.
        value: modulo 2^64.
    """

    what: int
    to: int
    source: int
    index: int = NOTHING
    scale: int = 1
    is_32: bool = False
    value: int = 0


class Operand(msgspec.Struct, frozen=True):
    """What tells an address: ``base + index * scale + displacement``, after some steps.

    Attributes:
        base: position of a register, or ``NOTHING``.
        index: the same.
        scale: what it is multiplied by.
        displacement: modulo 2^64.
        steps: what becomes of the registers before.
    """

    base: int
    index: int
    scale: int
    displacement: int
    steps: tuple[Step, ...] = ()

    @property
    def registers(self) -> set[int]:
        """Positions of the registers."""
        return {self.base, self.index} - {NOTHING}


def packed(operand: Operand) -> bytes:
    """Return an operand as the core has it (struct data_operand): the longer, the more steps."""
    words = operand.base, operand.index, operand.scale, operand.displacement, len(operand.steps)
    steps = [_STEP.pack(*msgspec.structs.astuple(step)) for step in operand.steps]
    return _WORDS.pack(*words) + b"".join(steps)


class DataOperands:
    """Which of a thread's registers tell an address of its data, by where a sample found it.

    A sample's registers are those after the instruction before: if that made an access and kept the
    registers of its address, they tell it. It is mostly the one that the thread had waited for.
    Else the next access is told, by what the instructions until then make of the registers, as long
    as they read no memory for it. A jump back is taken to be made, one ahead not to be. What lies
    on the stack, or at a fixed address, tells nothing of the data.

    Args:
        read_code: reads the target's code.
    """

    def __init__(self, read_code: ReadMemory) -> None:
        self._read_code = read_code
        self._info = iced_x86.InstructionInfoFactory()

    def at(self, ip: int) -> Operand | None:
        """Return what tells an address at an instruction; None if nothing does."""
        before, code = self._around(ip)
        previous = self._before(ip, before)
        if previous is not None and previous.flow_control == FlowControl.NEXT:
            info = self._info.info(previous)
            operand = _operand_of(info)
            if operand is not None and not written_registers(info) & operand.registers:
                return operand
        return self._next(ip, code)

    def _next(self, ip: int, code: bytes) -> Operand | None:
        """The next access whose address the registers tell."""
        steps: list[Step] = []
        unknown: set[int] = set()
        for instruction in self._path(ip, code):
            info = self._info.info(instruction)
            operand = _operand_of(info)
            if operand is not None and not operand.registers & unknown:
                needed = _needed(steps, operand.registers)
                is_short = len(needed) <= _MOST_STEPS
                return msgspec.structs.replace(operand, steps=needed) if is_short else None
            done = _steps_of(instruction)
            if done and not _read_by(done[0]) & unknown:
                unknown.discard(done[0].to)
                steps += done
            else:
                unknown |= written_registers(info)
        return None

    def _path(self, ip: int, code: bytes) -> Iterator[iced_x86.Instruction]:
        """Instructions as they are likely to follow each other from here on."""
        left = _AFTER
        while left and code:
            next_ip = None
            for instruction in iced_x86.Decoder(64, code, ip=ip):
                if instruction.is_invalid or not left:
                    break
                left -= 1
                flow, next_ip = instruction.flow_control, instruction.next_ip
                if flow == FlowControl.NEXT:
                    yield instruction
                    continue
                ahead = instruction.near_branch_target
                if flow == FlowControl.UNCONDITIONAL_BRANCH:
                    next_ip = ahead
                elif flow != FlowControl.CONDITIONAL_BRANCH:
                    return
                elif ahead <= instruction.ip:
                    next_ip = ahead
                else:
                    continue
                break
            if next_ip is None:
                return
            ip = next_ip
            code = self._read_code(ip, _AFTER_BYTES) if left else b""

    def _around(self, ip: int) -> tuple[bytes, bytes]:
        """Code before an address and behind it: read at once where both begin in one page."""
        begin = ip - _BEFORE_BYTES if ip > _BEFORE_BYTES else ip
        size_bytes = ip - begin
        if begin // _PAGE_BYTES != ip // _PAGE_BYTES:
            return self._read_code(begin, size_bytes), self._read_code(ip, _AFTER_BYTES)
        code = self._read_code(begin, size_bytes + _AFTER_BYTES)
        return code[:size_bytes], code[size_bytes:]

    @staticmethod
    def _before(ip: int, code: bytes) -> iced_x86.Instruction | None:
        """The instruction that most likely lies just before an address, by the code before that."""
        if len(code) < _BEFORE_BYTES:
            return None
        at = _core.last_instruction(code, _BEGINS, FORMS, decode)
        if at < 0:
            return None
        return iced_x86.Decoder(64, code[at:], ip=ip - _BEFORE_BYTES + at).decode()


def _operand_of(info: iced_x86.InstructionInfo) -> Operand | None:
    """An instruction's access to data, if there is one."""
    operands = (_operand(memory) for memory in info.used_memory())
    return next((each for each in operands if each is not None), None)


def _operand(memory: iced_x86.UsedMemory) -> Operand | None:
    if memory.access in _NO_ACCESS or memory.segment in (Register.FS, Register.GS):
        return None
    registers = [each for each in (memory.base, memory.index) if each != Register.NONE]
    if not registers or memory.base == Register.RSP or not set(registers) <= POSITION.keys():
        return None
    base, index = (POSITION.get(each, NOTHING) for each in (memory.base, memory.index))
    return Operand(base, index, memory.scale, memory.displacement % _WRAP)


def _steps_of(instruction: iced_x86.Instruction) -> list[Step]:
    """What an instruction makes of registers, by registers alone; nothing if that is not told."""
    if not instruction.op_count or instruction.op0_kind != OpKind.REGISTER:
        return []
    size = iced_x86.RegisterExt.size(instruction.op0_register)
    to = POSITION.get(iced_x86.RegisterExt.full_register(instruction.op0_register))
    if to is None or size not in (4, 8):
        return []
    is_32 = size == 4
    if instruction.mnemonic == Mnemonic.LEA:
        return _address_step(instruction, to, is_32=is_32)
    if instruction.mnemonic in _ONE_OPERAND and instruction.op_count == 1:
        what, value = _ONE_OPERAND[instruction.mnemonic]
        return [Step(what, to, NOTHING, is_32=is_32, value=value % _WRAP)]
    if instruction.mnemonic in _EXTENSIONS:
        return _extension(instruction, to, is_32=is_32)
    what_two = _TWO_OPERANDS.get(instruction.mnemonic)
    if what_two is None or instruction.op_count < 2:
        return []
    second = _second(instruction, 1, size)
    if instruction.op_count == 2:
        return (
            [] if second is None else [Step(what_two, to, second[0], value=second[1], is_32=is_32)]
        )
    third = _second(instruction, 2, size)
    if second is None or third is None or instruction.mnemonic != Mnemonic.IMUL:
        return []
    set_it = Step(_SET, to, second[0], value=second[1], is_32=is_32)
    return [set_it, Step(_MUL, to, third[0], value=third[1], is_32=is_32)]


def _second(instruction: iced_x86.Instruction, number: int, size: int) -> tuple[int, int] | None:
    """Register and constant that an operand is; None if it is neither."""
    if instruction.op_kind(number) == OpKind.REGISTER:
        register = instruction.op_register(number)
        position = POSITION.get(iced_x86.RegisterExt.full_register(register))
        # A count of bits is a byte.
        is_whole = iced_x86.RegisterExt.size(register) == size or register == Register.CL
        return (position, 0) if position is not None and is_whole else None
    try:
        return NOTHING, instruction.immediate(number) % _WRAP
    except ValueError:
        return None


def _address_step(instruction: iced_x86.Instruction, to: int, *, is_32: bool) -> list[Step]:
    """What LEA makes."""
    if instruction.is_ip_rel_memory_operand:
        return [Step(_SET, to, NOTHING, value=instruction.ip_rel_memory_address, is_32=is_32)]
    registers = [instruction.memory_base, instruction.memory_index]
    if any(each != Register.NONE and each not in POSITION for each in registers):
        return []
    base, index = (POSITION.get(each, NOTHING) for each in registers)
    value = instruction.memory_displacement % _WRAP
    return [Step(_SET, to, base, index, instruction.memory_index_scale, is_32, value)]


def _extension(instruction: iced_x86.Instruction, to: int, *, is_32: bool) -> list[Step]:
    """A smaller register made a whole one, with zeros or with its sign."""
    if instruction.op1_kind != OpKind.REGISTER:
        return []
    register = instruction.op1_register
    bits = 8 * iced_x86.RegisterExt.size(register)
    source = POSITION.get(iced_x86.RegisterExt.full_register(register))
    if source is None or register in _HIGH_BYTES:
        return []
    shift = (32 if is_32 else 64) - bits
    back = _EXTENSIONS[instruction.mnemonic]
    return [
        Step(_SET, to, source, is_32=is_32),
        Step(_SHL, to, NOTHING, is_32=is_32, value=shift),
        Step(back, to, NOTHING, is_32=is_32, value=shift),
    ]


def _read_by(step: Step) -> set[int]:
    """Registers whose values count for what a step makes; none where a register is made zero."""
    if step.what in (_XOR, _SUB) and step.to == step.source:
        return set()
    own = set() if step.what == _SET else {step.to}
    return (own | {step.source, step.index}) - {NOTHING}


def _needed(steps: list[Step], registers: set[int]) -> tuple[Step, ...]:
    """Those steps that make something of some registers, in their order."""
    wanted, kept = set(registers), []
    for step in reversed(steps):
        if step.to not in wanted:
            continue
        kept.append(step)
        wanted = (wanted - {step.to}) | _read_by(step)
    return tuple(reversed(kept))
