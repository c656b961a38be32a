"""Every metric that memsampd exports, once: names, types, labels and help texts come from here."""

from __future__ import annotations

from memsampd.exporters.metric import Metric, counter, gauge, node

_CURVE = ("policy", "size_bytes")
_PHASE_CURVE = ("phase", *_CURVE)

BUILD_INFO = Metric(
    "memsampd_build_info", "gauge", "1", "Version of memsampd.", ("version",), of_target=False
)
TARGET_UP = gauge("target_up", "bool", "1 while the target is alive and observed.")
BACKEND_INFO = gauge(
    "backend_info",
    "1",
    "Backend that fills a role (branches, accesses, clock, long_distances, lines, distances).",
    "role",
    "name",
)
CACHE_SIZE = gauge(
    "cache_size_bytes", "bytes", "Size of this machine's data cache of a level.", "level"
)

ACCESSES = counter(
    "accesses",
    "accesses",
    "Estimated accesses of the target since the attach; a window counts once the target has run a "
    "second after its end. Absent as long as no rate is known.",
)
MISSES = counter(
    "misses",
    "misses",
    "Estimated misses of these in a cache of this size: rate(misses) / rate(accesses) is the miss "
    "ratio of any interval.",
    *_CURVE,
)
MISS_RATIO = gauge(
    "miss_ratio", "ratio", "Misses per access of the whole run in a cache of this size.", *_CURVE
)
MISS_LOW_RATIO = gauge(
    "miss_low_ratio",
    "ratio",
    "Lower bound of memsampd_miss_ratio: bursts are too short to tell more, or too few.",
    *_CURVE,
)
MISS_HIGH_RATIO = gauge(
    "miss_high_ratio",
    "ratio",
    "Upper bound of memsampd_miss_ratio.",
    *_CURVE,
)
PHASE_MISS_RATIO = gauge(
    "phase_miss_ratio",
    "ratio",
    "Misses per access of a phase in a cache of this size.",
    *_PHASE_CURVE,
)
PHASE_MISS_LOW_RATIO = gauge(
    "phase_miss_low_ratio", "ratio", "Lower bound of memsampd_phase_miss_ratio.", *_PHASE_CURVE
)
PHASE_MISS_HIGH_RATIO = gauge(
    "phase_miss_high_ratio", "ratio", "Upper bound of memsampd_phase_miss_ratio.", *_PHASE_CURVE
)

RATE = gauge(
    "accesses_per_cpu_second",
    "accesses per CPU second",
    "Accesses that the target makes in a second of user CPU time, the mean of the whole run; "
    "absent if no rate is known.",
)
RATE_SPREAD = gauge(
    "access_rate_spread_ratio",
    "ratio",
    "Relative standard deviation of memsampd_accesses_per_cpu_second.",
)
RATE_KNOWN = gauge(
    "access_rate_known_ratio",
    "ratio",
    "Share of the target's CPU time in code whose access rate is known; the mean of other code "
    "stands in elsewhere. 0: windows are weighted by CPU time.",
)
UNKNOWN_CPU = gauge(
    "unknown_cpu_ratio",
    "ratio",
    "Share of the target's CPU time in code that no burst has seen: its misses are unknown.",
)
BAND = gauge(
    "band_ratio",
    "ratio",
    "Upper less lower bound of memsampd_miss_ratio (LRU) at the size of a cache of this machine.",
    "level",
)
BANDWIDTH = gauge(
    "fill_bytes_per_cpu_second",
    "bytes per CPU second",
    "Bytes that an LRU cache of the level's size fetches for the target in a second of CPU time: "
    "access rate, miss ratio and line size multiplied (write-backs and prefetches not included).",
    "level",
)
MEMORY_FETCHED = counter(
    "memory_fetched_bytes",
    "bytes",
    "Estimated bytes of the lines that the target fetched from memory since the attach: the misses "
    "of an LRU cache of the size of this machine's largest.",
)
MEMORY_WRITTEN = counter(
    "memory_written_back_bytes",
    "bytes",
    "Estimated bytes of the lines among these that were changed and written back: as many as "
    "accesses are stores (docs/traffic.md).",
)
MEMORY_LOW = gauge(
    "memory_low_bytes_per_cpu_second",
    "bytes per CPU second",
    "Least memory traffic of the whole run, lines fetched and written back together.",
)
MEMORY_HIGH = gauge(
    "memory_high_bytes_per_cpu_second",
    "bytes per CPU second",
    "Most memory traffic of the whole run: each line fetched for which there is a store is "
    "written back.",
)
PHASE_MEMORY = gauge(
    "phase_memory_bytes_per_cpu_second",
    "bytes per CPU second",
    "Estimated memory traffic of a phase, lines fetched and written back together.",
    "phase",
)
PHASE_MEMORY_SHARE = gauge(
    "phase_memory_peak_ratio",
    "ratio",
    "Memory traffic of a phase as a share of what one thread can draw at most on this machine; "
    "absent without a measured peak (memsampd machine --measure).",
    "phase",
)
MEMORY_PEAK = Metric(
    "memsampd_memory_peak_bytes_per_second",
    "gauge",
    "bytes per second",
    "Measured peak of this machine's memory: bytes that one thread, or one on each CPU, loads "
    "(operation read) or stores (write) at most; of all threads absent where it was measured on "
    "some CPUs only.",
    ("operation", "threads"),
    of_target=False,
)
MEBIBYTE_GAIN = gauge(
    "mebibyte_gain_ratio",
    "ratio",
    "Misses per access that one more MiB would save in an LRU cache of the level's size.",
    "level",
)

