"""Names of code, against readelf, across processes, and on nonsense."""

from __future__ import annotations

import mmap
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracees import compile_c, go_on, running

from memsampd.sampler.process import code_names
from memsampd.sampler.process.code_names import (
    CodeNames,
    build_id,
    file_identity,
    identity_of,
    note_ranges,
    present_memory,
)
from memsampd.sampler.process.maps import read_maps

PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static int work(int n) { return n * 3; }
int main(int argc, char **argv) {
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    void *code = mmap(0, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\xc3", 1);
    printf("%p %p %p\n", (void *)work, (void *)printf, code);
    fflush(stdout);
    getchar();
    void *library = dlopen("libm.so.6", RTLD_NOW);
    printf("%p\n", dlsym(library, "cos"));
    fflush(stdout);
    getchar();
    return work(argc);
}
"""


def told(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(word, 16) for word in process.stdout.readline().split()]


def test_build_ids_are_what_readelf_says() -> None:
    space, read, seen = read_maps(os.getpid()), present_memory(os.getpid()), 0
    for mapping in space.mappings:
        if not mapping.is_executable or not Path(mapping.path).is_file():
            continue
        notes = subprocess.run(
            ["readelf", "-n", mapping.path], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"Build ID: ([0-9a-f]+)", notes)
        identity = file_identity(space, mapping, read)
        if found and identity:  # its first page may not be present
            assert identity == b"build id " + bytes.fromhex(found[1]), mapping.path
            seen += 1
    assert seen > 3


def test_code_has_one_name_in_two_processes_wherever_it_is_loaded(tmp_path: Path) -> None:
    program = compile_c(tmp_path, PROGRAM, "-pie", "-fPIE", "-Wl,--build-id")
    with running(program) as one, running(program) as other:
        mine, theirs = told(one), told(other)
        names = CodeNames(one.pid, b"one"), CodeNames(other.pid, b"other")
        assert mine[:2] != theirs[:2]  # they lie at other addresses
        for here, there in zip(mine[:2], theirs[:2], strict=True):
            name, is_lasting = names[0](here)
            assert is_lasting
            assert names[1](there) == (name, True)
            assert names[0](here + 1) == ((name + 1) % (1 << 64), True)
        assert names[0](mine[0])[0] != names[0](mine[1])[0]
        # What the process made itself has a name that nobody else has, even at the same address.
        assert not names[0](mine[2])[1]
        assert names[0](mine[2]) == CodeNames(one.pid, b"one")(mine[2])
        assert names[0](mine[2])[0] != CodeNames(one.pid, b"two")(mine[2])[0]
        # A library that comes later is found.
        for process in (one, other):
            go_on(process)
        (here,), (there,) = told(one), told(other)
        assert names[0](here) == names[1](there)
        assert names[0](here)[1]


def test_without_a_build_id_the_first_page_tells_programs_apart(tmp_path: Path) -> None:
    programs = []
    for number, source in enumerate(
        (PROGRAM, PROGRAM, PROGRAM.replace("n * 3", "n * 5 + argc_()"))
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        source = source.replace("static int work", "static int argc_(void) { return 7; }\nint work")
        programs.append(compile_c(directory, source, "-Wl,--build-id=none", "-fPIE", "-pie"))
    names = []
    for program in programs:
        with running(program) as process:
            address = told(process)[0]
            name, is_lasting = CodeNames(process.pid, b"")(address)
            assert is_lasting
            names.append(name)
    assert names[0] == names[1]
    assert names[2] not in names[:2]


def test_a_file_that_is_no_program_gives_no_lasting_name(tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.write_bytes(b"\xc3" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as area:
        area[0]  # present
        mapping = next(m for m in read_maps(os.getpid()).mappings if m.path == str(path))
        assert not CodeNames(os.getpid(), b"")(mapping.start + 5)[1]


def test_a_program_whose_first_page_comes_later_is_known_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mappings = read_maps(os.getpid()).mappings
    address = next(each.start for each in mappings if each.is_executable and "libc.so" in each.path)
    names = CodeNames(os.getpid(), b"")
    with monkeypatch.context() as absent:
        absent.setattr(code_names, "present_memory", lambda *_: lambda *_: b"")
        assert not names(address)[1]
    assert names(address)[1]


def test_an_absent_first_page_is_not_looked_for_at_every_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mappings = read_maps(os.getpid()).mappings
    code = next(each for each in mappings if each.is_executable and "libc.so" in each.path)
    names, looks = CodeNames(os.getpid(), b""), []
    monkeypatch.setattr(code_names, "identity_of", lambda *asked: looks.append(asked))
    for address in range(code.start, code.start + 1000):
        assert not names(address)[1]
    assert len(looks) == 10  # at the 1st, 2nd, 4th ... 512th


FORKING = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((aligned(1 << 20), noinline)) static int work(int n) { return n * 3; }
int main(int argc, char **argv) {
    if (fork() == 0) {
        printf("%d %p\n", getpid(), (void *)work);
        fflush(stdout);
        for (;;) argc = work(argc) + sleep(1);
    }
    for (;;) pause();
}
"""


def test_a_forked_process_has_its_program_from_its_parent(tmp_path: Path) -> None:
    program = compile_c(tmp_path, FORKING, "-Wl,--build-id,-z,now")
    with running(program) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        child, space = int(pid), read_maps(int(pid))
        try:
            mapping = space.find(int(address, 16))
            assert mapping is not None
            if file_identity(space, mapping, present_memory(child)) is not None:
                pytest.skip("this kernel gives a forked process all of its program")
            found = identity_of(child, mapping, space, Path("/proc"))
            notes = subprocess.run(["readelf", "-n", program], capture_output=True, check=True)
            assert found is not None
            assert found.removeprefix(b"build id ").hex() in notes.stdout.decode()
            assert CodeNames(child, b"")(mapping.start)[1]
        finally:
            os.kill(child, signal.SIGKILL)


def test_maps_are_not_read_again_and_again(tmp_path: Path) -> None:
    """Each reading takes a clock's tick here: a hundredth of the time is all that it may take."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text("1000-2000 r-xp 00000000 00:00 0\n")
    seconds = 0.0
    calls = 0

    def now() -> float:
        nonlocal seconds, calls
        calls += 1
        seconds += 0.004
        return seconds

    names = CodeNames(7, b"", tmp_path, now)
    for address in range(0x10_0000, 0x10_0000 + 1000 * 4096, 4096):
        names(address)
    readings = (calls - 1 - 1000) / 2
    assert 1 < readings < 40
    before = calls
    names(0x1234)  # known: nobody looks at a clock
    assert calls == before


def test_a_process_that_is_gone_has_addresses_only() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not CodeNames(process.pid, b"")(0x1000)[1]


@given(st.binary(max_size=4096))
def test_nonsense_is_survived(page: bytes) -> None:
    for whole in (page, b"\x7fELF\x02\x01" + page):
        for offset, length in note_ranges(whole):
            assert offset >= 0
            assert 0 <= length <= 4096
    found = build_id(page)
    assert found is None or found in page


@given(st.binary(min_size=1, max_size=64), st.binary(max_size=20))
def test_the_build_id_is_found_among_other_notes(content: bytes, other: bytes) -> None:
    def note(kind: int, name: bytes, body: bytes) -> bytes:
        pad = [part + bytes(-len(part) % 4) for part in (name, body)]
        return struct.pack("<III", len(name), len(body), kind) + b"".join(pad)

    notes = note(5, b"GNU\0", other) + note(3, b"Xen\0", other) + note(3, b"GNU\0", content)
    assert build_id(notes) == content
    assert build_id(notes[: -len(content) - (-len(content) % 4)]) is None
