"""Phases as one of river's online models.

What a session does without: river's base classes take 5 ms to be loaded.
"""

from __future__ import annotations

from river import base

from memsampd.phases.leader import LeaderFollower


class OnlinePhases(LeaderFollower, base.Clusterer):
    """The clusterer as a river estimator, to be used, checked and compared as any of these.

    Examples:
        >>> phases = OnlinePhases(tolerance=0.2)
        >>> phases.learn_one({"a": 90, "b": 10})
        >>> phases.predict_one({"a": 27, "b": 3}), phases.clone().tolerance
        (0, 0.2)
    """
