"""What observing may cost a node in all, and which targets have bursts at present."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

# What there is at the start, as if so much time had passed: first curves are to come soon.
_GRANTED_SECONDS = 120.0
# What is not spent is kept for so long.
_SAVED_SECONDS = 60.0
# Sampling and publishing go on whatever they cost; bursts have this part of the budget in any case.
_BURST_PART = 0.5
_RECENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What a target has cost so far, in seconds.

    Attributes:
        burst_cpu_seconds: CPU time of bursts: tracing threads and replicas.
        replica_cpu_seconds: the replicas' part.
        own_cpu_seconds: all CPU time, that of its turns included.
        stop_seconds: time for which its threads were held.
    """

    burst_cpu_seconds: float = 0.0
    replica_cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    stop_seconds: float = 0.0

    @property
    def of_bursts_seconds(self) -> float:
        """What bursts cost, own CPU time and holds."""
        return self.burst_cpu_seconds + self.stop_seconds

    def __add__(self, other: Costs) -> Costs:
        return Costs(
            self.burst_cpu_seconds + other.burst_cpu_seconds,
            self.replica_cpu_seconds + other.replica_cpu_seconds,
            self.own_cpu_seconds + other.own_cpu_seconds,
            self.stop_seconds + other.stop_seconds,
        )


class TokenBucket:
    """A token bucket of seconds that may be spent: a share of the time that passes.

    >>> bucket = TokenBucket(0.02, now_seconds=0.0)
    >>> bucket.tell(10.0, 0.1)  # a tenth of a second used in ten
    >>> round(bucket.balance_seconds, 3)  # 2.4 were granted at the start, and no more is saved up
    2.3

    Args:
        share: seconds earned in a second.
        now_seconds: monotonic time at the start.
        spent_seconds: what had been spent then: it is not held against anybody.
    """

    def __init__(self, share: float, now_seconds: float, spent_seconds: float = 0.0) -> None:
        self.share = share
        self._now_seconds = now_seconds
        self.balance_seconds = share * _GRANTED_SECONDS
        self.spent_seconds = spent_seconds
        self._history: deque[tuple[float, float]] = deque([(now_seconds, spent_seconds)])

    def tell(self, now_seconds: float, spent_seconds: float) -> None:
        """Earn what the time brings, and pay for what has been spent in all."""
        earned = self.share * (now_seconds - self._now_seconds)
        limit = max(self.balance_seconds, self.share * _SAVED_SECONDS)
        saved = min(self.balance_seconds + earned, limit)
        self.balance_seconds = saved - (spent_seconds - self.spent_seconds)
        self._now_seconds, self.spent_seconds = now_seconds, spent_seconds
        if now_seconds - self._history[-1][0] >= 1.0:
            self._history.append((now_seconds, spent_seconds))
        while len(self._history) > 1 and now_seconds - self._history[1][0] >= _RECENT_SECONDS:
            self._history.popleft()

    @property
    def recent_seconds(self) -> float:
        """What was spent in the last minute."""
        return self.spent_seconds - self._history[0][1]

    @property
    def recent_share(self) -> float:
        """The same as a share of the minute, or of the time since the start."""
        elapsed = self._now_seconds - self._history[0][0]
        return self.recent_seconds / elapsed if elapsed > 0 else 0.0


