"""An HTTP server that tells of invented targets, as a daemon does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from memsampd.exporters.documents import curves_document, phases_document, target_document
from memsampd.exporters.snapshot import Snapshot


@contextmanager
def served(snapshots: Sequence[Snapshot], seldom: Mapping[int, int] | None = None) -> Iterator[str]:
    """Serve the documents of targets, which use CPU time between any two looks; yields the URL.

    Args:
        snapshots: of the targets; a list may change meanwhile.
        seldom: process ids whose state is told anew at every nth look only.
    """
    looks = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(self._documents()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _documents(self) -> dict[str, object]:
            if self.path == "/api/v1/targets":
                looks[0] += 1
                targets = [target_document(snapshot) for snapshot in snapshots]
                for target in targets:
                    every = (seldom or {}).get(target["pid"], 1)
                    told = looks[0] // every * every
                    target["time_monotonic_seconds"] += 2.0 * told
                    target["user_cpu_seconds"] += 1.0 * told
                return {"version": 1, "targets": targets}
            for snapshot in snapshots:
                if f"/{snapshot.target.pid}-" in self.path:
                    make = phases_document if self.path.endswith("phases") else curves_document
                    return make(snapshot)
            return {}

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
