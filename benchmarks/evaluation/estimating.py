"""What memsampd says of a recording, judged by the reference."""

from __future__ import annotations

import json
from typing import Any

from evaluation.live import LiveRun
from evaluation.offline import SIZES_BYTES
from memsampd.exporters.analysis import analyse
from memsampd.exporters.recording import Recording
from memsampd.exporters.tables import to_json
from reference.estimates import Estimate, parse_estimate
from reference.windows import ERROR_SIZES_BYTES


def exported(recording: Recording, policy: str = "lru") -> dict[str, Any]:
    """Return what ``memsampd export --format json`` says of a recording."""
    document: dict[str, Any] = json.loads(to_json(analyse(recording, policy, SIZES_BYTES)))
    return document


def estimate_of(run: LiveRun, policy: str = "lru") -> Estimate:
    """Return what ``memsampd export`` makes of a run's recording."""
    return parse_estimate(exported(run.read(), policy), ERROR_SIZES_BYTES)
