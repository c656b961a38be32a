"""What is told of a target and of memsampd beside it, and which goals that has."""

from __future__ import annotations

from collections.abc import Sequence

from targets.comparing import Kind, Round, Row, charged_row, document_cell

HOLD_LIMIT_SECONDS = 0.005
PACED_SHARE = 0.25

BURSTS = Row("bursts", "bursts", 1, 0, Kind.AT_LEAST, 1)  # who observes nothing costs nothing

_PAGES = (
    Row("minor_faults", "minor faults", 1, 0, Kind.NEVER_MORE, 0.005, slack=64),
    Row("major_faults", "major faults", 1, 0, Kind.NEVER_MORE, 0.0, slack=8),
    Row("peak_bytes", "peak memory, MiB", 1 / (1 << 20), 1, Kind.NEVER_MORE, 0.005, slack=1 << 20),
)
_AGENT = (
    Row("own_share", "memsampd's CPU, %", 100, 2, Kind.AT_MOST, 0.05),
    Row("later_own_share", "  after 10 s, as it says, %", 100, 2),
    Row("children_cpu_seconds", "target's children's CPU, s"),
    BURSTS,
    Row("accesses_a_burst", "accesses a burst", 1, 0),
    Row("l1d_width", "band at L1d, points", 100, 2),
    Row("l2_width", "band at L2, points", 100, 2),
    Row("first_seconds", "first number after, s", 1, 2),
)

# How far the rest is to be trusted; with --busy it would tell of the loops.
_OTHERS = Row("others_share", "other programs' CPU, % of one", 100, 0)


RATE = Row("rate", "requests/s", 1, 0, Kind.LOSS, 0.02)
CPU_A_REQUEST = Row("cpu_a_request", "CPU a request, us", 1e6, 2, Kind.GAIN, 0.02)


def program_rows(is_busy: bool) -> list[Row]:
    """Return what is told of programs of fixed work."""
    return [
        Row("wall_seconds", "wall time, s", 1, 2, Kind.GAIN, 0.02),
        Row("cpu_seconds", "CPU time, s", 1, 2, Kind.GAIN, 0.02),
        *_PAGES,
        charged_row("wall_seconds", is_busy=is_busy),
        *_AGENT,
        *(() if is_busy else (_OTHERS,)),
    ]


def server_rows(is_busy: bool) -> list[Row]:
    """Return what is told of servers."""
    late = HOLD_LIMIT_SECONDS
    return [
        RATE,
        Row("slowest_second", "  in the worst second", 1, 0),
        CPU_A_REQUEST,
        *(
            row
            for name, title in (("fast", "full load"), ("paced", f"at {PACED_SHARE:.0%}"))
            for row in (
                Row(f"{name}_p50_seconds", f"{title}: p50, ms", 1e3, 3),
                Row(f"{name}_p99_seconds", f"{title}: p99, ms", 1e3, 3),
                Row(f"{name}_p999_seconds", f"{title}: p99.9, ms", 1e3, 3, Kind.EXCESS, late),
                Row(f"{name}_worst_seconds", f"{title}: worst, ms", 1e3, 3),
            )
        ),
        Row("failed", "failed requests", 1, 0, Kind.NEVER_MORE),
        *_PAGES,
        Row("charged_share", "charged, %", 100, 2),
        *_AGENT,
        *(() if is_busy else (_OTHERS,)),
    ]


# What a document tells: a column's title, and the figures of programs and of servers in it.
COLUMNS = (
    ("wall time, requests, %", ("wall_seconds", "rate")),
    ("CPU time, %", ("cpu_seconds", "cpu_a_request")),
    ("charged, %", ("charged_share",)),
    ("own CPU, %", ("own_share",)),
    ("after 10 s", ("later_own_share",)),
    ("page faults", ("minor_faults",)),
    ("memory, MiB", ("peak_bytes",)),
    ("p99.9, ms", ("fast_p999_seconds",)),
    ("at a quarter of the load", ("paced_p999_seconds",)),
    ("bursts", ("bursts",)),
    ("first number, s", ("first_seconds",)),
)


def page(tables: Sequence[tuple[str, Sequence[Row], Sequence[Round]]]) -> str:
    """Return a table for a document: of each target its name, rows and rounds, in one line."""
    lines = [
        f"| target | rounds | {' | '.join(title for title, _ in COLUMNS)} |",
        f"| --- |{' ---: |' * (1 + len(COLUMNS))}",
    ]
    for name, rows, rounds in tables:
        cells = {row.name: document_cell(row, rounds, "memsampd") for row in rows}
        told = (next((cells[each] for each in names if each in cells), "") for _, names in COLUMNS)
        lines.append(f"| {name} | {len(rounds)} | {' | '.join(told)} |")
    return "\n".join(lines)
