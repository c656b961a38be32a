"""Pauses double, have a limit, and end with a burst."""

from memsampd.daemon.backoff import BackOff


def asked(backoff: BackOff, windows: int) -> list[int]:
    """Windows after which a burst is asked for, all of them refused."""
    found = []
    for index in range(windows):
        if not backoff.waits(index):
            found.append(index)
            backoff.refused(index)
    return found


def test_pauses_double_up_to_the_limit() -> None:
    assert asked(BackOff(), 200) == [0, 1, 3, 7, 15, 31, 63, 127, 191]


def test_a_burst_ends_the_pause() -> None:
    backoff = BackOff()
    asked(backoff, 20)
    assert backoff.waits(20)
    backoff.succeeded()
    assert not backoff.waits(20)
    backoff.refused(20)
    assert not backoff.waits(21)
