from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from invented import (
    burst_record,
    header,
    make_snapshot,
    recording_of,
    stream,
    timed,
    window_record,
    write_recording,
)

from memsampd.errors import UsageError
from memsampd.estimate.events import BurstRecord, ExecRecord, MergeRecord, code_bytes
from memsampd.exporters.analysis import analyse, caches_of, usual_sizes
from memsampd.exporters.demand import program_of_recording
from memsampd.exporters.difference import difference
from memsampd.exporters.difference_text import to_document
from memsampd.exporters.recording import Recording, RecordingWriter, read_recording
from memsampd.exporters.tables import to_csv, to_json
from memsampd.exporters.text import to_text
from memsampd.models.histogram import ReuseHistogram
from memsampd.models.late_returns import LateReturns, continued
from memsampd.models.protocols import CacheModel
from memsampd.models.sizes import (
    default_sizes,
    format_size,
    parse_size,
    parse_sizes,
    with_caches,
)
from memsampd.models.statcache import StatCache
from memsampd.models.statstack import StatStack
from memsampd.models.survival import SurvivalFunction
from memsampd.sampler.rates import Speed


@pytest.fixture
def recording(recording_path: Path) -> Recording:
    return read_recording(recording_path)


def test_parts_of_a_burst_are_one_burst_and_what_was_stored_is_told_apart() -> None:
    first = burst_record(0, 1)
    bursts = [
        msgspec.structs.replace(burst_record(0, 0), is_stored=True),
        first,
        msgspec.structs.replace(first, part=1),
        burst_record(0, 2),
    ]
    windows = [window_record(index, 0) for index in range(3)]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes())
    assert ", 2 bursts and 1 known from before, " in to_text(analysis)
    assert analysis.phase(0).bursts == 2


@pytest.mark.parametrize(("policy", "model"), [("lru", StatStack()), ("random", StatCache())])
def test_windows_have_the_mean_curve_of_the_bursts_nearby_and_phases_of_their_windows(
    policy: str, model: CacheModel
) -> None:
    taken = (5, 24)
    bursts = [burst_record(1, at, 4000, 2e8) for at in taken]
    windows = [window_record(index, 1) for index in range(30)]
    analysis = analyse(recording_of(windows, bursts), policy, default_sizes())
    parts = [ReuseHistogram.from_lines(stream(1, 4000, at)) for at in taken]
    expected = [
        model.curve(SurvivalFunction.from_histogram(part), default_sizes(), 64).miss_ratio
        for part in parts
    ]
    curves = []
    for window in analysis.windows:
        assert window.curve is not None
        distances = np.abs(np.array(taken) - window.record.index)
        weights = 1 / (1 + (distances / (distances.min() + 1)) ** 2)
        mean = np.average(expected, axis=0, weights=weights)
        np.testing.assert_allclose(window.curve.miss_ratio, mean)
        curves.append(window.curve.miss_ratio)
    phase = analysis.phase(1)
    curve = analysis.curve(phase)
    assert curve is not None
    np.testing.assert_allclose(curve.miss_ratio, np.mean(curves, axis=0))
    assert (phase.bursts, phase.windows) == (2, 30)


def test_weights_are_shares_of_accesses(recording: Recording) -> None:
    analysis = analyse(recording, "lru", default_sizes())
    accesses: dict[int, float] = {}
    for window in analysis.windows:
        assert window.accesses is not None
        accesses[window.phase] = accesses.get(window.phase, 0.0) + window.accesses
    for phase in analysis.phases:
        assert phase.weight == pytest.approx(accesses[phase.id] / sum(accesses.values()))
    guessed = [w.accesses or 0.0 for w in analysis.windows if not w.is_rate_known]
    assert len(guessed) == 5
    assert all(1e8 < accesses / 0.1 < 3e8 for accesses in guessed)
    assert analysis.weighting == "accesses, partly estimated"


def test_outputs_say_which_rates_are_known(recording: Recording) -> None:
    """Phases 0 to 2, 75 of 80 windows; phase 3 has none."""
    analysis = analyse(recording, "lru", default_sizes())
    assert analysis.estimate.rate_known_share == pytest.approx(75 / 80)
    assert any("known for 93.8% of the CPU time" in warning for warning in analysis.warnings)
    document = json.loads(to_json(analysis))
    assert document["rate_known_share"] == pytest.approx(75 / 80)
    phases = document["phases"]
    rates = [phase["accesses_per_cpu_second"] for phase in phases]
    assert rates[:3] == [pytest.approx(rate, rel=0.35) for rate in (1e8, 2e8, 3e8)]
    assert rates[3] is None
    assert [phase["rate_spread"] is None for phase in phases] == [False] * 3 + [True]
    assert "M acc/s" in to_text(analysis)


