"""What is forgotten of a recording before its bounds are judged."""

from __future__ import annotations

from invented import burst_record, recording_of, window_record
from msgspec.structs import replace

from held_bounds import without_memory
from memsampd.sampler.process.mapped import MemoryUse


def test_only_the_memory_is_forgotten() -> None:
    window, burst = window_record(0, 0), burst_record(0, 0)
    told = recording_of([replace(window, memory=MemoryUse(100, 100))], [burst])
    assert without_memory(told).events == [window, burst]
