"""What ``attach --json`` prints, as a JSON schema: ``python -m memsampd.exporters.event_schema``.

The result is kept as docs/events.schema.json; a test checks that it is up to date, and real output
against it.
"""

from __future__ import annotations

import json
import sys
from typing import Any, TypeAlias

from memsampd.exporters.documents import VERSION

Schema: TypeAlias = dict[str, Any]


def event_schema() -> Schema:
    """Return the schema (JSON Schema 2020-12) of one line: a window that has ended."""
    ratios = {name: _ratios(words) for name, words in _CURVE.items()}
    whole_run = _object(
        "the run so far",
        {
            **ratios,
            "user_cpu_seconds": _amount("CPU time in user mode of all windows"),
            "unknown_cpu_seconds": _amount("of it in code that no burst has seen"),
        },
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "memsampd attach --json: a line for each window",
        **_object(
            "A window that has ended, the curve of its phase, and that of the run so far. A later "
            "version may have more keys.",
            {**_window(), **ratios, "whole_run": whole_run, **_state()},
        ),
    }


_CURVE = {
    "miss_ratio": "misses per access in LRU caches, one for each of sizes_bytes",
    "low": "its lower bound",
    "high": "its upper bound",
}


def _window() -> dict[str, Schema]:
    return {
        "version": {"const": VERSION, "description": "of this format"},
        "target": _of("string", "name of the target: pid and start time"),
        "time_monotonic_seconds": _of("number", "CLOCK_MONOTONIC when it was written"),
        "command": _of("string", "short name of the program"),
        "window": _count("its number, from 0"),
        "start_seconds": _of("number", "its first sample, since the attach"),
        "cpu_seconds": _amount("CPU time that it covers"),
        "phase": _count("its phase"),
        "is_new": _of("boolean", "the phase was not known before"),
        "distance": _or_null(_amount("from the phase's other windows; 0: the same code")),
        "predicted_phase": _or_null(_count("the phase expected next")),
        "samples": _count("branch samples in it"),
        "lost": _count("branch samples lost in it"),
        "throttled": _count("throttle events in it"),
        "sampled_accesses": _count("accesses observed in its phase so far"),
        "sizes_bytes": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "description": "cache sizes, ascending",
        },
    }


def _state() -> dict[str, Schema]:
    return {
        "target_cpu_seconds": _amount("CPU time of the target since the attach, system included"),
        "idle_seconds": _amount("for how long it has used no CPU time"),
        "trouble": _of("string", "why no burst is taken at present; empty if nothing is wrong"),
        "spent_share": _amount("share of the target's CPU time that bursts cost it"),
        "own_cpu_seconds": _amount("CPU time of memsampd's processes"),
        "waits_for_own_cpu": _of("boolean", "bursts wait because they had used what they may"),
    }


def _of(kind: str, description: str) -> Schema:
    return {"type": kind, "description": description}


def _count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "description": description}


def _amount(description: str) -> Schema:
    return {"type": "number", "minimum": 0, "description": description}


def _or_null(schema: Schema) -> Schema:
    """Null where it is not known."""
    return {**schema, "type": [schema["type"], "null"]}


def _ratios(description: str) -> Schema:
    ratio = {"type": "number", "minimum": 0, "maximum": 1}
    return {
        "type": ["array", "null"],
        "items": ratio,
        "description": f"{description}; null before the first burst",
    }


def _object(description: str, properties: dict[str, Schema]) -> Schema:
    return {
        "description": description,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(event_schema(), indent=1)}\n")
