"""Native core of memsampd (see src/memsampd/_core/)."""

from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any

from numpy.typing import NDArray

# ---- models: reuse histogram and exact references (reuse/) ----------------------------------

_Buffer = NDArray[Any] | bytes | bytearray | memoryview

REUSE_BINS: int
REUSE_EXACT_BITS: int
REUSE_OCTAVE_BITS: int
REUSE_LIMIT_BITS: int
RUN_LINE_BITS: int
LINE_BITS: int

def use_vectors(wanted: bool, /) -> bool: ...
def line_stream(address: _Buffer, size_bytes: _Buffer, shift: int, /) -> bytes: ...

class ReuseCounter:
    def __new__(cls, seed: int = 0) -> ReuseCounter: ...
    def begin(self) -> None: ...
    def add(self, lines: _Buffer, /) -> None: ...
    def histograms(self) -> tuple[bytes, bytes]: ...
    def scattered(self) -> int: ...
    def stack_samples(self) -> bytes: ...

class LruStack:
    def __new__(
        cls,
        sizes_lines: Sequence[int],
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
PERF_EVENT_IOC_ENABLE: int
PERF_EVENT_IOC_DISABLE: int
PERF_EVENT_IOC_REFRESH: int
PERF_EVENT_IOC_SET_FILTER: int
PERF_EVENT_IOC_SET_OUTPUT: int
PERF_TYPE_HARDWARE: int
PERF_TYPE_SOFTWARE: int
PERF_TYPE_BREAKPOINT: int
PERF_TYPE_TRACEPOINT: int
PERF_COUNT_HW_CPU_CYCLES: int
PERF_COUNT_HW_INSTRUCTIONS: int
PERF_COUNT_SW_TASK_CLOCK: int
PERF_EVENT_IOC_PERIOD: int
SAMPLE_ADDRESS: int
SAMPLE_CHAIN: int
SAMPLE_COUNTS: int
SAMPLE_RAW: int
SAMPLE_REGISTERS: int
SAMPLE_DATA_SOURCE: int
SAMPLE_COUNTS_MOST: int
SAMPLE_STACK: int  # not for PerfRing: sampler/walk/thread_samples.py reads such samples by itself

_Records = tuple[bytearray, list[tuple[str, int, int, int, int, int, str]], int, int]

class PerfRing:
    """The ring buffer of sampling events, all with the same sample_type."""
    def __init__(self, fd: int, data_bytes: int, sample_type: int = ...) -> None: ...
    def drain(self) -> _Records: ...
    def peek(self) -> _Records: ...
    def was_full(self) -> bool: ...
    def close(self) -> None: ...

def parse_records(data: _Buffer, sample_type: int, tail: int = 0, head: int = ...) -> _Records: ...
def perf_open_sampler(
    tid: int,
    cpu: int,
    period: int,
    wakeup_bytes: int,
    inherit: int,
    *,
    type: int = ...,
    config: int = ...,
    config1: int = 0,
    config2: int = 0,
    bp_type: int = 0,
    precise_ip: int = 0,
    sample_type: int = ...,
    group: int = -1,
    exclude_kernel: bool = True,
    disabled: bool = False,
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
    exclude_kernel: bool = True,
) -> int: ...
def pass_bytes(from_fd: int, to_fd: int, rounds: int, begins: bool, /) -> int: ...

# --- breakpoints.c: a thread's CPU time at points of its course ------------------------------
BREAKPOINT_EXECUTE: int
BREAKPOINT_ACCESS: int

class Breakpoints:
    """One to four breakpoints on a thread, in one group with its task clock."""
    def __new__(
        cls,
        tid: int,
        points: Sequence[tuple[int, int]],
        hits: int,
        counters: Sequence[tuple[int, int, int, int, int]] = (),
        sees_kernel: bool = False,
        cpu_ns: int = 0,
        /,
    ) -> Breakpoints: ...
    def arm(self, starts: bool = True, /) -> None: ...
    def wait(self, hits: int, seconds: float, /) -> bool: ...
    def hits(self) -> bytes: ...
    def clock(self) -> tuple[int, bool, int, bool]: ...
    def ended_ns(self) -> int: ...
    def descriptors(self) -> tuple[int, int]: ...
    def close(self) -> None: ...

# --- probe.c: what this machine allows, tried on a child of our own --------------------------
def spawn_busy_child() -> tuple[int, int]: ...
def run_known_loop(rounds: int, /) -> tuple[int, int, int, int, int, int]: ...
def copy_seconds() -> float: ...
def probe_ptrace(tid: int, /) -> None: ...
def cpuid(leaf: int, subleaf: int = 0, /) -> tuple[int, int, int, int] | None: ...

# --- phases/: branches of sampled addresses, and how far vectors of them lie apart ---------------
def hash_names(names: _Buffer, bins: int, start: int, /) -> bytes: ...
def look_up(
    known: dict[int, tuple[int, bool, bool]],
    ips: _Buffer,
    most: int,
    pages: dict[int, bytes],
    forms: dict[int, int],
    read: Callable[[int, int], bytes],
    decode: Callable[[bytes, int], tuple[int, int, int]],
    named: Callable[[int, bool], tuple[int, bool, bool]],
    most_known: int,
    forget: Callable[[], None],
    /,
) -> tuple[bytes, int]: ...
def last_instruction(
    code: bytes,
    begins: int,
    forms: dict[int, int],
    decode: Callable[[bytes, int], tuple[int, int, int]],
    /,
) -> int: ...
def data_addresses(operands: _Buffer, registers: _Buffer, /) -> bytes: ...
def spacing_of(addresses: _Buffer, /) -> tuple[float, float] | None: ...
def compare_hits(counts: _Buffer, others: _Buffer, /) -> tuple[float, float, float]: ...

# --- clock/: registers that advance steadily -----------------------------------------------------
def find_counter(
    advance: _Buffer,
    seconds: _Buffer,
    burst: _Buffer,
    accesses: _Buffer,
    low: float,
    high: float,
    first: _Buffer,
    beyond: _Buffer,
    /,
) -> tuple[int, float, float, float] | None: ...
def steady_rate(
    speeds: _Buffer, low: float, high: float, /
) -> tuple[float, float, float] | None: ...
def agreed_rate(
    speeds: _Buffer, low: float, high: float, /
) -> tuple[float, float, float] | None: ...

# --- models/: what the models of caches add up --------------------------------------------------
def lru_returns(
    edges: _Buffer,
    survival: _Buffer,
    lines: _Buffer,
    groups: _Buffer,
    reuse: _Buffer | None,
    stack: _Buffer | None,
    /,
) -> tuple[bytes, bytes, tuple[float, float, float, float]]: ...
def product_limit(reuses: _Buffer, censored: _Buffer, edges: _Buffer, least: float, /) -> bytes: ...
def share_windows(
    windows: _Buffer,
    hits: _Buffer,
    burst_windows: _Buffer,
    code: _Buffer,
    preference: _Buffer,
    weights: _Buffer,
    kinds: _Buffer,
    /,
) -> bytes: ...
def hits_by_column(vectors: list[Any], columns: _Buffer, count: int, /) -> bytes: ...
def random_ratios(edges: _Buffer, survival: _Buffer, lines: _Buffer, /) -> tuple[bytes, bytes]: ...

# --- own_heap.c: where memory of this process lies -------------------------------------------
def use_huge_pages() -> bool: ...

# --- memory_pass.c: what micro-benchmarks of bandwidth and latency time -------------------------
def memory_pass(operation: str, area: _Buffer | mmap, /) -> int: ...
def memory_chase(area: _Buffer | mmap, loads: int, seed: int, /) -> float: ...
def memory_pauses(
    area: _Buffer | mmap, least_seconds: float, count: int, most_seconds: float, /
) -> list[float]: ...

# --- replica/: bursts from a process of ours that stands in for a target ----------------------
FORM_BYTES: int
DISTANT_CYCLES: int
RECIPE_BYTES: int
AREA_BYTES: int
HOT_EXECUTIONS: int
HURRIED_MILLISECONDS: int

def take_apart(code: bytes, /) -> tuple[int, int, bytes, int] | None: ...
def dependences(code: bytes, form: bytes, /) -> tuple[int, int, int]: ...
def syscall_name(number: int, /) -> str | None: ...

class Replica:
    def __init__(
        self,
        pid: int,
        area_address: int,
        *,
        can_query: bool = True,
        supplies_pages: bool = False,
        shares_clock: bool = True,
        may_execute: bool = False,
        may_keep: bool = True,
    ) -> None: ...
    def burst(
        self,
        tid: int,
        accesses: int,
        hold_seconds: float,
        patience_seconds: float = 0.0,
        chain_seconds: float = 0.0,
        dry_seconds: float = 0.0,
        describe: Callable[[], None] | None = None,
        beyond_seconds: float = 0.0,
        arrival_leader: int = -1,
        arrival: int = -1,
        arrival_seconds: float = 0.0,
        arrival_end: int = -1,
    ) -> dict[str, Any]:
        """The fields of memsampd.sampler.replica.taken.Taken."""
    def begin_take(
        self,
        limit: int,
        line_shift: int,
        counter: ReuseCounter | None = None,
        part: int = -1,
        /,
    ) -> None: ...
    def parts(self, most_accesses: int, is_sought: bool, /) -> int: ...
    def take(self) -> tuple[Any, ...] | None: ...
    def rows_again(
        self, limit: int, line_shift: int, odd: int, below: int, /
    ) -> tuple[bytes, tuple[Any, ...]]: ...
    def core_times(self) -> tuple[int, int, int, float, float]: ...
    def repeats(self) -> int: ...
    def visits(self) -> tuple[bytes, bytes]: ...
    def wanted_form(self) -> tuple[int, bytes, int]: ...
    def add_forms(self, form: bytes, /) -> None: ...
    def hold(self, tid: int, /) -> str: ...
    def place(self, accesses: int, stepping: bool, /) -> None: ...
    def go(self, seconds: float, /) -> tuple[str, int, int]: ...
    def step(self, max_rows: int, seconds: float, /) -> tuple[str, int, int]: ...
    def add_recipes(self, recipes: bytes, /) -> None: ...
    def take_steps(self) -> tuple[bytes, bytes, bytes, bytes, int, int]: ...
    def release(self) -> float: ...
    def registers(self) -> bytes: ...
    def costs(self) -> dict[str, float]: ...
    def guide(self, executions: int, /) -> None: ...
    def features(self) -> dict[str, bool]: ...
    def process(self) -> int: ...
    def is_stale(self) -> bool: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...
