"""Programs that write code: what was translated from it must not be used once it is another."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tracees import compile_c, patiently, running, tries
from waiting import PATIENCE_SECONDS

from memsampd.sampler.records import Burst, BurstEnd, BurstRequest
from memsampd.sampler.replica.comparison import Run, held_replica
from memsampd.sampler.replica.source import ReplicaSource

# A function `mov offset(%rdi), %eax; ret` whose offset is rewritten: after so many calls, by the
# same thread, in the page that it runs from or in a fresh one.
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static char data[1 << 16];
int main(int argc, char **argv) {
    unsigned calls, fresh;
    sscanf(argv[1], "%u", &calls);
    sscanf(argv[2], "%u", &fresh);
    uint8_t *pages = mmap(0, 64 << 12, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    printf("%p %p\\n", (void *)pages, (void *)data);
    fflush(stdout);
    for (uint32_t round = 0;; round++) {
        uint8_t *code = pages + (fresh ? round % 64 << 12 : 0);
        uint32_t offset = round % 16000 * 4;
        memcpy(code, "\\x8b\\x87", 2);
        memcpy(code + 2, &offset, 4);
        memcpy(code + 6, "\\xc3", 1);
        for (unsigned i = 0; i < calls; i++)
            sum += ((int (*)(char *))code)(data);
    }
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("changing"), PROGRAM)


@contextmanager
def rewriting(program: Path, calls: int, fresh: int) -> Iterator[tuple[int, int, int]]:
    """Process, address of the first page of code, and of the data."""
    with running(program, str(calls), str(fresh)) as target:
        assert target.stdout is not None
        code, data = (int(word, 16) for word in target.stdout.readline().split())
        yield target.pid, code, data


def rows_that_agree(first: Run, second: Run) -> int:
    """How many rows both runs have; they must be equal."""
    common = min(len(first.rows), len(second.rows))
    for name in ("ip", "address", "size_bytes", "is_write"):
        found, expected = (getattr(run.rows, name)[:common] for run in (first, second))
        assert np.array_equal(found, expected)
    return common


# A round is some 7 or 8 accesses a call: long runs come to a rewriting from wherever they begin.
@pytest.mark.parametrize(
    ("calls", "fresh", "accesses", "ends"),
    [
        (20, 0, 50_000, {"modified"}),
        (2000, 0, 50_000, {"modified"}),
        (300_000, 0, 5000, {"full", "modified"}),
        (2000, 1, 5000, {"full", "modified"}),
    ],
)
def test_rows_agree_with_stepping(
    calls: int, fresh: int, accesses: int, ends: set[str], program: Path
) -> None:
    compared = 0
    with rewriting(program, calls, fresh) as (pid, _, _), held_replica(pid) as replica:
        for number in tries():
            if number >= 8 and compared:
                break
            with replica.holding(pid, 60):
                first = replica.translated(accesses)
                second = replica.stepped(5000)
            assert first.end in ends
            compared += rows_that_agree(first, second)


def test_what_was_translated_is_forgotten_once_it_is_other_code(program: Path) -> None:
    """Within a burst the code is one; from burst to burst it is another."""
    loaded: set[int] = set()
    bursts, give_up = 0, time.monotonic() + PATIENCE_SECONDS
    with (
        rewriting(program, 2000, 0) as (pid, code, data),
        closing(ReplicaSource(pid)) as source,
    ):
        while bursts < 12 or (len(loaded) < 2 and time.monotonic() < give_up):
            burst = patiently(lambda: source.capture(BurstRequest(pid, 100_000, 1.0)))
            assert burst.end in (BurstEnd.UNSUPPORTED, BurstEnd.HOLD, BurstEnd.COLD)
            here = burst.address[(burst.ip == code) & ~burst.is_write]
            assert len(set(here.tolist())) <= 1
            loaded |= set(here.tolist())
            bursts += 1
    assert len(loaded) > 1
    assert all(data <= address < data + (1 << 16) for address in loaded)


# Many functions that are called by pointers, in turn, and one that is rewritten now and then.
FUNCTIONS = 400
MANY = f"""
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
static volatile long sums[{FUNCTIONS}];
{"".join(f"static void f{i}(void) {{ sums[{i}]++; }}" for i in range(FUNCTIONS))}
static void (*volatile functions[])(void) = {{ {", ".join(f"f{i}" for i in range(FUNCTIONS))} }};
int main(void) {{
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(code, "\\xb8\\0\\0\\0\\0\\xc3", 6); // mov $round, %eax; ret
    for (uint32_t round = 0;; round++) {{
        if (round % 512 == 0)
            memcpy(code + 1, &round, 4);
        ((int (*)(void))code)();
        for (int i = 0; i < {FUNCTIONS}; i++)
            functions[i]();
    }}
}}
"""


def test_other_code_is_found_at_once_when_some_has_changed(tmp_path: Path) -> None:
    def stops() -> float:
        costs = source.costs()
        return costs["traps"] - costs["faults"]

    bursts: list[float] = []
    with running(compile_c(tmp_path, MANY)) as target, closing(ReplicaSource(target.pid)) as source:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while (not bursts or min(bursts) > FUNCTIONS / 2) and time.monotonic() < give_up:
            before = stops()
            burst = patiently(lambda: source.capture(BurstRequest(target.pid, 20_000, 1.0)))
            if burst.end is BurstEnd.FULL:
                bursts.append(stops() - before)
        time.sleep(0.1)  # it is other code now
        before, taken, again = stops(), 0, 0
        while again < 4:
            burst = patiently(lambda: source.capture(BurstRequest(target.pid, 20_000, 1.0)))
            taken += 1
            again += burst.end is BurstEnd.FULL
            time.sleep(0.1)
        assert stops() - before < taken * FUNCTIONS / 2


# As virtual machines do: data in the page of code that runs, on which depends what it reads.
BESIDE = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static int data[1024];
int main(void) {
    uint8_t *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile uint64_t *rounds = (volatile uint64_t *)(page + 2048);
    long sum = 0;
    memcpy(page, "\\x8b\\x07\\xc3", 3); // mov (%rdi), %eax; ret
    puts("ready");
    fflush(stdout);
    for (;;) {
        sum += ((int (*)(int *))page)(data + *rounds % 1024);
        ++*rounds;
        if (*rounds % 64 == 0)
            memset(page + 2112 + *rounds % 512, (int)sum, 200);
    }
}
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("beside"), BESIDE)


def test_stores_beside_code_are_made(beside: Path) -> None:
    with running(beside) as target:
        assert target.stdout is not None
        assert target.stdout.readline() == "ready\n"  # it has stored its code
        for _ in tries():
            with held_replica(target.pid) as replica, replica.holding(target.pid, 60):
                first = replica.translated(5000)
                second = replica.stepped(5000)
            if first.end == "full":  # not where it was held in the middle of memset: see FEW_STORES
                break
        assert first.end == "full"
        assert rows_that_agree(first, second) >= 5000


def test_code_beside_data_that_change_is_translated_once(beside: Path) -> None:
    translated: list[float] = []
    with running(beside) as target, closing(ReplicaSource(target.pid)) as source:
        for _ in tries():
            before = source.costs()["translated_instructions"]
            burst = patiently(lambda: source.capture(BurstRequest(target.pid, 5000, 1.0)))
            assert burst.end in (BurstEnd.FULL, BurstEnd.HOLD)
            if burst.end is BurstEnd.FULL:  # one that is cut short may have come to nothing new
                translated.append(source.costs()["translated_instructions"] - before)
            if len(translated) == 8:
                break
            time.sleep(0.01)
    assert min(translated) == 0


# As PROGRAM, but what can be executed cannot be written to: virtual machines change it in turns.
GUARDED = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static char data[1 << 16];
int main(void) {
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    printf("%p %p\\n", (void *)code, (void *)data);
    fflush(stdout);
    for (uint32_t round = 0;; round++) {
        uint32_t offset = round % 16000 * 4;
        mprotect(code, 4096, PROT_READ | PROT_WRITE);
        memcpy(code, "\\x8b\\x87", 2);
        memcpy(code + 2, &offset, 4);
        memcpy(code + 6, "\\xc3", 1);
        mprotect(code, 4096, PROT_READ | PROT_EXEC);
        for (unsigned i = 0; i < CALLS; i++)
            sum += ((int (*)(char *))code)(data);
    }
}
"""
CALLS = 100


