"""Puts what commands measured into documents, between markers."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path


def replace_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` in a file.

    A file that does not exist yet is made, with the markers and the text.

    Raises:
        ValueError: the file has no such markers.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{text.rstrip()}\n{end}"
    if not path.exists():
        path.write_text(f"{section}\n", encoding="utf-8")
        return
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{path} has no section {name!r} to put the table into")
    path.write_text(f"{before}{section}{after}", encoding="utf-8")


def machine_text(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return this machine's CPUs and kernel, for people."""
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo.read_text(), re.MULTILINE)
    cpu = model[1] if model else platform.machine()
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}"


def made_text() -> str:
    """Return what figures of now are of: the date, this machine, and the version of the sources."""
    command = ("git", "describe", "--always", "--dirty")
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        version = done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or sources without a history
        version = "version unknown"
    return f"{datetime.date.today().isoformat()} on {machine_text()}, {version}"
