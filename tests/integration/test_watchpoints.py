"""Watchpoints on real processes: what they tell, and that nobody is harmed. Never how soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tracees import compile_c, descriptors
from waiting import PATIENCE_SECONDS

from memsampd import _core
from memsampd.daemon.attach import attached
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.errors import CaptureError, MemsampdError
from memsampd.estimate.events import WatchRecord
from memsampd.exporters.analysis import estimator_of
from memsampd.exporters.recording import read_recording
from memsampd.machines.pmu import HardwareEvent
from memsampd.sampler.perf.arrival import HIT_SECONDS
from memsampd.sampler.perf.watch import FEW_HITS, SWITCH_SECONDS, Watch, Watched, WatchOrder
from memsampd.sampler.perf.watching_cost import WatchingCost
from memsampd.sampler.perf.watchpoints import POINTS, Watchpoints
from memsampd.sampler.process.schedstat import read_scheduled
from memsampd.sampler.process.status import list_threads

FAULTS = HardwareEvent("page faults", _core.PERF_TYPE_SOFTWARE, 2)
LINES, NEAR, LINE_BYTES = 50_000, 9, 64
LIMIT_SECONDS = 0.01
DISTANCE = LINES * (NEAR + 1) - 1
KNOWN_DISTANCE = (
    Path(__file__).parents[2] / "benchmarks" / "programs" / "sources" / "known_distance.c"
)
TOUCHING = r"""
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Does what each letter of its input says with one word of a line of its own. */
static struct { _Alignas(64) volatile uint64_t words[8]; } line;

static void *touch(void *unused)
{
    line.words[0] = 2;
    (void)unused;
    return NULL;
}

static struct worker { sem_t asked, answered; int ends, spins; pthread_t thread; } early, late;

static void spin_for(double seconds);

static void *wait_and_touch(void *argument)
{
    struct worker *worker = argument;
    for (;;) {
        sem_wait(&worker->asked);
        if (worker->ends)
            return NULL;
        if (worker->spins)
            spin_for(0.4);
        else
            touch(NULL);
        sem_post(&worker->answered);
    }
}

static void begin(struct worker *worker)
{
    sem_init(&worker->asked, 0, 0);
    sem_init(&worker->answered, 0, 0);
    worker->ends = 0;
    pthread_create(&worker->thread, NULL, wait_and_touch, worker);
}

static void ask(struct worker *worker)
{
    sem_post(&worker->asked);
    sem_wait(&worker->answered);
}

static void end(struct worker *worker)
{
    worker->ends = 1;
    sem_post(&worker->asked);
    pthread_join(worker->thread, NULL);
}

static void spin(int times)
{
    for (volatile int i = 0; i < times; i++)
        ;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void spin_for(double seconds)
{
    const double end = cpu_seconds() + seconds;
    while (cpu_seconds() < end)
        spin(100000);
}

int main(int argc, char **argv)
{
    char letter;
    begin(&early);
    printf("%" PRIuPTR "\n", (uintptr_t)&line);
    fflush(stdout);
    while (read(0, &letter, 1) == 1) {
        pthread_t thread;
        int status = 0;
        switch (letter) {
        case 't': touch(NULL); break;
        case 'n': line.words[1] = 3; break;
        case 'c': line.words[7] = 4; break; /* what is counted */
        case 'k': if (pipe((int *)&line.words[0]) < 0) return 8; break; /* the kernel writes */
        case 'p': pthread_create(&thread, NULL, touch, NULL); pthread_join(thread, NULL); break;
        case 'o': ask(&early); break; /* the other thread does */
        case 'w': early.spins = 1; ask(&early); early.spins = 0; break; /* the other thread works */
        case 'b': begin(&late); break;
        case 'l': ask(&late); break;
        case 'e': end(&late); break;
        case 'f': if (fork() == 0) { touch(NULL); _exit(0); } wait(&status);
                  if (status != 0) return 7;
                  break;
        case 'm': spin(600000); break;
        case 's': spin(3000000); break;
        case 'x': execv(argv[0], argv); return 6;
        case 'q': return 5;
        }
        write(1, "d", 1); /* done */
    }
    (void)argc;
    return 4;
}
"""


@pytest.fixture(scope="module")
def touching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("touching"), TOUCHING, "-O1", "-w")


@pytest.fixture(scope="module")
def known_distance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("known"), KNOWN_DISTANCE.read_text(), "-O2")


class Toucher:
    """The program that does as it is told."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.line = int(process.stdout.readline())

    def order(self, address: int | None = None) -> WatchOrder:
        return WatchOrder((self.line if address is None else address,), self.process.pid, 1e9)

    def do(self, letters: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for letter in letters:
            os.write(self.process.stdin.fileno(), letter.encode())
            assert os.read(self.process.stdout.fileno(), 1) == b"d"

    def end(self) -> int:
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), b"q")
        return self.process.wait()


