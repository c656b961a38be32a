"""What goes wrong around memsampd: disks, other processes, those who ask. Each has its outcome."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import MEMSAMPD, free_port
from daemons import daemon, rule
from tracees import wait_until_clean
from waiting import PATIENCE_SECONDS, wait_for

from memsampd.exporters.recording import read_recording

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


def read(port: int, path: str) -> str:
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        text: str = answer.read().decode()
        return text


@contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A small file system in memory."""
    where.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


# -- disks -----------------------------------------------------------------------------------------


@is_root
def test_a_full_disk_ends_the_recording_and_not_the_observation(
    tmp_path: Path, busy: subprocess.Popen[str]
) -> None:
    with mounted(tmp_path / "small", "size=16k") as small:
        recording = small / "x.memsampd"
        command = [MEMSAMPD, "attach", str(busy.pid), "--json", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            [*command, "-o", str(recording)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as attach:
            assert attach.stdout is not None
            assert attach.stderr is not None
            while "the recording stops here" not in (line := attach.stderr.readline()):
                assert line, "it has ended"
            assert "No space left" in line
            kept = recording.stat().st_size
            for _ in range(20):  # windows come as before
                assert json.loads(attach.stdout.readline())["window"] is not None
            attach.send_signal(signal.SIGTERM)
            _, told = attach.communicate(timeout=PATIENCE_SECONDS)
        assert attach.returncode == 1
        assert "ended: SIGTERM" in told
        assert "free space" in told
        assert recording.stat().st_size == kept
        found = read_recording(recording)
        assert "No space left" in found.stopped
        assert found.windows
        report = subprocess.run(
            [MEMSAMPD, "report", str(recording)], capture_output=True, text=True, check=False
        )
        assert report.returncode == 1
        assert f"the recording stops after {len(found.windows)} windows" in report.stderr
    assert wait_until_clean(busy.pid) == []
    assert busy.poll() is None


# -- other processes -------------------------------------------------------------------------------


def test_a_daemon_that_hangs_is_known_by_what_it_does_not_tell(tmp_path: Path) -> None:
    """HTTP goes on with what it was told last: MemsampdHangs fires, and /healthz says how old."""
    port = free_port()

    def age() -> float:
        found: float = json.loads(read(port, "/healthz"))["node_age_seconds"] or 0.0
        return found

    def own_cpu() -> float:
        found = re.search(
            r"^memsampd_node_own_cpu_seconds_total (\S+)$", read(port, "/metrics"), re.M
        )
        return float(found[1]) if found else 0.0

    options = ("--listen", f"127.0.0.1:{port}")
    with daemon(tmp_path / "d", options=options) as running_daemon:
        first = wait_for(own_cpu)
        wait_for(lambda: own_cpu() > first)  # though it has nothing to do
        running_daemon.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: age() > 1.5)  # it tells something every half second
        last = own_cpu()
        wait_for(lambda: age() > 3.0)
        assert own_cpu() == last
        running_daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: age() < 1.5 and own_cpu() > last)


# -- those who ask ---------------------------------------------------------------------------------


def test_counters_lose_nothing_while_nobody_asks(
    tmp_path: Path, mark: str, busy: subprocess.Popen[str]
) -> None:
    port = free_port()

    def counted() -> float:
        found = re.findall(
            rf'^memsampd_windows_total{{[^}}]*pid="{busy.pid}"[^}}]*}} (\S+)$',
            read(port, "/metrics"),
            re.MULTILINE,
        )
        return float(found[0]) if found else 0.0

    options = ("--listen", f"127.0.0.1:{port}")
    with daemon(tmp_path / "d", rule(mark), options=options) as running_daemon:
        before = wait_for(counted)
        # The control socket tells how many there are: nobody asks for metrics meanwhile.
        running_daemon.wait_for(lambda targets: targets[busy.pid]["windows"] >= before + 5)
        busy.send_signal(signal.SIGSTOP)
        wait_for(lambda: counted() == running_daemon.targets()[busy.pid]["windows"])
