"""The daemon's configuration file."""

from __future__ import annotations

import os
import re
import socket
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from memsampd.daemon.config import AccessChoice, SessionConfig
from memsampd.errors import MemsampdError, UsageError
from memsampd.exporters.listen import DEFAULT_LISTEN, parse_listen
from memsampd.phases.schedule import SCHEDULES
from memsampd.sampler.pmu.choice import BranchChoice, ClockChoice

CONFIG_PATH = Path("/etc/memsampd/config.toml")
USER_RULE = "user"
"""In place of a rule's name: somebody asked for the target."""
_MACHINE_SOCKET = Path("/run/memsampd/control.sock")

Share = Annotated[float, Meta(gt=0, le=1)]
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]
Text = Annotated[str, Meta(min_length=1)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file; what it does not name is an error."""


class SessionOptions(_Table, frozen=True):
    """How a target is observed; what is not given is as ``memsampd attach`` has it.

    Attributes:
        budget: share of the target's CPU time that bursts may cost it.
        own_cpu: CPU time that memsampd may use for it, as a share of the target's.
        max_stop: how long a burst may hold it, seconds.
        window: CPU time of a window, seconds.
        period: CPU time between branch samples, seconds; by default by what an interrupt takes.
        burst: accesses of a long burst.
        schedule: which windows get a burst.
        follow_forks: sample the branches of child processes, as part of it; bursts are of the
            process only.
        branches: where branch samples come from.
        clock: what accesses are timed by.
        accesses: where they come from.
        watchpoints: measure distances longer than bursts by watchpoints.
        random_replacement: estimate curves of random replacement, too; where it is not given, they
            are not.
    """

    budget: Share | None = None
    own_cpu: Share | None = None
    max_stop: Annotated[float, Meta(ge=0)] | None = None
    window: Seconds | None = None
    period: Annotated[float, Meta(ge=1e-4, le=1)] | None = None
    burst: Annotated[int, Meta(ge=1000, le=10**9)] | None = None
    schedule: str | None = None
    follow_forks: bool | None = None
    branches: BranchChoice | None = None
    clock: ClockChoice | None = None
    accesses: AccessChoice | None = None
    watchpoints: bool | None = None
    random_replacement: bool | None = None


class Rule(_Table, frozen=True):
    """Which processes are targets. All conditions that are given must hold, at least one is given.

    Attributes:
        name: what it is called in lists and messages.
        command: short name, as ps shows it.
        command_line: regular expression, found anywhere in the arguments joined by blanks.
        user: name or number of the effective user.
        cgroup: the control group, or one that it lies in, below /sys/fs/cgroup.
        container: id of a container, or how it begins (12 digits at least).
        unit: systemd unit.
        least_cpu: CPU time lately, as a share of one CPU, at least.
        largest_number: so many targets at most; those that use most CPU time go first.
        follow_children: child processes of its targets are targets of their own.
        session: how its targets are observed.
    """

    name: Text
    command: Text | None = None
    command_line: Text | None = None
    user: str | int | None = None
    cgroup: Text | None = None
    container: Annotated[str, Meta(pattern="^[0-9a-f]{12,64}$")] | None = None
    unit: Text | None = None
    least_cpu: Annotated[float, Meta(ge=0)] = 0.0
    largest_number: Count = 32
    follow_children: bool = False
    session: SessionOptions = SessionOptions()


class Budget(_Table, frozen=True):
    """What observing may cost the node in all.

    Attributes:
        own_cpu: CPU time of memsampd's processes, as a share of one CPU.
        holds: time for which threads of targets are held, all together, as a share of the time.
        profiled_targets: of so many targets at once bursts are taken; they take turns.
        turn_seconds: a turn lasts so long at least.
        targets: so many are observed at once.
    """

    own_cpu: Share = 0.02
    holds: Share = 0.02
    profiled_targets: Count = 8
    turn_seconds: Seconds = 10.0
    targets: Count = 200


class StoreOptions(_Table, frozen=True):
    """What is kept of programs, in the state directory.

    Attributes:
        keep: whether anything is.
        most_mebibytes: size of the file at most; the oldest profiles go first.
    """

    keep: bool = True
    most_mebibytes: Annotated[int, Meta(ge=1, le=1 << 16)] = 64


class NodeConfig(_Table, frozen=True):
    """The whole file.

    Attributes:
        listen: HOST:PORT of the metrics; empty for none.
        socket: path of the control socket; empty: where :func:`default_socket` says.
        state_dir: directory of what outlives a restart; empty: where :func:`default_state_dir`
            says.
        scan_seconds: how often processes are looked for, at most.
        publish_seconds: how often what is known is told, at most.
        budget: of all targets together.
        store: what is kept of programs.
        session: how targets are observed where their rule says nothing else.
        rules: which processes are targets.
    """

    listen: str = DEFAULT_LISTEN
    socket: str = ""
    state_dir: str = ""
    scan_seconds: Annotated[float, Meta(ge=0.1)] = 5.0
    publish_seconds: Annotated[float, Meta(ge=0.1)] = 5.0
    budget: Budget = Budget()
    store: StoreOptions = StoreOptions()
    session: SessionOptions = SessionOptions()
    rules: tuple[Rule, ...] = ()


class ConfigError(MemsampdError):
    """The configuration file cannot be used."""

    exit_status = 2


def default_socket() -> Path:
    """Where the daemon of this user listens for commands."""
    if os.geteuid() == 0:
        return _MACHINE_SOCKET
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/memsampd-{os.geteuid()}") / (
        "memsampd.sock"
    )


def find_socket() -> Path:
    """The socket of a daemon to ask: this user's own, if somebody listens, else the machine's."""
    own = default_socket()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(own))
        except (FileNotFoundError, ConnectionRefusedError):  # left behind by one that was killed
            return _MACHINE_SOCKET
        except OSError:
            pass
    return own


def default_state_dir() -> Path:
    """Where the daemon of this user keeps what outlives it."""
    if os.geteuid() == 0:
        return Path("/var/lib/memsampd")
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(home) / "memsampd"


def read_config(path: Path) -> NodeConfig:
    """Read a configuration file.

    Raises:
        ConfigError: it cannot be read or used; the message names line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            "name another file; docs/daemon.md describes its content",
        ) from error
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> NodeConfig:
    """Read the text of a configuration file.

    Args:
        text: the TOML.
        name: of the file, for messages.

    Raises:
        ConfigError: it cannot be used; the message names line and key.
    """
    try:
        config = msgspec.toml.decode(text, type=NodeConfig)
    except msgspec.ValidationError as error:
        raise _explained(text, name, *_split(str(error))) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} is no TOML: {error}", "see https://toml.io") from error
    for key, cause in _contradictions(config):
        raise _explained(text, name, cause, key)
    return config


