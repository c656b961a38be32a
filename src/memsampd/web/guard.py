"""What every answer carries and every request must have, around the whole application."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memsampd.exporters.documents import VERSION, Document
from memsampd.exporters.hosts import host_of, may_be_asked_as
from memsampd.names import printable

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class JsonResponse(Response):
    """A document as JSON; what is not a number is null."""

    media_type = "application/json"

    def render(self, content: Document) -> bytes:
        """Encode it."""
        return encoded(content)


def encoded(document: Document) -> bytes:
    """Return a document as JSON; its names are cleaned where UTF-8 has not got their letters."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(document))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value


def refusal(status: int, cause: str, remedy: str = "", **headers: str) -> JsonResponse:
    """Return an error as a document."""
    document = {"version": VERSION, "cause": cause, "remedy": remedy}
    return JsonResponse(document, status, headers)


class Guard:
    """Refuses foreign host names for this machine and adds the headers that confine a page.

    Args:
        application: what it guards.
        address: that is listened on.
        called: what the user called it.
    """

    def __init__(self, application: ASGIApp, address: str, called: str) -> None:
        self._application = application
        self._address, self._called = address, called

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] == "http":
            header = Headers(scope=scope).get("host", "")
            if not may_be_asked_as(header, self._address, self._called):
                answer = refusal(
                    421,
                    f"this server is not called {host_of(header)!r}",
                    "ask for localhost or 127.0.0.1",
                )
                await answer(scope, receive, send_guarded)
                return
        await self._application(scope, receive, send_guarded)


async def explain(request: Request, error: Exception) -> Response:
    """Return an error of the framework as a document."""
    status = getattr(error, "status_code", 500)
    cause = getattr(error, "detail", "an error of ours")
    headers = getattr(error, "headers", None) or {}
    if status == 404 and cause == HTTPStatus.NOT_FOUND.phrase:  # no route
        return refusal(404, f"there is nothing at {request.url.path}", "see /api/v1/openapi.json")
    if status == 405:
        return refusal(405, f"{request.method} is not served here", "only GET is", **headers)
    return refusal(status, str(cause))
