"""``memsampd demo``, to its last picture."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from commands import MEMSAMPD
from tracees import children
from waiting import PATIENCE_SECONDS, wait_for


def test_the_demo_draws_what_it_has_seen(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [MEMSAMPD, "demo", "--rounds", "1000", "-o", str(out), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
    ) as demo:
        assert demo.stderr is not None
        while not (line := demo.stderr.readline()).startswith("window "):
            assert line, "it has ended"
        wait_for(lambda: kernels_of(demo.pid))
        os.kill(kernels_of(demo.pid)[0], signal.SIGTERM)  # its end is the target's
        printed, told = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0, told
    assert "ended: the target ended" in told
    assert "phase" in printed
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "</html>" in (out / "demo.html").read_text()
    assert (out / "demo.memsampd").stat().st_size > 0


def kernels_of(pid: int) -> list[int]:
    """Child processes that run the bundled program."""
    return [child for child, _, name in children(pid) if name == "kernels"]
