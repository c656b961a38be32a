"""How programs had better share a last-level cache: by ways, and which of them not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsampd.errors import UsageError
from memsampd.exporters.demand import Program
from memsampd.machines.resctrl import DividedCache, Group
from memsampd.models.corun import Demand, SharedMisses, at_bound, run_alone, share_cache
from memsampd.models.partition import Goal, lookahead

MOST_PAIRED = 16
"""Of more programs, pairs are told of those that would miss most with equal parts of the cache."""
_MISS_SECONDS = 4e-9  # for a line that the cache could have held: several are under way at once
Demands = Sequence[Demand]


@dataclass(frozen=True, slots=True)
class Misses:
    """Misses a second of wall time: as expected, and between which bounds."""

    expected: float
    low: float
    high: float

    @classmethod
    def of(cls, shared: Sequence[SharedMisses]) -> Misses:
        """Add up what several programs miss."""
        return cls(
            sum(one.misses_per_second for one in shared),
            sum(one.low_per_second for one in shared),
            sum(one.high_per_second for one in shared),
        )


@dataclass(frozen=True, slots=True)
class Portion:
    """What one group of programs gets.

    Attributes:
        programs: in it; several where there are more programs than groups.
        ways: of the cache.
        first_way: the lowest of them.
        undivided: misses while all share the whole cache.
        divided: misses with these ways.
        slowdown: estimated time an instruction takes of the worst off of them, divided by what it
            would take with the whole cache to itself.
    """

    programs: tuple[Program, ...]
    ways: int
    first_way: int
    undivided: Misses
    divided: Misses
    slowdown: float


@dataclass(frozen=True, slots=True)
class Division:
    """A cache divided by ways.

    Attributes:
        portions: of the groups, lowest ways first.
        undivided: misses of all while they share the whole cache.
        divided: misses of all with their ways.
        saved: share of the misses saved: expected; the least and the most, if all curves lay at
            the same of their bounds.
    """

    portions: tuple[Portion, ...]
    undivided: Misses
    divided: Misses
    saved: tuple[float, float, float]

    @property
    def is_known_to_help(self) -> bool:
        """Whether it saves misses wherever between their bounds the curves lie together."""
        return self.saved[1] > 0


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs beside each other in the whole cache.

    Attributes:
        programs: the two.
        alone: misses per access of each with the whole cache to itself.
        shared: what each misses beside the other.
        added: misses a second more than alone: expected, and at the curves' bounds.
    """

    programs: tuple[Program, Program]
    alone: tuple[float, float]
    shared: tuple[SharedMisses, SharedMisses]
    added: Misses

    @property
    def is_known(self) -> bool:
        """Whether there is harm wherever between their bounds the curves lie together."""
        return self.added.low > 0


@dataclass(frozen=True, slots=True)
class Advice:
    """All that is advised.

    Attributes:
        cache: the cache.
        goal: of the division.
        division: None if there is nothing to divide among.
        pairs: worst first.
        left_out: programs that are idle, or of which curve or rate is not known.
        programs: the others.
    """

    cache: DividedCache
    goal: Goal
    division: Division | None
    pairs: tuple[Pair, ...]
    left_out: tuple[Program, ...]
    programs: tuple[Program, ...]


def advise(programs: Sequence[Program], cache: DividedCache, goal: Goal) -> Advice:
    """Work out a division of the cache, and which programs to keep apart.

    Raises:
        UsageError: of no program a curve and a rate are known.
    """
    known = tuple(program for program in programs if program.accesses_per_second > 0)
    if not known:
        raise UsageError(
            "no program runs of which curve and access rate are known", "observe them for longer"
        )
    return Advice(
        cache=cache,
        goal=goal,
        division=_division(known, cache, goal) if len(known) > 1 else None,
        pairs=_pairs(known, cache.size_bytes),
        left_out=tuple(program for program in programs if program.accesses_per_second <= 0),
        programs=known,
    )


def groups_of(advice: Advice) -> list[Group]:
    """Return what the kernel is to be told."""
    if advice.division is None:
        return []
    return [
        Group(
            name="-".join(str(program.pid) for program in portion.programs)[:60],
            schemata=advice.cache.schemata(portion.first_way, portion.ways),
            pids=tuple(program.pid for program in portion.programs),
        )
        for portion in advice.division.portions
    ]


def _division(programs: Sequence[Program], cache: DividedCache, goal: Goal) -> Division:
    groups = _grouped(programs, cache)
    tables = [_Table.of(group, cache) for group in groups]
    costs = np.array([table.costs(goal) for table in tables])
    ways = lookahead(costs, goal, cache.least_ways)
    demands = [program.demands for program in programs]
    shared = dict(zip(map(id, programs), share_cache(demands, cache.size_bytes), strict=True))
    portions, first_way = [], 0
    for group, table, has in zip(groups, tables, ways, strict=True):
        portions.append(
            Portion(
                programs=tuple(group),
                ways=has,
                first_way=first_way,
                undivided=Misses.of([shared[id(program)] for program in group]),
                divided=Misses.of(table.missed[has]),
                slowdown=float(table.slowdowns[has]),
            )
        )
        first_way += has
    return Division(
        portions=tuple(portions),
        undivided=_sum([portion.undivided for portion in portions]),
        divided=_sum([portion.divided for portion in portions]),
        saved=_saved(groups, ways, cache),
    )