def test_code_that_was_changed_between_two_calls_is_not_run_as_it_was(tmp_path: Path) -> None:
    program = compile_c(tmp_path, GUARDED.replace("CALLS", str(CALLS)))
    ends: Counter[BurstEnd] = Counter()
    give_up = time.monotonic() + PATIENCE_SECONDS
    with running(program) as target:
        assert target.stdout is not None
        code, _ = (int(word, 16) for word in target.stdout.readline().split())
        with closing(ReplicaSource(target.pid)) as source:
            while ends[BurstEnd.UNSUPPORTED] < 20 and time.monotonic() < give_up:
                burst = patiently(lambda: source.capture(BurstRequest(target.pid, 50_000)))
                loaded = burst.address[(burst.ip == code) & ~burst.is_write]
                assert (np.unique(loaded, return_counts=True)[1] <= CALLS).all()
                ends[burst.end] += 1
    assert ends[BurstEnd.UNSUPPORTED] > 0, ends


# Functions `mov offset(%rdi), %eax; ret`, each in a page of its own: all in turn, or the first one.
PAGES = 2000
SPREAD = f"""
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static char data[1 << 16];
static volatile sig_atomic_t few;
static void turn(int number) {{ (void)number; few = !few; }}
int main(void) {{
    uint8_t *pages = mmap(0, {PAGES} << 12, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sum = 0;
    for (uint32_t i = 0; i < {PAGES}; i++) {{
        memcpy(pages + (i << 12), "\\x8b\\x87\\0\\0\\0\\0\\xc3", 7);
        memcpy(pages + (i << 12) + 2, &(uint32_t){{4 * i}}, 4);
    }}
    signal(SIGUSR1, turn);
    printf("%p %p\\n", (void *)pages, (void *)data);
    fflush(stdout);
    for (uint32_t i = 0;; i = few ? 0 : (i + 1) % {PAGES})
        sum += ((int (*)(char *))(pages + ((uint64_t)i << 12)))(data);
}}
"""


