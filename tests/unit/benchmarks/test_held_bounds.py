"""How recordings are judged by their bounds, and what is forgotten of them before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from invented import burst_record, header, recording_of, window_record
from msgspec.structs import replace

from held_bounds import Held, judged, missed_goals, without_memory
from memsampd.exporters.recording import RecordingWriter
from memsampd.sampler.process.mapped import MemoryUse


def test_only_the_memory_is_forgotten() -> None:
    window, burst = window_record(0, 0), burst_record(0, 0)
    told = recording_of([replace(window, memory=MemoryUse(100, 100))], [burst])
    assert without_memory(told).events == [window, burst]


def test_bounds_that_hold_all_there_is_are_too_wide() -> None:
    assert missed_goals(Held(error=3.0, width=10.0, held=95.0)) == []
    assert missed_goals(Held(error=3.0, width=100.0, held=100.0)) == ["100.0 wide, goal 10"]
    assert missed_goals(Held(error=3.0, width=10.0, held=94.9)) == ["bounds hold 94.9 %, goal 95"]
    assert len(missed_goals(Held(np.nan, np.nan, np.nan))) == 2


def test_a_recording_that_tells_nothing_is_a_miss(tmp_path: Path) -> None:
    path = tmp_path / "fft-0.mem"
    writer = RecordingWriter(path, header())
    writer.write(window_record(0, 0))
    writer.close()
    programs, untold = judged([("fft", path)])
    assert programs == {}
    assert untold == [f"{path}: a run that tells nothing: try again"]
