"""From one format of bursts to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from memsampd.errors import TraceError, UsageError
from memsampd.exporters.files import TRACE, open_input, read_some
from memsampd.exporters.trace.dinero import DineroWriter
from memsampd.exporters.trace.format import FORMAT, BurstFinish, TraceHeader
from memsampd.exporters.trace.lackey import LackeyReader, LackeyWriter
from memsampd.exporters.trace.listing import no_such_burst
from memsampd.exporters.trace.protocols import BurstReader, BurstWriter, ReadBurst
from memsampd.exporters.trace.reader import TraceReader
from memsampd.exporters.trace.writer import TraceWriter

DAMAGED = "damaged"  # how a burst ends whose original ends nowhere


def open_reader(path: Path, file_format: str | None = None) -> TraceReader | LackeyReader:
    """Open a file of bursts.

    Args:
        path: the file.
        file_format: "trace" or "lackey"; None to look at it.

    Raises:
        TraceError: it cannot be read or is of no such format.
    """
    if file_format is None:
        with open_input(path, TRACE) as file:
            start = read_some(file, len(FORMAT.magic), path, TRACE)
            file_format = "trace" if start == FORMAT.magic else "lackey"
    return TraceReader(path) if file_format == "trace" else LackeyReader(path)


def open_writer(
    path: Path, file_format: str, header: TraceHeader, *, overwrite: bool = False
) -> BurstWriter:
    """Make a file of bursts.

    Args:
        path: the file.
        file_format: "trace", "lackey", "dinero" or "dinero4".
        header: what was traced.
        overwrite: replace a file that is there already.

    Raises:
        TraceError: it exists or cannot be written.
        UsageError: there is no such format.
    """
    match file_format:
        case "trace":
            return TraceWriter(path, header, overwrite=overwrite)
        case "lackey":
            return LackeyWriter(path, overwrite=overwrite)
        case "dinero" | "dinero4":
            return DineroWriter(
                path, header.line_bytes, extended=file_format == "dinero4", overwrite=overwrite
            )
    raise UsageError(f"'{file_format}' is no format", "use trace, lackey, dinero or dinero4")


def copy_bursts(
    reader: BurstReader, open_writer: Callable[[], BurstWriter], only_burst: int | None = None
) -> None:
    """Copy bursts, as far as they are whole.

    Args:
        reader: where they are.
        open_writer: makes the file where they go, once it is known that there is something to
            copy; it is closed.
        only_burst: number of the one to copy; all if None.

    Raises:
        TraceError: the reader's file is damaged (what is before has been copied), or the writer's
            cannot be written.
        UsageError: there is no burst ``only_burst``.
    """
    bursts = iter(reader)
    wanted = bursts if only_burst is None else (_find(bursts, only_burst),)
    writer = open_writer()
    try:
        for burst in wanted:
            _copy_burst(burst, writer)
    finally:
        writer.close()


def _find(bursts: Iterator[ReadBurst], number: int) -> ReadBurst:
    count = 0
    for count, burst in enumerate(bursts, 1):
        if count - 1 == number:
            return burst
    raise no_such_burst(number, count)


def _copy_burst(burst: ReadBurst, writer: BurstWriter) -> None:
    writer.begin_burst(burst.start)
    chunks = iter(burst)
    rows = 0
    while True:
        try:
            chunk = next(chunks, None)
        except TraceError:
            writer.end_burst(BurstFinish(end=DAMAGED, rows=rows))
            raise
        if chunk is None:
            break
        writer.write(chunk)
        rows += len(chunk)
    assert burst.finish is not None
    writer.end_burst(burst.finish)