@contextmanager
def spread(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[Burst], bool]]]:
    """It runs, and whether each function of it loaded in a burst what it does."""
    with running(compile_c(directory, SPREAD)) as target:
        assert target.stdout is not None
        code, data = (int(word, 16) for word in target.stdout.readline().split())

        def is_right(burst: Burst) -> bool:
            page, offset = np.divmod(burst.ip - np.uint64(code), np.uint64(4096))
            loads = (page < PAGES) & (offset == 0) & ~burst.is_write
            return bool((burst.address[loads] == np.uint64(data) + 4 * page[loads]).all())

        yield target, is_right


def test_of_much_code_that_may_change_what_has_not_run_for_long_is_forgotten(
    tmp_path: Path,
) -> None:
    """All that is kept is compared while the target is held."""

    def translated() -> float:
        burst = patiently(lambda: source.capture(BurstRequest(target.pid, 20_000)))
        assert is_right(burst)
        return source.costs()["translated_instructions"]

    with spread(tmp_path) as (target, is_right), closing(ReplicaSource(target.pid)) as source:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while (known := translated()) < 3 * PAGES and time.monotonic() < give_up:
            pass
        target.send_signal(signal.SIGUSR1)
        for _ in range(4):
            translated()
        target.send_signal(signal.SIGUSR1)
        while translated() < known + PAGES / 2 and time.monotonic() < give_up:
            pass
        assert time.monotonic() < give_up


def test_much_code_that_may_change_has_bursts_though_there_is_no_time_to_compare_it(
    tmp_path: Path,
) -> None:
    request = BurstRequest(0, 20_000, 0.0005, beyond_seconds=0.2)
    full, give_up = 0, time.monotonic() + PATIENCE_SECONDS
    with spread(tmp_path) as (target, is_right), closing(ReplicaSource(target.pid)) as source:
        while full < 8 and time.monotonic() < give_up:
            burst = patiently(lambda: source.capture(replace(request, tid=target.pid)))
            assert is_right(burst)
            full += burst.end is BurstEnd.FULL
    assert full == 8


# Each page of a file loads a word and jumps to the next one; the last one returns.
MANY_PAGES = 18_000
CHAIN = f"""
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static int data;
int main(int argc, char **argv) {{
    uint8_t page[4096] = "\\x8b\\x07\\xe9\\xf9\\x0f\\0\\0"; // mov (%rdi), %eax; jmp 4096 bytes on
    int file = open(argv[argc - 1], O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < {MANY_PAGES}; i++) {{
        if (i + 1 == {MANY_PAGES}) page[2] = 0xc3;
        if (write(file, page, sizeof page) != sizeof page) return 1;
    }}
    void *code = mmap(0, {MANY_PAGES} << 12, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    for (;;) ((int (*)(int *))code)(&data);
}}
"""


def test_code_of_very_many_pages_is_not_kept_for_ever(tmp_path: Path) -> None:
    blocks, give_up = [0.0], time.monotonic() + PATIENCE_SECONDS
    with (
        running(compile_c(tmp_path, CHAIN), tmp_path / "code") as target,
        closing(ReplicaSource(target.pid)) as source,
    ):
        while blocks[-1] >= max(blocks) and time.monotonic() < give_up:
            patiently(lambda: source.capture(BurstRequest(target.pid, 50_000, 1.0)))
            blocks.append(source.costs()["blocks"])
    assert max(blocks) > MANY_PAGES / 2
    assert blocks[-1] < max(blocks)


