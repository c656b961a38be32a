"""What memsampd says of a recording, judged by the reference."""

from __future__ import annotations

import json

from evaluation.live import LiveRun
from evaluation.offline import SIZES_BYTES
from memsampd.exporters.analysis import analyse
from memsampd.exporters.tables import to_json
from reference.estimates import Estimate, parse_estimate
from reference.windows import ERROR_SIZES_BYTES


def estimate_of(run: LiveRun, policy: str = "lru") -> Estimate:
    """Return what ``memsampd export`` makes of a run's recording."""
    document = to_json(analyse(run.read(), policy, SIZES_BYTES))
    return parse_estimate(json.loads(document), ERROR_SIZES_BYTES)
