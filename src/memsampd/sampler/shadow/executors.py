"""The seam inside the shadow source: how a shadow is executed and its references recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memsampd.sampler.records import BurstEnd
from memsampd.sampler.shadow.snapshots import Shadow


@dataclass(frozen=True, slots=True)
class Execution:
    """What one shadow did: the fields of :class:`memsampd.sampler.records.Burst` of these names."""

    ip: NDArray[np.uint64]
    address: NDArray[np.uint64]
    size_bytes: NDArray[np.uint16]
    is_write: NDArray[np.bool_]
    instructions: int
    prefetches: int
    end: BurstEnd
    end_detail: str
    emulated_calls: int = 0


class ShadowExecutor(Protocol):
    """Runs shadows of one target.

    Contract: the shadow makes no system call but those that stay inside it (docs/shadow.md); what
    is recorded is in program order and complete up to the instruction that ended it; an instruction
    whose references cannot be told ends it.
    """

    name: str

    def run(self, shadow: Shadow, max_accesses: int, deadline_seconds: float) -> Execution:
        """Execute a stopped shadow until it is full, ends or ``deadline_seconds`` have passed."""

    def cancel(self) -> None:
        """End the present run and all later ones at once (``DEADLINE``); from any thread."""
