"""Of how many programs and sizes the bounds of whole runs hold the truth, and how wide they are.

usage: python benchmarks/held_bounds.py [--programs NAME...] [--held-out] [--json FILE]
                                        [--without-memory] FOLDER|FILE...

Nothing is run: recordings of known programs (PROGRAM-....mem) are estimated anew, and compared with
exact miss ratios, up to 2 MiB and from 4 to 64 MiB; if asked for, as if it were not known what
memory the program had. (What watchpoints tell: ``long_distances.py --judge``.) Exit status 1 if the
bounds hold less than 95 of 100 figures, or are more than 10 points wide in the mean, each program
counting alike; or if a recording tells nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from evaluation.replay import parse_chosen
from memsampd.estimate.events import WindowRecord
from memsampd.exporters.recording import Recording, read_recording
from reference import store
from reference.whole_runs import LARGE_BYTES, Compared, UntoldError, compare_sizes
from verdict import finish

HELD_GOAL = 95.0
WIDTH_GOAL = 10.0  # points


@dataclass(frozen=True, slots=True)
class Held:
    """Some recordings, or programs: means, in percent and points.

    Attributes:
        error: of the miss ratio, mean over sizes.
        width: of its bounds.
        held: share of the sizes at which these hold the truth.
    """

    error: float
    width: float
    held: float

    @classmethod
    def of(cls, compared: Compared) -> Held:
        """Judge one recording."""
        return cls(float(compared.errors.mean()), float(compared.widths.mean()), compared.held)

    @classmethod
    def mean(cls, parts: Iterable[Held]) -> Held:
        """Each part counts alike."""
        return cls(*np.mean([(each.error, each.width, each.held) for each in parts], axis=0))


def without_memory(recording: Recording) -> Recording:
    """Return the same as if it were not known what memory the program had."""
    events = [
        replace(each, memory=None) if isinstance(each, WindowRecord) else each
        for each in recording.events
    ]
    return Recording(recording.header, events)


def judged(
    found: Iterable[tuple[str, Path]], *, memory_is_known: bool = True
) -> tuple[dict[str, tuple[Held, Held]], list[str]]:
    """Judge recordings.

    Returns:
        Small and large sizes, by program; and a line for each recording that tells nothing.
    """
    parts: dict[str, list[tuple[Held, Held]]] = defaultdict(list)
    untold = []
    for name, file in found:
        recording = read_recording(file)
        if not memory_is_known:
            recording = without_memory(recording)
        try:
            compared = compare_sizes(recording, store.load(store.path_of(name)))
        except UntoldError as error:
            untold.append(f"{file}: {error}")
            continue
        large = compared.points >= LARGE_BYTES
        parts[name].append((Held.of(compared.at(~large)), Held.of(compared.at(large))))
    means = {
        name: (Held.mean(small for small, _ in each), Held.mean(large for _, large in each))
        for name, each in parts.items()
    }
    return means, untold


def print_table(programs: Mapping[str, tuple[Held, Held]]) -> tuple[Held, Held]:
    """Print a line a program and return the means of all."""
    means = (
        Held.mean(small for small, _ in programs.values()),
        Held.mean(large for _, large in programs.values()),
    )
    print(f"{'':16}{'to 2 MiB:':>10}{'':18}{'from 4 MiB:':>12}")
    print(f"{'program':16}" + "".join(f"{each:>9}" for each in ("error", "width", "held") * 2))
    for name, parts in [*programs.items(), ("mean", means)]:
        figures = [figure for each in parts for figure in (each.error, each.width, each.held)]
        print(f"{name:16}" + "".join(f"{figure:9.2f}" for figure in figures), flush=True)
    return means


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--without-memory", action="store_true", help="forget what is known of it")
    args, found = parse_chosen(parser)
    if not found:
        parser.error("no recording of a program that has a reference")
    programs, missed = judged(found, memory_is_known=not args.without_memory)
    if programs:
        means = print_table(programs)
        for sizes, each in zip(("to 2 MiB", "from 4 MiB"), means, strict=True):
            missed += [f"{sizes}: {goal}" for goal in missed_goals(each)]
    return finish(args.json, programs, missed)


def missed_goals(mean: Held) -> list[str]:
    """Return a line for each goal that is missed; NaN is."""
    return [
        *([] if mean.held >= HELD_GOAL else [f"bounds hold {mean.held:.1f} %, goal {HELD_GOAL:g}"]),
        *([] if mean.width <= WIDTH_GOAL else [f"{mean.width:.1f} wide, goal {WIDTH_GOAL:g}"]),
    ]


if __name__ == "__main__":
    sys.exit(main())
