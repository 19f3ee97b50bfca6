"""When and how often a failed call is tried again: one policy, one circuit breaker, one loop, for every storage.

What goes through it may be repeated: looks and removals, writes that replace with the same bytes, and writes whose
outcome a write id settles afterwards (`settle`). The drivers' own retries are off, so that every retry is counted and
seen here. Whoever wants to hear of them sets `on_retry` for its task: the operations do, for progress events.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from asyncckpt._aio import StartingUnlisted, run_in_thread
from asyncckpt.arguments import AtLeastOne, Between, check_fields
from asyncckpt.errors import InvalidArgumentError, StorageTimeoutError, UnavailableError
from asyncckpt.storage.http.errors import RefusedError

T = TypeVar("T")
Seconds = Annotated[float, Between(0)]

RETRYABLE: tuple[type[Exception], ...] = (UnavailableError, StorageTimeoutError)
"""The errors that another attempt may cure."""
SLOWEST_BYTES_PER_SECOND = 1_000_000
"""A call that moves bytes gets this much more time than one that does not."""

on_retry: ContextVar[Callable[[str], None] | None] = ContextVar("asyncckpt_on_retry", default=None)
"""Called with one line, what failed and why, before each new attempt; must not raise. Inherited by child tasks."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long and how patiently. All times are seconds.

    The delay before attempt n + 1 is `base_delay` × 2ⁿ⁻¹, at most `max_delay`, of which the share `jitter` is
    random. Attempts end when `budget` is used up; each may take `attempt_timeout`, plus the time for its bytes.
    Where nobody listened, an attempt has taken no time: the delay is then `base_delay` × 4ⁿ, at most the
    attempt's share of the budget, so that a server that is being restarted is waited for.
    """

    attempts: AtLeastOne = 5
    base_delay: Seconds = 0.1
    max_delay: Seconds = 5.0
    jitter: Annotated[float, Between(0, 1)] = 0.5
    budget: Seconds = 50.0
    attempt_timeout: Seconds = 30.0
    breaker_failures: AtLeastOne = 32
    breaker_cooldown: Seconds = 10.0

    def __post_init__(self) -> None:
        check_fields(self)
        if min(self.budget, self.attempt_timeout) <= 0:
            raise InvalidArgumentError(
                "the times of a retry policy, budget and attempt_timeout, must be above 0"
            )

    def delay(self, attempt: int, share: float, *, refused: bool = False) -> float:
        """The pause after failed attempt `attempt` (from 1), with `share` of the jitter, 0 to 1, taken."""
        # The exponent is capped because 2.0 ** 1100 overflows before min() could cap it.
        exponent = min(attempt, 64)
        full = min(self.max_delay, self.base_delay * 2.0 ** (exponent - 1))
        if refused:
            full = max(full, min(self.budget / self.attempts, self.base_delay * 4.0**exponent))
        return full * (1 - self.jitter * share)


NO_RETRY = RetryPolicy(attempts=1)


class CircuitBreaker:
    """After many failures in a row, of all calls to one storage, calls fail at once for a while.

    It spares a store that is down, and its callers the wait. After the cooldown one call is let through to
    see: its success closes the circuit, its failure starts the cooldown again.
    """

    def __init__(
        self, *, failures: int = 32, cooldown: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._threshold = failures
        self._cooldown = cooldown
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0

    @classmethod
    def of(cls, policy: RetryPolicy) -> CircuitBreaker:
        return cls(failures=policy.breaker_failures, cooldown=policy.breaker_cooldown)

    def check(self, describe: str) -> None:
        """Let a call pass, or raise UnavailableError at once."""
        if self._failures < self._threshold:
            return
        left = self._open_until - self._clock()
        if left > 0:
            raise UnavailableError(
                f"{describe}: not tried, because {self._failures} requests in a row failed; again in {left:.1f} s"
            )
        self._open_until = self._clock() + self._cooldown

    def record(self, *, ok: bool) -> None:
        """Count the outcome of a call that reached, or did not reach, the storage."""
        if ok:
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self._threshold:
            self._open_until = self._clock() + self._cooldown


class Retries:
    """One storage's policy and its circuit breaker, which all its calls share.

    `load` runs once, in a thread, before the first call: the imports of a driver take seconds on a busy machine, which
    are not the store's doing, so no attempt's timeout runs meanwhile.
    """

    def __init__(self, policy: RetryPolicy, *, load: Callable[[], None] | None = None) -> None:
        self.policy = policy
        self._load = load
        self._breaker = CircuitBreaker.of(policy)
        self._once = replace(policy, attempts=1)

    async def run(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        what: str,
        *,
        size_bytes: int = 0,
        once: bool = False,
    ) -> T:
        """Await `operation()` as `retrying` does; `once` for what must not be repeated."""
        if self._load is not None:
            await run_in_thread(self._load)
            self._load = None
        return await retrying(
            operation,
            policy=self._once if once else self.policy,
            describe=what,
            breaker=self._breaker,
            size_bytes=size_bytes,
        )


async def retrying(
    operation: Callable[[], Coroutine[Any, Any, T]],
    *,
    policy: RetryPolicy,
    describe: str,
    retryable: tuple[type[Exception], ...] = RETRYABLE,
    breaker: CircuitBreaker | None = None,
    size_bytes: int = 0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    uniform: Callable[[], float] = random.random,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Await `operation()` until it succeeds, fails for good, or the policy is used up; raises its last error.

    `size_bytes` is what one attempt moves: it makes the timeouts longer. An attempt that overruns its timeout
    is cancelled and counts as StorageTimeoutError.
    """
    allowance = size_bytes / SLOWEST_BYTES_PER_SECOND
    deadline = clock() + policy.budget + allowance
    attempt = 0
    while True:
        attempt += 1
        if breaker is not None:
            breaker.check(describe)
        limit = min(policy.attempt_timeout + allowance, max(0.001, deadline - clock()))
        try:
            result = await _attempt(operation, limit, describe)
        except retryable as error:
            refused = isinstance(error, RefusedError)
            pause = policy.delay(attempt, uniform(), refused=refused)
            last = attempt >= policy.attempts or clock() + pause >= deadline
            # A server that is not there can't be spared; that it is waited for must not open the circuit.
            if breaker is not None and (last or not refused):
                breaker.record(ok=False)
            if last:
                raise
            _report(f"{describe}: {error}; attempt {attempt + 1} of {policy.attempts} in {pause:.2f} s")
            await sleep(pause)
            continue
        if breaker is not None:
            breaker.record(ok=True)
        return result


async def _attempt(operation: Callable[[], Coroutine[Any, Any, T]], limit: float, describe: str) -> T:
    timer = asyncio.timeout(limit)
    try:
        async with timer:
            return await StartingUnlisted(operation())
    except TimeoutError as error:
        if not timer.expired():
            raise
        raise StorageTimeoutError(f"{describe}: no end within {limit:.1f} s") from error
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        # Somebody cancels every task of the loop, those of the driver too, but not this one, which is shielded.
        raise UnavailableError(f"{describe}: its connection was cancelled from outside") from error


def _is_being_cancelled() -> bool:
    """Whether a `CancelledError` in this task is its own, not one of a task that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _report(line: str) -> None:
    listener = on_retry.get()
    if listener is not None:
        listener(line)
