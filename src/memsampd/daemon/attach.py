"""Attaching to one process, as the command line does: a session that is ready to run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from memsampd.daemon.accesses import choose_accesses, settled, tracing_thread, try_beforehand
from memsampd.daemon.composition import compose
from memsampd.daemon.config import OutputConfig, SessionConfig
from memsampd.daemon.outputs import page_served, recorders, served
from memsampd.daemon.own_cpu import ProcessCpu
from memsampd.daemon.session import Session
from memsampd.daemon.session_parts import SessionObserver
from memsampd.daemon.surroundings import Surroundings
from memsampd.errors import MemsampdError, UsageError
from memsampd.exporters.protocols import AskedExporter, Exporter
from memsampd.exporters.shown import KEPT_SECONDS
from memsampd.exporters.snapshot import TargetInfo
from memsampd.sampler.pmu.choice import choose
from memsampd.sampler.process.identity import ProcessHandle
from memsampd.sampler.process.target import check_target

if TYPE_CHECKING:
    from memsampd.daemon.store.database import ProfileStore

logger = logging.getLogger(__name__)


class Preparation(msgspec.Struct, frozen=True):
    """What attaching needs beyond the process, made ready by :func:`prepared`.

    Attributes:
        config: how to observe.
        output: where the results go.
        around: this machine, and what it allows.
        exporters: those that are there already.
    """

    config: SessionConfig
    output: OutputConfig
    around: Surroundings
    exporters: tuple[Exporter, ...]

    def try_beforehand(self) -> None:
        """Try what would else be tried with the process: it need not be there yet.

        Raises:
            CapabilityError: an option asks for what is not to be had here.
        """
        config, around = self.config, self.around
        choose(around.pmu, config.branches, config.clock, around.ticks)
        try_beforehand(config, around.replica_trial)

    @contextmanager
    def attached(
        self, pid: int | str, observers: Sequence[SessionObserver] = ()
    ) -> Iterator[Session]:
        """Attach to a process: a session that is ready to run.

        Args:
            pid: the process; a string is taken as typed by a user.
            observers: told of every window.

        Raises:
            MemsampdError: something is in the way; the message names the remedy.
        """
        facts = check_target(pid, may_be_sealed=self.config.accesses != "bursts")
        for note in facts.notes:
            logger.warning(note)
        target = TargetInfo(**msgspec.structs.asdict(facts.identity))
        trial = self.around.replica_trial
        with ExitStack() as stack:
            stack.enter_context(confined(self.config.cpu_affinity))
            stack.callback(trial.close)
            accesses = choose_accesses(target.pid, self.config, facts.refusal, trial)
            logger.debug("accesses by %s: %s", accesses.source, accesses.why)
            config = settled(self.config, accesses)
            handle = stack.enter_context(ProcessHandle(target.pid))
            store = None
            if self.output.store is not None:
                store = stack.enter_context(_store_at(self.output.store))
            around = self.around
            make_tracer = partial(tracing_thread, trial=trial)
            parts = compose(
                target, handle, config, around, stack, make_tracer, store=store, tell=logger.info
            )
            kept = recorders(self.output, parts, config, around, accesses.why)
            for recorder in kept:
                stack.enter_context(recorder)
            session = Session(parts, config, (*self.exporters, *kept), kept, observers)
            for exporter in self.exporters:
                if isinstance(exporter, AskedExporter):
                    exporter.ask = session.refresh
            yield session


@contextmanager
def _store_at(path: Path) -> Iterator[ProfileStore]:
    """The store that a user names.

    Raises:
        MemsampdError: at the end: what was learned is not kept there.
    """
    from memsampd.daemon.store.database import ProfileStore

    with closing(ProfileStore(path)) as store:
        yield store
    if store.trouble:
        raise MemsampdError(
            f"what was learned is not kept: {store.trouble}", "name another file with --store"
        )


@contextmanager
def exporting(config: SessionConfig, output: OutputConfig) -> Iterator[tuple[Exporter, ...]]:
    """Serve what is to be served: the exporters that do.

    Args:
        config: names the CPUs.
        output: where the results go.

    Raises:
        UsageError: there are no such CPUs.
        MemsampdError: it cannot be served there.
    """
    with ExitStack() as stack:
        exporters: list[Exporter] = []
        with confined(config.cpu_affinity):  # who serves keeps to them, too
            if output.listen is not None:
                serve = page_served if output.page else served
                kept_seconds = KEPT_SECONDS + output.linger_seconds
                exporters.append(
                    serve(output.listen, stack, any_port=output.any_port, kept_seconds=kept_seconds)
                )
        yield tuple(exporters)


@contextmanager
def prepared(
    config: SessionConfig, output: OutputConfig, process_cpu: ProcessCpu | None = None
) -> Iterator[Preparation]:
    """Make ready what does not depend on the process, so that little of a new one is missed.

    Args:
        config: how to observe.
        output: where the results go.
        process_cpu: accounts of all targets that this process observes; by default this one's only.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    with exporting(config, output) as exporters:
        yield Preparation(config, output, Surroundings.read(process_cpu), exporters)


@contextmanager
def attached(
    pid: int | str,
    config: SessionConfig,
    output: OutputConfig,
    observers: Sequence[SessionObserver] = (),
    process_cpu: ProcessCpu | None = None,
) -> Iterator[Session]:
    """Attach to a process: a session that is ready to run.

    Args:
        pid: the process; a string is taken as typed by a user.
        config: how to observe.
        output: where the results go.
        observers: told of every window.
        process_cpu: accounts of all targets that this process observes; by default this one's only.

    Raises:
        MemsampdError: something is in the way; the message names the remedy.
    """
    with prepared(config, output, process_cpu) as ready, ready.attached(pid, observers) as session:
        yield session


@contextmanager
def confined(cpus: Sequence[int]) -> Iterator[None]:
    """Keep this thread, and those that it starts, on some CPUs; on all that it has if none.

    Raises:
        UsageError: it may use none of them.
    """
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus or before)
    except (OSError, ValueError, OverflowError) as error:
        named = ",".join(map(str, cpus))
        raise UsageError(
            f"--cpu-affinity {named}: there are no such CPUs, or we may not use them",
            f"choose from {','.join(map(str, sorted(before)))}",
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # its container may have been moved to other CPUs
            os.sched_setaffinity(0, before)
