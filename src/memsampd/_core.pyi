"""Native core of memsampd (see src/memsampd/_core/)."""

from collections.abc import Sequence
from mmap import mmap
from typing import Any

from numpy.typing import NDArray

# ---- models: reuse histogram and exact references (lru.c, reuse_counter.c, random_caches.c) ----

_Buffer = NDArray[Any] | bytes | bytearray | memoryview

REUSE_BINS: int
REUSE_EXACT_BITS: int
REUSE_OCTAVE_BITS: int
REUSE_LIMIT_BITS: int
RUN_LINE_BITS: int

def line_stream(address: _Buffer, size_bytes: _Buffer, shift: int, /) -> bytes: ...

class ReuseCounter:
    def __new__(cls) -> ReuseCounter: ...
    def begin(self) -> None: ...
    def add(self, lines: _Buffer, starts: int | None = None, /) -> None: ...
    def histograms(self) -> tuple[bytes, bytes]: ...

class LruStack:
    def __new__(
        cls,
        sizes_lines: Sequence[int],
        max_hint: int = 0,
        reuse_bounds: Sequence[int] | None = None,
    ) -> LruStack: ...
    def feed(self, lines: _Buffer, distances: _Buffer | None = None) -> None: ...
    def feed_runs(self, runs: _Buffer, /) -> None: ...
    def take_misses(self) -> tuple[int, bytes]: ...
    def take_reuses(self) -> bytes: ...
    @property
    def distinct_lines(self) -> int: ...

class RandomCaches:
    def __new__(cls, sizes_lines: Sequence[int], seed: int) -> RandomCaches: ...
    def feed(self, lines: _Buffer, /) -> None: ...
    def feed_runs(self, runs: _Buffer, /) -> None: ...
    def take_misses(self) -> tuple[int, bytes]: ...

# --- perf.c: perf_event_open -----------------------------------------------------------------
INHERIT_NOTHING: int
INHERIT_THREADS: int
INHERIT_ALL: int
PERF_EVENT_IOC_SET_OUTPUT: int
PERF_TYPE_HARDWARE: int
PERF_TYPE_SOFTWARE: int
PERF_TYPE_BREAKPOINT: int
PERF_COUNT_HW_CPU_CYCLES: int
PERF_COUNT_SW_TASK_CLOCK: int

class PerfRing:
    """The ring buffer of a sampling event."""
    def __init__(self, fd: int, data_bytes: int) -> None: ...
    def drain(
        self,
    ) -> tuple[bytearray, list[tuple[str, int, int, int, int, int, str]], int, int]: ...
    def close(self) -> None: ...

def perf_open_sampler(
    tid: int, cpu: int, period_ns: int, wakeup_bytes: int, inherit: int, /
) -> int: ...
def perf_open_counter(
    tid: int,
    type: int,
    config: int,
    config1: int = 0,
    config2: int = 0,
    *,
    bp_type: int = 0,
    precise_ip: int = 0,
    period: int = 0,
) -> int: ...

# --- breakpoints.c, moments.c: a thread's CPU time at points of its course -------------------
BREAKPOINT_EXECUTE: int
BREAKPOINT_ACCESS: int
BREAKPOINT_HITS: int

class Breakpoints:
    """One to four breakpoints on a thread, in one group with its task clock."""
    def __new__(
        cls, tid: int, points: Sequence[tuple[int, int]], hits: int, /
    ) -> Breakpoints: ...
    def retarget(self, addresses: Sequence[int], /) -> None: ...
    def arm(self) -> None: ...
    def wait(self, hits: int, seconds: float, /) -> bool: ...
    def hits(self) -> bytes: ...
    def task_ns(self) -> int | None: ...
    def close(self) -> None: ...

class Moments:
    """Registers and CPU time of a thread, at times of its CPU time from now on."""
    def __new__(cls, tid: int, times_ns: Sequence[int], /) -> Moments: ...
    def wait(self, seconds: float, /) -> bool: ...
    def take(self) -> list[tuple[int, int, bytes] | None]: ...
    def close(self) -> None: ...

# --- probe.c: what this machine allows, tried on a child of our own --------------------------
def spawn_busy_child() -> tuple[int, int]: ...
def spawn_looping_child(
    spins: int, /
) -> tuple[int, tuple[int, int], tuple[int, int]]: ...
def probe_ptrace(tid: int, /) -> None: ...
def cpuid(leaf: int, subleaf: int = 0, /) -> tuple[int, int, int, int] | None: ...

