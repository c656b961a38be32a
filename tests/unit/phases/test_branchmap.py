"""The branch map on real code, against objdump and a walk along its listing."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsampd.phases.branchmap import (
    MAX_ENTRIES,
    MAX_INSTRUCTIONS,
    PAGE_BYTES,
    BranchMap,
    BranchMaps,
)

PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
static int table(int k) {
    switch (k) { case 0: return 3; case 1: return 1; case 2: return 4; case 3: return 1;
                 case 4: return 5; case 5: return 9; case 6: return 2; default: return 6; }
}
__attribute__((noinline)) long collatz(long n) {
    long steps = 0;
    while (n != 1) { n = n % 2 ? 3 * n + 1 : n / 2; steps++; }
    return steps;
}
__attribute__((noinline)) void fill(double *a, int n) {
    for (int i = 0; i < n; i++) a[i] = a[i] * 2.5 + table(i & 7);
}
__attribute__((noinline)) void spin(volatile int *a) { for (;;) { ++*a; ++*a; } }
int main(int argc, char **argv) {
    double a[64]; memset(a, argc, sizeof a); fill(a, 64);
    if (argc > 5) spin((int *)a);
    return (int)(collatz(27 + argc) + a[3] + atoi(argv[0]));
}
"""
LINE = re.compile(r"^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(\S+)\s*(\S*)")
PREFIXES = {"bnd", "notrack", "rep", "repz", "repnz", "lock", "data16", "cs", "ds"}


def listing(path: Path, *options: str) -> tuple[dict[int, tuple[str, str, int]], dict[int, bytes]]:
    """objdump's view: address -> (mnemonic, operand, next address), and address -> bytes."""
    command = ["objdump", "-d", "-w", *options, str(path)]
    dump = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines, code = {}, {}
    for text in dump.splitlines():
        found = LINE.match(text)
        if found is None:
            continue
        address, raw = int(found[1], 16), bytes.fromhex(found[2])
        words = text.split("\t")[2].split()
        while words[0].split(".")[0] in PREFIXES and len(words) > 1:
            words.pop(0)
        operand = words[1] if len(words) > 1 else ""
        lines[address] = (words[0], operand, address + len(raw))
        code[address] = raw
    return lines, code


def next_branch(lines: Any, ip: int) -> int | None:
    """Walk objdump's listing step by step; None where it leaves the listing or never ends."""
    for _ in range(2000):
        if ip not in lines:
            return None
        mnemonic, operand, following = lines[ip]
        if mnemonic.startswith(("jmp", "ljmp")):
            if operand.startswith("*"):
                return ip
            ip = int(operand, 16)
        elif mnemonic.startswith(("j", "loop", "ret", "ud", "int")):
            return ip
        elif mnemonic == "(bad)":
            return None
        else:
            ip = following
    return None


@pytest.fixture(scope="module", params=["-O0", "-O2", "-O3"])
def program(request: Any, tmp_path_factory: Any) -> Any:
    path = tmp_path_factory.mktemp("program") / "a.out"
    source = path.with_suffix(".c")
    source.write_text(PROGRAM)
    # -no-pie: addresses are those of the listing. An image of the sections serves as memory.
    subprocess.run(["gcc", request.param, "-no-pie", "-o", path, source], check=True)
    return path


def reader(code: dict[int, bytes]) -> Any:
    memory = {address + k: byte for address, raw in code.items() for k, byte in enumerate(raw)}

    def read(address: int, length: int) -> bytes:
        out = bytearray()
        while len(out) < length and address + len(out) in memory:
            out.append(memory[address + len(out)])
        return bytes(out)

    return read


def test_agrees_with_objdump_on_every_instruction(program: Any) -> None:
    lines, code = listing(program, "--section=.text", "--section=.plt")
    branches = BranchMap(reader(code))
    compared = 0
    for ip in lines:
        expected = next_branch(lines, ip)
        if expected is not None:
            assert branches.branch_of(ip) == expected, f"{ip:#x}"
            compared += 1
    assert compared > 100


