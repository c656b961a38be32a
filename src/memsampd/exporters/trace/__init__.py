"""Traces: bursts of accesses, each access with its instruction, in one compressed file."""

from memsampd.exporters.trace.format import BurstFinish, BurstStart, TraceFooter, TraceHeader
from memsampd.exporters.trace.reader import TraceBurst, TraceReader
from memsampd.exporters.trace.writer import TraceWriter

__all__ = [
    "BurstFinish",
    "BurstStart",
    "TraceBurst",
    "TraceFooter",
    "TraceHeader",
    "TraceReader",
    "TraceWriter",
]