# --- shadow.c: shadows; every call from one and the same thread ------------------------------
SHADOW_SCRATCH_BYTES: int
FDINFO_BYTES: int
SHADOW_EXIT_STATUS: int
SHADOW_SCRATCH_MARK: str

def shadow_spawn(
    tid: int,
    site: tuple[int, int, int, int, int],
    count: int,
    suspend_seccomp: bool,
    unforked_areas: bytes,
    unforked_room: bytearray | mmap,
    fdinfo: bytes,
    /,
) -> tuple[
    str,
    int,
    tuple[int, ...],
    tuple[int, ...],
    bytes,
    int,
    int,
    float,
    float,
    bool,
    int,
    tuple[bytes, int, float, int, bytes],
    bytes,
]: ...
def shadow_call(
    pid: int,
    regs: bytes,
    syscall_address: int,
    number: int,
    arguments: tuple[int, int, int, int, int, int],
    /,
) -> int: ...
def shadow_leave_rseq(pid: int, regs: bytes, syscall_address: int, /) -> bool: ...
def shadow_fork(
    pid: int, regs: bytes, syscall_address: int, is_sibling: bool, suspend_seccomp: bool, /
) -> tuple[str, int, int, int]: ...
def shadow_kill(pid: int, /) -> tuple[float, int]: ...
def shadow_reap(
    tid: int,
    ns_pids: bytes,
    site: tuple[int, int, int, int, int],
    any_state: bool,
    suspend_seccomp: bool,
    /,
) -> tuple[str, int, bytes, float]: ...

# memsampd.sampler.shadow.snapshots.EmulationIdentity
_Identity = tuple[int, int, int, int, int, int, bool, int, bytes, bytes]

# --- stepper.c, recipe.c: stepping a shadow --------------------------------------------------
RECIPE_BYTES: int

class Stepper:
    def add(self, recipes: bytes, /) -> None: ...
    def run(self, pid: int, max_rows: int, deadline_seconds: float, /) -> tuple[str, int, int]: ...
    def emulate(self, identity: _Identity | None, /) -> None: ...
    def emulated_calls(self) -> int: ...
    def take(self) -> tuple[bytes, bytes, bytes, bytes, int, int]: ...
    def take_lines(self, shift: int, /) -> tuple[bytes, int, int, int, int, int]: ...
    def cancel(self) -> None: ...

# --- native.c: running a shadow natively to a point, timed ------------------------------------
class NativeRunner:
    def run(
        self, pid: int, ip: int, deadline_seconds: float, /
    ) -> tuple[str, int, int, int, int, int]:
        """How it ended, ip, number of the call or signal, stops, CPU nanoseconds, minor faults."""
    def emulate(self, identity: _Identity | None, /) -> None: ...
    def identity(self) -> _Identity | None: ...
    def cancel(self) -> None: ...

def native_registers(pid: int, /) -> bytes: ...
def native_set_registers(pid: int, registers: bytes, /) -> None: ...
def native_touch_pages(pid: int, pages: _Buffer, is_written: bool, /) -> int: ...

# --- translator.c, forms.c: translated code ---------------------------------------------------
FORM_BYTES: int
AREA_BYTES: int
HOT_EXECUTIONS: int

def take_apart(code: bytes, /) -> tuple[int, int, bytes, int] | None: ...

class Translator:
    def begin(
        self,
        pid: int,
        pidfd: int,
        memory: int,
        syscall_address: int,
        scratch_address: int,
        area_address: int,
        writable_code: bytes,
        identity: _Identity | None,
        max_accesses: int,
        course_accesses: int,
        line_shift: int,
        deadline_seconds: float,
        /,
    ) -> int: ...
    def run(self) -> tuple[str, int, int]: ...
    def wanted_form(self) -> tuple[int, bytes, int]: ...
    def add_form(self, form: bytes, /) -> None: ...
    def take(self) -> tuple[bytes, bytes, bytes, bytes, int, int]: ...
    def take_lines(self, shift: int, /) -> tuple[bytes, int, int, int, int, int]: ...
    def registers(self) -> bytes: ...
    def course(
        self,
    ) -> tuple[
        int, bool, tuple[int, int, int] | None, tuple[int, int, int] | None, bytes, bytes
    ]: ...
    def emulated_calls(self) -> int: ...
    def guide(self, executions: int, /) -> None: ...
    def costs(self) -> dict[str, float]: ...
    def close(self) -> None: ...
    def cancel(self) -> None: ...

# --- emulation.c: system calls of shadows ----------------------------------------------------
FILE_IS_NULL: int

def syscall_name(number: int, /) -> str | None: ...