# A function `mov offset(%rdi), %eax; ret`, as some JIT compilers have them: its page is mapped
# twice, to be executed and to be written to. It is rewritten before a call of `comes`; then the
# program loads itself what the function is to load.
TWICE = """
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static char data[1 << 16];
__attribute__((noinline)) void comes(void) { __asm__ volatile(""); }
__attribute__((noinline)) int expected(volatile char *at) { return *at; }
int main(void) {
    int file = memfd_create("code", 0);
    if (ftruncate(file, 4096) != 0) return 1;
    uint8_t *writable = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint8_t *code = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    long sum = 0;
    for (uint32_t round = 0;; round++) {
        uint32_t offset = round % 16000 * 4;
        memcpy(writable, "\\x8b\\x87", 2);
        memcpy(writable + 2, &offset, 4);
        memcpy(writable + 6, "\\xc3", 1);
        if (round == 1) {
            printf("%p %p %p\\n", (void *)code, (void *)comes, (void *)expected);
            fflush(stdout);
        }
        comes();
        for (unsigned i = 0; i < 10000000; i++)
            sum += ((int (*)(char *))code)(data) + expected(data + offset);
    }
}
"""


def test_code_that_is_written_to_at_another_address_is_not_run_as_it_was(tmp_path: Path) -> None:
    """The burst is ordered, and begins when the code is another one."""
    loads = set()
    with (
        running(compile_c(tmp_path, TWICE)) as target,
        closing(ReplicaSource(target.pid)) as source,
    ):
        assert target.stdout is not None
        code, comes, expected = (int(word, 16) for word in target.stdout.readline().split())
        request = BurstRequest(target.pid, 5000, 1.0, seek_ips=(comes,), seek_seconds=60.0)
        for _ in tries():
            burst = patiently(lambda: source.capture(request))
            here, wanted = (
                np.unique(burst.address[(burst.ip == ip) & ~burst.is_write])
                for ip in (code, expected)
            )
            if len(here) and len(wanted):
                assert here.tolist() == wanted.tolist()
                loads.add(int(here[0]))
            if len(loads) == 4:
                break


# A function whose second part is in another page, which is not there before it is wanted: an
# instruction begins so many bytes BEFORE it, behind another one of ten bytes if HAS_OTHER.
CROSSING = """
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
static volatile sig_atomic_t is_wanted;
static volatile int word;
static void want(int number) { (void)number; is_wanted = 1; }
int main(void) {
    uint8_t *pages = mmap(0, 2 << 12, PROT_READ | PROT_WRITE | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *crossing = pages + 4096 - BEFORE, *there = crossing - (HAS_OTHER ? 10 : 0);
    static const uint8_t constant[] = {0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8}; // mov $..., %rax
    memcpy(pages, "\\x8b\\x06\\x85\\xff\\x0f\\x85", 6); // mov (%rsi), %eax; test %edi, %edi; jne
    memcpy(pages + 6, &(int32_t){(int32_t)(there - pages - 10)}, 4);
    memcpy(pages + 10, "\\xc3", 1);
    if (HAS_OTHER)
        memcpy(there, constant, 10);
    memcpy(crossing, constant, BEFORE);
    signal(SIGUSR1, want);
    printf("%p\\n", (void *)(crossing + 10));
    fflush(stdout);
    void (*function)(int, volatile int *) = (void (*)(int, volatile int *))pages;
    while (!is_wanted)
        function(0, &word);
    memcpy(crossing + BEFORE, constant + BEFORE, 10 - BEFORE);
    memcpy(crossing + 10, "\\x8b\\x06\\xc3", 3);
    function(1, &word);
    printf("there\\n");
    fflush(stdout);
    for (;;)
        function(1, &word);
}
"""


@pytest.mark.parametrize(("before", "has_other"), [(2, 0), (5, 1)])
def test_code_that_was_not_there_is_translated_once_it_is(
    before: int, has_other: int, tmp_path: Path
) -> None:
    """What comes next is translated ahead, here before there is all of it."""
    program = CROSSING.replace("BEFORE", str(before)).replace("HAS_OTHER", str(has_other))
    with (
        running(compile_c(tmp_path, program)) as target,
        closing(ReplicaSource(target.pid)) as source,
    ):
        assert target.stdout is not None
        behind = int(target.stdout.readline(), 16)
        request = BurstRequest(target.pid, 5000, 1.0)
        while patiently(lambda: source.capture(request)).end is not BurstEnd.FULL:
            pass
        target.send_signal(signal.SIGUSR1)
        assert target.stdout.readline() == "there\n"
        for _ in tries():
            burst = patiently(lambda: source.capture(request))
            assert burst.end is not BurstEnd.UNREADABLE
            if behind in burst.ip:
                break