PHASES = gauge(
    "phases", "phases", 'Phases told apart so far, those that are folded into "other" included.'
)
PHASE_ACTIVE = gauge("phase_active", "bool", "1 for the phase of the last window.", "phase")
PHASE_PREDICTED = gauge(
    "phase_predicted", "bool", "1 for the phase expected of the next window.", "phase"
)
PHASE_WEIGHT = gauge(
    "phase_weight_ratio",
    "ratio",
    "Share of the target's accesses that a phase makes (see memsampd_access_rate_known_ratio).",
    "phase",
)
PHASE_WINDOWS = gauge("phase_windows", "windows", "Windows of a phase so far.", "phase")
PHASE_CPU = gauge("phase_cpu_seconds", "seconds", "CPU time of a phase's windows.", "phase")
PHASE_BURSTS = gauge("phase_bursts", "bursts", "Bursts taken in a phase.", "phase")
PHASE_SAMPLED = gauge(
    "phase_sampled_accesses", "accesses", "Accesses observed in a phase's bursts.", "phase"
)
PHASE_CENSORED = gauge(
    "phase_censored_ratio",
    "ratio",
    "Share of a phase's sampled accesses whose next touch lies beyond the horizon.",
    "phase",
)
PHASE_WRITES = gauge(
    "phase_write_ratio", "ratio", "Share of a phase's sampled accesses that are stores.", "phase"
)
PHASE_CPI = gauge(
    "phase_cycles_per_instruction",
    "cycles per instruction",
    "Cycles that a phase's instructions take, as a PMU counted them; absent without its counters.",
    "phase",
)
PHASE_RATE = gauge(
    "phase_accesses_per_cpu_second",
    "accesses per CPU second",
    "Accesses that a phase makes in a second of CPU time; absent while unknown.",
    "phase",
)
PHASE_RATE_SPREAD = gauge(
    "phase_access_rate_spread_ratio",
    "ratio",
    "Relative standard deviation of memsampd_phase_accesses_per_cpu_second.",
    "phase",
)
PHASE_BANDWIDTH = gauge(
    "phase_fill_bytes_per_cpu_second",
    "bytes per CPU second",
    "Bytes that an LRU cache of the level's size fetches for a phase in a second of CPU time: "
    "access rate, miss ratio and line size multiplied (write-backs and prefetches not included).",
    "phase",
    "level",
)

WINDOW_CPU = counter(
    "window_cpu_seconds",
    "seconds",
    "User CPU time of the target's windows: what estimates are of (kernel time is not).",
)
WINDOWS = counter("windows", "windows", "Windows of the target's execution.")
PREDICTION_ACCURACY = gauge(
    "prediction_accuracy_ratio", "ratio", "Share of phase predictions that came true."
)
SAMPLES = counter("branch_samples", "samples", "Branch samples taken.")
LOST = counter(
    "branch_samples_lost",
    "samples",
    "Branch samples that the kernel dropped, or of programs that others replaced at once.",
)
THROTTLES = counter("throttles", "events", "Times that the kernel throttled the sampling.")
BURSTS = counter("bursts", "bursts", "Bursts by the reason of their end.", "end")
SAMPLED = counter("sampled_accesses", "accesses", "Accesses that bursts observed.")
PLAUSIBLE = counter(
    "bursts_plausible",
    "bursts",
    "Bursts during which other threads could run: they show a plausible future of the thread.",
)
CALLS = counter("burst_calls", "calls", "System calls that bursts go over.")
CALLS_COMPARED = counter(
    "burst_calls_compared",
    "calls",
    "Those of them at which the target's registers were compared with the replica's.",
)
CALLS_EQUAL = counter("burst_calls_equal", "calls", "Those at which they were equal.")
PAGES_PREDICTED = counter(
    "burst_pages_predicted",
    "pages",
    "Pages of the target that were supplied before bursts touched them.",
)
PAGES_MISSED = counter(
    "burst_pages_missed", "pages", "Pages that were supplied when bursts touched them."
)
CUT_SHORT = counter(
    "bursts_cut_short",
    "bursts",
    "Bursts that had a call of the target return before all was transferred, as a signal would.",
)
STORED_BURSTS = gauge(
    "stored_bursts",
    "bursts",
    "Bursts from before the attach, known from the store, that speak for phases met since.",
)
STORE_DROPS = counter(
    "store_drops",
    "phases",
    "Phases of which what the store knew did not hold any more: it was dropped.",
)
WATCHES = counter(
    "watches",
    "lines",
    "Lines that were watched for distances longer than bursts, with something to tell.",
)
ADDRESSES = counter(
    "address_samples",
    "samples",
    "Accesses that a PMU sampled: valid, without a valid address, or lost; only where it does so.",
    "result",
)
ADDRESS_THROTTLES = counter(
    "address_throttles",
    "events",
    "Times that the kernel throttled the sampling of accesses; only where a PMU does so.",
)
NO_BURSTS = gauge(
    "no_bursts", "bool", "1 while no burst can be taken, with the reason and its remedy.", "reason"
)
CAPTURE_ERRORS = counter(
    "capture_errors", "captures", "Refused or failed captures by reason.", "reason"
)

