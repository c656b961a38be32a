"""Which processes run the same program: real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from tracees import running
from waiting import PATIENCE_SECONDS

from memsampd.daemon.config import SessionConfig
from memsampd.daemon.store import keys
from memsampd.daemon.store.keys import (
    ProgramKey,
    arguments_class,
    has_just_begun,
    program_key,
)

CONFIG = SessionConfig()


def key_of(stack: ExitStack, *command: str, user: int | None = None) -> ProgramKey:
    """The key of a command that has begun to run."""
    process = stack.enter_context(running(*command, user=user))
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    key = program_key(process.pid, CONFIG)
    assert key is not None
    return key


WAIT = "print('here', flush=True); input()"


def test_the_same_program_with_arguments_of_the_same_kind_is_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.py").write_text(WAIT)
    (tmp_path / "a" / "other.py").write_text(WAIT)
    with ExitStack() as stack:
        one = key_of(stack, sys.executable, str(tmp_path / "a" / "job.py"), "--size=10")
        other = key_of(stack, sys.executable, str(tmp_path / "b" / "job.py"), "--size=2000")
        assert one.digest == other.digest
        assert one.process != other.process
        assert one.uid == os.getuid()
        assert one.executable == os.path.realpath(sys.executable)
        for arguments in (("a/other.py", "--size=10"), ("a/job.py", "--length=10"), ("a/job.py",)):
            script, *rest = arguments
            third = key_of(stack, sys.executable, str(tmp_path / script), *rest)
            assert third.digest != one.digest, arguments
        elsewhere = key_of(stack, "sh", "-c", "echo here; read x", "job.py", "--size=10")
        assert elsewhere.digest != one.digest


def test_it_is_not_the_same_observed_otherwise() -> None:
    with running(sys.executable, "-c", WAIT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        key = program_key(process.pid, CONFIG)
        assert key == program_key(process.pid, CONFIG)
        for changes in ({"seed": 1}, {"bins": 32}, {"line_bytes": 128}, {"follow_forks": True}):
            other = program_key(process.pid, replace(CONFIG, **changes))
            assert key is not None
            assert other is not None
            assert other.digest != key.digest
        assert program_key(process.pid, CONFIG, "pmu") != key
        assert program_key(process.pid, replace(CONFIG, budget_share=0.5)) == key


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_it_is_not_the_same_run_by_somebody_else() -> None:
    shell = shutil.which("dash") or "/bin/sh"
    with ExitStack() as stack:
        mine, theirs = (
            key_of(stack, shell, "-c", "echo here; read x", user=user) for user in (None, 65534)
        )
    assert theirs.uid == 65534
    assert mine.digest != theirs.digest


def test_a_program_that_has_just_begun_has_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be told before the first page of the program is there."""
    for _ in range(20):
        with running("sleep", "1000000") as process:
            assert has_just_begun(process.pid)
            assert program_key(process.pid, CONFIG, patience_seconds=PATIENCE_SECONDS) is not None
    assert not has_just_begun(process.pid)  # it is gone
    monkeypatch.setattr(keys, "_MOMENT_SECONDS", 0.0)
    assert not has_just_begun(os.getpid())


def test_a_process_that_is_gone_has_no_key() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert program_key(process.pid, CONFIG) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b"sort\0/tmp/1\0", b"/usr/bin/sort\0/var/22\0", True),
        (b"x\0--file=/a/b/c7\0", b"x\0--file=/c9\0", True),
        (b"x\0a=/1/2:b=/3\0", b"x\0a=/4/5:b=/6\0", True),
        (b"x\0a\0", b"x\0b\0", False),
        (b"x\0a\0", b"x\0a\0b\0", False),
        (b"x\0a b\0", b"x\0a\0b\0", False),
        (b"", b"x", False),
    ],
)
def test_directories_and_numbers_do_not_count(one: bytes, other: bytes, is_same: bool) -> None:
    assert (arguments_class(one) == arguments_class(other)) == is_same
