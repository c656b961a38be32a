"""Stretches of real programs, and what they miss when they take turns at one LRU cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsampd.models.exact import RUN_LINE_BITS, ExactLru
from reference import tracer
from reference.programs import Program, environment
from reference.records import LINE_BYTES, Block
from reference.windows import QUANTUM_ACCESSES

_LINE = np.uint64((1 << RUN_LINE_BITS) - 1)
_OWNER_BITS = 50
_CHUNK = 1 << 20
FIRST_TOUCH = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A stretch of a program.

    Attributes:
        name: the program.
        runs: lines accessed, as :data:`memsampd.models.exact.RUN_LINE_BITS` says, uint64.
        accesses: in all of them.
        instructions: executed meanwhile.
    """

    name: str
    runs: NDArray[np.uint64]
    accesses: int
    instructions: int

    def lines(self) -> NDArray[np.uint64]:
        """Return the line of each access, shape (accesses,)."""
        return np.repeat(
            self.runs & _LINE, (self.runs >> np.uint64(RUN_LINE_BITS)).astype(np.int64)
        )


def capture(program: Program, build: Path, skip: int, accesses: int) -> Trace:
    """Return the accesses of a program after so many; kept in ``build/corun`` from run to run.

    Args:
        program: what to run.
        build: folder for what is built.
        skip: accesses to leave out at the start.
        accesses: to keep at least, unless the program ends.

    Raises:
        TracerError: the program failed or could not be traced.
    """
    folder = build / "corun"
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{program.name}-{skip}-{accesses}.npy"
    about = kept.with_suffix(".json")
    if not about.exists():
        runs, total, instructions = _trace(program, build, skip, accesses)
        np.save(kept, runs)
        about.write_text(json.dumps({"accesses": total, "instructions": instructions}))
    told = json.loads(about.read_text())
    return Trace(program.name, np.load(kept), told["accesses"], told["instructions"])


def _trace(
    program: Program, build: Path, skip: int, accesses: int
) -> tuple[NDArray[np.uint64], int, int]:
    library = tracer.build(build)
    command = program.command(build / "programs")
    blocks: list[Block] = []
    parts: list[NDArray[np.uint64]] = []
    passed = total = instructions = 0
    stretches = tracer.stretches(
        command, library, blocks, quantum_accesses=QUANTUM_ACCESSES, env=environment(), cwd=build
    )
    for stretch in stretches:
        passed += stretch.accesses
        if passed <= skip:
            continue
        parts.append(stretch.runs.copy())
        total += stretch.accesses
        instructions += stretch.instructions
        if total >= accesses:
            break
    stretches.close()
    return np.concatenate(parts), total, instructions


def taking_part(accesses: Sequence[int], rates: Sequence[float]) -> list[int]:
    """Return how many accesses of each pass until the first program has no more."""
    end = min(count / rate for count, rate in zip(accesses, rates, strict=True))
    return [min(int(end * rate), count) for count, rate in zip(accesses, rates, strict=True)]


def together(
    streams: Sequence[NDArray[np.uint64]],
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.intp]]]:
    """Yield the lines of several streams as they interleave, evenly, and whose each is.

    Args:
        streams: lines of each program, all of which take the same time.
    """
    # Access j of n stands at (j + 1/2) / n of the time; ties go by program.
    lengths = [len(stream) for stream in streams]
    steps = max(sum(lengths) // _CHUNK, 1)
    cuts = [np.linspace(0, length, steps + 1).astype(np.int64) for length in lengths]
    for step in range(steps):
        spans = [range(int(cut[step]), int(cut[step + 1])) for cut in cuts]
        moments = [
            (np.arange(span.start, span.stop) + 0.5) / length
            for span, length in zip(spans, lengths, strict=True)
        ]
        order = np.argsort(np.concatenate(moments), kind="stable")
        owner = np.repeat(np.arange(len(streams)), [len(span) for span in spans])[order]
        lines = np.concatenate(
            [
                stream[span.start : span.stop] | np.uint64(i << _OWNER_BITS)
                for i, (stream, span) in enumerate(zip(streams, spans, strict=True))
            ]
        )[order]
        yield lines, owner


def shared_ratios(
    streams: Sequence[NDArray[np.uint64]], sizes_bytes: Sequence[int]
) -> NDArray[np.float64]:
    """Simulate LRU caches that the streams share.

    Args:
        streams: lines of each program, all of which take the same time.
        sizes_bytes: of the caches, ascending.

    Returns:
        Misses per access of each program and size, first touches included, shape (n, s).
    """
    bounds = np.asarray(sizes_bytes) // LINE_BYTES
    lru = ExactLru([1])
    columns = len(bounds) + 1
    counts = np.zeros(len(streams) * columns, np.int64)
    for lines, owner in together(streams):
        distances = lru.stack_distances(lines)
        distances[distances < 0] = FIRST_TOUCH
        # A distance of L or more misses in caches of up to L lines.
        missed_sizes = np.searchsorted(bounds, distances, side="right")
        counts += np.bincount(owner * columns + missed_sizes, minlength=len(counts))
    table = counts.reshape(len(streams), columns)
    missed = np.cumsum(table[:, ::-1], axis=1)[:, ::-1][:, 1:]
    return np.asarray(missed / table.sum(axis=1, keepdims=True))