def test_agrees_with_objdump_on_libc_in_this_process() -> None:
    """Real, hand-written and vectorised code, read as the daemon reads it."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    path = next(m[-1] for m in maps if re.search(r"/libc\.so\.6$|/libc-\S+\.so$", m[-1]))
    base = min(int(m[0].split("-")[0], 16) for m in maps if m[-1] == path)
    libc = ctypes.CDLL(path)  # not None: a program that is no PIE has entries of its own
    with open("/proc/self/mem", "rb") as memory:
        branches = BranchMap(lambda address, length: os.pread(memory.fileno(), length, address))
        for name in ("qsort", "memcpy", "malloc", "strtod", "printf", "getenv"):
            entry = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
            assert entry is not None
            start = entry - base
            table, _ = listing(
                Path(path), f"--start-address={start}", f"--stop-address={start + 400}"
            )
            checked = 0
            for ip in table:
                expected = next_branch(table, ip)
                if expected is not None:
                    assert branches.branch_of(base + ip) == base + expected
                    checked += 1
            assert checked >= 1


def at(base: int, code: str) -> Any:
    raw = bytes.fromhex(code.replace(" ", ""))
    return lambda address, length: (
        raw[max(address - base, 0) :][:length] if address >= base else b""
    )


def noted(named: list[int]) -> Any:
    """Names of addresses, the same, which are asked for where code was decoded to its end."""

    def name(address: int) -> tuple[int, bool]:
        named.append(address)
        return address, False

    return name


def test_what_ends_the_straight_line() -> None:
    cases = {
        "90 90 c3": 2,  # ret
        "90 ff e0": 1,  # jmp rax
        "90 ff d0 74 00": 3,  # call rax returns; je
        "e8 00000000 74 00": 5,  # call returns; je
        "0f 05 e2 fe": 2,  # syscall returns; loop
        "90 e3 00": 1,  # jrcxz
        "90 0f 0b": 1,  # ud2
        "90 cc": 1,  # int3
        "90 cd 80": 1,  # int 0x80
        "eb 01 c3 0f 84 00000000": 3,  # jmp over ret; je
        "f2 e9 01000000 c3 75 fe": 7,  # bnd jmp; jne
    }
    for code, expected in cases.items():
        assert BranchMap(at(0x1000, code)).branch_of(0x1000) == 0x1000 + expected, code


def test_a_loop_without_a_branch_has_one_name_from_everywhere() -> None:
    code = "90 eb 02 90 90 90 eb f8 eb f6"  # 0: nop; 1: jmp 5; 5: nop; 6: jmp 0; 8: jmp 0
    branches = BranchMap(at(0x1000, code))
    names = {branches.branch_of(0x1000 + k) for k in (0, 1, 3, 5, 6, 8)}
    assert names == {0x1000}


def test_chunks_are_joined_and_endless_code_is_cut() -> None:
    """A long straight line reaches its branch whatever instruction straddles a chunk."""
    line = "48 b8 0807060504030201" * 300  # mov rax, imm64: 10 bytes
    read = at(0x1000, line + "75 00")
    branches = BranchMap(read)
    assert {branches.branch_of(0x1000 + 10 * k) for k in range(0, 300, 7)} == {0x1000 + 3000}
    endless = BranchMap(lambda address, length: b"\x90" * length)
    assert endless.branch_of(0x1000) == 0x1000 + MAX_INSTRUCTIONS - 1


def test_unreadable_and_undecodable_code_is_named_by_its_page() -> None:
    def gone(address: Any, length: Any) -> Any:
        raise OSError(5, "Input/output error")

    vsyscall = 0xFFFFFFFFFF600400
    for read in (gone, lambda address, length: b"", at(vsyscall, "06"), at(vsyscall, "90 48")):
        branches = BranchMap(read)
        names = branches.lookup(np.array([vsyscall, vsyscall, vsyscall + 7], dtype=np.uint64))
        assert names.tolist() == [vsyscall & -PAGE_BYTES] * 3


def test_code_that_could_not_be_read_is_looked_for_again_ever_more_rarely() -> None:
    """Its page may have been absent for a moment: all code in it had one name for good."""
    is_present, reads = False, 0

    def read(address: int, length: int) -> bytes:
        nonlocal reads
        reads += 1
        return at(0x1000, "90 c3 90 c3")(address, length) if is_present else b""

    branches = BranchMap(read)
    ips = np.array([0x1000, 0x1002], np.uint64)
    for _ in range(1000):
        assert branches.lookup(ips).tolist() == [0x1000, 0x1000]
    assert reads < 60
    is_present = True
    for _ in range(1100):
        names = branches.lookup(ips).tolist()
    assert names == [0x1001, 0x1003]


def test_decodes_each_address_once_and_keeps_what_it_found() -> None:
    code = bytearray(bytes.fromhex("9074009090c3"))
    named: list[int] = []
    branches = BranchMap(lambda address, length: bytes(code[address:][:length]), noted(named))
    ips = np.array([0, 3, 0, 0, 4], dtype=np.uint64)
    assert branches.lookup(ips).tolist() == [1, 5, 1, 1, 5]
    code[:] = b"\x90" * 5 + b"\xc3"
    assert branches.lookup(ips).tolist() == [1, 5, 1, 1, 5]
    assert named == [1, 5]  # what 3 passed is known from it
    assert branches.samples == 10


def test_each_of_many_equal_addresses_counts() -> None:
    """Those of a burst come in runs, those of samples may."""
    branches = BranchMap(lambda address, length: b"\xc3"[: 0x1001 - address])
    ips = np.repeat(np.array([0x1000, 0x5000, 0x1000], np.uint64), [3, 2, 1])
    one_by_one = [branches.branch_of(int(ip)) for ip in ips]
    assert branches.lookup(ips).tolist() == one_by_one
    assert branches.samples == 6
    assert branches.lookup(ips[:0]).tolist() == []


def test_what_goes_wrong_with_a_name_is_told_by_the_lookup() -> None:
    def name(address: int) -> tuple[int, bool]:
        if address == 0x1001:
            raise KeyError(address)
        return address, True

    branches = BranchMap(at(0x1000, "c3 c3"), name)
    with pytest.raises(KeyError):
        branches.lookup(np.array([0x1000, 0x1001], np.uint64))
    assert branches.lookup(np.array([0x1000], np.uint64)).tolist() == [0x1000]


def test_cache_is_bounded() -> None:
    named: list[int] = []
    branches = BranchMap(lambda address, length: b"\xc3" * length, noted(named))
    ips = np.arange(MAX_ENTRIES + 1000, dtype=np.uint64)
    assert branches.lookup(ips).tolist() == ips.tolist()
    assert len(branches) <= MAX_ENTRIES
    assert branches.lookup(ips[-10:]).tolist() == ips[-10:].tolist()
    assert named == ips.tolist()


def test_pages_of_lasting_code_are_read_once() -> None:
    """Those of other code may have changed until the next lookup."""
    reads: list[int] = []

    def read(address: int, length: int) -> bytes:
        reads.append(address)
        return (b"\xc3" * PAGE_BYTES)[:length]

    lasting, other = 0x1000, 0x9000
    branches = BranchMap(read, name=lambda address: (address, address < other))
    for at in (0x10, 0x20, 0x30):
        branches.lookup(np.array([lasting + at, other + at], np.uint64))
    assert reads.count(lasting) == 1
    assert reads.count(other) == 3


def test_names_need_not_depend_on_where_code_was_loaded() -> None:
    def names(base: Any) -> Any:
        code = at(base, "90 74 00 90 c3")
        branches = BranchMap(code, name=lambda a: ((7 << 48) | (a - base), a - base < 4))
        assert branches.anonymous_samples == 0
        found = branches.lookup(base + np.arange(5, dtype=np.uint64)).tolist()
        assert branches.anonymous_samples == 2  # both lead to the return
        return found

    assert names(0x1000) == names(0x7F0000002000)


def test_one_map_for_each_process() -> None:
    made = []

    def make(pid: Any) -> Any:
        made.append(pid)
        return BranchMap(at(0, "90 c3" if pid == 1 else "90 90 c3"))

    maps = BranchMaps(make)
    ips = np.array([0], dtype=np.uint64)
    assert [maps.lookup(pid, ips).tolist() for pid in (1, 2, 1)] == [[1], [2], [1]]
    assert made == [1, 2]
    maps.forget(1)
    maps.forget(1)
    assert maps.lookup(1, ips).tolist() == [1]
    assert made == [1, 2, 1]
