"""What observing may cost a node, and who has bursts."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsampd.daemon.node.budget import Candidate, NodeBudget, Rotation, TokenBucket


def test_a_bucket_pays_no_more_than_its_share_in_the_long_run() -> None:
    bucket = TokenBucket(0.02, 0.0)
    spent = 0.0
    for second in range(1, 3601):
        spent += 0.5 if bucket.balance_seconds > 0 else 0.0
        bucket.tell(float(second), spent)
    assert 0.02 * 3600 <= spent <= 0.02 * (3600 + 120) + 0.5
    assert bucket.recent_share == pytest.approx(0.02, abs=0.01)


def test_savings_have_a_limit() -> None:
    bucket = TokenBucket(0.02, 0.0)
    bucket.tell(100.0, 2.4)
    bucket.tell(100_000.0, 2.4)
    assert bucket.balance_seconds <= 0.02 * 120


def test_what_was_used_before_the_start_is_nobodys() -> None:
    bucket = TokenBucket(0.02, 0.0, spent_seconds=5.0)
    bucket.tell(1.0, 5.0)
    assert bucket.balance_seconds > 0
    assert bucket.recent_share == 0


def test_bursts_have_a_part_though_all_the_rest_takes_too_much() -> None:
    budget = NodeBudget(0.02, 0.02, 0.0)
    burst_seconds = other_seconds = 0.0
    for second in range(1, 3601):
        other_seconds += 0.1
        burst_seconds += 0.05 if budget.allows_bursts else 0.0
        budget.tell(float(second), other_seconds + burst_seconds, burst_seconds, 0.0)
    assert 0.5 * 0.02 * 3600 <= burst_seconds <= 0.5 * 0.02 * 3720 + 0.1
    assert budget.pace == 4.0


def test_holds_are_bounded_though_there_is_cpu_time() -> None:
    budget = NodeBudget(0.5, 0.02, 0.0)
    held = 0.0
    for second in range(1, 1001):
        held += 0.1 if budget.allows_bursts else 0.0
        budget.tell(float(second), 0.0, 0.0, held)
    assert held <= 0.02 * 1120 + 0.1
    assert budget.pace == 1.0


def test_other_shares_hold_from_then_on() -> None:
    budget = NodeBudget(0.02, 0.02, 0.0)
    budget.tell(1.0, 100.0, 100.0, 0.0)
    assert not budget.allows_bursts
    budget.change(1.0, 0.02)
    budget.tell(200.0, 100.0, 100.0, 0.0)
    assert budget.allows_bursts


class Fleet:
    """Targets whose bursts cost so much a second while they have their turn."""

    def __init__(
        self,
        weights: dict[str, tuple[float, float]],
        slots: int,
        owners: dict[str, str] | None = None,
    ) -> None:
        self.shares = weights
        self.owners = owners or {}
        self.costs = dict.fromkeys(weights, 0.0)
        self.turns = dict.fromkeys(weights, 0)
        self.rotation = Rotation(slots, 10.0)
        self.now = 0.0

    def run(self, seconds: int, cost: float = 0.01) -> None:
        for _ in range(seconds):
            self.now += 1.0
            candidates = {
                name: Candidate(cpu, unknown, 0, self.costs[name], self.owners.get(name))
                for name, (cpu, unknown) in self.shares.items()
            }
            for name in self.rotation.turn(self.now, candidates):
                self.costs[name] += cost
                self.turns[name] += 1

    def add(self, name: str, share: tuple[float, float], owner: str) -> None:
        self.shares[name], self.owners[name] = share, owner
        self.costs[name], self.turns[name] = 0.0, 0

    def remove(self, name: str) -> None:
        del self.shares[name]
        self.rotation.leave(name, self.costs[name])

    def cost_of(self, owner: str) -> float:
        return sum(cost for name, cost in self.costs.items() if self.owners.get(name) == owner)


def test_who_uses_more_cpu_time_has_more_bursts() -> None:
    fleet = Fleet({"busy": (0.8, 1.0), "less": (0.4, 1.0), "little": (0.1, 1.0)}, 1)
    fleet.run(20_000)
    assert fleet.costs["busy"] / fleet.costs["less"] == pytest.approx(2, rel=0.15)
    assert fleet.costs["less"] / fleet.costs["little"] == pytest.approx(4, rel=0.15)


def test_who_is_unknown_has_more_bursts_than_who_is_known() -> None:
    fleet = Fleet({"new": (0.5, 1.0), "known": (0.5, 0.0)}, 1)
    fleet.run(10_000)
    assert fleet.costs["new"] / fleet.costs["known"] == pytest.approx(10, rel=0.25)


def test_everybody_has_bursts_if_there_is_room() -> None:
    fleet = Fleet({"a": (0.5, 1.0), "b": (0.001, 0.0)}, 2)
    fleet.run(50)
    assert fleet.turns == {"a": 50, "b": 50}


@pytest.mark.parametrize("turn_seconds", [1.0, 4.0])
def test_a_turn_lasts_as_long_as_it_is_to(turn_seconds: float) -> None:
    rotation = Rotation(1, turn_seconds)
    alike = {name: Candidate(0.5, 1.0, 0, 0.0) for name in "ab"}
    chosen = [next(iter(rotation.turn(float(second), alike))) for second in range(24)]
    lengths = [len(list(turns)) for _, turns in groupby(chosen)]
    assert lengths == [int(turn_seconds)] * int(24 / turn_seconds)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_many_processes_bring_their_owner_no_more_than_one_that_is_as_busy(slots: int) -> None:
    owners = {f"a{i}": "alice" for i in range(50)} | {f"b{i}": "bob" for i in range(slots)}
    fleet = Fleet(dict.fromkeys(owners, (0.5, 1.0)), slots, owners)
    fleet.run(3000)
    assert fleet.cost_of("alice") / fleet.cost_of("bob") == pytest.approx(1, rel=0.1)
    theirs = [fleet.costs[name] for name in owners if name.startswith("a")]
    assert min(theirs) > 0.25 * max(theirs)


def test_an_owner_who_has_one_target_only_has_it_profiled_all_the_time() -> None:
    owners = {f"a{i}": "alice" for i in range(50)} | {"b": "bob"}
    fleet = Fleet(dict.fromkeys(owners, (0.5, 1.0)), 4, owners)
    fleet.run(2000)
    assert fleet.turns["b"] >= 1900


def test_a_stream_of_new_processes_takes_nothing_from_others() -> None:
    fleet = Fleet({"b": (0.5, 1.0)}, 1, {"b": "bob"})
    for number in range(1500):
        fleet.add(f"a{number}", (0.5, 1.0), "alice")
        if number >= 5:
            del fleet.shares[f"a{number - 5}"]
        fleet.run(3)
    assert fleet.turns["b"] == pytest.approx(0.5 * 4500, rel=0.1)


def test_who_leaves_and_comes_again_is_not_forgiven() -> None:
    fleet = Fleet({"b": (0.5, 1.0)}, 1, {"b": "bob"})
    for number in range(800):
        fleet.add(f"a{number}", (0.5, 1.0), "alice")
        fleet.run(1, cost=0.1)
        fleet.remove(f"a{number}")
        fleet.run(4)
    assert fleet.cost_of("alice") < 1.5 * fleet.cost_of("bob")


def test_an_owner_whose_targets_do_little_is_no_heavier_than_they_are() -> None:
    owners = {"busy": "alice", "little": "bob"}
    fleet = Fleet({"busy": (1.0, 1.0), "little": (0.1, 1.0)}, 1, owners)
    fleet.run(20_000)
    assert fleet.costs["busy"] / fleet.costs["little"] == pytest.approx(10, rel=0.15)


def test_work_split_into_many_processes_has_as_much_as_that_of_one() -> None:
    owners = {f"a{i}": "alice" for i in range(10)} | {"b": "bob"}
    shares = {name: (0.1 if owner == "alice" else 1.0, 1.0) for name, owner in owners.items()}
    fleet = Fleet(shares, 1, owners)
    fleet.run(20_000)
    assert fleet.cost_of("alice") / fleet.cost_of("bob") == pytest.approx(1, rel=0.1)


@given(
    st.dictionaries(
        st.integers(0, 30),
        st.tuples(st.floats(0, 4), st.floats(0, 1), st.sampled_from(["alice", "bob", "carol"])),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 8),
)
@settings(max_examples=40)
def test_nobody_starves_and_slots_are_kept_to(
    weights: dict[int, tuple[float, float, str]], slots: int
) -> None:
    owners = {str(key): value[2] for key, value in weights.items()}
    fleet = Fleet({str(key): value[:2] for key, value in weights.items()}, slots, owners)
    for _ in range(150):
        fleet.run(10)
        assert sum(fleet.turns.values()) == fleet.now * min(slots, len(weights))
    for owner in set(owners.values()):
        assert max(turns for name, turns in fleet.turns.items() if owners[name] == owner) > 0
    if len(set(owners.values())) == 1:
        assert min(fleet.turns.values()) > 0


def test_who_comes_late_has_no_claim_for_the_time_before() -> None:
    fleet = Fleet({"old": (0.5, 1.0)}, 1)
    fleet.run(1000)
    fleet.shares["new"] = (0.5, 1.0)
    fleet.costs["new"], fleet.turns["new"] = 0.0, 0
    before = fleet.turns["old"]
    fleet.run(1000)
    assert fleet.turns["new"] == pytest.approx(500, abs=40)
    assert fleet.turns["old"] - before == pytest.approx(500, abs=40)


def test_one_of_whom_no_burst_can_be_had_passes_its_turn_on() -> None:
    fleet = Fleet({"refused": (2.0, 1.0), "other": (0.5, 1.0)}, 1)
    rotation, costs, other = fleet.rotation, {"refused": 0.0, "other": 0.0}, 0
    for second in range(2000):
        chosen = rotation.turn(
            float(second),
            {name: Candidate(*fleet.shares[name], 0, costs[name]) for name in costs},
        )
        if "other" in chosen:
            costs["other"] += 0.01
            other += 1
    assert other > 0
