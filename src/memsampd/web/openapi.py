"""The API described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from memsampd.exporters.documents import VERSION
from memsampd.exporters.snapshot import (
    AddressTally,
    BurstTally,
    NodeStatus,
    NodeTarget,
    Overhead,
    TargetInfo,
)

Schema: TypeAlias = dict[str, Any]

DEFAULT_POINTS = 300  # columns of /windows unless asked otherwise
MAX_POINTS = 2000
EVENT_ID = "[0-9a-f]{8}-[0-9]{1,15}"  # start of the web process, number of the event since then

_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_AMOUNT: Schema = {"type": "number", "minimum": 0}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_TEXT: Schema = {"type": "string"}
_TRUTH: Schema = {"type": "boolean"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _map(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def _maybe(schema: Schema) -> Schema:
    """Null where it is not known."""
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: Schema) -> Schema:
    """All properties are there; later versions may add others."""
    return {"type": "object", "properties": properties, "required": list(properties)}


_PLAIN = {int: _COUNT, float: _AMOUNT, bool: _TRUTH, str: _TEXT}


def _fields(record: type[msgspec.Struct]) -> dict[str, Schema]:
    """The plain fields of a record, as it is encoded; those of other types are left out."""
    return {
        field.name: _PLAIN[field.type]
        for field in msgspec.structs.fields(record)
        if field.type in _PLAIN
    }


_CURVE = {name: _maybe(_list(_SHARE)) for name in ("miss_ratio", "low", "high")}
_HEAD = {"version": {"const": VERSION}, "target": _TEXT}
_RATE = {"accesses_per_cpu_second": _maybe(_AMOUNT), "rate_spread": _maybe(_AMOUNT)}
_CACHE = _object(
    name=_TEXT,
    size_bytes=_COUNT,
    miss_ratio=_maybe(_SHARE),
    low=_maybe(_SHARE),
    high=_maybe(_SHARE),
    fill_bytes_per_cpu_second=_maybe(_AMOUNT),
)
_COST = _object(
    **_fields(Overhead),
    samples=_COUNT,
    lost=_COUNT,
    throttled=_COUNT,
    burst_ends=_map(_COUNT),
    bursts=_object(**_fields(BurstTally)),
    addresses=_object(**_fields(AddressTally)),
)
_TARGET = _object(
    **_HEAD,
    time_monotonic_seconds=_NUMBER,
    time_unix_seconds=_NUMBER,
    first_seen_unix_seconds=_NUMBER,
    **_fields(TargetInfo),
    alive=_TRUTH,
    attached=_TRUTH,
    idle=_TRUTH,
    idle_seconds=_AMOUNT,
    backend=_map(_TEXT),
    user_cpu_seconds=_AMOUNT,
    unknown_cpu_seconds=_AMOUNT,
    windows=_COUNT,
    phases=_COUNT,
    phase=_maybe(_COUNT),
    predicted_phase=_maybe(_COUNT),
    prediction_accuracy=_maybe(_SHARE),
    bursts=_COUNT,
    store_drops=_COUNT,
    watches=_COUNT,
    sampled_accesses=_COUNT,
    **_RATE,
    rate_known_share=_SHARE,
    caches=_list(_CACHE),
    caches_now=_list(_CACHE),
    cost=_COST,
    not_known=_list(_object(what=_TEXT, why=_TEXT, share=_maybe(_SHARE))),
)
_NODE = _object(
    **{
        **_fields(NodeStatus),
        "version": {"const": VERSION},
        "memsampd_version": _TEXT,
        "by_state": _map(_COUNT),
        "targets": _list(
            _object(**_fields(TargetInfo), **_fields(NodeTarget), target=_TEXT, state=_TEXT)
        ),
    }
)
_PHASES = _object(
    **_HEAD,
    time_monotonic_seconds=_NUMBER,
    phase=_maybe(_COUNT),
    predicted_phase=_maybe(_COUNT),
    phases=_list(
        _object(
            id=_COUNT,
            windows=_COUNT,
            weight=_SHARE,
            cpu_seconds=_AMOUNT,
            bursts=_COUNT,
            stored_bursts=_COUNT,
            stored_age_seconds=_maybe(_AMOUNT),
            sampled_accesses=_COUNT,
            censored_share=_SHARE,
            write_share=_maybe(_SHARE),
            **_RATE,
            cycles_per_instruction=_maybe(_AMOUNT),
            caches=_list(_CACHE),
        )
    ),
)
_CURVES = _object(
    **_HEAD,
    time_monotonic_seconds=_NUMBER,
    policy=_TEXT,
    sizes_bytes=_list(_COUNT),
    cache_sizes_bytes=_map(_COUNT),
    whole_run=_object(**_CURVE),
    phases=_list(_object(id=_COUNT, weight=_SHARE, **_CURVE)),
)
_WINDOWS = _object(
    **_HEAD,
    policy=_TEXT,
    sizes_bytes=_list(_COUNT),
    cache_sizes_bytes=_map(_COUNT),
    step_seconds=_AMOUNT,
    until_unix_seconds=_NUMBER,
    stored_until_unix_seconds=_maybe(_NUMBER),
    start_unix_seconds=_list(_NUMBER),
    cpu_seconds=_list(_AMOUNT),
    unknown_cpu_seconds=_list(_AMOUNT),
    phases=_list({"type": "integer"}),
    phase_cpu_seconds=_list(_list(_AMOUNT)),
    **{name: _list(_maybe(_list(_SHARE))) for name in _CURVE},
)
_AGES: Schema = {
    "last_snapshot_age_seconds": _maybe(_NUMBER),
    "node_age_seconds": _maybe(_NUMBER),
}
_HEALTH = _object(
    version={"const": VERSION},
    status={"enum": ["ok", "hangs"]},
    memsampd_version=_TEXT,
    targets=_COUNT,
    **_AGES,
)
_ERROR = _object(version={"const": VERSION}, cause=_TEXT, remedy=_TEXT)
_ID: Schema = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 64},
    "description": "name of a target: its pid and its start time, as /api/v1/targets tells it",
}


def openapi_document() -> Schema:
    """Return the document."""
    since = {
        "name": "since",
        "in": "query",
        "schema": _AMOUNT,
        "description": "Unix time in seconds; a day ago by default",
    }
    points = {
        "name": "points",
        "in": "query",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_POINTS,
            "default": DEFAULT_POINTS,
        },
        "description": "columns at most; rows are added up to fit",
    }
    target = "/api/v1/targets/{id}"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "memsampd",
            "version": str(VERSION),
            "description": "Phases and miss-ratio curves of observed processes. Read only. Keys "
            "name their units; null is what is not known. New keys may come, none will go.",
            "license": {"name": "Apache-2.0"},
        },
        "paths": {
            "/healthz": _health(),
            "/api/v1/openapi.json": _get("This document", {"type": "object"}),
            "/api/v1/targets": _get(
                "All targets, and how the node's daemon fares, if one serves this",
                _object(
                    version={"const": VERSION},
                    targets=_list(_TARGET),
                    node=_maybe(_NODE),
                    **_AGES,
                ),
            ),
            target: _get("A target: figures, cost, what is not known", _TARGET, _ID),
            f"{target}/phases": _get("Its phases", _PHASES, _ID),
            f"{target}/curves": _get("Its miss-ratio curves, with bounds", _CURVES, _ID),
            f"{target}/windows": _get(
                "Its history: phases and miss ratios over time", _WINDOWS, _ID, since, points
            ),
            "/api/v1/events": _events(),
        },
    }


def _health() -> Schema:
    found = _get("Whether the server works", _HEALTH)
    found["get"]["responses"]["503"] = {
        "description": "the daemon has not told anything for a minute: it hangs",
        "content": {"application/json": {"schema": _HEALTH}},
    }
    return found


def _get(summary: str, answer: Schema, *parameters: Schema) -> Schema:
    errors = {"400": _error("a request that makes no sense")}
    if _ID in parameters:
        errors["404"] = _error("no such target")
    return {
        "get": {
            "summary": summary,
            "parameters": list(parameters),
            "responses": {
                "200": {
                    "description": summary,
                    "content": {"application/json": {"schema": answer}},
                },
                **errors,
            },
        }
    }


def _error(description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": _ERROR}}}


def _events() -> Schema:
    words = (
        "Server-sent events: `target` (a new one), `phase` (another phase runs: `phase`, "
        "`previous_phase`), `end` (`alive`: let go of, not ended), `gap` (`missed`: events that "
        "are no longer kept; null after a restart of the server, which tells all that it has). "
        "Last-Event-ID goes on where a client was."
    )
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": {"type": "string", "pattern": f"^{EVENT_ID}$"},
    }
    return {
        "get": {
            "summary": "What happens, as it happens",
            "parameters": [last],
            "responses": {
                "200": {
                    "description": words,
                    "content": {"text/event-stream": {"schema": _TEXT}},
                },
                "400": _error("a request that makes no sense"),
                "503": _error("too many listen already"),
            },
        }
    }
