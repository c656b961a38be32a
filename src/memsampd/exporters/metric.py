"""What a metric family is, and how names and labels of memsampd's are formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TARGET_LABELS = ("pid", "command")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: full name as Prometheus stores it.
        kind: Prometheus type.
        unit: base unit of the value, for people.
        help: what it says, in one line.
        labels: label names besides those of the target.
        of_target: it belongs to one target (has the labels ``pid`` and ``command``).
    """

    name: str
    kind: Literal["gauge", "counter"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    of_target: bool = True

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The names of all its labels, in order."""
        return (TARGET_LABELS if self.of_target else ()) + self.labels


def gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    """Return a gauge of a target; see :class:`Metric`."""
    return Metric(f"memsampd_{name}", "gauge", unit, help, labels)


def counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    """Return a counter of a target."""
    return Metric(f"memsampd_{name}_total", "counter", unit, help, labels)


def node(
    name: str, kind: Literal["gauge", "counter"], unit: str, help: str, *labels: str
) -> Metric:
    """Return a metric of the daemon itself."""
    return Metric(f"memsampd_node_{name}", kind, unit, help, labels, of_target=False)