class NodeBudget:
    """The node's token buckets: own CPU time, the part of it that bursts have, holds of targets.

    Args:
        own_cpu_share: CPU time of memsampd's processes, as a share of one CPU.
        hold_share: time for which threads are held, all together, as a share of the time.
        now_seconds: monotonic time at the start.
        own_cpu_seconds: CPU time used until then.
    """

    def __init__(
        self,
        own_cpu_share: float,
        hold_share: float,
        now_seconds: float,
        own_cpu_seconds: float = 0.0,
    ) -> None:
        self.own_cpu = TokenBucket(own_cpu_share, now_seconds, own_cpu_seconds)
        self.bursts = TokenBucket(own_cpu_share * _BURST_PART, now_seconds)
        self.holds = TokenBucket(hold_share, now_seconds)

    def change(self, own_cpu_share: float, hold_share: float) -> None:
        """Go on with other shares."""
        self.own_cpu.share, self.holds.share = own_cpu_share, hold_share
        self.bursts.share = own_cpu_share * _BURST_PART

    def tell(
        self,
        now_seconds: float,
        own_cpu_seconds: float,
        burst_cpu_seconds: float,
        hold_seconds: float,
    ) -> None:
        """Note what has been used since the start.

        Args:
            now_seconds: monotonic time.
            own_cpu_seconds: CPU time of memsampd's processes.
            burst_cpu_seconds: the part of it that bursts took.
            hold_seconds: time for which threads were held.
        """
        self.own_cpu.tell(now_seconds, own_cpu_seconds)
        self.bursts.tell(now_seconds, burst_cpu_seconds)
        self.holds.tell(now_seconds, hold_seconds)

    @property
    def allows_bursts(self) -> bool:
        """Whether any target may have a burst now."""
        has_cpu = self.own_cpu.balance_seconds > 0 or self.bursts.balance_seconds > 0
        return has_cpu and self.holds.balance_seconds > 0

    @property
    def pace(self) -> float:
        """By how much turns and publishing are to be slower than usual, 1 to 4.

        They are slowed down once they leave less than a half of the budget to bursts.
        """
        usual = self.own_cpu.recent_seconds - self.bursts.recent_seconds
        return min(max(usual / (0.5 * self.own_cpu.share * _RECENT_SECONDS), 1.0), 4.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target that could have bursts.

    Attributes:
        cpu_share: CPU time that it uses lately, as a share of one CPU.
        unknown_share: share of its CPU time that no burst tells about, 0 to 1.
        bursts: that it has had.
        cost_seconds: own CPU time and holds that its bursts have cost so far.
        owner: whose it is.
    """

    cpu_share: float
    unknown_share: float
    bursts: int
    cost_seconds: float
    owner: Hashable = None

    @property
    def weight(self) -> float:
        """How much a burst of it tells: its use of the CPU times what is not known of it yet."""
        uncertain = 1 / math.sqrt(1 + self.bursts / 16)
        return max(self.cpu_share, _LEAST_CPU_SHARE) * max(
            self.unknown_share, _KNOWN_WEIGHT * uncertain
        )


_LEAST_CPU_SHARE = 0.01
_KNOWN_WEIGHT = 0.1  # of a target of which all is known by a few bursts
_LEAST_OWNER_PART = 0.02  # of the heaviest target's weight
_TURN_SECONDS = 0.02  # what is charged for a turn, whatever comes of it


@dataclass(slots=True)
class _Account:
    """What rotation knows of a target.

    Attributes:
        owner: whose it is.
        weight: its weight, as it was told last.
        cost_seconds: its cost, as it was told last.
        virtual: cost so far, divided by the weight at the time; who has least is next.
        since_seconds: when it got its turn; None while it has none.
    """

    owner: _Owner
    weight: float
    cost_seconds: float
    virtual: float
    since_seconds: float | None = None

    def charge(self, seconds: float) -> None:
        """Have it pay, and its owner."""
        self.virtual += seconds / self.weight
        self.owner.virtual += seconds / self.owner.weight

    def tell(self, cost_seconds: float) -> None:
        """Have it pay for what it has cost since this was told last."""
        self.charge(max(cost_seconds - self.cost_seconds, 0.0))
        self.cost_seconds = cost_seconds

    def has_turn(self, now_seconds: float, turn_seconds: float) -> bool:
        """Whether its turn, which lasts so long, goes on."""
        since = self.since_seconds
        return since is not None and now_seconds - since < turn_seconds


@dataclass(slots=True)
class _Owner:
    """What rotation knows of somebody who has targets.

    Attributes:
        virtual: cost of all of them so far, divided by the owner's weight at the time.
        weight: as it was last.
        newcomers: where targets of theirs begin: the least that one of them had.
    """

    virtual: float
    weight: float = 1.0
    newcomers: float = 0.0


@dataclass(slots=True)
class Rotation:
    """Says who may have bursts: some targets at a time, in turns.

    Start-time fair queueing in two steps. Over a long time, what bursts cost is shared among the
    owners of targets in proportion to their weights, and what falls to one of them among their
    targets in proportion to theirs, whoever comes and goes; who comes has no claim for the time
    before. An owner weighs as much as all their targets, but no more than the heaviest target of
    all: more processes bring nobody more than one that uses as much CPU time as any. Nor less than
    a fiftieth of it.

    Attributes:
        slots: so many have a turn at a time.
        turn_seconds: a turn lasts so long at least.
    """

    slots: int
    turn_seconds: float
    _accounts: dict[Hashable, _Account] = field(default_factory=dict)
    _owners: dict[Hashable, _Owner] = field(default_factory=dict)
    _virtual_now: float = 0.0

    def turn(self, now_seconds: float, candidates: Mapping[K, Candidate]) -> frozenset[K]:
        """Choose who may have bursts from now on.

        Args:
            now_seconds: time for which bursts were allowed so far: turns do not go by meanwhile.
            candidates: all that could.
        """
        self._weigh(candidates.values())
        for gone in set(self._accounts) - set(candidates):
            del self._accounts[gone]
        for key, each in candidates.items():
            if key not in self._accounts:
                owner = self._owners[each.owner]
                account = _Account(owner, each.weight, each.cost_seconds, owner.newcomers)
                self._accounts[key] = account
            self._accounts[key].weight = each.weight
            self._accounts[key].tell(each.cost_seconds)
        self._advance()
        return self._choose(now_seconds, list(candidates))

    def leave(self, key: Hashable, cost_seconds: float) -> None:
        """Have a target pay that comes no more.

        Args:
            key: the target.
            cost_seconds: what it has cost in all.
        """
        account = self._accounts.pop(key, None)
        if account is not None:
            account.tell(cost_seconds)

    def _weigh(self, candidates: Collection[Candidate]) -> None:
        """Say what each owner weighs."""
        total: dict[Hashable, float] = {}
        for each in candidates:
            total[each.owner] = total.get(each.owner, 0.0) + each.weight
        heaviest = max((each.weight for each in candidates), default=0.0)
        for name, weight in total.items():
            owner = self._owners.setdefault(name, _Owner(self._virtual_now))
            owner.weight = max(min(weight, heaviest), _LEAST_OWNER_PART * heaviest)

    def _advance(self) -> None:
        """Let nobody save up claims; forget owners without targets who owe nothing."""
        theirs: dict[int, float] = {}  # the least of each owner's targets
        for each in self._accounts.values():
            theirs[id(each.owner)] = min(theirs.get(id(each.owner), math.inf), each.virtual)
        present = [each for each in self._owners.values() if id(each) in theirs]
        least = min((each.virtual for each in present), default=0.0)
        self._virtual_now = max(self._virtual_now, least)
        for name, owner in tuple(self._owners.items()):
            owner.newcomers = max(owner.newcomers, theirs.get(id(owner), 0.0))
            owner.virtual = max(owner.virtual, self._virtual_now)
            if id(owner) not in theirs and owner.virtual <= self._virtual_now:
                del self._owners[name]

    def _choose(self, now_seconds: float, keys: Sequence[K]) -> frozenset[K]:
        accounts = self._accounts
        stay = [key for key in keys if accounts[key].has_turn(now_seconds, self.turn_seconds)]
        stay.sort(key=lambda key: accounts[key].virtual)
        chosen = stay[: self.slots]
        others = [key for key in keys if key not in chosen]
        for key in others:
            accounts[key].since_seconds = None
        while others and len(chosen) < self.slots:
            key = min(others, key=lambda key: (accounts[key].owner.virtual, accounts[key].virtual))
            others.remove(key)
            chosen.append(key)
            accounts[key].since_seconds = now_seconds
            # A turn costs, too: one of whom no burst can be had passes it on.
            accounts[key].charge(_TURN_SECONDS)
        return frozenset(chosen)