@contextmanager
def running(program: Path) -> Iterator[Toucher]:
    process = subprocess.Popen(
        [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        yield Toucher(process)
    finally:
        process.kill()
        process.communicate()


def ended(points: Watchpoints, count: int) -> list[Watched]:
    """Wait until so many watches have come to an end by themselves."""
    found: list[Watched] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.01)
        found += points.poll()
    assert len(found) == count
    return found


def told(points: Watchpoints) -> Watched:
    """End the only watch, and what came of it."""
    points.suspend()
    (watched,) = points.poll()
    return watched


def test_a_known_distance_is_measured(known_distance: Path, tmp_path: Path) -> None:
    """Pauses between hits, by the clock of the loop itself: within a factor, on a busy machine."""
    counted = tmp_path / "counted"
    command = [str(known_distance), str(LINES), str(NEAR), str(counted)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base = int(process.stdout.readline())
            with closing(Watchpoints(PATIENCE_SECONDS)) as points:
                for line in (0, 7, LINES // 2, LINES - 1):
                    points.start(WatchOrder((base + LINE_BYTES * line,), process.pid, 1e-4))
                assert points.free == 0
                watches = ended(points, 4)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            accesses = int.from_bytes(counted.read_bytes()[:8], "little")
            ticks = Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]
        finally:
            process.kill()
    rate = accesses / (int(ticks) * 1e-9)
    pauses = [np.diff(watched.cpu_seconds)[1:-1] * rate for watched in watches]
    assert {watched.end for watched in watches} <= {"returned", "hits"}
    assert any(map(len, pauses))
    # Of a line that got few hits a single one may be late.
    assert DISTANCE / 3 < np.median(np.concatenate(pauses)) < DISTANCE * 3


def test_hits_are_told_in_order_and_by_word(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        words = (target.line, target.line + 8)
        points.start(WatchOrder(words, target.process.pid, 1e9))
        target.do("tnt")
        watched = told(points)
        assert target.end() == 5
    assert watched.hit_words == (0, 1, 0)
    assert watched.end == "evicted"
    assert watched.lost_seconds > 0
    for moments in (watched.times_seconds, watched.cpu_seconds):
        assert len(moments) == 5
        assert list(moments) == sorted(moments)


def test_events_cost_a_thread_that_sleeps_often_though_nothing_is_hit(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        pid = target.process.pid
        before = times_of(pid)
        points.start(target.order())
        begun = times_of(pid)
        while times_of(pid) < begun + 20:
            target.do("k")
        least = times_of(pid) - begun
        watched = told(points)
        most = times_of(pid) - before
    assert watched.hit_words == ()
    clock_and_word = 2 * SWITCH_SECONDS
    assert least * clock_and_word <= watched.lost_seconds + 1e-12
    assert watched.lost_seconds <= most * clock_and_word + 1e-12


def times_of(tid: int) -> int:
    """How often a thread has been switched to."""
    found = read_scheduled(tid)
    assert found is not None
    return found.times


def test_what_the_kernel_does_for_a_thread_is_not_seen(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        target.do("k")  # pipe(2) writes the word
        assert told(points).hit_words == ()


needs_kernel_hits = pytest.mark.skipif(
    not WatchingCost.measure().sees_kernel, reason="hits by the kernel may not be counted"
)


@needs_kernel_hits
def test_what_the_kernel_touches_all_the_time_is_watched_no_more(touching: Path) -> None:
    """Each touch traps; nobody would end that, as none of them tells anything."""
    with running(touching) as target, closing(Watchpoints(sees_kernel=True)) as points:
        points.start(target.order())
        target.do("t" + FEW_HITS * "k" + "t")
        (watched,) = ended(points, 1)
        assert watched.end == "evicted"
        assert watched.hit_words == (0,)  # the last one was watched no more
        assert target.end() == 5


@needs_kernel_hits
def test_user_hits_are_told_beside_those_of_the_kernel(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints(sees_kernel=True)) as points:
        points.start(target.order())
        target.do("tkt")
        watched = told(points)
        assert watched.hit_words == (0, 0)
        assert watched.lost_seconds >= 3 * HIT_SECONDS  # all are paid for
        assert target.end() == 5


def test_the_kernel_ends_what_has_a_limit(touching: Path) -> None:
    """However late we look."""
    with running(touching) as target, closing(Watchpoints()) as points:
        while not touched_within_limit(points, target):  # the host took a CPU away meanwhile
            points.suspend()
            assert len(points.poll()) == 2
        target.do(300 * "s" + "t")  # an s takes 0.5 to 10 ms
        silent, touched = sorted(ended(points, 2), key=lambda each: each.hit_words)
        assert (silent.end, silent.hit_words) == ("patience", ())
        assert touched.hit_words == (0,)  # the last touch was watched no more
        since_hit_seconds = touched.cpu_seconds[-1] - touched.cpu_seconds[1]
        # The kernel may be late: its timer waits for user mode.
        if touched.end == "patience":
            assert since_hit_seconds >= LIMIT_SECONDS - HIT_SECONDS  # which is taken off
        else:
            assert (touched.end, since_hit_seconds < LIMIT_SECONDS) == ("evicted", True)
        assert touched.patience_seconds == silent.patience_seconds == LIMIT_SECONDS
        assert silent.cpu_seconds[-1] >= LIMIT_SECONDS
        assert target.end() == 5


def touched_within_limit(points: Watchpoints, target: Toucher) -> bool:
    """Watch two words, and have the first one touched: whether that was before the limit."""
    for address in (target.line, target.line + 8):
        order = msgspec.structs.replace(target.order(address), limit_seconds=LIMIT_SECONDS)
        points.start(order)
    target.do("mt")  # an m takes 0.1 to 2 ms
    touched, _ = points._watches
    return is_within_limit(touched, LIMIT_SECONDS)


def is_within_limit(watch: Watch, limit_seconds: float) -> bool:
    """Whether no thread has used half of it yet."""
    return max(point.clock()[0] for point in watch.points.values()) < limit_seconds * 1e9 / 2


def test_the_kernels_word_ends_what_has_a_limit(
    touching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timer and what it counts are two clocks: as if the timer went twice as fast."""
    real = _core.Breakpoints

    def fast(
        tid: int,
        words: Sequence[tuple[int, int]],
        hits: int,
        counters: Sequence[tuple[int, int, int, int, int]],
        sees_kernel: bool,
        cpu_ns: int,
    ) -> _core.Breakpoints:
        return real(tid, words, hits, counters, sees_kernel, cpu_ns // 2)

    monkeypatch.setattr(_core, "Breakpoints", fast)
    with running(touching) as target, closing(Watchpoints()) as points:
        order = msgspec.structs.replace(target.order(), limit_seconds=LIMIT_SECONDS)
        points.start(order)
        target.do(300 * "s")
        (watched,) = ended(points, 1)
        assert (watched.end, watched.hit_words) == ("patience", ())
        assert watched.cpu_seconds[-1] >= LIMIT_SECONDS
        assert target.end() == 5


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_first_thread_that_reaches_the_limit_ends_the_watch(
    touching: Path, is_gone: bool
) -> None:
    """Or its touches would be missed; those of others tell nothing from then on."""
    with running(touching) as target, closing(Watchpoints()) as points:
        pid = target.process.pid
        limit_seconds = 5 * LIMIT_SECONDS
        order = msgspec.structs.replace(target.order(), limit_seconds=limit_seconds)
        points.start(order, list_threads(pid))
        target.do("o")
        while not is_within_limit(points._watches[0], limit_seconds):
            points.suspend()  # the host took a CPU away meanwhile
            assert len(points.poll()) == 1
            points.start(order, list_threads(pid))
            target.do("o")
        target.do("w")  # takes eight times as much
        before_seconds = time.monotonic()
        target.do("ot")
        if is_gone:
            (other,) = set(list_threads(pid)) - {pid}
            points.follow([pid])  # as if it had ended
            assert other not in points._watches[0].points
        (watched,) = ended(points, 1)
        assert (watched.end, watched.hit_words) == ("evicted", (0,))
        assert watched.times_seconds[-1] < before_seconds
        assert target.end() == 5


def test_reading_the_memory_of_the_target_is_no_hit(touching: Path) -> None:
    """What memsampd's replica does."""
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        with open(f"/proc/{target.process.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(target.line)
            assert len(memory.read(64)) == 64
        target.do("s")
        assert told(points).hit_words == ()


def test_other_threads_are_watched_if_they_are_there(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order(), list_threads(target.process.pid))
        target.do("otp")  # the last one begins later and is gone at once: it is not seen
        assert told(points).hit_words == (0, 0)
        points.start(target.order())
        target.do("o")
        assert told(points).hit_words == ()
        assert target.end() == 5


def test_another_threads_touch_has_its_moment_between_two_looks(touching: Path) -> None:
    """Whatever the thread does later; no more looks are kept than touches need."""
    with running(touching) as target, closing(Watchpoints()) as points:
        pid = target.process.pid
        (worker,) = set(list_threads(pid)) - {pid}
        points.start(WatchOrder((target.line + 8,), worker, 1e9), [pid])
        (watch,) = points._watches
        target.do("o")  # it runs for a moment, and touches another word
        points.poll()
        _, least_seconds, _ = watch.looks[-1]
        target.do("n")
        points.poll()
        _, most_seconds, _ = watch.looks[-1]
        target.do("w")
        for _ in range(4):
            points.poll()
        watched = told(points)
        assert watched.hit_words == (0,)
        assert least_seconds <= watched.cpu_seconds[1] <= most_seconds
        assert len(watch.looks) == 3
        assert target.end() == 5


def test_threads_that_begin_later_are_watched_from_the_next_turn_on(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        pid = target.process.pid
        points.start(target.order(), list_threads(pid))
        target.do("bl")  # nobody knows of it yet
        points.follow(list_threads(pid))
        target.do("lto")
        points.follow(list_threads(pid))  # nothing new: nothing is watched twice
        target.do("l")
        watched = told(points)
        assert watched.hit_words == (0, 0, 0, 0)
        assert list(watched.times_seconds) == sorted(watched.times_seconds)
        assert target.end() == 5


def test_threads_that_end_make_room_for_others(touching: Path) -> None:
    """What they touched is kept, their descriptors are not."""
    with running(touching) as target, closing(Watchpoints(most_files=3 * 2 * POINTS)) as points:
        pid, before = target.process.pid, descriptors()
        points.start(target.order(), list_threads(pid))
        of_two = descriptors()
        for _ in range(4):
            target.do("b")
            points.follow(list_threads(pid))
            assert descriptors() > of_two
            target.do("le")
            threads_are(pid, 2)
            points.follow(list_threads(pid))
            assert descriptors() == of_two
        assert told(points).hit_words == (0, 0, 0, 0)
        assert descriptors() == before
        assert target.end() == 5


def test_a_thread_that_cannot_be_watched_ends_the_watch(touching: Path) -> None:
    """Or its touches would be missed, and distances be longer than they are."""
    before = descriptors()
    with running(touching) as target, closing(Watchpoints()) as points:
        known = list_threads(target.process.pid)
        points.start(target.order(), known)
        target.do("tb")
        (new,) = set(list_threads(target.process.pid)) - set(known)
        words = [(_core.BREAKPOINT_ACCESS, target.line + 8 * word) for word in range(4)]
        debugger = _core.Breakpoints(new, words, 1)
        points.follow(list_threads(target.process.pid))
        assert points.free == POINTS
        (watched,) = points.poll()
        assert (watched.end, watched.hit_words) == ("evicted", (0,))
        debugger.close()
        assert target.end() == 5
    assert descriptors() == before


def threads_are(pid: int, count: int) -> None:
    """Wait until a process has so many threads: one that was joined is not gone at once."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list_threads(pid)) != count and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(list_threads(pid)) == count


def test_with_few_descriptors_fewer_threads_are_watched(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints(most_files=2)) as points:
        points.start(target.order(), list_threads(target.process.pid))
        target.do("ot")
        assert told(points).hit_words == (0,)
        assert target.end() == 5


def test_children_are_not_hit_nor_harmed(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        target.do("ft")
        assert len(told(points).hit_words) == 1
        assert target.end() == 5


def test_another_program_is_not_watched(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        target.do("t")
        assert target.process.stdin is not None
        os.write(target.process.stdin.fileno(), b"x")
        (watched,) = ended(points, 1)
        assert watched.end == "gone"
        assert len(watched.hit_words) == 1
        assert target.process.poll() is None


def test_an_exit_ends_a_watch(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        assert target.end() == 5
        assert ended(points, 1)[0].end == "gone"
        with pytest.raises(CaptureError, match="gone"):
            points.start(target.order())
        assert points.free == 4


def test_too_many_hits_end_a_watch(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        points.start(target.order())
        target.do((FEW_HITS + 5) * "t")
        (watched,) = ended(points, 1)
        assert watched.end == "hits"
        assert len(watched.hit_words) == FEW_HITS
        assert target.end() == 5


def touches_of_word_7(target: Toucher) -> HardwareEvent:
    """In the place of loads and stores: how many there are is known."""
    last = target.line + 56
    return HardwareEvent("stores", _core.PERF_TYPE_BREAKPOINT, 0, last, 8, bp_type=2)


def test_what_is_counted_between_touches(touching: Path) -> None:
    """Exactly, whatever time passes; nothing that came before."""
    with running(touching) as target:
        counter = touches_of_word_7(target)
        with closing(Watchpoints(counters=[counter])) as points:
            target.do("ccc")
            points.start(target.order())
            target.do("cct" + 4 * "c" + "sttn" + 7 * "c" + "tc")
            found = told(points)
            assert points.counts
        assert found.counted == (0, 2, 6, 6, 13, 14)
        assert points.notes == ()
        assert target.end() == 5


def test_one_watch_at_a_time_has_the_counters(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints(counters=[FAULTS])) as points:
        for _ in range(2):
            points.start(target.order(target.line))
            points.start(target.order(target.line + 8))
            assert [bool(each.counters) for each in points._watches] == [True, False]
            points.suspend()
            assert len(points.poll()) == 2
        assert points.counts
        assert target.end() == 5


def test_another_threads_touches_are_counted_between_those_of_the_own(touching: Path) -> None:
    with running(touching) as target:
        with closing(Watchpoints(counters=[touches_of_word_7(target)])) as points:
            points.start(target.order(), list_threads(target.process.pid))
            target.do("cctccoccccto")
            found = told(points)
        assert len(found.hit_words) == 4
        mine, other, again, last = found.counted[1:5]
        assert (mine, again) == (2, 8)
        assert mine <= other <= again  # its own counter tells what lies between
        assert last == found.counted[-1] == 8
        assert target.end() == 5


def test_counters_that_cannot_be_had_are_given_up_in_words(touching: Path) -> None:
    """Four words take all debug registers, and the counter needs one here."""
    with running(touching) as target:
        with closing(Watchpoints(counters=[touches_of_word_7(target)])) as points:
            words = tuple(target.line + 8 * word for word in range(4))
            points.start(msgspec.structs.replace(target.order(), addresses=words))
            assert not points.counts
            (note,) = points.notes
            assert "no longer counted" in note
            target.do("tct")
            found = told(points)
        assert len(found.hit_words) == 2
        assert found.counted == ()
        assert target.end() == 5


def test_counters_that_are_taken_away_end_the_watch(touching: Path) -> None:
    """As when somebody pins events of his own: the kernel gives the whole group up."""
    with running(touching) as target, closing(Watchpoints(counters=[FAULTS])) as points:
        points.start(target.order())
        target.do("t")
        (watch,) = points._watches
        real = watch.points[target.process.pid]

        class GivenUp:
            """What the kernel says then; nothing here makes it do so."""

            hits, close = real.hits, real.close
            ended_ns = real.ended_ns

            def clock(self) -> tuple[int, bool, int, bool]:
                return 0, False, 0, True

        watch.points[target.process.pid] = GivenUp()  # type: ignore[assignment]
        (found,) = points.poll()
        assert found.end == "evicted"
        assert len(found.hit_words) == 1
        assert not points.counts
        assert points.notes
        assert target.end() == 5


def test_no_hit_for_long_ends_a_watch(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints(patience_seconds=1e-3)) as points:
        points.start(target.order())
        target.do("ssss")
        (watched,) = ended(points, 1)
        assert watched.end == "patience"
        assert watched.cpu_seconds[-1] >= 1e-3
        assert target.end() == 5


def test_taken_debug_registers_are_told_and_given_back(touching: Path) -> None:
    before = descriptors()
    with running(touching) as target:
        words = [(_core.BREAKPOINT_ACCESS, target.line + 8 * word) for word in range(4)]
        debugger = _core.Breakpoints(target.process.pid, words, 1)
        with closing(Watchpoints()) as points:
            with pytest.raises(MemsampdError, match="in use") as caught:
                points.start(target.order())
            assert caught.value.remedy
            debugger.close()
            points.start(target.order())
            points.close()
            points.close()
        debugger = _core.Breakpoints(target.process.pid, words, 1)  # all are free again
        debugger.close()
        assert target.end() == 5
    assert descriptors() == before


def test_kernel_addresses_and_odd_ones_are_refused(touching: Path) -> None:
    with running(touching) as target, closing(Watchpoints()) as points:
        for address in (target.line + 1, (1 << 64) - 4096):
            with pytest.raises(MemsampdError):
                points.start(target.order(address))
        assert points.free == 4
        assert target.end() == 5


def test_a_killed_watcher_leaves_the_target_alone(touching: Path) -> None:
    """As when memsampd is killed: the kernel takes its breakpoints away."""
    code = (
        "import sys, time\n"
        "from memsampd.sampler.perf.watchpoints import *\n"
        "points = Watchpoints()\n"
        "pid, line = map(int, sys.argv[1:])\n"
        "for word in range(4): points.start(WatchOrder((line + 8 * word,), pid, 1e9))\n"
        "print('armed', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with running(touching) as target:
        command = [sys.executable, "-c", code, str(target.process.pid), str(target.line)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == "armed\n"
            target.do("tn")
            watcher.send_signal(signal.SIGKILL)
        target.do("tnfp")
        with closing(Watchpoints()) as points:
            points.start(target.order())
            target.do("t")
            assert len(told(points).hit_words) == 1
        assert target.end() == 5


def test_a_session_watches_what_its_bursts_left_open(
    known_distance: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told again, its records say the same; the debug registers are free afterwards."""
    followed: set[tuple[int, ...]] = set()
    monkeypatch.setattr(Watchpoints, "is_watching", True)  # those of this program end in a turn
    monkeypatch.setattr(Watchpoints, "follow", lambda _, tids: followed.add(tuple(tids)))
    command = [str(known_distance), str(LINES), str(NEAR), str(tmp_path / "counted")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base = int(process.stdout.readline())
            config = SessionConfig(own_cpu_share=1e6, budget_share=0.5)
            path = tmp_path / "recording"
            with attached(process.pid, config, OutputConfig(recording=path)) as session:
                deadline = time.monotonic() + PATIENCE_SECONDS
                while not watches_of(path) and time.monotonic() < deadline:
                    time.sleep(0.05)
                    session.step()
                assert session.snapshot().backend["long_distances"] == "watchpoints"
                session.finish(observed_no_more=True)
                said = session.snapshot().estimate
                words = [(_core.BREAKPOINT_ACCESS, base + 8 * word) for word in range(4)]
                _core.Breakpoints(process.pid, words, 1).close()
        finally:
            process.kill()
    assert watches_of(path)
    assert followed == {(process.pid,)}  # its threads
    recording = read_recording(path)
    again = estimator_of(recording.header, said.sizes_bytes)
    for event in recording.events:
        again.add(event)
    again.finish()
    for policy, curve in again.estimate().curves.items():
        # But for rounding: the live one was asked more often.
        for name in ("miss_ratio", "low"):
            live, replayed = getattr(said.curves[policy], name), getattr(curve, name)
            assert replayed == pytest.approx(live, rel=1e-9, abs=1e-12)


def watches_of(recording: Path) -> list[WatchRecord]:
    """Watches so far that found at least one pause."""
    events = read_recording(recording).events
    found = [event for event in events if isinstance(event, WatchRecord)]
    return [watch for watch in found if len(watch.hit_words) > 1]
