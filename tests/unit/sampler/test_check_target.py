"""Every kind of process that cannot be observed, as a real process where this kernel has one."""

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tracees import running, sleeping
from waiting import wait_for

from memsampd.errors import MemsampdError, TargetError, UsageError
from memsampd.sampler.process.identity import read_stat
from memsampd.sampler.process.target import check_target, parse_pid

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with sleeping() as child:
        yield child


def refusal(pid: int | str, **options: object) -> TargetError:
    with pytest.raises(TargetError) as caught:
        check_target(pid, **options)  # type: ignore[arg-type]
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_process_of_ours(sleeper: subprocess.Popen[str]) -> None:
    facts = check_target(str(sleeper.pid))
    assert facts.identity.pid == facts.status.tgid == sleeper.pid
    assert facts.identity.executable.endswith("sleep") or "coreutils" in facts.identity.executable
    assert facts.notes == ()


@pytest.mark.parametrize(
    "text", ["", "abc", "-5", "0", "000", "1.5", "0x10", "+7", " 7", "7\n", "٣"]
)
def test_no_process_id(text: str) -> None:
    with pytest.raises(UsageError, match="is no process id") as caught:
        parse_pid(text)
    assert caught.value.exit_status == 2


def test_a_number_beyond_all_processes() -> None:
    assert "there is no process 99999999999999999999" in refusal("9" * 2 + "9" * 18).cause


def test_no_such_process() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert refusal(child.pid).cause == f"there is no process {child.pid}"


def test_ourselves() -> None:
    assert "is memsampd itself" in refusal(os.getpid()).cause


def test_a_thread_of_ours() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert "is memsampd itself" in refusal(thread.native_id).cause
    finally:
        stop.set()
        thread.join()


def test_a_thread_of_another() -> None:
    code = "import threading,time\nthreading.Thread(target=time.sleep,args=(1e6,)).start()\n"
    with running(sys.executable, "-c", code + "print(1,flush=True)") as child:
        assert child.stdout is not None
        child.stdout.readline()
        tid = next(int(t) for t in os.listdir(f"/proc/{child.pid}/task") if int(t) != child.pid)
        error = refusal(tid)
    assert f"is a thread of process {child.pid}" in error.cause
    assert error.remedy == f"use {child.pid}"


@pytest.mark.skipif(
    not Path("/proc/2/stat").exists() or not read_stat(2).is_kernel_thread,
    reason="no kernel thread in this pid namespace",
)
def test_a_kernel_thread() -> None:
    assert "is a kernel thread" in refusal(2).cause


def test_a_zombie() -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert "is a zombie" in refusal(child.pid).cause


def test_a_process_whose_main_thread_has_exited() -> None:
    code = (
        "import threading,time,ctypes\nthreading.Thread(target=time.sleep,args=(1e6,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)"  # exit of this thread only
    )
    with running(sys.executable, "-c", code) as child:
        wait_for(lambda: read_stat(child.pid).state == "Z")
        error = refusal(child.pid)
    assert "main thread" in error.cause


def test_a_traced_process(sleeper: subprocess.Popen[str]) -> None:
    """By a thread: the kernel tells its id. Who observes may hold the process for a burst."""
    code = (
        "import ctypes,sys,threading\nlibc=ctypes.CDLL(None)\n"
        "def trace():\n"
        f" assert libc.ptrace(0x4206, {sleeper.pid}, None, None) == 0\n"  # PTRACE_SEIZE
        " print(threading.get_native_id(), flush=True)\n sys.stdin.read()\n"
        "threading.Thread(target=trace).start()"
    )
    with running(sys.executable, "-c", code) as tracer:
        assert tracer.stdout is not None
        tid = int(tracer.stdout.readline())
        error = refusal(sleeper.pid)
        assert check_target(sleeper.pid, own_pid=tracer.pid).status.tracer_pid == tid
    assert f"is traced by process {tid}" in error.cause


