"""Noticing that a phase no longer has the miss ratios it had."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_RESOLUTION = 0.02  # difference of miss ratio that begins to matter
# ADWIN's bound on false alarms, a loose one: with four sizes that scatter by 0.03, none of 60 runs
# of 200 steady bursts raised one, and a step of 0.2 (0.1) was noticed after 12 (18) bursts, median
# of 30 runs.
_DELTA = 0.02


class DriftMonitor:
    """One change detector (ADWIN) for each phase and each of a few cache sizes.

    Fed with the miss ratio of every new burst of a phase at these sizes. A change at any of them is
    drift; the phase's detectors then start afresh. ADWIN's bound has a part that supposes values
    over the whole of 0..1 and hides any change within the first fifty bursts; miss ratios are
    therefore given in units of 0.02, so that changes of several units show after about
    ten bursts on either side.

    References:
        Bifet, Gavalda: Learning from time-changing data with adaptive windowing, SDM 2007.

    Examples:
        >>> monitor = DriftMonitor()
        >>> before = [monitor.update(0, [0.30, 0.10]) for burst in range(20)]
        >>> after = [monitor.update(0, [0.30, 0.40]) for burst in range(20)]
        >>> any(before), any(after)
        (False, True)
    """

    def __init__(self) -> None:
        self._detectors: dict[int, list[Any]] = {}

    def update(self, phase: int, values: Sequence[float]) -> bool:
        """Take in one burst.

        Args:
            phase: its phase.
            values: miss ratios (0..1) at a few sizes, always the same sizes.

        Returns:
            True if the phase has changed.

        Raises:
            ValueError: if there are more or fewer sizes than before.
        """
        if phase not in self._detectors:
            # Any: river has no stubs.
            self._detectors[phase] = [_adwin().ADWIN(delta=_DELTA, clock=1) for _ in values]
        detectors = self._detectors[phase]
        if len(detectors) != len(values):
            raise ValueError(f"{len(values)} values for {len(detectors)} sizes")
        for detector, value in zip(detectors, values, strict=True):
            detector.update(float(value) / _RESOLUTION)
        if not any(detector.drift_detected for detector in detectors):
            return False
        # What was seen before the change says nothing any more, at no size.
        del self._detectors[phase]
        return True

    def forget(self, phase: int) -> None:
        """What was seen of a phase says nothing any more."""
        self._detectors.pop(phase, None)

    def merge(self, gone: int, into: int) -> None:
        """Forget the history of a phase that turned out to be another."""
        detectors = self._detectors.pop(gone, None)
        if detectors is not None and into not in self._detectors:
            self._detectors[into] = detectors


def _adwin() -> ModuleType:
    """The module ``river.drift.adwin`` alone.

    ``import river.drift`` also loads river's data sets and with them scipy.stats: 84 MB and 3 s for
    one class of 0.8 MB. So its file is loaded without its package.
    """
    name = "river.drift.adwin"
    if name in sys.modules:
        return sys.modules[name]
    private = "memsampd.phases._river_adwin"
    if private in sys.modules:
        return sys.modules[private]
    import river

    for folder in river.__path__:
        path = Path(folder) / "drift" / "adwin.py"
        spec = importlib.util.spec_from_file_location(private, path)
        if path.exists() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            sys.modules[private] = module
            return module
    return importlib.import_module(name)  # another layout of river: pay the price
