from __future__ import annotations

from pathlib import Path

import pytest
from invented import make_snapshot, write_recording

from memsampd.exporters.snapshot import Snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()


@pytest.fixture
def recording_path(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "run.memsampd")