def test_a_tracer_that_has_ended_since_is_none(tmp_path: Path) -> None:
    """A thread of ours ends with the hold that it is for."""
    tree = Tree(tmp_path)
    tree.add(7, tracer_pid=8)
    tree.add(9)
    assert check_target(7, proc=tmp_path, own_pid=9).status.tracer_pid == 8


def test_our_own_tracer(sleeper: subprocess.Popen[str], tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(7)
    tree.add(9, tracer_pid=7)
    assert "traces memsampd" in refusal(7, proc=tmp_path, own_pid=9).cause


def test_our_own_tracer_is_a_thread(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.add(7)
    tree.add(9, tracer_pid=8)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "status").write_text((tmp_path / "7" / "status").read_text())
    assert "traces memsampd" in refusal(7, proc=tmp_path, own_pid=9).cause


def test_a_stopped_process_is_accepted_with_a_note(sleeper: subprocess.Popen[str]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    wait_for(lambda: read_stat(sleeper.pid).state == "T")
    assert "stopped" in check_target(sleeper.pid).notes[0]


def tiny_elf32() -> bytes:
    """A static i386 program: a loop around pause(2)."""
    code = bytes.fromhex("b81d000000cd80ebf7")  # mov eax, 29; int 0x80; jmp back
    base, header_bytes = 0x08048000, 52 + 32
    size = header_bytes + len(code)
    ident = b"\x7fELF\x01\x01\x01" + bytes(9)
    header = struct.pack(
        "<HHIIIIIHHHHHH", 2, 3, 1, base + header_bytes, 52, 0, 0, 52, 32, 1, 40, 0, 0
    )
    segment = struct.pack("<8I", 1, 0, base, base, size, size, 5, 0x1000)
    return ident + header + segment + code


def test_a_32_bit_program(tmp_path: Path) -> None:
    program = tmp_path / "tiny32"
    program.write_bytes(tiny_elf32())
    program.chmod(0o755)
    try:
        with running(program) as child:
            error = refusal(child.pid)
    except OSError:  # no IA32 emulation here: the same file in a fake tree
        tree = Tree(tmp_path)
        tree.add(7, exe=program)
        error = refusal(7, proc=tmp_path, machine="x86_64")
    assert "32-bit" in error.cause


def test_a_program_for_another_architecture(tmp_path: Path) -> None:
    program = tmp_path / "arm"
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 183))
    tree = Tree(tmp_path)
    tree.add(7, exe=program)
    assert "another architecture" in refusal(7, proc=tmp_path, machine="x86_64").cause


@pytest.mark.parametrize("size", [4, 5, 19])
def test_a_program_that_is_too_short_for_a_header(tmp_path: Path, size: int) -> None:
    program = tmp_path / "short"
    program.write_bytes((b"\x7fELF\x01" + bytes(15))[:size])
    Tree(tmp_path).add(7, exe=program)
    assert check_target(7, tmp_path, "x86_64").identity.executable == str(program)