def _grouped(programs: Sequence[Program], cache: DividedCache) -> list[list[Program]]:
    """Return who shares ways: nobody, or those whom it costs least where there is no room."""
    room = cache.ways // cache.least_ways
    if cache.groups is not None:
        room = min(room, cache.groups)
    if room < 1:
        raise UsageError("the cache cannot be divided: it has no groups", "see info/num_closids")

    def stake(program: Program) -> float:
        least, most = cache.least_ways * cache.way_bytes, cache.size_bytes
        return float(
            run_alone(program.demands, least).misses_per_second
            - run_alone(program.demands, most).misses_per_second
        )

    if len(programs) <= room:
        return [[program] for program in programs]
    order = sorted(programs, key=stake, reverse=True)
    return [*([program] for program in order[: room - 1]), order[room - 1 :]]


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """What a group would miss with 0, 1, ... ways.

    Attributes:
        missed: by each program, for each number of ways; nothing at 0.
        slowdowns: of the worst off, shape (ways + 1,).
    """

    missed: list[list[SharedMisses]]
    slowdowns: NDArray[np.float64]

    @classmethod
    def of(cls, group: Sequence[Program], cache: DividedCache) -> _Table:
        demands = [program.demands for program in group]
        own = [run_alone(each, cache.size_bytes).misses_per_second for each in demands]
        missed: list[list[SharedMisses]] = [[]]
        slowdowns = [np.inf]
        for ways in range(1, cache.ways + 1):
            missed.append(share_cache(demands, ways * cache.way_bytes))
            slowdowns.append(
                max(
                    1 + max(one.misses_per_second - at_best, 0.0) * _MISS_SECONDS / program.cpus
                    for one, at_best, program in zip(missed[-1], own, group, strict=True)
                )
            )
        return cls(missed, np.array(slowdowns))

    def costs(self, goal: Goal) -> NDArray[np.float64]:
        """Return what is to be least, for each number of ways; that of none is not read."""
        if goal == "fairness":
            return self.slowdowns
        return np.array([np.inf, *(Misses.of(each).expected for each in self.missed[1:])])


def _saved(
    groups: Sequence[Sequence[Program]], ways: Sequence[int], cache: DividedCache
) -> tuple[float, float, float]:
    """Return the share of misses saved: expected, the least and the most at the curves' bounds."""

    def share(view: Callable[[Demands], Demands]) -> float:
        demands = [[view(program.demands) for program in group] for group in groups]
        together = share_cache([each for group in demands for each in group], cache.size_bytes)
        apart = [
            one
            for group, has in zip(demands, ways, strict=True)
            for one in share_cache(group, has * cache.way_bytes)
        ]
        before, after = Misses.of(together).expected, Misses.of(apart).expected
        return 1 - after / before if before > 0 else 0.0

    found = [share(view) for view in _VIEWS]
    return found[0], min(found), max(found)


_VIEWS: tuple[Callable[[Demands], Demands], ...] = (
    lambda demands: demands,
    lambda demands: at_bound(demands, "low"),
    lambda demands: at_bound(demands, "high"),
)


def _pairs(programs: Sequence[Program], size_bytes: int) -> tuple[Pair, ...]:
    each_bytes = size_bytes // max(len(programs), 1)
    by_misses = sorted(
        programs, key=lambda one: -run_alone(one.demands, each_bytes).misses_per_second
    )
    pairs = itertools.combinations(by_misses[:MOST_PAIRED], 2)
    found = [_pair(one, other, size_bytes) for one, other in pairs]
    return tuple(sorted(found, key=lambda pair: -pair.added.expected))


def _pair(one: Program, other: Program, size_bytes: int) -> Pair:
    both = (one.demands, other.demands)
    alone = [run_alone(demands, size_bytes) for demands in both]
    shared = share_cache(both, size_bytes)
    added = []
    for view in _VIEWS:
        seen = [view(demands) for demands in both]
        together = sum(each.misses_per_second for each in share_cache(seen, size_bytes))
        apart = sum(run_alone(each, size_bytes).misses_per_second for each in seen)
        added.append(max(together - apart, 0.0))
    return Pair(
        programs=(one, other),
        alone=(alone[0].miss_ratio, alone[1].miss_ratio),
        shared=(shared[0], shared[1]),
        added=Misses(added[0], min(added), max(added)),
    )


def _sum(parts: Sequence[Misses]) -> Misses:
    return Misses(
        sum(part.expected for part in parts),
        sum(part.low for part in parts),
        sum(part.high for part in parts),
    )
