"""Programs of fixed work: 20 s or more on the quickest host seen, some seconds in quick form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from programs.preparing import WARNINGS, compiled, corpus
from programs.running import FOLDER
from reference.programs import SOURCES as REFERENCE_SOURCES
from targets.launching import compiled_c

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """A program that does the same work each time.

    Attributes:
        name: how users choose it.
        what: what it does, for tables; its memory is told besides.
        command: makes what it needs, and returns its command line; told whether it is to be quick.
        memory_mib: resident memory, if that is much: in full and in the quick form.
    """

    name: str
    what: str
    command: Callable[[bool], Sequence[str]]
    memory_mib: tuple[int, int] = (0, 0)

    def memory_bytes(self, quick: bool) -> int:
        """Return how much memory it needs, if that is much."""
        return self.memory_mib[quick] * MIB

    def told(self, quick: bool) -> str:
        """Return what it does, with the memory that it has, if that is much."""
        mib = self.memory_mib[quick]
        size = f"{mib >> 10} GiB" if mib >= 1024 else f"{mib} MiB"
        return f"{self.what} {size}" if mib else self.what


def _xz(quick: bool) -> Sequence[str]:
    return "xz", "-6", "-T1", "-c", str(corpus(FOLDER, 6 if quick else 56))


def _sqlite(quick: bool) -> Sequence[str]:
    read = f".read {REFERENCE_SOURCES / 'analytics.sql'}"
    again = ("DROP TABLE sale; DROP TABLE customer;", read)
    return "sqlite3", ":memory:", read, *(() if quick else again * 8)


def _solver(quick: bool) -> Sequence[str]:
    source = REFERENCE_SOURCES / "solver.c"
    flags = ("gcc", "-std=gnu11", "-O2", *WARNINGS)
    program = compiled(FOLDER, str(source), "solver", flags, libraries=("-lm",))
    return str(program), "128", *(("64", "40") if quick else ("380", "240"))


def _threads(quick: bool) -> Sequence[str]:
    flags = ("g++", "-std=c++17", "-O2", "-pthread", *WARNINGS)
    return str(compiled(FOLDER, "threads.cpp", "threads", flags)), "300" if quick else "5400"


def _spread(mib: tuple[int, int], millions: tuple[int, int]) -> Callable[[bool], Sequence[str]]:
    def command(quick: bool) -> Sequence[str]:
        return str(compiled_c("spread")), str(mib[quick]), str(millions[quick])

    return command


_SMALL, _LARGE, _HUGE = (100, 100), (4096, 512), (12288, 512)

PROGRAMS: tuple[Program, ...] = (
    Program("xz", "a compressor: xz -6 of mixed data", _xz),
    Program("sqlite3", "analytical queries, 750,000 rows in memory", _sqlite),
    Program("solver", "multigrid, conjugate gradients, transforms", _solver),
    Program("random", "reads and writes 100 MB at random", _spread(_SMALL, (1900, 160))),
    Program("random4", "the same over", _spread(_LARGE, (1000, 100)), _LARGE),
    Program("random12", "the same over", _spread(_HUGE, (190, 100)), _HUGE),
    Program("threads", "C++: four threads with tables", _threads),
)


def endless_spread(mib: int) -> Sequence[str]:
    """Return the command of one that reads and writes at random without end."""
    return str(compiled_c("spread")), str(mib), "0"
