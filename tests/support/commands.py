"""The command memsampd, as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MEMSAMPD = str(Path(sys.executable).with_name("memsampd"))
# For machines that are busy with other things; nothing is asserted on it.
PATIENCE_SECONDS = 200.0


def memsampd(
    *words: str | Path | int, timeout_seconds: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [MEMSAMPD, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
