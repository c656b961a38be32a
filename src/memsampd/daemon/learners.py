"""What learns of one program, and what is known of it before it is observed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from memsampd.estimate.events import BurstRecord
from memsampd.phases.drift import DriftMonitor
from memsampd.phases.paces import Paces
from memsampd.phases.protocols import Predictor, WindowClusterer
from memsampd.phases.unseen import UnseenCode
from memsampd.sampler.protocols import AccessClock
from memsampd.sampler.spacing import DataSpacing


class Known(msgspec.Struct, frozen=True):
    """What is known of a program before it is observed.

    Attributes:
        windows: windows that each phase has had, by id; empty if nothing is known.
        bursts: reads bursts of these phases, oldest first; ``time_seconds`` says how long ago they
            were taken, below 0.
    """

    windows: Mapping[int, int] = msgspec.field(default_factory=dict)
    bursts: Callable[[], tuple[BurstRecord, ...]] = tuple


class Learners(msgspec.Struct, frozen=True):
    """What learns of one program; another program needs others.

    Its clusterer has the phases that are known already.
    """

    clusterer: WindowClusterer
    predictor: Predictor
    drift: DriftMonitor
    clock: AccessClock
    unseen: UnseenCode
    spacing: DataSpacing
    known: Known = msgspec.field(default_factory=Known)
    paces: Paces = msgspec.field(default_factory=Paces)
