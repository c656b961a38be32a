"""The read-only API: documents of targets, their history, and events as they happen."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from memsampd import __version__
from memsampd.exporters.documents import (
    VERSION,
    Document,
    curves_document,
    node_document,
    phases_document,
    target_document,
    target_id,
)
from memsampd.models.records import MissRatioCurve
from memsampd.web.guard import JsonResponse, encoded
from memsampd.web.openapi import DEFAULT_POINTS, EVENT_ID, MAX_POINTS, openapi_document
from memsampd.web.state import Event, Observed, State

MAX_STREAMS = 32
_DAY_SECONDS = 86_400.0
_HEARTBEAT_SECONDS = 15.0
_HANGS_SECONDS = 60.0  # without a word of a daemon that says something every five
_DIGITS = 6

_Answer: TypeAlias = Callable[[Request], Document]


class BadRequest(HTTPException):
    """A request that cannot be understood, with the cause."""

    def __init__(self, cause: str) -> None:
        super().__init__(400, cause)


def api_routes(state: State) -> list[BaseRoute]:
    """Return the routes of the API and of /healthz."""
    described = openapi_document()

    def targets(request: Request) -> Document:
        known = state.targets.values()
        return {
            "version": VERSION,
            "targets": [_target(each, state) for each in known],
            "node": None if state.node is None else node_document(state.node),
            **_ages(state),
        }

    def windows(request: Request) -> Document:
        observed = _observed(request, state)
        since = _number(request, "since", state.unix_seconds - _DAY_SECONDS, 0, math.inf)
        points = _number(request, "points", DEFAULT_POINTS, 1, MAX_POINTS)
        if points != int(points):
            raise BadRequest(f"points={points:g} is not a whole number")
        return _windows(observed, since, int(points), state.unix_offset_seconds)

    answers: dict[str, tuple[_Answer, tuple[str, ...]]] = {
        "/api/v1/openapi.json": (lambda request: described, ()),
        "/api/v1/targets": (targets, ()),
        "/api/v1/targets/{id}": (lambda request: _target(_observed(request, state), state), ()),
        "/api/v1/targets/{id}/phases": (
            lambda request: phases_document(_observed(request, state).snapshot),
            (),
        ),
        "/api/v1/targets/{id}/curves": (
            lambda request: curves_document(_observed(request, state).snapshot),
            (),
        ),
        "/api/v1/targets/{id}/windows": (windows, ("since", "points")),
    }
    routes: list[BaseRoute] = [
        Route(path, _served(answer, parameters)) for path, (answer, parameters) in answers.items()
    ]
    more = {"/healthz": _health_endpoint(state), "/api/v1/events": _events_endpoint(state)}
    return [*routes, *(Route(path, endpoint) for path, endpoint in more.items())]


def _health_endpoint(state: State) -> Callable[[Request], object]:
    async def serve(request: Request) -> Response:
        _check_parameters(request, ())
        ages = _ages(state)
        node_age = ages["node_age_seconds"]
        hangs = node_age is not None and node_age > _HANGS_SECONDS
        document = {
            "version": VERSION,
            "status": "hangs" if hangs else "ok",
            "memsampd_version": __version__,
            "targets": sum(each.attached for each in state.targets.values()),
            **ages,
        }
        return JsonResponse(document, 503 if hangs else 200)

    return serve


def _ages(state: State) -> Document:
    """How long ago memsampd told something: of its targets, and as a daemon of itself."""
    told = [each.snapshot.time_seconds for each in state.targets.values() if each.attached]
    return {
        "last_snapshot_age_seconds": state.age_seconds(max(told)) if told else None,
        "node_age_seconds": None
        if state.node is None
        else state.age_seconds(state.node.time_seconds),
    }


def _served(answer: _Answer, parameters: tuple[str, ...]) -> Callable[[Request], object]:
    async def serve(request: Request) -> Response:
        _check_parameters(request, parameters)
        return JsonResponse(answer(request))

    return serve


def _check_parameters(request: Request, known: tuple[str, ...]) -> None:
    """Refuse unknown parameters: a misspelt one is an error, not ignored."""
    for name in request.query_params:
        if name not in known:
            raise BadRequest(
                f"there is no parameter {name!r} here"
                + (f", there are {', '.join(known)}" if known else "")
            )
        if len(request.query_params.getlist(name)) > 1:
            raise BadRequest(f"{name} is given more than once")


def _number(request: Request, name: str, default: float, least: float, most: float) -> float:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not (least <= value <= most and math.isfinite(value)):
        limits = f"from {least:g}" + (f" to {most:g}" if math.isfinite(most) else "")
        raise BadRequest(f"{name}={text!r} is no number {limits}")
    return value


def _observed(request: Request, state: State) -> Observed:
    id = request.path_params["id"]
    observed = state.targets.get(id)
    if observed is None:
        raise HTTPException(404, f"no target {id!r} is known: see /api/v1/targets")
    return observed


def _target(observed: Observed, state: State) -> Document:
    offset = state.unix_offset_seconds
    return {
        **target_document(observed.snapshot),
        "attached": observed.attached,
        "first_seen_unix_seconds": observed.history.first_seconds + offset,
        "time_unix_seconds": observed.snapshot.time_seconds + offset,
    }


def _windows(observed: Observed, since: float, points: int, offset: float) -> Document:
    snapshot, history = observed.snapshot, observed.history
    part = history.read(since - offset, history.last_seconds, points)
    curves = history.curves(part)
    return {
        "version": VERSION,
        "target": target_id(snapshot.target),
        "policy": "lru",
        "sizes_bytes": snapshot.estimate.sizes_bytes.tolist(),
        "cache_sizes_bytes": dict(snapshot.cache_sizes_bytes),
        "step_seconds": part.step_seconds,
        "until_unix_seconds": history.last_seconds + offset,
        "stored_until_unix_seconds": (
            history.stored_until_seconds + offset
            if history.stored_until_seconds > -math.inf
            else None
        ),
        "start_unix_seconds": _rounded(part.start_seconds + offset),
        "cpu_seconds": _rounded(part.cpu_seconds.sum(axis=1)),
        "unknown_cpu_seconds": _rounded(history.unknown_cpu_seconds(part)),
        "phases": part.phases.tolist(),
        "phase_cpu_seconds": _rounded(part.cpu_seconds),
        **{name: _ratios(curves, name) for name in ("miss_ratio", "low", "high")},
    }


def _ratios(curves: list[MissRatioCurve | None], name: str) -> list[object]:
    return [None if curve is None else _rounded(getattr(curve, name)) for curve in curves]


def _rounded(values: NDArray[np.float64]) -> list[object]:
    return list(np.round(values, _DIGITS).tolist())


class _Stream(StreamingResponse):
    """Events, and what is to be done when nobody is told them any more."""

    def __init__(self, content: AsyncIterator[bytes], close: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream")
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until somebody ends it, even before the first event."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _events_endpoint(state: State) -> Callable[[Request], object]:
    streams = 0

    def close() -> None:
        nonlocal streams
        streams -= 1

    async def stream(last_seen: int | None) -> AsyncIterator[bytes]:
        happened, number = asyncio.Event(), last_seen or 0
        unlisten = state.listen(happened.set)
        try:
            yield b"retry: 2000\n\n"
            if last_seen is None:
                yield _gap(None)
            while True:
                happened.clear()
                for event in state.events_after(number):
                    if event.number > number + 1:
                        yield _gap(event.number - number - 1)
                    number = event.number
                    yield _frame(event, state.start)
                try:
                    await asyncio.wait_for(happened.wait(), _HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            unlisten()

    async def events(request: Request) -> Response:
        nonlocal streams
        _check_parameters(request, ())
        last_seen = _last_seen(request, state)
        if streams >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} others listen already: try again later")
        streams += 1
        return _Stream(stream(last_seen), close)

    return events


def _last_seen(request: Request, state: State) -> int | None:
    """Return the event after which a client wants to go on; by default the last one.

    None: it was told that one by a web process before this one, which counted for itself.
    """
    text = request.headers.get("last-event-id")
    if text is None:
        return state.last_event
    if re.fullmatch(EVENT_ID, text, re.ASCII) is None:
        raise BadRequest(f"Last-Event-ID {text!r} is no id of an event")
    start, _, number = text.partition("-")
    return int(number) if start == state.start and int(number) <= state.last_event else None


def _frame(event: Event, start: str) -> bytes:
    data = encoded(event.document).decode()
    return f"id: {start}-{event.number}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def _gap(missed: int | None) -> bytes:
    """Tell a client that was away or slow for too long what it cannot have any more."""
    document = {"version": VERSION, "missed": missed}
    return f"event: gap\ndata: {encoded(document).decode()}\n\n".encode()