def test_what_cannot_be_read_is_a_reason(tmp_path: Path) -> None:
    Tree(tmp_path).add(7, exe=tmp_path)
    assert "Is a directory" in refusal(7, proc=tmp_path, machine="x86_64").cause


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\x0bUid:\t0", b"b\rUid:\t0", b"c\n) S 1 ("])
def test_a_name_is_text_and_never_more_than_a_name(tmp_path: Path, name: bytes) -> None:
    program = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    shutil.copy(os.path.realpath(sys.executable), program)
    code = "import ctypes,sys\nlibc = ctypes.CDLL(None)\nlibc.prctl(15, sys.stdin.buffer.read(15))"
    code += "\nprint(1,flush=True)\nsys.stdin.read()"
    home = {**os.environ, "PYTHONHOME": sys.base_prefix}
    with running(program, "-c", code, env=home, text=False) as child:
        pipes = cast("subprocess.Popen[bytes]", child)  # text=False
        assert pipes.stdout is not None
        assert pipes.stdin is not None
        pipes.stdin.write(name.ljust(15, b"\0"))
        pipes.stdin.flush()
        pipes.stdout.readline()
        facts = check_target(child.pid)
    assert facts.identity.command == name.decode(errors="replace")
    assert facts.identity.executable.encode().endswith("/\ufffd".encode())
    assert (facts.status.tgid, facts.status.uid) == (child.pid, os.geteuid())


def test_a_machine_without_a_tracer(tmp_path: Path) -> None:
    Tree(tmp_path).add(7)
    assert "riscv64 is not supported" in refusal(7, proc=tmp_path, machine="riscv64").cause


def test_one_that_an_exec_is_making_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    Tree(tmp_path).add(7, mark="0 0 9000")
    refused = refusal(7, proc=tmp_path, machine="x86_64", patience_seconds=0.01)
    assert refused.cause == "process 7 (fake) is in the midst of an exec"
    stat, next_stat = tmp_path / "7" / "stat", tmp_path / "made"
    next_stat.write_text(stat.read_text().replace(" 0 0 9000", " 4096 8192 9000"))
    made = threading.Timer(0.05, next_stat.replace, (stat,))
    made.start()
    assert check_target(7, tmp_path, "x86_64").identity.command == "fake"
    made.join()


def test_what_exits_is_not_in_the_midst_of_an_exec(tmp_path: Path) -> None:
    Tree(tmp_path).add(7, mark="0 0 0", flags=4194560 | 4)  # its memory has gone already
    assert check_target(7, tmp_path, "x86_64").identity.command == "fake"


@pytest.mark.parametrize("missing", ["stat", "mem", "exe"])
def test_exit_in_mid_check(tmp_path: Path, missing: str) -> None:
    Tree(tmp_path).add(7)
    (tmp_path / "7" / missing).unlink()
    assert refusal(7, proc=tmp_path, machine="x86_64").cause == "there is no process 7"


def test_seccomp_and_shadow_stacks_are_nothing_to_speak_of(tmp_path: Path) -> None:
    Tree(tmp_path).add(7, extra="Seccomp:\t2\nx86_Thread_features:\tshstk\n")
    assert check_target(7, tmp_path, "x86_64").notes == ()


class Tree:
    """A fake /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(
        self,
        pid: int,
        exe: Path = Path(sys.executable),
        tracer_pid: int = 0,
        extra: str = "",
        mark: str = "4096 8192 9000",
        flags: int = 4194560,
    ) -> None:
        folder = self.root / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(
            f"{pid} (fake) S 1 7 7 0 -1 {flags} 1 2 3 4 150 25 0 0 20 0 1 0 4711 0 0 0 {mark}"
        )
        (folder / "status").write_text(
            f"Name:\tfake\nTgid:\t{pid}\nPid:\t{pid}\nTracerPid:\t{tracer_pid}\n{extra}"
        )
        (folder / "mem").touch()
        (folder / "exe").symlink_to(exe)


@needs_root
def test_a_process_of_another_user(sleeper: subprocess.Popen[str]) -> None:
    cause = as_nobody(sleeper.pid)
    assert f"process {sleeper.pid} (sleep) belongs to user 0, you are {NOBODY}" in cause


@needs_root
def test_root_may_observe_a_process_of_another_user() -> None:
    with sleeping(user=NOBODY) as child:
        assert check_target(child.pid).status.uid == NOBODY


@needs_root
def test_an_undumpable_process_of_ones_own() -> None:
    code = (
        "import ctypes,os,sys\nlibc = ctypes.CDLL(None)\nos.setuid(65534)\nlibc.prctl(4, 0)\n"
        "print(1,flush=True)\nsys.stdin.read()"
    )
    with running(sys.executable, "-c", code) as child:
        assert child.stdout is not None
        child.stdout.readline()
        cause = as_nobody(child.pid)
    # The kernel gives the /proc files of an undumpable process to root, so its status tells
    # whose it is, and the permission is what is refused.
    assert "refuses to let you trace" in cause


def as_nobody(pid: int) -> str:
    """What the check says to another user: the cause and the remedy, or "accepted"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            check_target(pid)
            answer = "accepted"
        except MemsampdError as error:
            answer = str(error)
        except BaseException as error:
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child, 0)
    return answer
