"""How far apart the data lie that a thread is found at: what the same code works on, in a word.

Branch samples tell what code runs, not on what data: the same loop over 16 KiB and over 16 MiB has
one branch vector. But a sample has the thread's registers, too. Where the instruction before it, or
one of the next, makes an access, they tell its address; and addresses of some tens of samples tell
how large an area they are of.
"""

from __future__ import annotations

import struct
from collections import Counter

import iced_x86
import numpy as np
from iced_x86 import FlowControl, OpAccess, Register
from numpy.typing import NDArray

from memsampd import _core
from memsampd.sampler.decoding import FORMS, decode
from memsampd.sampler.latest import Latest
from memsampd.sampler.process.code_names import ReadMemory
from memsampd.sampler.process.memory import entered
from memsampd.sampler.records import BranchSamples, Spacing, no_registers
from memsampd.sampler.registers import POSITION, written_registers

_SAMPLES = 512  # that are remembered: of some windows
_LEAST_ADDRESSES = 8
_KNOWN = 4096  # instructions that are remembered
_DECODED = 16  # in a window at most: the decoder takes some 40 us for each
_LEAST_TIMES = 2  # code that was sampled once may never be again
_KNOWN_PART, _LEAST_TIMES_MORE = 0.75, 5  # where so many samples are in code that is known

_NOTHING = len(POSITION)  # where a register would stand: adds 0
_PACKED = struct.Struct("=4Q")
_UNKNOWN = _PACKED.pack(_NOTHING, _NOTHING, 0, 0)
_WRAP = 1 << 64
_NO_ACCESS = (OpAccess.NONE, OpAccess.NO_MEM_ACCESS)
# Instructions have no marks at their ends: they are decoded from some places before, which meet
# after a few instructions nearly always.
_BEFORE_BYTES, _BEGINS = 48, 5
_PAGE_BYTES = 4096
_AFTER_BYTES, _AFTER = 64, 8  # how far on an access is looked for: bytes and instructions
_USER_ADDRESSES = 1 << 47

Operand = tuple[int, int, int, int]
"""Positions of base and index among a sample's registers, scale, displacement modulo 2^64."""


class DataOperands:
    """Which of a thread's registers tell an address of its data, by where a sample found it.

    A sample's registers are those after the instruction before: if that made an access and kept the
    registers of its address, they tell it. It is mostly the one that the thread had waited for.
    Else the first access that follows is told, as long as nothing changes its registers before.
    What lies on the stack, or at a fixed address, tells nothing of the data.

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
            if operand is not None and not written_registers(info) & set(operand[:2]):
                return operand
        changed: set[int] = set()
        for number, instruction in enumerate(iced_x86.Decoder(64, code, ip=ip)):
            if number == _AFTER or instruction.is_invalid:
                break
            info = self._info.info(instruction)
            operand = _operand_of(info)
            if operand is not None:
                return None if changed & set(operand[:2]) else operand
            if instruction.flow_control != FlowControl.NEXT:
                break
            changed |= written_registers(info)
        return None

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
    base, index = (POSITION.get(each, _NOTHING) for each in (memory.base, memory.index))
    return base, index, memory.scale, memory.displacement % _WRAP


class DataSpacing:
    """Remembers the latest samples of a process, and tells how far apart its data lay.

    Args:
        pid: the process; samples of others tell nothing.
        read_code: reads its code; entered while it does, if it is a context manager.
    """

    def __init__(self, pid: int, read_code: ReadMemory) -> None:
        self._pid = pid
        self._operands = DataOperands(read_code)
        self._reading = entered(read_code)
        self._known: dict[int, bytes] = {}  # operands, packed
        self._ip = Latest(_SAMPLES, np.uint64)
        self._tid = Latest(_SAMPLES, np.int64)
        self._time = Latest(_SAMPLES, np.float64)  # ascending
        self._registers = Latest(_SAMPLES, np.uint64, no_registers().shape[1])

    def add(self, samples: BranchSamples) -> None:
        """Remember samples; such as have no registers tell nothing."""
        if len(samples.registers) != len(samples) or not len(samples):
            return
        is_own = samples.pid == self._pid
        self._ip.add(samples.ip[is_own])
        self._tid.add(samples.tid[is_own])
        self._time.add(samples.time_seconds[is_own])
        self._registers.add(samples.registers[is_own])

    def between(self, start_seconds: float, end_seconds: float) -> Spacing | None:
        """Return the spacing from one moment to another; None if too few samples tell it."""
        those = self._within(start_seconds, end_seconds)
        ips = self._ip.rows[those].tolist()
        if len(ips) < _LEAST_ADDRESSES:
            return None
        self._learn(ips)
        found = _core.spacing_of(self._packed(ips), self._registers.rows[those])
        return None if found is None else Spacing(*found)

    def _within(self, start_seconds: float, end_seconds: float) -> slice:
        """Which of the samples that are remembered lie between two moments, both included."""
        time = self._time.rows
        first = int(time.searchsorted(start_seconds))
        return slice(first, int(time.searchsorted(end_seconds, side="right")))

    def _packed(self, ips: list[int]) -> bytes:
        """What tells an address at each, as the core has it."""
        return b"".join([self._known.get(ip, _UNKNOWN) for ip in ips])

    def addresses(
        self, start_seconds: float, end_seconds: float
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return threads and addresses of data that samples tell, each of shape (n,).

        Of code that :meth:`between` knows. They are of accesses that threads were waiting for,
        rather than of any: those that miss are more likely to be among them.
        """
        those = self._within(start_seconds, end_seconds)
        operands = np.frombuffer(self._packed(self._ip.rows[those].tolist()), np.uint64)
        base, index, scale, displacement = operands.reshape(-1, 4).T
        rows = np.arange(len(base))
        nothing = np.zeros((len(base), 1), np.uint64)
        registers = np.concatenate([self._registers.rows[those], nothing], axis=1)
        address = registers[rows, base] + registers[rows, index] * scale + displacement
        told = (base != _NOTHING) | (index != _NOTHING)
        told &= (address > 0) & (address < _USER_ADDRESSES)
        return self._tid.rows[those][told], address[told]

    def _learn(self, ips: list[int]) -> None:
        """Decode code that samples found again and again, the most often found first."""
        strange = [ip for ip in ips if ip not in self._known]
        if not strange:
            return
        is_known = len(strange) <= (1 - _KNOWN_PART) * len(ips)
        least = _LEAST_TIMES_MORE if is_known else _LEAST_TIMES
        new = set(strange)
        times = Counter(ip for ip in self._ip.rows.tolist() if ip in new)
        with self._reading:
            for ip, count in times.most_common(_DECODED):
                if count >= least:
                    operand = self._operands.at(ip)
                    self._known[ip] = _UNKNOWN if operand is None else _PACKED.pack(*operand)
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
