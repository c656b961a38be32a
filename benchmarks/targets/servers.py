"""Servers under load: redis, PostgreSQL, nginx, and small ones in JavaScript, Java and Go.

Each listens on the loopback device only and keeps its data in a temporary folder. Its client
(``load.c``) keeps its connections from turn to turn.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs.preparing import SOURCES, compiled, compiled_java
from programs.running import FOLDER
from programs.workload import environment, find_program
from targets.agent import free_port
from targets.launching import LaunchError, child, compiled_c

START_SECONDS = 60.0
_FILES = 2000


@dataclass(frozen=True, slots=True)
class Load:
    """One turn of a client.

    Attributes:
        requests: answered in time.
        seconds: for which it asked.
        failed: requests that were refused or lost.
        p50_seconds: median time to an answer,
        p99_seconds: 99th percentile,
        p999_seconds: 99.9th percentile,
        worst_seconds: the longest.
        slowest_second: requests in the whole second with the fewest.
    """

    requests: int
    seconds: float
    failed: int
    p50_seconds: float
    p99_seconds: float
    p999_seconds: float
    worst_seconds: float
    slowest_second: int

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


def parse_load(line: str) -> Load:
    """Read what ``load.c`` printed.

    Raises:
        LaunchError: it is not that.
    """
    words = line.split()
    if len(words) != 8:
        raise LaunchError(f"no turn of load but {line!r}")
    requests, wall_ns, failed, *times_ns, slowest = map(int, words)
    p50, p99, p999, worst = (each * 1e-9 for each in times_ns)
    return Load(requests, wall_ns * 1e-9, failed, p50, p99, p999, worst, slowest)


class Client:
    """A client that asks when it is told to.

    Attributes:
        pid: its process id.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def ask(self, seconds: float, rate: float = 0.0) -> Load:
        """Ask for some seconds.

        Args:
            seconds: how long.
            rate: requests a second that fall due; 0: each connection asks as fast as it can.

        Raises:
            LaunchError: the client failed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{seconds} {rate}\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise LaunchError("the client has ended") from error
        return parse_load(self._process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready.

    Attributes:
        pid: the process to observe.
        client: asks it.
    """

    pid: int
    client: Client


@dataclass(frozen=True, slots=True)
class Start:
    """How a server is to be started.

    Attributes:
        is_small: with little data.
        under: words of a command that runs it: a tracer, that follows no child process.
        options: of ``subprocess.Popen``.
    """

    is_small: bool
    under: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """How to start a server.

    Attributes:
        name: how users choose it.
        what: what it is, for tables.
        packages: Debian packages that bring all it needs.
        programs: executables that must be there.
        serve: starts it, with its client.
    """

    name: str
    what: str
    packages: Sequence[str]
    programs: Sequence[str]
    serve: Callable[[Start], Iterator[Served]]

    @contextmanager
    def started(self, start: Start) -> Iterator[Served]:
        """Run it.

        Raises:
            LaunchError: it does not answer.
        """
        yield from self.serve(start)

    def lacks(self) -> str:
        """What is missing here and how to get it, for people; empty if nothing is."""
        missing = [each for each in self.programs if _located(each) is None]
        remedy = f"not installed: apt-get install {' '.join(self.packages)}"
        return f"{remedy} ({', '.join(missing)})" if missing else ""


