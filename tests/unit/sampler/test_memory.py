"""A file that a process has mapped is opened again by its path: whatever is there by now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memsampd.sampler.process.memory import open_within

CODE = b"code that was mapped"


def opened(root: Path, path: str, inode: int) -> bytes:
    file = open_within(str(root), path, inode)
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[Path, int]:
    file = tmp_path / "usr" / "lib" / "code"
    file.parent.mkdir(parents=True)
    file.write_bytes(CODE)
    return tmp_path, file.stat().st_ino


def test_the_same_file_is_opened(mapped: tuple[Path, int]) -> None:
    root, inode = mapped
    assert opened(root, "/usr/lib/code", inode) == CODE


def test_another_file_is_not(mapped: tuple[Path, int]) -> None:
    root, inode = mapped
    (root / "usr/lib/other").write_bytes(CODE)
    for path in ("/usr/lib/other", "/usr/lib/gone", "/usr/lib", "/", ""):
        with pytest.raises(OSError, match=r"."):
            opened(root, path, inode)


@pytest.mark.parametrize("where", ["usr/lib/link", "lib/code"])
def test_links_are_not_followed_not_even_to_the_same_file(
    mapped: tuple[Path, int], where: str
) -> None:
    root, inode = mapped
    (root / "lib").symlink_to("/usr/lib" if where.startswith("usr") else root / "usr/lib")
    (root / "usr/lib/link").symlink_to(root / "usr/lib/code")
    assert (root / where).exists()
    with pytest.raises(OSError, match=r"."):
        opened(root, f"/{where}", inode)


def test_nobody_waits_at_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        opened(tmp_path, "/pipe", (tmp_path / "pipe").stat().st_ino)


def test_files_that_the_kernel_makes_up_are_not_read() -> None:
    with pytest.raises(FileNotFoundError):
        opened(Path("/"), "/proc/version", Path("/proc/version").stat().st_ino)
