"""What experiments work with: the scale, references cut into windows, live runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from evaluation.live import LiveRuns
from evaluation.offline import OfflineWindows, offline_windows
from evaluation.results import Case
from reference import store
from reference.programs import judged


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes:
        name: "whole", "quick" or "smoke".
        live_programs: how many are run, the shortest ones; None for all.
        offline_programs: the same for the offline experiments.
        seeds: simulated sessions a case.
        repeats: live rounds.
    """

    name: str
    live_programs: int | None
    offline_programs: int | None
    seeds: int
    repeats: int


SCALES = {
    "whole": Scale("whole", None, None, 5, 5),
    "quick": Scale("quick", 4, None, 2, 2),
    "smoke": Scale("smoke", 1, 1, 1, 1),
}


@dataclass(slots=True)
class Bench:
    """What experiments work with.

    Attributes:
        scale: how much is measured.
        build: where programs are built and run.
        runs: live runs.
        programs: only these; all if empty.
        held_out: those that are held out as well.
    """

    scale: Scale
    build: Path
    runs: LiveRuns
    programs: tuple[str, ...] = field(default=())
    held_out: bool = False

    def offline_names(self) -> list[str]:
        """Programs for offline experiments."""
        return self._shortest(self._kept(), self.scale.offline_programs)

    def live_names(self) -> list[str]:
        """Programs for live experiments: they have a reference."""
        return self._shortest(self._kept(), self.scale.live_programs)

    def offline(self, name: str, windows: int | None = None) -> OfflineWindows:
        """Return a reference cut into windows."""
        return _cut(name, windows)

    def reference(self, name: str) -> store.Reference:
        """Return a reference."""
        return _reference(name)

    def seeds(self) -> list[str]:
        """Seeds of simulated sessions, as cases name them."""
        return [str(seed) for seed in range(self.scale.seeds)]

    def sessions(self) -> list[Case]:
        """Cases of simulated sessions: every program with every seed."""
        return [(name, seed) for name in self.offline_names() for seed in self.seeds()]

    def rounds(self) -> list[Case]:
        """Cases of live rounds: every program, round by round."""
        rounds = range(self.scale.repeats)
        return [(name, str(repeat)) for repeat in rounds for name in self.live_names()]

    def _kept(self) -> Iterator[str]:
        """Programs that are wanted and have a reference."""
        for program in judged(self.programs, self.held_out):
            if store.path_of(program.name).exists():
                yield program.name

    def _shortest(self, names: Iterable[str], count: int | None) -> list[str]:
        """Keep the programs of the fewest accesses, in the order of the catalogue."""
        kept = list(names)
        by_length = sorted(kept, key=lambda name: _reference(name).total_accesses)
        return [name for name in kept if name in by_length[:count]]


@cache
def _reference(name: str) -> store.Reference:
    return store.load(store.path_of(name))


@lru_cache(maxsize=8)
def _cut(name: str, windows: int | None) -> OfflineWindows:
    return offline_windows(_reference(name), windows)
