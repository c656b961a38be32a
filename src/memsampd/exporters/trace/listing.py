"""Traces for people and for scripts: an access a line, as perf script prints samples."""

from __future__ import annotations

from collections.abc import Iterator

from memsampd.errors import UsageError
from memsampd.exporters.trace import lettering
from memsampd.exporters.trace.protocols import BurstReader, ReadBurst
from memsampd.names import printable
from memsampd.sampler.records import AccessChunk


def list_trace(
    trace: BurstReader, only_burst: int | None = None, limit: int | None = None
) -> Iterator[bytes]:
    """Yield the text of a trace, many lines at a time.

    ``COMMAND PID/TID [BURST] IP: L|S ADDRESS,SIZE``, numbers hexadecimal except ids and sizes. What
    is known of a burst stands in lines that begin with ``#`` before and after it.

    Args:
        trace: what to print.
        only_burst: print this one alone.
        limit: print so many accesses at most.

    Raises:
        TraceError: the rest is damaged; what was yielded is right.
        UsageError: there is no burst ``only_burst``.
    """
    left = limit
    bursts = 0
    for index, burst in enumerate(trace):
        bursts += 1
        if only_burst not in (None, index):
            continue
        start = burst.start
        of_cpu = "" if start.cpu_seconds is None else f", {start.cpu_seconds:.6f} s of CPU time"
        yield (
            f"# burst {index}: thread {start.tid} after {start.time_seconds:.6f} s{of_cpu}\n"
        ).encode()
        name = printable(trace.header.target.command)
        prefix = f"{name} {trace.header.target.pid}/{start.tid} [{index}] "
        for chunk in burst:
            yield from _lines(chunk, prefix, left)
            left = None if left is None else max(0, left - len(chunk))
            if left == 0:
                return
        yield _ending(index, burst)
        if only_burst is not None:
            return
    if only_burst is not None:
        raise no_such_burst(only_burst, bursts)


def _lines(chunk: AccessChunk, prefix: str, limit: int | None) -> Iterator[bytes]:
    rows = len(chunk) if limit is None else min(limit, len(chunk))
    for at in range(0, rows, lettering.SLICE_ROWS):
        part = slice(at, min(at + lettering.SLICE_ROWS, rows))
        here = part.stop - part.start
        yield lettering.join(
            lettering.fixed(prefix, here),
            lettering.hexadecimal(chunk.ip[part]),
            lettering.fixed(": ", here),
            lettering.chosen("LS", chunk.is_write[part].astype("u1")),
            lettering.fixed(" ", here),
            lettering.hexadecimal(chunk.address[part]),
            lettering.fixed(",", here),
            lettering.decimal(chunk.size_bytes[part]),
            lettering.fixed("\n", here),
        )


def _ending(index: int, burst: ReadBurst) -> bytes:
    finish = burst.finish
    assert finish is not None
    detail = f" ({finish.end_detail})" if finish.end_detail else ""
    return (
        f"# burst {index} ended: {finish.end}{detail}, {finish.rows} rows, "
        f"{finish.instructions} instructions, {finish.prefetches} prefetches\n"
    ).encode()


def no_such_burst(burst: int, bursts: int) -> UsageError:
    """What to say to someone who asked for a burst that there is not."""
    return UsageError(f"there is no burst {burst}", f"the first is 0, there are {bursts}")
