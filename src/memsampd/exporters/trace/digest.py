"""What a trace holds, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from memsampd.errors import TraceError
from memsampd.exporters.trace.distinct import DistinctCounter
from memsampd.exporters.trace.format import BurstFinish, BurstStart
from memsampd.exporters.trace.reader import TraceBurst, TraceReader
from memsampd.models.lines import line_stream
from memsampd.names import printable
from memsampd.sampler.records import AccessChunk


@dataclass(slots=True)
class Tally:
    """What some rows come to.

    Attributes:
        rows: references.
        stores: how many of them store.
        lines: different lines that they touch.
        ips: different instructions that make them.
    """

    rows: int = 0
    stores: int = 0
    lines: DistinctCounter = field(default_factory=DistinctCounter)
    ips: DistinctCounter = field(default_factory=DistinctCounter)

    def add(self, chunk: AccessChunk, line_bytes: int) -> None:
        """Count these, too."""
        self.rows += len(chunk)
        self.stores += int(np.count_nonzero(chunk.is_write))
        self.lines.add(np.unique(line_stream(chunk.address, chunk.size_bytes, line_bytes)))
        self.ips.add(np.unique(chunk.ip))


def digest_lines(trace: TraceReader) -> Iterator[str]:
    """Yield lines for people: the target, each burst, all of them.

    Raises:
        TraceError: the rest of the trace is damaged; what was yielded is right.
    """
    header = trace.header
    target = header.target
    yield (
        f"{printable(target.command) or 'unknown'} (process {target.pid}), accesses from "
        f"{header.source}, written by memsampd {header.memsampd_version}"
    )
    if header.command:
        yield f"command: {printable(' '.join(header.command))}"
    yield (
        f"{'burst':>5} {'thread':>8} {'time s':>9} {'rows':>11} {'stores':>6} {'instructions':>12} "
        f"{'ips':>8} {'lines':>9}  end"
    )
    whole = Tally()
    bursts = 0
    damage: TraceError | None = None
    try:
        for burst in trace:
            bursts += 1
            tally, damage = _tally(burst, header.line_bytes, whole)
            yield _burst_line(burst.index, burst.start, burst.finish, tally)
            if damage is not None:
                break
    except TraceError as error:
        damage = error
    yield from _whole_lines(trace, bursts, whole)
    if damage is not None:
        raise damage


def _tally(burst: TraceBurst, line_bytes: int, whole: Tally) -> tuple[Tally, TraceError | None]:
    """Count the rows of a burst, also into ``whole``; and what was wrong with the rest of it."""
    tally = Tally()
    try:
        for chunk in burst:
            tally.add(chunk, line_bytes)
            whole.add(chunk, line_bytes)
    except TraceError as error:
        return tally, error
    return tally, None


def _burst_line(index: int, start: BurstStart, finish: BurstFinish | None, tally: Tally) -> str:
    if finish is None:
        instructions, end = "?", "damaged"
    else:
        instructions = f"{finish.instructions}"
        end = f"{finish.end} ({finish.end_detail})" if finish.end_detail else finish.end
    return (
        f"{index:>5} {start.tid:>8} {start.time_seconds:>9.3f} {tally.rows:>11} "
        f"{_percent(tally.stores, tally.rows):>6} {instructions:>12} {tally.ips!s:>8} "
        f"{tally.lines!s:>9}  {end}"
    )


def _whole_lines(trace: TraceReader, bursts: int, whole: Tally) -> Iterator[str]:
    yield (
        f"{bursts} bursts, {whole.rows} rows ({_percent(whole.stores, whole.rows)} stores) of "
        f"{whole.ips} instructions to {whole.lines} lines of {trace.header.line_bytes} bytes"
    )
    each = f", {trace.bytes_read / whole.rows:.2f} a row" if whole.rows else ""
    yield f"{trace.bytes_read} bytes{each}"
    footer = trace.footer
    if footer is not None and footer.refusals:
        counts = ", ".join(f"{reason} {n}" for reason, n in sorted(footer.refusals.items()))
        yield f"bursts that could not be had: {counts}"
    if footer is not None and footer.exit_reason:
        yield f"ended: {footer.exit_reason}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"