def test_fast_code_makes_more_of_the_accesses_than_of_the_time() -> None:
    """Without branch vectors, windows go by the bursts nearby."""
    windows = [window_record(i, 0) for i in range(10)]
    rates = {1: 1e8, 2: 1e8, 7: 20e8, 8: 20e8}
    bursts = [burst_record(0, window, rate=rate) for window, rate in rates.items()]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes())
    accesses = np.array([window.accesses for window in analysis.windows], dtype=float)
    assert accesses[:3].max() < accesses[3:6].min() < accesses[3:6].max() < accesses[6:].min()
    assert 5 < accesses[8] / accesses[1] < 20
    ratios = np.array(
        [window.curve.miss_ratio for window in analysis.windows if window.curve is not None]
    )
    curve = analysis.curve(analysis.phase(0))
    assert curve is not None
    np.testing.assert_allclose(
        curve.miss_ratio, np.average(ratios, axis=0, weights=accesses), atol=1e-12
    )


def test_code_that_few_bursts_ran_counts_by_its_samples() -> None:
    """One burst in five hit the fast code; one sample in twenty did, in one window of two."""
    slow, fast = np.zeros(8), np.zeros(8)
    slow[:4], fast[6:] = 32, 64
    windows = [
        msgspec.structs.replace(
            window_record(i, 0), code=code_bytes(45 * slow / 128 + (i % 2) * 5 * fast / 128)
        )
        for i in range(40)
    ]
    bursts = [
        msgspec.structs.replace(
            burst_record(0, 2 * i, 1000 + 500 * (i == 3)),
            timed=timed(1e8 * (25 if i == 3 else 1)),
            code=code_bytes(fast if i == 3 else slow),
        )
        for i in range(5)
    ]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes())
    rates = [(window.accesses or 0) / window.record.cpu_seconds for window in analysis.windows]
    assert rates[0::2] == pytest.approx([1e8] * 20, rel=0.3)
    assert rates[1::2] == pytest.approx([0.9 * 1e8 + 0.1 * 25e8] * 20, rel=0.3)


def test_bursts_of_one_window_count_by_their_rates() -> None:
    """Four moments of one window: code that is ten times as fast makes ten times the accesses."""
    windows = [window_record(i, 0) for i in range(4)]
    accesses, rates = (4000, 3000, 2000, 1000), (1e8, 1e8, 10e8, 10e8)
    bursts = [burst_record(0, 1, n, rate) for n, rate in zip(accesses, rates, strict=True)]
    sizes = default_sizes()
    together = analyse(recording_of(windows, bursts), "lru", sizes)
    longer: list[LateReturns] = []
    curves = []
    for burst in bursts:
        own = SurvivalFunction.from_histogram(burst.histogram())
        survival = continued(own, longer, np.ones(len(longer)))
        longer.append(LateReturns.of(own))
        curves.append(StatStack().curve(survival, sizes, 64).miss_ratio)
    assert together.overall is not None
    np.testing.assert_allclose(
        together.overall.miss_ratio, np.average(curves, axis=0, weights=rates)
    )
    expected = 0.1 * np.mean(rates)
    assert [window.accesses for window in together.windows] == pytest.approx([expected] * 4)
    assert together.phase(0).bursts == 4


def _accesses(bursts: list[BurstRecord], code: np.ndarray) -> list[float]:
    """Accesses per CPU second of windows, one a burst, that ran its code."""
    windows = [
        msgspec.structs.replace(window_record(burst.window, burst.phase), code=code_bytes(50 * ran))
        for burst, ran in zip(bursts, code, strict=True)
    ]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes())
    return [window.weight / window.record.cpu_seconds for window in analysis.windows]


def test_what_was_not_timed_is_as_fast_as_others_of_its_code() -> None:
    """Also where all of them make one phase."""
    code = np.eye(4)[[0, 1, 0, 1]]
    bursts = [
        msgspec.structs.replace(
            burst_record(0, 100 * number),
            timed=None if rate is None else timed(rate),
            code=code_bytes(64 * ran),
        )
        for number, (rate, ran) in enumerate(zip((40e8, 4e8, None, None), code, strict=True))
    ]
    rates = _accesses(bursts, code)
    assert rates[:2] == pytest.approx([40e8, 4e8], rel=0.1)
    # One burst of its code was timed: that takes away four fifths of what the model is wrong by.
    untimed = _accesses([msgspec.structs.replace(burst, timed=None) for burst in bursts], code)
    wrong = np.log(np.array(untimed) / np.tile([40e8, 4e8], 2))
    left = np.log(np.array(rates[2:]) / [40e8, 4e8])
    np.testing.assert_allclose(left, wrong[2:] - 0.8 * wrong[:2], atol=0.02)


