"""Which kernel it is."""

from __future__ import annotations

import re


def parse_release(release: str) -> tuple[int, int]:
    """Major and minor version of a release string; (0, 0) if it has none."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
