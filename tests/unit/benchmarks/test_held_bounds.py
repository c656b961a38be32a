"""What is forgotten of a recording before its bounds are judged."""

from __future__ import annotations

from invented import recording_of, window_record
from msgspec.structs import replace

from held_bounds import without
from memsampd.estimate.events import WatchRecord, WindowRecord
from memsampd.exporters.recording import Recording
from memsampd.sampler.process.mapped import MemoryUse

WATCH = WatchRecord(
    window=0,
    phase=0,
    tid=1,
    least_accesses=300,
    times_seconds=(0.1, 0.6),
    cpu_seconds=(0.0, 0.5),
    patience_seconds=0.5,
    end="patience",
)


def test_only_what_is_asked_for_is_forgotten() -> None:
    told = recording_of([replace(window_record(0, 0), memory=MemoryUse(100, 100))])
    whole = Recording(told.header, [*told.events, WATCH])
    assert without(whole, ()).events == whole.events
    assert without(whole, ["watches"]).events == told.events
    bare = without(whole, ["memory"]).events
    assert [each.memory for each in bare if isinstance(each, WindowRecord)] == [None]
    assert bare[1:] == [WATCH]
    assert without(whole, ["memory", "watches"]).events == bare[:1]
