"""A small HTTP server on a socket file, and a client that asks it without end.

usage: web.py serve SOCKET | web.py ask SOCKET
"""

import http.client
import http.server
import json
import pathlib
import socket
import socketserver
import sys
import time


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every GET with a JSON document about its path."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        number = int(self.path.rpartition("/")[2])
        rows = [{"id": i, "square": i * i % 997, "name": f"row {i}"} for i in range(number % 50)]
        body = json.dumps(rows).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        """Clients of a socket file have no address."""
        return "client"

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Connection(http.client.HTTPConnection):
    """A connection to a socket file."""

    def connect(self) -> None:
        """Connect, as soon as the server is there."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for _ in range(500):
            try:
                self.sock.connect(self.host)
                return
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.02)
        raise SystemExit(f"no server at {self.host}")


def main() -> None:
    """Serve or ask."""
    role, path = sys.argv[1:]
    if role == "serve":
        pathlib.Path(path).unlink(missing_ok=True)
        with socketserver.UnixStreamServer(path, Handler) as server:
            server.serve_forever()
    connection = Connection(path)
    number = 0
    while True:
        connection.request("GET", f"/item/{number}")
        connection.getresponse().read()
        number += 1


main()