@contextmanager
def asking(protocol: str, port: int, connections: int, items: int) -> Iterator[Client]:
    """Run a client."""
    command = (str(compiled_c("load")), protocol, str(port), str(connections), str(items))
    pipe = subprocess.PIPE
    with child(command, stdin=pipe, stdout=pipe, stderr=None) as process:
        yield Client(process)


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until somebody listens on a port.

    Raises:
        LaunchError: the process ended, or nobody did for long.
    """
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > give_up:
                raise LaunchError(f"{process.args!r} does not listen") from error
        time.sleep(0.05)


def _redis(start: Start) -> Iterator[Served]:
    port, keys = free_port(), 200_000 if start.is_small else 1_000_000
    settings = {"bind": "127.0.0.1", "port": port, "save": "", "enable-debug-command": "local"}
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    redis = str(_located("redis-server"))
    with (
        tempfile.TemporaryDirectory(prefix="memsampd-") as cwd,
        child((*start.under, redis, *words), cwd=cwd, **start.options) as server,
    ):
        wait_for(port, server)
        _run("redis-cli", "-p", port, "debug", "populate", keys, "key", 100)
        with asking("redis", port, 8, keys) as client:
            yield Served(server.pid, client)


NGINX = """
daemon off; master_process {master}; worker_processes 1; pid nginx.pid; error_log stderr; {user}
events {{ worker_connections 512; }}
http {{
    access_log off; root html; keepalive_requests 1000000000; keepalive_timeout 1h;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{ listen 127.0.0.1:{port}; }}
}}
"""


def _nginx(start: Start) -> Iterator[Served]:
    port, rng = free_port(), random.Random(1)
    user = "user root root;" if os.geteuid() == 0 else ""
    master = "off" if start.under else "on"
    with tempfile.TemporaryDirectory(prefix="memsampd-") as cwd:
        items = Path(cwd) / "html" / "item"
        items.mkdir(parents=True)
        for i in range(_FILES):
            (items / str(i)).write_bytes(rng.randbytes(rng.randrange(1, 1 << 14)))
        (Path(cwd) / "nginx.conf").write_text(NGINX.format(port=port, user=user, master=master))
        nginx = str(_located("nginx"))
        command = (*start.under, nginx, "-p", cwd, "-c", "nginx.conf", "-e", "stderr")
        with child(command, cwd=cwd, **start.options) as server:
            wait_for(port, server)
            with asking("http", port, 8, _FILES) as client:
                worker = server.pid if start.under else children_of(server.pid)[0]
                yield Served(worker, client)


def _postgres(start: Start) -> Iterator[Served]:
    """One backend: a client that looks up accounts as ``pgbench -S`` does."""
    port, scale = free_port(), 5 if start.is_small else 20
    owner = {"user": "postgres"} if os.geteuid() == 0 else {}
    where = ("-h", "127.0.0.1", "-p", port, "-U", "postgres")
    with tempfile.TemporaryDirectory(prefix="memsampd-") as cwd:
        if owner:
            shutil.chown(cwd, owner["user"])
        data = f"{cwd}/data"
        create = ("-A", "trust", "-U", "postgres", "--no-sync")
        _run("initdb", "-D", data, *create, cwd=cwd, **owner)
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "512MB",
            "autovacuum": "off",
        }
        words = [w for name, value in settings.items() for w in ("-c", f"{name}={value}")]
        command = (str(_located("postgres")), "-D", data, *words)
        with child(command, signal.SIGQUIT, cwd=cwd, **owner) as server:
            wait_for(port, server)
            _wait_until_started(where)
            _run("pgbench", "-i", "-q", "-s", scale, *where, "postgres")
            with asking("postgres", port, 1, scale * 100_000) as client:
                client.ask(0.1)
                yield Served(_backend(server.pid), client)


def _wait_until_started(where: Sequence[object]) -> None:
    """Wait until PostgreSQL, which listens before that, takes connections."""
    give_up = time.monotonic() + START_SECONDS
    while True:
        try:
            _run("pg_isready", "-q", *where)
        except LaunchError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
        else:
            return


def _backend(postmaster: int) -> int:
    """Return the process that serves the only client."""
    for pid in children_of(postmaster):
        if b"127.0.0.1(" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise LaunchError("no backend of PostgreSQL")


def _located(program: str) -> str | None:
    """Return the path of an executable; Debian keeps those of PostgreSQL out of the PATH."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return str(kept[-1]) if kept else find_program(program)


def _web(command: Callable[[int], Sequence[str]]) -> Callable[[Start], Iterator[Served]]:
    def serve(start: Start) -> Iterator[Served]:
        port = free_port()
        options = {"env": environment(), **start.options}
        with child((*start.under, *command(port)), **options) as server:
            wait_for(port, server)
            with asking("http", port, 8, 100_000) as client:
                yield Served(server.pid, client)

    return serve


def _node(port: int) -> Sequence[str]:
    return "node", str(SOURCES / "server.js"), str(port)


def _java(port: int) -> Sequence[str]:
    kept = compiled_java(FOLDER / "java", "Server.java").parent
    return (
        "java",
        "-Xmx256m",
        "-Dsun.net.httpserver.nodelay=true",
        "-cp",
        str(kept),
        "Server",
        str(port),
    )


def _go(port: int) -> Sequence[str]:
    caches = {"GOCACHE": str(FOLDER / "go-cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"}
    build = ("go", "build")
    return str(compiled(FOLDER, "server.go", "go-server", build, extra_environment=caches)), str(
        port
    )


SERVERS: tuple[Server, ...] = (
    Server(
        "redis",
        "redis, 1 M keys, 4/5 GET",
        packages=("redis-server", "redis-tools"),
        programs=("redis-server", "redis-cli"),
        serve=_redis,
    ),
    Server(
        "postgres",
        "a backend of PostgreSQL, asked as by pgbench -S",
        packages=("postgresql",),
        programs=("initdb", "postgres", "pg_isready", "pgbench"),
        serve=_postgres,
    ),
    Server(
        "nginx",
        "a worker of nginx, 2,000 files",
        packages=("nginx-light",),
        programs=("nginx",),
        serve=_nginx,
    ),
    Server(
        "node",
        "an HTTP server in JavaScript",
        packages=("nodejs",),
        programs=("node",),
        serve=_web(_node),
    ),
    Server(
        "java",
        "an HTTP server in Java",
        packages=("openjdk-17-jdk-headless",),
        programs=("java", "javac"),
        serve=_web(_java),
    ),
    Server(
        "go",
        "an HTTP server in Go",
        packages=("golang-go",),
        programs=("go",),
        serve=_web(_go),
    ),
)


def packages() -> list[str]:
    """Return the Debian packages that all of them need together, sorted."""
    return sorted({package for server in SERVERS for package in server.packages})


def lacking_packages() -> list[str]:
    """Return those of servers of which something is missing, sorted."""
    return sorted({package for s in SERVERS if s.lacks() for package in s.packages})


def children_of(pid: int) -> list[int]:
    """Return the children of a process's main thread."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _run(program: str, *words: object, **options: object) -> None:
    command = [_located(program) or program, *map(str, words)]
    done = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, check=False, **options
    )
    if done.returncode != 0:
        raise LaunchError(f"{program}: {(done.stderr or done.stdout).strip()}")