def session_config(defaults: SessionOptions, own: SessionOptions) -> SessionConfig:
    """The settings of a session: a rule's, where it has none the file's, else the usual ones.

    Curves of random replacement are made where they are asked for: they are two fifths of the
    series of a target.

    Raises:
        UsageError: they do not go together.
    """

    def chosen(name: str) -> Any:
        value = getattr(own, name)
        return getattr(defaults, name) if value is None else value

    given = {field: chosen(name) for name, field in _SESSION_FIELDS.items()}
    known = {field: value for field, value in given.items() if value is not None}
    return SessionConfig(**{"random_replacement": False, **known})


_SESSION_FIELDS = {
    "budget": "budget_share",
    "own_cpu": "own_cpu_share",
    "max_stop": "max_stop_seconds",
    "window": "window_seconds",
    "period": "period_seconds",
    "burst": "burst_accesses",
    "schedule": "schedule",
    "follow_forks": "follow_forks",
    "branches": "branches",
    "clock": "clock",
    "accesses": "accesses",
    "watchpoints": "watches",
    "random_replacement": "random_replacement",
}
_CONDITIONS = ("command", "command_line", "user", "cgroup", "container", "unit")


def _contradictions(config: NodeConfig) -> list[tuple[str, str]]:
    """What types do not tell, as key and cause; the first one is told."""
    found = []
    if config.listen:
        try:
            parse_listen(config.listen)
        except UsageError as error:
            found.append(("$.listen", str(error)))
    seen: set[str] = set()
    options = [("$.session", SessionOptions(), config.session)]
    for index, rule in enumerate(config.rules):
        key = f"$.rules[{index}]"
        if rule.name in seen:
            found.append((f"{key}.name", f"two rules are called {rule.name!r}"))
        if rule.name == USER_RULE:
            cause = f"{USER_RULE!r} is what targets are listed under that somebody asked for"
            found.append((f"{key}.name", cause))
        seen.add(rule.name)
        if not rule.least_cpu and all(getattr(rule, each) is None for each in _CONDITIONS):
            found.append((key, f"rule {rule.name!r} has no condition: it would match all"))
        try:
            re.compile(rule.command_line or "")
        except re.error as error:
            found.append((f"{key}.command_line", f"no regular expression: {error}"))
        options.append((f"{key}.session", config.session, rule.session))
    for key, defaults, own in options:
        found += _session_contradictions(key, defaults, own)
    return found