TARGET_CPU = counter("target_cpu_seconds", "seconds", "CPU time of the target since the attach.")
HOLD = counter(
    "target_hold_seconds", "seconds", "Wall time for which a thread of the target was held."
)
LONGEST_HOLD = gauge(
    "target_longest_hold_seconds", "seconds", "The longest time for which one was held at once."
)
HITS = counter(
    "target_hit_seconds",
    "seconds",
    "CPU time that breakpoints took from the target: hits, slower copies while words are watched, "
    "switches between watched threads, and samples in quick succession before bursts.",
)
SAMPLING = counter(
    "target_sampling_seconds",
    "seconds",
    "Estimated CPU time that branch samples took from the target, at switches between threads, too "
    "(not part of the budget of bursts).",
)
TAKEN_CPU = counter(
    "target_taken_cpu_seconds",
    "seconds",
    "Estimated part of memsampd's CPU time that was taken from the target: while no CPU is idle, "
    "so much of it as the target has of the CPUs.",
)
SAMPLED_SHARE = gauge(
    "target_sampled_ratio",
    "ratio",
    "Part of the time for which branch samples are taken: less where switches cost too much.",
)
OWN_CPU = counter(
    "own_cpu_seconds",
    "seconds",
    "CPU time of memsampd's processes for this target, the replica's included.",
)
REPLICA_CPU = counter("replica_cpu_seconds", "seconds", "CPU time of the target's replica.")
OWN_CPU_LIMIT = gauge(
    "own_cpu_limit_ratio",
    "ratio",
    "Share of the target's CPU time that memsampd's processes may use.",
)
OWN_CPU_WAIT = counter(
    "own_cpu_wait_seconds",
    "seconds",
    "Time for which bursts have waited because memsampd's processes had used their CPU time.",
)
OVERHEAD_SPENT = gauge(
    "overhead_spent_ratio", "ratio", "Share of the target's CPU time that bursts cost it."
)
OVERHEAD_BUDGET = gauge(
    "overhead_budget_ratio", "ratio", "Share of the target's CPU time that they may cost."
)

NODE_TARGETS = node(
    "targets",
    "gauge",
    "processes",
    "Processes that the daemon observes, by how they fare.",
    "state",
)
NODE_LEFT_OUT = node(
    "left_out", "gauge", "processes", "Processes that rules match, but for which there was no room."
)
NODE_ENDED = node(
    "ended_targets_total", "counter", "processes", "Targets that have ended, or were let go."
)
NODE_OWN_CPU = node(
    "own_cpu_seconds_total", "counter", "seconds", "CPU time of the daemon and its child processes."
)
NODE_OWN_CPU_BUDGET = node(
    "own_cpu_budget_ratio", "gauge", "ratio", "The share of one core that this is to keep to."
)
NODE_HOLD = node(
    "hold_seconds_total",
    "counter",
    "seconds",
    "Wall time for which threads of targets were held, all together.",
)
NODE_HOLD_BUDGET = node(
    "hold_budget_ratio", "gauge", "ratio", "The share of the time that this is to keep to."
)
NODE_RESIDENT = node(
    "resident_bytes", "gauge", "bytes", "Resident memory of the daemon, without child processes."
)
NODE_DESCRIPTORS = node("open_descriptors", "gauge", "files", "Open files of the daemon.")
NODE_LOOP = node(
    "loop_seconds", "gauge", "seconds", "The longest pass of the daemon's loop in the last minute."
)
NODE_RELOAD_FAILED = node(
    "reload_failed",
    "gauge",
    "bool",
    "1 while the configuration cannot be read again: the old one stays.",
)

NODE_STORE_FAILED = node(
    "store_failed",
    "gauge",
    "bool",
    "1 while nothing is kept of programs, nor known again: observation goes on without.",
)

CATALOGUE: tuple[Metric, ...] = tuple(
    metric for metric in list(globals().values()) if isinstance(metric, Metric)
)
