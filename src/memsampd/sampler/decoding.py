"""How instructions go on, for walks along code in the core (``_core/phases/decoder.h``)."""

from __future__ import annotations

import iced_x86
from iced_x86 import FlowControl

_GOES_ON, _JUMPS, _ENDS, _IS_INVALID = range(4)  # as the core has it
_PASSED = frozenset(
    {FlowControl.NEXT, FlowControl.CALL, FlowControl.INDIRECT_CALL, FlowControl.XBEGIN_XABORT_XEND}
)

FORMS: dict[int, int] = {}
"""What the core keeps of what :func:`decode` told it: the same of all processes."""


def decode(code: bytes, ip: int) -> tuple[int, int, int]:
    """Decode an instruction.

    Args:
        code: begins with it.
        ip: its address.

    Returns:
        Its length, how it goes on, as the core has it, and to where it jumps if it always does.
    """
    instruction = iced_x86.Decoder(64, code, ip=ip).decode()
    flow = instruction.flow_control
    if instruction.is_invalid:
        return instruction.len, _IS_INVALID, 0
    if flow == FlowControl.UNCONDITIONAL_BRANCH:
        return instruction.len, _JUMPS, instruction.near_branch_target
    return instruction.len, _GOES_ON if flow in _PASSED else _ENDS, 0
