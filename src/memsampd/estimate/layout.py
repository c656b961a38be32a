"""Curves of several policies as one row of figures: what is added up and averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from memsampd.models.protocols import CacheModel
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import default_sizes
from memsampd.models.survival import SurvivalFunction

MIDDLE, LOW, HIGH = range(3)
COMPARED_SIZES_BYTES = default_sizes()
"""Where bursts are compared, and scaled, whatever sizes are asked for.

Estimates at other sizes are to be of the same accesses.
"""


class CurveLayout(msgspec.Struct, frozen=True):
    """Which curves a row of figures holds: of shape (policies, 3, s), flattened.

    Attributes:
        models: one for each policy.
        sizes_bytes: shape (s,), int64, ascending.
        line_bytes: size of a line.
    """

    models: Sequence[CacheModel]
    sizes_bytes: NDArray[np.int64]
    line_bytes: int

    @property
    def values(self) -> int:
        """Figures in a row."""
        return len(self.models) * 3 * len(self.sizes_bytes)

    def row(self, survival: SurvivalFunction) -> NDArray[np.float64]:
        """Model the reuse distances of a burst; returns shape (values,)."""
        curves = [model.curve(survival, self.sizes_bytes, self.line_bytes) for model in self.models]
        return np.concatenate(
            [part for curve in curves for part in (curve.miss_ratio, curve.low, curve.high)]
        )

    def seen(
        self, weights: NDArray[np.float64], sight_lines: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return of which part of some bursts stack distances as large as caches were seen.

        Args:
            weights: of the bursts, shape (m,).
            sight_lines: up to which stack distance each saw some, shape (m,).

        Returns:
            0..1, shape (values,); 0 for policies for which these tell nothing.
        """
        lines = self.sizes_bytes / self.line_bytes
        total = max(float(weights.sum()), 1.0)
        share = weights @ (sight_lines[:, None] >= lines) / total
        seen = np.zeros((len(self.models), 3, len(lines)))
        seen[[model.policy == "lru" for model in self.models]] = share
        return seen.ravel()

    def table(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a row as shape (policies, 3, s), a view."""
        return row.reshape(len(self.models), 3, len(self.sizes_bytes))

    def curves(
        self, row: NDArray[np.float64], sampled_accesses: int
    ) -> Mapping[str, MissRatioCurve]:
        """Return a row of miss ratios as curves by policy, monotone and with bounds in order."""
        table = np.clip(np.minimum.accumulate(self.table(row), axis=2), 0.0, 1.0)
        return {
            model.policy: MissRatioCurve(
                sizes_bytes=self.sizes_bytes,
                miss_ratio=part[MIDDLE],
                low=np.minimum(part[LOW], part[MIDDLE]),
                high=np.maximum(part[HIGH], part[MIDDLE]),
                policy=model.policy,
                line_bytes=self.line_bytes,
                sampled_accesses=sampled_accesses,
            )
            for model, part in zip(self.models, table, strict=True)
        }
