"""Machine code made steps of a walk: functions that do what an instruction does to a state.

What integer instructions do is worked out; what all others write becomes unknown. Which references
an instruction makes is told by the decoder of bursts (``sampler/replica/decoder.py``) where it is
not plain from what the instruction does, so that both count alike.
"""

from __future__ import annotations

from collections.abc import Callable

import iced_x86
import numpy as np
from iced_x86 import ConditionCode, FlowControl, Mnemonic
from numpy.typing import NDArray

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.registers import WRITES, written_registers
from memsampd.sampler.replica.decoder import (
    CODE_BYTES_MAXIMUM,
    PREFETCHES,
    RECIPE,
    REPEATED,
    SYSCALL,
    UNSUPPORTED,
    RecipeDecoder,
)
from memsampd.sampler.walk.flags import is_met
from memsampd.sampler.walk.integer import MAKERS
from memsampd.sampler.walk.operands import is_general, operand_of, reference_of
from memsampd.sampler.walk.state import (
    RCX,
    RDI,
    RSI,
    RSP,
    USER_END,
    State,
    Step,
    WalkEndError,
    known,
    plus,
    pop_value,
    push_value,
)
from memsampd.sampler.walk.vectors import VECTOR_MAKERS, number_of

_STRINGS_WITHOUT_RESULT = {
    getattr(Mnemonic, f"{operation}{size}") for operation in ("MOVS", "STOS") for size in "BWDQ"
}
_LOOPS_ON_FLAGS = (Mnemonic.LOOPE, Mnemonic.LOOPNE)
_MOVED_LINE_BYTES = 64  # as in _core/translator/recipe.h


class Compiler:
    """Makes steps of machine code.

    Args:
        read_code: reads up to so many bytes of code at an address.
    """

    def __init__(self, read_code: Callable[[int, int], bytes]) -> None:
        self._read_code = read_code
        self._recipes = RecipeDecoder(read_code)
        self._info = iced_x86.InstructionInfoFactory()

    def step_at(self, ip: int) -> Step:
        """Make the step of the instruction at an address.

        Raises:
            WalkEndError: there is no code, or none that can be followed.
        """
        code = self._read_code(ip, CODE_BYTES_MAXIMUM)
        instruction = next(iter(iced_x86.Decoder(64, code, ip=ip)), None)
        if instruction is None or instruction.code == iced_x86.Code.INVALID:
            raise WalkEndError(BurstEnd.FAULT, f"no code at {ip:#x}")
        found = _flow(instruction)
        if found is None and instruction.mnemonic in MAKERS and is_general(instruction):
            found = MAKERS[instruction.mnemonic](instruction)
        if found is None and instruction.mnemonic in VECTOR_MAKERS:
            found = VECTOR_MAKERS[instruction.mnemonic](instruction)
        return found or self._opaque(instruction)

    def _opaque(self, instruction: iced_x86.Instruction) -> Step:
        """An instruction of which only the references are known; what it writes is not."""
        recipe = np.zeros(1, RECIPE)[0]
        self._recipes.describe(recipe, instruction)
        flags, ip, next_ip = int(recipe["flags"]), instruction.ip, instruction.next_ip
        name = str(instruction)
        if flags & SYSCALL:
            raise WalkEndError(BurstEnd.SYSCALL)
        is_backwards = instruction.mnemonic == Mnemonic.STD  # of string instructions that follow
        if instruction.flow_control != FlowControl.NEXT or flags & UNSUPPORTED or is_backwards:
            raise WalkEndError(BurstEnd.UNSUPPORTED, name)
        if flags & PREFETCHES:
            return _prefetch(next_ip)
        references = recipe["reference"][: int(recipe["references"])]
        if flags & REPEATED:
            return _repeated(instruction, references)
        told = [reference_of(each) for each in references]
        info = self._info.info(instruction)
        written = written_registers(info)
        vectors = {
            number
            for used in info.used_registers()
            if used.access in WRITES and (number := number_of(used.register)) is not None
        }
        sets_flags = instruction.rflags_modified != 0

        def step(state: State) -> int:
            for address, size_bytes, loads, stores in told:
                at = address(state)
                if loads:
                    state.refer(ip, at, size_bytes, False)
                if stores:
                    state.store(ip, at, size_bytes, None)
            for register in written:
                state.registers[register] = None
            for number in vectors:
                state.vectors[number] = None
            if sets_flags:
                state.flags = None
            return next_ip

        return step


