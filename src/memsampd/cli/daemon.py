"""``memsampd daemon``: observe what rules choose and users ask for."""

from __future__ import annotations

import argparse
import logging
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from memsampd import _core
from memsampd.errors import UsageError

if TYPE_CHECKING:
    from memsampd.daemon.node.config import NodeConfig
    from memsampd.daemon.node.node import Node
    from memsampd.exporters.protocols import Exporter

logger = logging.getLogger(__name__)


class DaemonCommand:
    """Runs the daemon in the foreground."""

    name = "daemon"
    help = "observe many processes, chosen by rules or asked for by users"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        add_config(parser)
        parser.add_argument("--socket", type=Path, metavar="PATH", help="take commands there")
        parser.add_argument(
            "--state-dir", type=Path, metavar="DIR", help="keep there what outlives it"
        )
        parser.add_argument(
            "--listen", metavar="HOST:PORT", help="serve metrics there; empty for not at all"
        )
        parser.add_argument("--duration", type=float, metavar="S", help="end after so many seconds")

    def run(self, args: argparse.Namespace) -> int:
        """Observe until SIGTERM or SIGINT; read the configuration again at SIGHUP.

        Raises:
            UsageError: a time out of range.
            MemsampdError: the configuration cannot be used, or a daemon runs already.
        """
        if args.duration is not None and not args.duration > 0:
            raise UsageError(
                f"--duration {args.duration} is out of range", "give more than 0 seconds"
            )
        _core.use_huge_pages()  # before what is loaded now
        from memsampd.daemon.node.config import default_socket, default_state_dir
        from memsampd.daemon.node.control_socket import require_no_daemon
        from memsampd.daemon.node.node import Node
        from memsampd.daemon.node.notify import Notifier, log_to_stderr
        from memsampd.daemon.node.state import StateFile
        from memsampd.daemon.store.database import ProfileStore
        from memsampd.daemon.store.file import FILE_NAME

        config = configuration(args.config)
        log_to_stderr()
        _allow_all_files()
        listen = config.listen if args.listen is None else args.listen
        state_dir = args.state_dir or Path(config.state_dir or default_state_dir())
        socket_path = args.socket or Path(config.socket or default_socket())
        require_no_daemon(socket_path)  # it would have the address, too: that tells less
        with ExitStack() as stack:
            store = None
            if config.store.keep:
                most_bytes = config.store.most_mebibytes << 20
                store = ProfileStore(state_dir / FILE_NAME, most_bytes, owns_path=True)
                stack.callback(store.close)
            node = Node(
                config,
                _exporters(listen, stack),
                socket_path,
                StateFile(state_dir),
                Notifier(),
                lambda: configuration(args.config),
                store=store,
            )
            stack.enter_context(_signals(node))
            node.run(args.duration)
        return 0


def add_config(parser: argparse.ArgumentParser) -> None:
    """Declare the option that names the configuration."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration (default: /etc/memsampd/config.toml, if it is there)",
    )


def configuration(path: Path | None) -> NodeConfig:
    """Read a configuration; without a name the usual one, and none where there is none.

    Raises:
        ConfigError: it cannot be used.
    """
    from memsampd.daemon.node.config import CONFIG_PATH, NodeConfig, read_config

    if path is None and not CONFIG_PATH.exists():
        return NodeConfig()
    return read_config(path or CONFIG_PATH)


def _allow_all_files() -> None:
    """Raise the soft limit of open files as far as it goes: threads of targets come at any time.

    Programs would inherit that. The only one that is started, which serves HTTP, has a limit of its
    own (``web/confine.py``).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # above what the kernel allows by now (fs.nr_open)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _exporters(listen: str, stack: ExitStack) -> list[Exporter]:
    """What serves HTTP: a process without rights where its packages are, else a thread of ours."""
    from memsampd.daemon.outputs import page_served, served
    from memsampd.web.process import missing_packages

    if not listen:
        return []
    if not missing_packages():
        return [page_served(listen, stack)]
    logger.warning("without memsampd[web] there is no page, and metrics are served by the daemon")
    return [served(listen, stack)]


@contextmanager
def _signals(node: Node) -> Iterator[None]:
    """Have signals end the daemon, or have it read its configuration again."""

    def stop(number: int, frame: object) -> None:
        node.stop()

    def reload(number: int, frame: object) -> None:
        node.reload()

    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: reload}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


COMMAND = DaemonCommand()
