"""``memsampd demo``: the bundled example, observed; leaves a picture."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from memsampd.cli.observing import announce, loading, logged, observer, summarise
from memsampd.exporters.listen import DEFAULT_LISTEN


class DemoCommand:
    """Runs the bundled kernels, attaches to them and draws what it found."""

    name = "demo"
    help = "observe the bundled example and draw it"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "-o",
            "--output",
            type=Path,
            default=Path("demo-out"),
            metavar="DIR",
            help="directory for the recording and the pictures (default: %(default)s)",
        )
        parser.add_argument("--rounds", type=int, default=3, help="how often to repeat the kernels")
        parser.add_argument(
            "--listen",
            metavar="HOST:PORT",
            help=f"metrics address (default: {DEFAULT_LISTEN}, or a free port if that is in use)",
        )
        parser.add_argument("--page", action="store_true", help="serve the page there, too")

    def run(self, args: argparse.Namespace) -> int:
        """Run the example.

        Raises:
            CapabilityError: no C compiler, no matplotlib, or this machine has no backend.
            RecordingError: the directory cannot be written.
        """
        from memsampd.errors import CapabilityError, RecordingError

        with loading():
            from memsampd.cli.report import COMMAND as REPORT
            from memsampd.daemon.attach import attached
            from memsampd.daemon.config import OutputConfig, SessionConfig
            from memsampd.demo.program import compile_demo

        if find_spec("matplotlib") is None:
            raise CapabilityError(
                "the pictures need matplotlib", "pip install 'memsampd[report]', or attach to it"
            )
        try:
            args.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(
                f"cannot write {args.output}: {error.strerror}", "choose another directory with -o"
            ) from error
        recording = args.output / "demo.memsampd"
        program = compile_demo()
        announce(f"running {program.name}, {args.rounds} rounds of its kernels")
        process = subprocess.Popen(
            [program, "--rounds", str(args.rounds)], stdout=subprocess.DEVNULL
        )
        try:
            output = OutputConfig(
                recording,
                overwrite=True,
                listen=DEFAULT_LISTEN if args.listen is None else args.listen,
                any_port=args.listen is None,
                page=args.page,
            )
            display = observer(False, sys.stderr)
            with (
                logged(),
                attached(process.pid, SessionConfig(), output, [display]) as session,
            ):
                reason = session.run()
                summarise(session.snapshot(), reason)
        finally:
            process.terminate()
            process.wait()
        for ending in ("png", "html"):
            picture = args.output / f"demo.{ending}"
            REPORT.run(
                argparse.Namespace(
                    recordings=[recording], output=picture, policy="lru", partial=False
                )
            )
            announce(f"wrote {picture}")
        REPORT.run(
            argparse.Namespace(recordings=[recording], output=None, policy="lru", partial=False)
        )
        return 0


COMMAND = DemoCommand()
