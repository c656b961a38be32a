"""The experiments, in the order in which they are done and reported."""

from __future__ import annotations

from evaluation.experiment import Experiment
from evaluation.experiments.ablation import Ablation
from evaluation.experiments.access_rate import AccessRateByPhase
from evaluation.experiments.accuracy import Accuracy
from evaluation.experiments.average_curve import AverageCurve
from evaluation.experiments.burst_scatter import BurstScatter
from evaluation.experiments.distribution import Distribution
from evaluation.experiments.heat_maps import HeatMaps
from evaluation.experiments.live import Live
from evaluation.experiments.own_phase import OwnPhase
from evaluation.experiments.phase_quality import PhaseQuality
from evaluation.experiments.phase_sensitivity import PhaseSensitivity
from evaluation.experiments.profiled_windows import ProfiledWindows
from evaluation.experiments.remade import RemadeReference
from evaluation.experiments.time_to_answer import TimeToAnswer
from evaluation.experiments.tradeoff import Tradeoff

EXPERIMENTS: tuple[Experiment, ...] = (
    AverageCurve(),
    ProfiledWindows(),
    PhaseQuality(),
    PhaseSensitivity(),
    Ablation(),
    OwnPhase(),
    Accuracy(),
    Live(),
    BurstScatter(),
    Distribution(),
    HeatMaps(),
    AccessRateByPhase(),
    TimeToAnswer(),
    Tradeoff(),
    RemadeReference(),
)
