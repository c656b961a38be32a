"""StatCache: misses of caches with random replacement from reuse distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from memsampd import _core
from memsampd.models.records import MissRatioCurve
from memsampd.models.sizes import size_in_lines
from memsampd.models.survival import SurvivalFunction


class StatCache:
    """Fully associative caches that replace at random (Berg and Hagersten, ISPASS 2004, sec. 3).

    With a miss ratio R, the d accesses between two touches of a line replace d*R lines at random,
    and the line survives each with 1 - 1/L. So R is the largest solution of
    ``R = sum of p_d * (1 - (1 - 1/L)**(d*R)) + S(infinity)``.

    ``high`` takes all of S(horizon) as never returning, ``low`` as returning at the horizon; what
    is beyond it matters less the smaller the cache, so the two part gradually. The estimate is
    ``high``: a share that was not seen to return is the only figure observed.
    """

    policy = "random"

    def curve(
        self, survival: SurvivalFunction, sizes_bytes: NDArray[np.int64], line_bytes: int = 64
    ) -> MissRatioCurve:
        """Model randomly replacing caches of these sizes.

        Args:
            survival: of the reuse distances in lines of ``line_bytes``.
            sizes_bytes: shape (s,), ascending.
            line_bytes: size of a line.

        Raises:
            UsageError: a size below one line, or sizes that do not ascend.
        """
        lines = size_in_lines(sizes_bytes, line_bytes)
        edges, shares = survival.contiguous()
        high, low = (np.frombuffer(each) for each in _core.random_ratios(edges, shares, lines))
        return MissRatioCurve(
            sizes_bytes=np.asarray(sizes_bytes, dtype=np.int64),
            miss_ratio=high,
            low=low,
            high=high,
            policy=self.policy,
            line_bytes=line_bytes,
            sampled_accesses=survival.sampled_accesses,
        )
