"""A thread for what may hang: a disk that is not there any more keeps nobody from going on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Does one thing after the other, in a thread of its own.

    Other than with an executor, a process may end while it hangs.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, what: Callable[..., T], *words: object) -> Future[T]:
        """Have something done.

        Raises:
            RuntimeError: it is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store", daemon=True)
                self._thread.start()
            self._asked.put(partial(_do, future, what, *words))
        return future

    def close(self, patience_seconds: float) -> bool:
        """Do what was asked for, and end; may be called twice.

        Returns:
            Whether all of it is done, after so long at most.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._asked.put(None)
            thread = self._thread
        if thread is None:
            return True
        thread.join(patience_seconds)
        return not thread.is_alive()

    def _run(self) -> None:
        while (due := self._asked.get()) is not None:
            due()


def _do(future: Future[T], what: Callable[..., T], *words: object) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        done = what(*words)
    except BaseException as error:  # of whoever asked
        future.set_exception(error)
    else:
        future.set_result(done)
