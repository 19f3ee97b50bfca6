"""Worker threads whose work is over before anyone sees a cancel."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar, TypeVarTuple, Unpack

from asyncckpt.errors import StorageError

T = TypeVar("T")
Args = TypeVarTuple("Args")


# How often the loop turns without a pause while it waits for a thread's last instructions.
_QUICK_TURNS = 100


class _Job:
    """One call on its way through a worker thread. Free of locks: the loop never waits for a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
        self._loop = loop
        self._call = call
        self._context = contextvars.copy_context()
        # Whoever pops the ticket owns the job: the worker to run it, or the loop to withdraw it.
        self._ticket = [None]
        self._waiter: asyncio.Future[None] | None = None
        self.finished = False
        self.value: Any = None
        self.error: BaseException | None = None

    def claim(self) -> bool:
        try:
            self._ticket.pop()
        except IndexError:
            return False
        return True

    def run(self) -> None:
        """Run the call in this (worker) thread, unless it was withdrawn, and report to the loop."""
        if not self.claim():
            return
        try:
            self.value = self._context.run(self._call)
        except BaseException as error:
            self.error = error
        # The caller may count on its buffers being free when it hears of the end.
        self._call = _nothing
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:
            # The loop is closed: nobody is left to hear of the result.
            return

    def _finish(self) -> None:
        self.finished = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wake(self) -> None:
        """Wait until the call has ended or this task is cancelled, whichever is first."""
        self._waiter = self._loop.create_future()
        await self._waiter

    async def wait(self, abort: Callable[[], None] | None, *, to_end: bool) -> None:
        """Wait for the end of the call; a cancel withdraws or aborts it, once, and is raised after that.

        With `to_end` a cancel that came after the beginning is not raised: how the call ended counts.
        """
        cancellation: asyncio.CancelledError | None = None
        abort_error: Exception | None = None
        while not self.finished:
            try:
                await self.wake()
            except asyncio.CancelledError as request:
                if cancellation is None:
                    cancellation = request
                    if self.claim():
                        self._call = _nothing
                        to_end = False
                        break
                    if not self.finished:
                        abort_error = _call_abort(abort)
        if cancellation is not None and not to_end:
            self.error = None
            raise cancellation from abort_error

    def result(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                # Its traceback refers to this job: the two would keep each other, and the arguments, alive.
                self.error = None
        return self.value


def _nothing() -> None:
    return None


def _call_abort(abort: Callable[[], None] | None) -> Exception | None:
    """Call it; a failure is handed back, because the thread has to be waited for all the same."""
    try:
        if abort is not None:
            abort()
    except Exception as error:
        return error
    return None


class _Crew:
    """The threads of one pool in one process, and the queue that they serve.

    The threads refer to the queue and to nothing else: a pool that nobody closed can be collected, and its threads
    end with it.
    """

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[_Job, bool] | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.unfinished = 0
        self.process = os.getpid()

    def dismiss(self) -> None:
        """Let the threads end, without waiting for them; what the collector calls must not block."""
        for _ in self.threads:
            self.jobs.put(None)


class WorkerThreads:
    """At most `limit` threads, started when there is work for them, joined when the block ends.

        async with WorkerThreads(4, name="put", nice=5) as threads:
            await threads.run(write_part, view, abort=connection.shutdown)

    `nice` lowers the threads' own priority (Linux), so that the event loop gets the core first. All methods
    are for the loop's thread. In the child of a fork it begins anew, with threads of its own. Those of a pool that
    is never closed end when it is collected.
    """

    def __init__(self, limit: int, *, name: str = "worker", nice: int = 0) -> None:
        if limit < 1:
            raise ValueError(f"a pool needs at least 1 thread, got {limit}")
        self._limit = limit
        self._name = name
        self._nice = nice
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._crew = _Crew()
        self._dismissal = weakref.finalize(self, self._crew.dismiss)
        self._dismissal.atexit = False  # they are daemons, and a process that ends is not to wait for them

    def _crew_here(self) -> _Crew:
        """The crew of this process: a fork copies everything but the threads."""
        if self._crew.process != os.getpid():
            self._dismissal.detach()
            self._begin()
        return self._crew

    async def run(
        self,
        function: Callable[[Unpack[Args]], T],
        *args: *Args,
        abort: Callable[[], None] | None = None,
        to_end: bool = False,
    ) -> T:
        """Call `function(*args)` in a thread, with a copy of the caller's context variables.

        When the caller is cancelled, a call that has not begun is dropped; one that has is told by `abort()`
        (on the loop, once; the call may not have reached its first line yet, or just be over), and
        `CancelledError` is raised only after its end. With `to_end`, for the step of a shielded commit that
        can't be taken back, the result of a call that has begun is returned even so. Raises what the function
        raises, `StorageError` when closed or when no thread can be had.
        """
        if self._closed:
            raise StorageError("the storage or checkpoint that this call belongs to is closed; open it again")
        job = _Job(asyncio.get_running_loop(), lambda: function(*args))
        crew = self._crew_here()
        crew.unfinished += 1
        try:
            self._start_thread_if_needed(crew)
            crew.jobs.put((job, False))
            await job.wait(abort, to_end=to_end)
            result: T = job.result()
            return result
        finally:
            crew.unfinished -= 1

    async def close(self) -> None:
        """Let the threads finish what they do and join them, without blocking the loop. Idempotent.

        A cancel is raised after the last thread has ended.
        """
        self._closed = True
        crew = self._crew_here()
        threads, crew.threads = crew.threads, []
        stops = [_Job(asyncio.get_running_loop(), _nothing) for _ in threads]
        for stop in stops:
            crew.jobs.put((stop, True))
        cancellation: asyncio.CancelledError | None = None
        # A thread that has answered has a few instructions left, and join() would block the loop for them.
        turns = 0
        while not all(stop.finished for stop in stops) or any(thread.is_alive() for thread in threads):
            unfinished = next((stop for stop in stops if not stop.finished), None)
            turns += 1
            try:
                await (
                    unfinished.wake() if unfinished else asyncio.sleep(0 if turns < _QUICK_TURNS else 0.0005)
                )
            except asyncio.CancelledError as request:
                cancellation = cancellation or request
        if cancellation is not None:
            raise cancellation

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _start_thread_if_needed(self, crew: _Crew) -> None:
        if len(crew.threads) >= min(self._limit, crew.unfinished):
            return
        name = f"asyncckpt-{self._name}-{len(crew.threads)}"
        thread = threading.Thread(target=_work, args=(crew.jobs, self._nice), name=name, daemon=True)
        try:
            _thread.start_new_thread(_launch, (thread, crew.jobs, self._nice))
        except RuntimeError as error:
            if not crew.threads:
                raise StorageError(
                    f"no thread could be started ({error}); raise the limit of threads (ulimit -u, or the "
                    "container's), or run less at once"
                ) from error
        else:
            crew.threads.append(thread)


def _launch(thread: threading.Thread, jobs: queue.SimpleQueue[tuple[_Job, bool] | None], nice: int) -> None:
    """Start it from here, not from the loop: `Thread.start` waits until the thread has had its turn."""
    try:
        thread.start()
    except RuntimeError:
        # No second thread can be had; this one does the work just as well.
        _work(jobs, nice)


def _work(jobs: queue.SimpleQueue[tuple[_Job, bool] | None], nice: int) -> None:
    _lower_priority(nice)
    last = False
    while not last:
        taken = jobs.get()
        if taken is None:
            return
        job, last = taken
        job.run()
        del job, taken


def _lower_priority(nice: int) -> None:
    if nice and sys.platform == "linux":
        thread_id = threading.get_native_id()
        try:
            os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + nice)
        except OSError:
            # A sandbox may forbid it; the work is the same at the usual priority.
            return


async def run_in_thread(
    function: Callable[[Unpack[Args]], T],
    *args: *Args,
    abort: Callable[[], None] | None = None,
    to_end: bool = False,
) -> T:
    """Call `function(*args)` in a thread of its own, which is over when this returns or raises.

    Cancels and errors as in `WorkerThreads.run`.
    """
    async with WorkerThreads(1, name="call") as threads:
        return await threads.run(function, *args, abort=abort, to_end=to_end)
