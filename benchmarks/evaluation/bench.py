"""What experiments work with: the scale, references cut into windows, live runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from evaluation.live import LiveRuns
from evaluation.offline import OfflineWindows, has_blocks, offline_windows
from reference import store
from reference.programs import PROGRAMS


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        name: "whole", "quick" or "smoke".
        offline_programs: of the offline experiments; empty for all that have a reference.
        live_programs: of the live experiments; empty likewise.
        seeds: simulated sessions a case.
        repeats: live rounds of the main settings.
        sweep_repeats: live rounds of the sweep over settings.
        remade_references: references that are made anew and compared.
    """

    name: str
    offline_programs: tuple[str, ...]
    live_programs: tuple[str, ...]
    seeds: int
    repeats: int
    sweep_repeats: int
    remade_references: int


SCALES = {
    "whole": Scale("whole", (), (), 5, 5, 1, 1),
    "quick": Scale("quick", (), ("gzip", "kernels", "python3"), 2, 2, 0, 0),
    "smoke": Scale("smoke", ("kernels",), ("kernels",), 1, 1, 0, 0),
}


@dataclass(slots=True)
class Bench:
    """What experiments work with.

    Attributes:
        scale: how much is measured.
        build: where programs are built and run.
        runs: live runs.
        programs: only these; all if empty.
    """

    scale: Scale
    build: Path
    runs: LiveRuns
    programs: tuple[str, ...] = field(default=())

    def offline_names(self) -> list[str]:
        """Programs for offline experiments: their references have blocks."""
        return [name for name in self._chosen(self.scale.offline_programs) if _offline(name)]

    def live_names(self) -> list[str]:
        """Programs for live experiments: they have a reference."""
        return self._chosen(self.scale.live_programs)

    def offline(self, name: str, windows: int | None = None) -> OfflineWindows:
        """Return a reference cut into windows."""
        return offline_windows(_reference(name), windows)

    def reference(self, name: str) -> store.Reference:
        """Return a reference."""
        return _reference(name)

    def seeds(self) -> list[str]:
        """Seeds of simulated sessions, as cases name them."""
        return [str(seed) for seed in range(self.scale.seeds)]

    def _chosen(self, scale: tuple[str, ...]) -> list[str]:
        kept = [program.name for program in PROGRAMS if store.path_of(program.name).exists()]
        return [
            name
            for name in kept
            if (not scale or name in scale) and (not self.programs or name in self.programs)
        ]


@cache
def _reference(name: str) -> store.Reference:
    return store.load(store.path_of(name))


@cache
def _offline(name: str) -> bool:
    return has_blocks(_reference(name))
