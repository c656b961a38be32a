"""What the kernel copies for a process: of a real one, and of files that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memsampd.sampler.process.copied import CopiedBytes
from memsampd.sampler.process.mapped import MemoryUse


def write(proc: Path, text: str) -> None:
    (proc / "7").mkdir(exist_ok=True)
    (proc / "7" / "io").write_text(text)


def test_reads_writes_and_new_pages_add_up(tmp_path: Path) -> None:
    copied = CopiedBytes(7, tmp_path)
    write(tmp_path, "rchar: 1000\nwchar: 500\nsyscr: 3\n")
    assert copied.since(MemoryUse(10**9, 10**9)) == 0  # all of its memory is new, to us
    write(tmp_path, "rchar: 1100\nwchar: 550\nsyscr: 4\n")
    assert copied.since(MemoryUse(10**9, 4096)) == 4096 + 150
    assert copied.since(None) == 0
    assert copied.since(MemoryUse(10**9, 10**9)) == 0  # the same after nobody knew
    copied.begin_anew()
    assert copied.since(MemoryUse(10**6, 10**6)) == 0


@pytest.mark.parametrize("text", ["", "rchar: 1\n", "rchar: x\nwchar: 1\n", "words"])
def test_what_does_not_tell_is_not_known(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert CopiedBytes(7, tmp_path).since(None) is None
    assert CopiedBytes(8, tmp_path).since(None) is None


def test_own_reads_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    copied = CopiedBytes(os.getpid())
    assert copied.since(None) == 0
    path.read_bytes()
    found = copied.since(None)
    assert found is not None
    assert found >= 1 << 20
