"""Where results go: what serves them over HTTP, and the recording."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from memsampd import __version__
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.session_parts import SessionParts
from memsampd.daemon.surroundings import Surroundings
from memsampd.exporters.listen import parse_listen
from memsampd.exporters.protocols import Exporter
from memsampd.exporters.shown import KEPT_SECONDS

if TYPE_CHECKING:
    from memsampd.exporters.recording import RecordingWriter

logger = logging.getLogger(__name__)


def served(
    listen: str,
    stack: ExitStack,
    *,
    any_port: bool = False,
    kept_seconds: float = KEPT_SECONDS,
) -> Exporter:
    """Metrics, served until the stack unwinds.

    Args:
        listen: where.
        stack: ends it.
        any_port: as in ``open_listening``.
        kept_seconds: for so long those of a target that ended wait for a reader.
    """
    from memsampd.exporters.deferred import DeferredPrometheus
    from memsampd.exporters.http import MetricsServer

    prometheus = DeferredPrometheus(kept_seconds)
    server = MetricsServer(prometheus.text, listen, prometheus.present_version, any_port=any_port)
    stack.callback(server.close)
    _tell_of_port(listen, server.port)
    logger.info("metrics: %s", server.url)
    return prometheus


def page_served(
    listen: str,
    stack: ExitStack,
    *,
    any_port: bool = False,
    kept_seconds: float = KEPT_SECONDS,
) -> Exporter:
    """As :func:`served`: the page, the API and metrics, from a process of their own."""
    from memsampd.web.process import WebProcess

    web = WebProcess(listen, any_port=any_port, kept_seconds=kept_seconds)
    stack.callback(web.close)
    _tell_of_port(listen, web.port)
    logger.info("page: %s", web.url)
    return web


def _tell_of_port(listen: str, port: int) -> None:
    _, asked = parse_listen(listen)
    if asked not in (0, port):
        logger.warning("%s is in use: port %d is taken; --listen chooses another", listen, port)


def recorders(
    output: OutputConfig,
    parts: SessionParts,
    config: SessionConfig,
    around: Surroundings,
    accesses_why: str,
) -> list[RecordingWriter]:
    """The recording, if one is wanted; it tells why accesses come from where they do.

    Raises:
        MemsampdError: it cannot be written.
    """
    if output.recording is None:
        return []
    from memsampd.exporters.recording import HeaderRecord, RecordingWriter

    header = HeaderRecord(
        memsampd_version=__version__,
        target=parts.target,
        backend=parts.backend,
        line_bytes=config.line_bytes,
        start_unix_seconds=time.time(),
        cache_sizes_bytes=parts.cache_sizes_bytes,
        cache_seconds=dict(around.cache_seconds),
        machine={"cpu": around.machine.cpu.name, "cpus": len(around.machine.cpus)},
        config=msgspec.structs.asdict(config) | {"accesses_why": accesses_why},
    )
    return [RecordingWriter(output.recording, header, overwrite=output.overwrite)]