def _flow(instruction: iced_x86.Instruction) -> Step | None:
    """Jumps, calls and returns; None for others."""
    ip, next_ip = instruction.ip, instruction.next_ip
    match instruction.flow_control:
        case FlowControl.UNCONDITIONAL_BRANCH if not instruction.is_jmp_far:
            target = instruction.near_branch_target
            return lambda state: target
        case FlowControl.CONDITIONAL_BRANCH:
            return _conditional(instruction)
        case FlowControl.CALL if instruction.is_call_near:
            target = instruction.near_branch_target

            def call(state: State) -> int:
                push_value(state, ip, next_ip)
                return target

            return call
        case FlowControl.INDIRECT_CALL | FlowControl.INDIRECT_BRANCH:
            return _indirect(instruction)
        case FlowControl.RETURN if instruction.mnemonic == Mnemonic.RET:
            drop = instruction.immediate(0) if instruction.op_count else 0

            def ret(state: State) -> int:
                target = known(pop_value(state, ip))
                state.registers[RSP] = plus(state.registers[RSP], drop)
                return target

            return ret
    return None


def _conditional(instruction: iced_x86.Instruction) -> Step | None:
    condition, ip = instruction.condition_code, instruction.ip
    target, next_ip = instruction.near_branch_target, instruction.next_ip
    if condition == ConditionCode.NONE or instruction.mnemonic in _LOOPS_ON_FLAGS:
        return _counted_jump(instruction)

    def jump(state: State) -> int:
        met = is_met(condition, state.flags)
        if met is None:
            state.guesses += 1
            met = state.guess(ip, target)
        return target if met else next_ip

    return jump


def _counted_jump(instruction: iced_x86.Instruction) -> Step | None:
    """Jrcxz and loop; the rest is rare."""
    target, next_ip = instruction.near_branch_target, instruction.next_ip
    if instruction.mnemonic not in (Mnemonic.JRCXZ, Mnemonic.LOOP):
        return None
    loops = instruction.mnemonic == Mnemonic.LOOP

    def jump(state: State) -> int:
        if loops:
            state.registers[RCX] = plus(state.registers[RCX], -1)
        count = known(state.registers[RCX])
        return target if (count != 0) == loops else next_ip

    return jump


def _indirect(instruction: iced_x86.Instruction) -> Step | None:
    operand = operand_of(instruction, 0)
    if operand is None:
        return None
    read, ip, next_ip = operand[0], instruction.ip, instruction.next_ip
    is_call = instruction.flow_control == FlowControl.INDIRECT_CALL

    def jump(state: State) -> int:
        target = read(state)
        if is_call:
            push_value(state, ip, next_ip)
        return known(target)

    return jump


def _prefetch(next_ip: int) -> Step:
    def step(state: State) -> int:
        state.prefetches += 1
        return next_ip

    return step


def _repeated(instruction: iced_x86.Instruction, references: NDArray[np.void]) -> Step:
    """A string instruction that moves lines: an access to each, as bursts count it."""
    if instruction.mnemonic not in _STRINGS_WITHOUT_RESULT:
        raise WalkEndError(BurstEnd.UNSUPPORTED, str(instruction))
    told = sorted((reference_of(each) for each in references), key=lambda each: each[3])
    ip, next_ip = instruction.ip, instruction.next_ip
    size = told[0][1]
    moves = len(told) > 1

    def step(state: State) -> int:
        """Up to where another line begins: what is left is done the next time."""
        count = known(state.registers[RCX])
        if count == 0:
            return next_ip
        goes_on, done = state.repeated_ip == ip, count
        places = [state.place(address(state)) for address, *_ in told]
        for at, (*_, stores) in zip(places, told, strict=True):
            last = -1 if at is None else (at + size - 1) % _MOVED_LINE_BYTES
            if not goes_on or last < size:  # the element before ended in another line
                state.refer(ip, at, size, stores)
            done = min(done, (_MOVED_LINE_BYTES - 1 - last) // size + (last >= 0))
        if places[-1] is not None and places[-1] < USER_END:
            state.memory.store(places[-1], done * size, None)
        for register in (RSI, RDI) if moves else (RDI,):
            state.registers[register] = plus(state.registers[register], done * size)
        state.repeats += done
        state.registers[RCX] = count - done
        state.repeated_ip = ip if done < count else None
        return ip if done < count else next_ip

    return step
