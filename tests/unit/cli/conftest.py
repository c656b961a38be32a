from __future__ import annotations

from pathlib import Path

import pytest
from invented import write_recording


@pytest.fixture
def recording_path(tmp_path: Path) -> Path:
    return write_recording(tmp_path / "run.memsampd")
