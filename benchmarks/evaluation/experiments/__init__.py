"""The experiments, in the order in which they are done and reported."""

from __future__ import annotations

from evaluation.experiment import Experiment
from evaluation.experiments.average_curve import AverageCurve
from evaluation.experiments.live import Live
from evaluation.experiments.phase_quality import PhaseQuality
from evaluation.experiments.phase_sensitivity import PhaseSensitivity
from evaluation.experiments.profiled_windows import ProfiledWindows
from evaluation.experiments.sources import Sources

EXPERIMENTS: tuple[Experiment, ...] = (
    AverageCurve(),
    ProfiledWindows(),
    PhaseQuality(),
    PhaseSensitivity(),
    Live(),
    Sources(),
)