def test_windows_of_a_phase_without_bursts_are_guessed() -> None:
    windows = [window_record(i, int(i >= 6)) for i in range(9)]
    bursts = [burst_record(0, 1), burst_record(0, 4)]
    analysis = analyse(recording_of(windows, bursts), "lru", default_sizes())
    assert analysis.curve(analysis.phase(1)) is None
    known, guessed = analysis.windows[5], analysis.windows[8]
    assert known.curve is not None
    assert known.is_known
    assert guessed.curve is not None
    assert not guessed.is_known
    both = [analysis.windows[taken].curve for taken in (1, 4)]
    low, high = sorted(float(curve.miss_ratio[3]) for curve in both if curve is not None)
    assert low <= guessed.curve.miss_ratio[3] <= high
    assert set(guessed.curve.low.tolist() + guessed.curve.high.tolist()) == {0.0, 1.0}
    assert analysis.overall is not None
    assert analysis.overall.high[-1] >= 3 / 9


def test_without_any_rate_cpu_time_weighs() -> None:
    recording = recording_of([window_record(i, int(i > 2)) for i in range(12)])
    analysis = analyse(recording, "lru", default_sizes())
    assert [phase.weight for phase in analysis.phases] == pytest.approx([0.25, 0.75])
    assert analysis.weighting == "cpu_seconds"
    assert any("CPU time" in warning for warning in analysis.warnings)
    assert all(window.accesses is None for window in analysis.windows)


def test_chains_of_merges_lead_to_the_last() -> None:
    merges = [MergeRecord(gone=2, into=1), MergeRecord(gone=1, into=0), MergeRecord(gone=3, into=2)]
    windows = [window_record(i, i) for i in range(4)]
    analysis = analyse(recording_of(windows, merges=merges), "lru", default_sizes())
    assert [window.phase for window in analysis.windows] == [0, 0, 0, 0]
    assert [phase.windows for phase in analysis.phases] == [4]


def test_json_has_the_agreed_shape(recording: Recording) -> None:
    document = json.loads(to_json(analyse(recording, "lru", parse_sizes("1KiB,32K,1MiB"))))
    assert document["sizes_bytes"] == [1024, 32768, 1 << 20]
    assert (document["line_bytes"], document["policy"]) == (64, "lru")
    assert len(document["windows"]) == 80
    assert {
        "start_seconds",
        "cpu_seconds",
        "accesses",
        "accesses_guess",
        "phase",
        "miss_ratio",
        "low",
        "high",
    } == set(document["windows"][0])
    assert document["overhead"]["stop_seconds"] == 0.01
    assert document["bursts"]["pages_missed"] == 100
    assert sum(phase["weight"] for phase in document["phases"]) == pytest.approx(1)
    for curve in [*document["windows"], *document["phases"], document["overall"]]:
        known = curve["miss_ratio"][0] is not None
        assert known == (curve.get("id") != 3)
        if curve.get("phase") == 3:  # the nearest burst's, but anything is possible
            assert (set(curve["low"]), set(curve["high"])) == ({0.0}, {1.0})
        if known:
            for low, middle, high in zip(
                curve["low"], curve["miss_ratio"], curve["high"], strict=True
            ):
                assert 0 <= low <= middle <= high <= 1
        else:
            assert (curve["low"], curve["high"]) == ([0.0] * 3, [1.0] * 3)


def test_csv_is_tidy_and_agrees_with_json(recording: Recording) -> None:
    analysis = analyse(recording, "random", parse_sizes("32K,1M"))
    rows = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    document = json.loads(to_json(analysis))
    assert len(rows) == 80 * 2
    for row, (window, index) in zip(
        rows, ((w, i) for w in document["windows"] for i in range(2)), strict=True
    ):
        wanted = window["miss_ratio"][index]
        assert row["miss_ratio"] == ("" if wanted is None else repr(wanted))
        assert float(row["high"]) == window["high"][index]
        assert int(row["phase"]) == window["phase"]


def test_a_damaged_end_is_said_everywhere(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "x")
    path.write_bytes(path.read_bytes()[:-3])
    analysis = analyse(read_recording(path), "lru", default_sizes())
    assert "truncated" in to_text(analysis)
    document = json.loads(to_json(analysis))
    assert "truncated" in document["warnings"][0]
    assert (document["overhead"], document["bursts"]) == ({}, {})


def test_what_child_processes_used_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with RecordingWriter(path, header()) as writer:
        writer.write(window_record(0, 0))
        writer.publish(msgspec.structs.replace(make_snapshot(alive=False), child_share=0.25))
    text = to_text(analyse(read_recording(path), "lru", default_sizes()))
    assert "child processes used 25.0% of the CPU time" in text


def test_an_empty_recording_is_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x"
    RecordingWriter(path, header()).close()
    analysis = analyse(read_recording(path), "lru", default_sizes())
    assert "no windows" in to_text(analysis)
    assert json.loads(to_json(analysis))["overall"]["miss_ratio"] == [None] * 17


