from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from memsampd.phases.drift import DriftMonitor

CURVE = np.array([0.5, 0.3, 0.2, 0.1])


def bursts(rng: Any, shift: Any, spread: Any, n: Any) -> Any:
    return np.clip(rng.normal(CURVE + np.array([0, 0, shift, 0]), spread, size=(n, 4)), 0, 1)


def test_steady_curves_raise_no_alarm() -> None:
    alarms = 0
    for seed in range(20):
        monitor = DriftMonitor()
        rng = np.random.default_rng(seed)
        alarms += sum(monitor.update(0, values) for values in bursts(rng, 0, 0.03, 200))
    assert alarms <= 1


@pytest.mark.parametrize(("shift", "limit"), [(0.2, 20), (0.1, 35)])
def test_a_shift_at_one_size_is_noticed(shift: Any, limit: Any) -> None:
    delays = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        monitor = DriftMonitor()
        for values in bursts(rng, 0, 0.03, 15):
            monitor.update(0, values)
        alarms = [monitor.update(0, values) for values in bursts(rng, shift, 0.03, 60)]
        delays.append(alarms.index(True) + 1 if True in alarms else len(alarms))
    assert np.median(delays) <= limit


def test_phases_do_not_mix_and_start_afresh_after_drift() -> None:
    monitor = DriftMonitor()
    for _ in range(30):
        assert not monitor.update(0, [0.1])
        assert not monitor.update(1, [0.9])
    alarms = [monitor.update(0, [0.6]) for _ in range(60)]
    assert sum(alarms) == 1  # 0.6 is the new normal
    assert not any(monitor.update(1, [0.9]) for _ in range(30))


def test_merge_keeps_the_survivor_s_history() -> None:
    monitor = DriftMonitor()
    for _ in range(30):
        monitor.update(0, [0.1])
        monitor.update(1, [0.9])
    monitor.merge(1, 0)
    assert not any(monitor.update(0, [0.1]) for _ in range(30))
    monitor.merge(0, 5)  # 5 is unknown: it takes the history over
    assert any(monitor.update(5, [0.9]) for _ in range(60))


def test_what_is_forgotten_raises_no_alarm() -> None:
    monitor = DriftMonitor()
    for _ in range(30):
        monitor.update(0, [0.1])
    monitor.forget(0)
    monitor.forget(1)
    assert not any(monitor.update(0, [0.9]) for _ in range(30))


def test_refuses_another_number_of_sizes() -> None:
    monitor = DriftMonitor()
    monitor.update(0, [0.1, 0.2])
    with pytest.raises(ValueError, match="1 values for 2 sizes"):
        monitor.update(0, [0.1])


def test_does_not_load_scipy() -> None:
    """``river.drift`` costs 84 MB for what fits into one."""
    code = (
        "import sys; from memsampd.phases.drift import DriftMonitor; "
        "m = DriftMonitor(); m.update(0, [0.5]); "
        "print('scipy.stats' in sys.modules, 'river.datasets' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
