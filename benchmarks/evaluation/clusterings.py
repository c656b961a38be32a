"""Phases of a run by the product's clusterer and by others, from the same branch vectors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2

from memsampd.phases.leader import LeaderFollower

Hits = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass
class Merges:
    """What phases are called in the end."""

    into: dict[int, int] = field(default_factory=dict)

    def add(self, pairs: tuple[tuple[int, int], ...]) -> None:
        """Note that phases (gone, into) were merged."""
        self.into.update(pairs)

    def final(self, phase: int) -> int:
        """Return what a phase is called in the end."""
        while phase in self.into:
            phase = self.into[phase]
        return phase


def product(hits: Hits, clusterer: LeaderFollower | None = None) -> Labels:
    """Labels by memsampd's clusterer, its merges applied to the past.

    Args:
        hits: branch vectors in order, shape (w, bins).
        clusterer: one with other settings than the product's.
    """
    model = clusterer or LeaderFollower()
    merges = Merges()
    labels = []
    for window in hits:
        assignment = model.learn_counts(window)
        merges.add(assignment.merged)
        labels.append(assignment.phase)
    return np.array([merges.final(label) for label in labels])


def fixed_threshold(hits: Hits, threshold: float = 0.4) -> Labels:
    """Labels by leader-follower with ScarPhase's fixed threshold (Sembrant et al., IISWC 2011)."""
    centroids: list[Hits] = []
    members: list[int] = []
    labels = []
    for share in hits / hits.sum(axis=1, keepdims=True):
        distances = [float(np.abs(share - centroid).sum()) for centroid in centroids]
        if not distances or min(distances) > threshold:
            centroids.append(share.copy())
            members.append(1)
            labels.append(len(centroids) - 1)
            continue
        nearest = int(np.argmin(distances))
        members[nearest] += 1
        centroids[nearest] += (share - centroids[nearest]) / members[nearest]
        labels.append(nearest)
    return np.array(labels)


def dbstream(hits: Hits) -> Labels:
    """Labels by river's DBSTREAM, learned and predicted window by window."""
    from river import cluster

    model: Any = cluster.DBSTREAM(
        clustering_threshold=0.25, fading_factor=0.001, cleanup_interval=50, minimum_weight=1
    )
    labels = []
    for window in hits / hits.sum(axis=1, keepdims=True):
        share: dict[Hashable, float] = dict(enumerate(window.tolist()))
        model.learn_one(share)
        labels.append(model.predict_one(share))
    return np.array(labels)


def k_means(vectors: Hits, k: int, seed: int) -> Labels:
    """Labels by k-means over all windows at once, the best of 8 starts."""
    best, least = np.zeros(len(vectors), dtype=np.int64), np.inf
    for start in range(8):
        centers, labels = kmeans2(
            vectors, min(k, len(vectors)), minit="++", rng=np.random.default_rng([seed, start])
        )
        loss = float(((vectors - centers[labels]) ** 2).sum())
        if loss < least:
            best, least = labels.astype(np.int64), loss
    return best