def test_text_shows_phases_and_no_control_characters(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "x", command="a\x1b[31m\nb")
    text = to_text(analyse(read_recording(path), "lru", default_sizes()))
    assert "\x1b" not in text
    assert "miss L3" in text
    assert " 32 KiB " in text


def test_cycles_are_a_column_where_they_were_counted() -> None:
    """Of all windows of a phase together, merged ones among them; others have none."""
    plain = [window_record(index, phase) for index, phase in enumerate((0, 0, 1, 2))]
    speeds = (Speed(1e8, 1e9, 2.0, 0.1), Speed(1e8, 3e9, 1.0, 0.05), Speed(1e8, 0, math.nan, 0.1))
    counted = [
        msgspec.structs.replace(window, speed=speed)
        for window, speed in zip(plain, (*speeds, None), strict=True)
    ]
    merge = MergeRecord(gone=1, into=0)
    texts = []
    for windows in (plain, counted):
        analysis = analyse(recording_of(windows, merges=[merge]), "lru", default_sizes())
        texts.append(to_text(analysis))
    assert "CPI" not in texts[0]
    assert "CPI" in texts[1]
    by_id = {phase.id: phase for phase in analysis.phases}
    # However long it had the counters: what a window did goes by its CPU time.
    assert by_id[0].cycles_per_instruction == pytest.approx((1 * 2.0 + 3 * 1.0) / 4)
    assert by_id[2].cycles_per_instruction is None
    document = json.loads(to_json(analysis))
    assert [phase["cycles_per_instruction"] for phase in document["phases"]] == [
        phase.cycles_per_instruction for phase in analysis.phases
    ]


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("32K", 32 << 10), ("32KiB", 32 << 10), ("1MiB", 1 << 20), ("4096", 4096), ("2 gib", 2 << 30)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5M", "12Q", "K", "9" * 40, "2T", "1K,,2K"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sizes(text)


def test_sizes_are_sorted_and_unique() -> None:
    assert parse_sizes("2K,1K,1024").tolist() == [1024, 2048]
    assert format_size(48 << 10) == "48 KiB"


def test_usual_sizes_reach_beyond_the_caches_of_all_machines() -> None:
    def with_last_level(size_bytes: int) -> Recording:
        caches = {"L1d": 48 << 10, "L3": size_bytes}
        return Recording(msgspec.structs.replace(header(), cache_sizes_bytes=caches), [])

    powers = default_sizes().tolist()
    assert usual_sizes([with_last_level(32 << 20)]).tolist() == sorted([*powers, 48 << 10])
    assert usual_sizes([]).tolist() == powers
    large = usual_sizes([with_last_level(480 << 20), with_last_level(32 << 20)])
    assert large.tolist() == sorted([*(1 << n for n in range(10, 30)), 48 << 10, 480 << 20])
    assert usual_sizes([with_last_level(64 << 20)])[-1] == 128 << 20  # more than there is
    fine = usual_sizes([with_last_level(480 << 20)], 4)
    assert set(default_sizes(4)) <= set(fine)
    assert (fine[-1], len(fine)) == (512 << 20, 4 * 19 + 1 + 2)
    caches = caches_of([with_last_level(64)])
    assert with_caches(np.array([1 << 20]), caches).tolist() == [48 << 10, 1 << 20]


def test_the_text_counts_the_bursts_of_the_program_that_ran_last(recording: Recording) -> None:
    """As it does with windows: what was before is of another program."""
    before = recording.events
    execed = ExecRecord(time_seconds=9.0, command="other", executable="/bin/other")
    events = [*before, execed, window_record(80, 5), burst_record(5, 80, 1000)]
    again = Recording(recording.header, events)
    text = to_text(analyse(again, "lru", usual_sizes([again])))
    assert "1 windows, " in text
    assert ", 1 bursts, 1,000 sampled accesses" in text


def test_outputs_name_the_program_that_ran_last(recording: Recording) -> None:
    first = recording.header.target
    assert recording.target == first
    execs = [
        ExecRecord(time_seconds=9.0, command=name, executable=f"/bin/{name}")
        for name in ("other", "last")
    ]
    again = Recording(recording.header, [*recording.events, *execs, window_record(80, 5)])
    shown = analyse(again, "lru", usual_sizes([again]))
    assert to_text(shown).startswith(f"last (pid {first.pid})")
    target = json.loads(to_json(shown))["target"]
    assert (target["command"], target["executable"]) == ("last", "/bin/last")
    assert (target["pid"], target["start_ticks"]) == (first.pid, first.start_ticks)
    assert program_of_recording(again, 1 << 20).name == "last"
    compared = to_document(difference(shown, shown), shown, shown)
    assert [each["command"] for each in compared["targets"]] == ["last", "last"]