def _session_contradictions(
    key: str, defaults: SessionOptions, own: SessionOptions
) -> list[tuple[str, str]]:
    if own.schedule is not None and own.schedule not in SCHEDULES:
        return [(f"{key}.schedule", f"{own.schedule!r} is none of {', '.join(SCHEDULES)}")]
    try:
        session_config(defaults, own)
    except UsageError as error:
        return [(key, error.cause.removeprefix("--"))]
    return []


_PATH = re.compile(r" - at `(.*)`$")


def _split(message: str) -> tuple[str, str]:
    """Cause and path of a message of msgspec."""
    found = _PATH.search(message)
    return (message[: found.start()], found[1]) if found else (message, "$")


def _explained(text: str, name: str, cause: str, path: str) -> ConfigError:
    """An error that names the line of the key that a path such as ``$.rules[1].user`` names."""
    unknown, remedy = re.fullmatch(r"Object contains unknown field `(.*)`", cause), ""
    if unknown:
        path, cause = f"{path}.{unknown[1]}", "there is no such key"
        alike = get_close_matches(unknown[1], _keys(), 1)
        remedy = f"did you mean {alike[0]}? " if alike else ""
    missing = re.fullmatch(r"Object missing required field `(.*)`", cause)
    if missing:
        cause = f"the key {missing[1]!r} is missing"
    line = _line_of(text, path)
    where = f"{name}, line {line}" if line else name
    key = path.removeprefix("$").removeprefix(".")
    return ConfigError(
        f"{where}: {key}: {cause}" if key else f"{where}: {cause}",
        f"{remedy}all keys are described in docs/daemon.md",
    )


def _keys() -> list[str]:
    """All keys that there are, of whichever table."""
    tables = (NodeConfig, Budget, StoreOptions, Rule, SessionOptions)
    return [name for table in tables for name in table.__struct_fields__]


def _line_of(text: str, path: str) -> int | None:
    """The line, from 1, on which a key stands, or that of the nearest table around it."""
    best, best_length = None, 0
    table, counts = "$", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]#]+?)\s*\]", line)
        key = re.match(r"\s*([A-Za-z0-9_.\"-]+)\s*=", line)
        if header:
            table = _table_path(header[2].replace('"', ""), header[1] == "[[", counts)
            here = table
        elif key:
            here = f"{table}.{key[1].strip(chr(34))}"
        else:
            continue
        is_on_the_way = path == here or path.startswith((f"{here}.", f"{here}["))
        if is_on_the_way and len(here) > best_length:
            best, best_length = number, len(here)
    return best


def _table_path(name: str, is_array: bool, counts: dict[str, int]) -> str:
    """The path of a table, the entries of arrays of tables being counted."""
    path = "$"
    parts = name.split(".")
    for depth, part in enumerate(parts):
        path = f"{path}.{part}"
        if is_array and depth == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path
