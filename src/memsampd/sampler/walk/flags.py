"""The arithmetic flags of x86, worked out only where a condition asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iced_x86 import ConditionCode, ConditionCode_

Kind = Literal["add", "sub", "logic", "inc", "dec", "shift", "carry", "zero"]


@dataclass(frozen=True, slots=True)
class Flags:
    """What the last instruction that set flags did.

    Attributes:
        kind: how; "carry", "zero": of its flags only CF, or ZF, is known.
        first: its first operand.
        second: its second one; CF where the kind tells it by itself ("inc", "dec", "shift",
            "carry"), None where that is not known.
        result: what came of it.
        bits: width of the operands.
    """

    kind: Kind
    first: int
    second: int | None
    result: int
    bits: int

    @property
    def carry(self) -> bool | None:
        """CF; None where it is not known."""
        if self.kind == "sub":
            assert self.second is not None, "an operand"
            return self.first < self.second
        if self.kind == "add":
            return self.result < self.first
        if self.kind == "logic":
            return False
        return None if self.second is None else bool(self.second)

    @property
    def overflow(self) -> bool | None:
        """OF; None where it is not known."""
        sign = 1 << (self.bits - 1)
        if self.kind == "logic":
            return False
        if self.kind == "inc":
            return self.result == sign
        if self.kind == "dec":
            return self.result == sign - 1
        if self.kind not in ("add", "sub"):
            return None
        assert self.second is not None, "an operand"
        apart = self.first ^ self.second
        if self.kind == "add":
            apart = ~apart
        return bool(apart & (self.first ^ self.result) & sign)

    @property
    def zero(self) -> bool | None:
        """ZF; None where it is not known."""
        return None if self.kind == "carry" else self.result == 0

    @property
    def sign(self) -> bool | None:
        """SF; None where it is not known."""
        if self.kind in ("carry", "zero"):
            return None
        return bool(self.result >> (self.bits - 1))

    @property
    def parity(self) -> bool | None:
        """PF; None where it is not known."""
        if self.kind in ("carry", "zero"):
            return None
        return (self.result & 0xFF).bit_count() % 2 == 0


_INVERTED = {  # each condition by that of which it is the opposite
    ConditionCode.NO: ConditionCode.O,
    ConditionCode.AE: ConditionCode.B,
    ConditionCode.NE: ConditionCode.E,
    ConditionCode.A: ConditionCode.BE,
    ConditionCode.NS: ConditionCode.S,
    ConditionCode.NP: ConditionCode.P,
    ConditionCode.GE: ConditionCode.L,
    ConditionCode.G: ConditionCode.LE,
}


def is_met(condition: ConditionCode_, flags: Flags | None) -> bool | None:
    """Whether a condition of a jump, a move or a set holds; None where that is not known."""
    if flags is None:
        return None
    opposite = _INVERTED.get(condition)
    if opposite is not None:
        met = is_met(opposite, flags)
        return None if met is None else not met
    match condition:
        case ConditionCode.E:
            return flags.zero
        case ConditionCode.B:
            return flags.carry
        case ConditionCode.S:
            return flags.sign
        case ConditionCode.O:
            return flags.overflow
        case ConditionCode.P:
            return flags.parity
        case ConditionCode.BE:
            return _either(flags.carry, flags.zero)
        case ConditionCode.L:
            return _differ(flags.sign, flags.overflow)
        case ConditionCode.LE:
            return _either(flags.zero, _differ(flags.sign, flags.overflow))
    return None


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return None if one is None or other is None else False


def _differ(one: bool | None, other: bool | None) -> bool | None:
    return None if one is None or other is None else one != other
