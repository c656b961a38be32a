"""How much a target loses to slower copies: worked out by hand, and as a watch goes on."""

from __future__ import annotations

import pytest

from memsampd.daemon.copy_loss import CopyLoss
from memsampd.sampler.perf.watch import Watched, WatchOrder
from memsampd.sampler.perf.watching_cost import WatchingCost

BYTE_SECONDS = 0.25e-9
SLOW = WatchingCost(BYTE_SECONDS, 30.0)


def loss(cost: WatchingCost = SLOW, copied_bytes: int | None = 0) -> CopyLoss:
    found = CopyLoss(cost)
    found.elapse(1.0, copied_bytes)
    return found


def watched(
    begin: float, end: float, cpu_seconds: float, limit_seconds: float | None = None
) -> Watched:
    order = WatchOrder((64,), 7, 1e-3, limit_seconds=limit_seconds)
    return Watched(order, (begin, end), (0.0, cpu_seconds), (), "patience", 0.5, 0.0)


@pytest.mark.parametrize(
    ("copied_bytes", "limit_seconds"),
    [
        pytest.param(1 << 20, None, id="little"),
        pytest.param(400_000_000, 0.05, id="a tenth of its time"),
        pytest.param(4_000_000_000, 0.005, id="as long again"),
        pytest.param(5_000_000_000, 0.0, id="most of its time"),
        pytest.param(None, 0.0, id="nobody knows"),
    ],
)
def test_the_more_the_kernel_copies_the_shorter_words_are_watched(
    copied_bytes: int | None, limit_seconds: float | None
) -> None:
    assert loss(copied_bytes=copied_bytes).limit_seconds(0.0) == pytest.approx(limit_seconds)


def test_a_cpu_that_copies_as_fast_as_ever_sets_no_limit() -> None:
    for copied_bytes in (None, 10**12):
        fast = loss(WatchingCost(), copied_bytes)
        fast.add_burst(1, 10**9, 1)
        assert fast.limit_seconds(fast.user_share(1, 1e8)) is None
        assert fast.lost_seconds(watched(10.0, 11.0, 1.0), 0.0, 0.0) == 0


def test_what_traps_unseen_counts_more() -> None:
    unseen = loss(WatchingCost(sees_kernel=False), 100_000_000)
    assert unseen.limit_seconds(0.0) == pytest.approx(0.005 / 0.1)
    assert loss(copied_bytes=100_000_000).limit_seconds(0.0) == pytest.approx(0.005 / 0.025)


def test_what_was_copied_is_forgotten_by_and_by() -> None:
    found = loss(copied_bytes=400_000_000)
    for _ in range(5):
        found.elapse(0.1, 0)  # half a second: half of it counts, of 1.5 s, half of which count
    assert found.limit_seconds(0.0) == pytest.approx(0.05 * 2 * (0.5 + _halved_tenths()), rel=1e-6)


def _halved_tenths() -> float:
    """What is left of five times 0.1 s, each counting half after 0.5 s."""
    return sum(0.1 * float(0.5 ** (0.2 * each)) for each in range(5))


def test_bursts_tell_what_is_copied_in_user_mode_phase_by_phase() -> None:
    found = loss()
    found.add_burst(1, 3_000, 1_000)
    found.add_burst(1, 1_000, 1_000)
    found.add_burst(2, 0, 5_000)
    assert found.user_share(1, 1e8) == pytest.approx(2 * 1e8 * BYTE_SECONDS)
    assert found.user_share(2, 1e8) == 0
    assert found.user_share(3, 1e8) == 0  # nothing is known of it
    found.merge(2, 1)
    assert found.user_share(1, 1e8) == pytest.approx(4 / 7 * 1e8 * BYTE_SECONDS)
    found.restart()
    assert found.user_share(1, 1e8) == 0


def test_after_an_exec_the_copies_of_the_program_before_do_not_count() -> None:
    found = loss(copied_bytes=10**10)
    found.restart()
    assert found.limit_seconds(0.0) == 0  # nobody knows yet
    found.elapse(0.1, 0)
    assert found.limit_seconds(0.0) is None


def test_watches_at_the_same_time_lose_once() -> None:
    found = loss(copied_bytes=400_000_000)
    share = 0.1 + 0.3
    first = found.lost_seconds(watched(10.0, 11.0, 0.8, 0.8), 0.3, 0.0)
    assert first == pytest.approx(0.8 * share / (1 + share))
    assert found.lost_seconds(watched(10.2, 10.9, 0.5, 0.8), 0.3, 0.0) == 0
    half = found.lost_seconds(watched(10.5, 11.5, 0.8, 0.8), 0.3, 0.0)
    assert half == pytest.approx(first / 2)


def test_what_was_copied_during_a_watch_is_what_it_lost() -> None:
    """Whatever was copied before; but for one that the kernel ended, nobody saw when."""
    found = loss(copied_bytes=10**10)
    since = found.kernel_seconds
    found.elapse(0.5, 8_000_000)
    lost = found.lost_seconds(watched(10.0, 10.5, 0.5), 0.25, since)
    assert lost == pytest.approx(8_000_000 * BYTE_SECONDS + 0.5 * 0.2)


def test_watches_end_where_the_target_copies_more_than_when_they_began() -> None:
    found = loss()
    found.elapse(0.1, 20_000_000, user_share=0.0)
    assert not found.is_too_much
    found.elapse(0.1, 20_000_000, user_share=0.04)  # a millisecond or so of its own, and 4
    found.elapse(0.1, 0, user_share=0.04)
    assert found.is_too_much
    found.elapse(0.1, 10**9)  # nothing is watched
    assert not found.is_too_much
    for _ in range(100):
        found.elapse(0.1, 2_000_000, user_share=0.005)  # 1 %, for long
    assert not found.is_too_much


def test_threads_that_run_together_lose_together() -> None:
    alone, four = loss(copied_bytes=400_000_000), CopyLoss(SLOW)
    four.elapse(1.0, 400_000_000, busy_share=4.0)
    assert alone.limit_seconds(0.0) == pytest.approx(0.05)
    assert four.limit_seconds(0.0) == pytest.approx(0.05 / 4)
    ended = watched(10.0, 11.0, 0.8, 0.8)
    one, all_four = (each.lost_seconds(ended, 0.0, 0.0) for each in (alone, four))
    assert all_four == pytest.approx(4 * one)


def test_a_loss_that_nobody_knows_is_not_made_up() -> None:
    found = loss(copied_bytes=None)
    assert found.lost_seconds(watched(10.0, 11.0, 0.8, 0.8), 0.0, 0.0) == 0
    assert found.lost_seconds(watched(12.0, 12.0, 0.0), 0.0, 0.0) == 0
