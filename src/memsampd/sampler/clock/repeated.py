"""How fast a repeated string instruction goes, such as the one that memset is: by its registers.

It needs no burst to tell what they mean: RDI is where it writes, RCX what is left, and an access is
counted for each line and operand.
"""

from __future__ import annotations

import numpy as np
from iced_x86 import Register
from numpy.typing import NDArray

from memsampd.sampler.clock.odometer import Pairs, SteadyRate, steady_rate
from memsampd.sampler.registers import POSITION

_LEFT, _SOURCE, _TARGET = (POSITION[getattr(Register, name)] for name in ("RCX", "RSI", "RDI"))
_LINE_BYTES = 64
_ELEMENT_BYTES = (1, 2, 4, 8)
_PAIRS_LEAST = 2


def repeated_rate(pairs: Pairs, limits: tuple[float, float]) -> SteadyRate | None:
    """Tell the rate of an instruction that is nearly all that a burst executed.

    Args:
        pairs: samples of the running thread that both found it there.
        limits: rates that are possible, accesses per second.

    Returns:
        None if that is no such instruction, or too few pairs tell.
    """
    lines = _lines_touched(pairs.advance)
    told = lines > 0
    if np.count_nonzero(told) < _PAIRS_LEAST:
        return None
    return steady_rate(lines[told] / pairs.seconds[told], limits)


def _lines_touched(advance: NDArray[np.int64]) -> NDArray[np.float64]:
    """Lines that each pair of samples saw it go over, of both operands; 0: it began anew.

    Args:
        advance: of the registers, shape (p, 16).
    """
    left, source, target = advance[:, [_LEFT, _SOURCE, _TARGET]].T
    others = np.delete(advance, [_LEFT, _SOURCE, _TARGET], axis=1)
    is_one = (left < 0) & ~others.any(axis=1) & ((source == 0) | (source == target))
    is_one &= (np.abs(target) == np.outer(_ELEMENT_BYTES, -left)).any(axis=0)
    return np.where(is_one, np.abs(target) * (1 + (source != 0)) / _LINE_BYTES, 0.0)
