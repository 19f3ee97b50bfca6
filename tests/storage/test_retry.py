"""The retry loop and the circuit breaker, with a clock of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from asyncckpt.errors import AccessDeniedError, MissingExtraError, StorageTimeoutError, UnavailableError
from asyncckpt.storage.http.errors import RefusedError
from asyncckpt.storage.retry import CircuitBreaker, Retries, RetryPolicy, on_retry, retrying


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Flaky:
    """Raises the given errors one after another, then answers 42."""

    def __init__(self, *errors: Exception) -> None:
        self.errors: Iterator[Exception] = iter(errors)
        self.calls = 0

    async def __call__(self) -> int:
        self.calls += 1
        for error in self.errors:
            raise error
        return 42


async def run(flaky: Flaky, clock: Clock, policy: RetryPolicy, breaker: CircuitBreaker | None = None) -> int:
    return await retrying(
        flaky,
        policy=policy,
        describe="get 'k'",
        breaker=breaker,
        sleep=clock.sleep,
        uniform=lambda: 0.0,
        clock=clock,
    )


async def test_succeeds_after_failures_with_doubling_delays() -> None:
    clock, flaky = Clock(), Flaky(UnavailableError("a"), StorageTimeoutError("b"), UnavailableError("c"))
    assert await run(flaky, clock, RetryPolicy(base_delay=1, max_delay=3)) == 42
    assert clock.slept == [1, 2, 3]
    assert flaky.calls == 4


async def test_other_errors_are_final() -> None:
    flaky = Flaky(AccessDeniedError("no"))
    with pytest.raises(AccessDeniedError):
        await run(flaky, Clock(), RetryPolicy())
    assert flaky.calls == 1


async def test_last_error_is_raised_when_attempts_are_used_up() -> None:
    flaky = Flaky(*[UnavailableError(str(n)) for n in range(9)])
    with pytest.raises(UnavailableError, match=r"^2$"):
        await run(flaky, Clock(), RetryPolicy(attempts=3))


async def test_budget_ends_the_attempts() -> None:
    clock, flaky = Clock(), Flaky(*[UnavailableError(str(n)) for n in range(9)])
    with pytest.raises(UnavailableError):
        await run(flaky, clock, RetryPolicy(attempts=9, base_delay=4, max_delay=4, budget=10))
    assert clock.slept == [4, 4]


async def test_a_server_that_is_away_is_waited_for_within_the_budget() -> None:
    clock, flaky = Clock(), Flaky(*[RefusedError(str(n)) for n in range(9)])
    with pytest.raises(RefusedError, match=r"^4$"):
        await run(flaky, clock, RetryPolicy())
    assert clock.slept == [0.4, 1.6, 6.4, 10.0]
    assert sum(clock.slept) * (1 - RetryPolicy().jitter) > 9
    clock, flaky = Clock(), Flaky(*[RefusedError(str(n)) for n in range(9)])
    with pytest.raises(RefusedError):
        await run(flaky, clock, RetryPolicy(attempts=2, budget=0.3))
    assert clock.slept == [0.15]


async def test_waiting_for_a_server_that_is_away_does_not_open_the_circuit() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=2, cooldown=5, clock=clock)
    away = Flaky(*[RefusedError(str(n)) for n in range(4)])
    assert await run(away, clock, RetryPolicy(), breaker) == 42
    for _ in range(2):
        with pytest.raises(RefusedError):
            await run(Flaky(*[RefusedError("x")] * 5), clock, RetryPolicy(), breaker)
    with pytest.raises(UnavailableError, match="2 requests in a row failed"):
        await run(Flaky(), clock, RetryPolicy(), breaker)


async def test_retries_are_reported_with_their_reason() -> None:
    lines: list[str] = []
    token = on_retry.set(lines.append)
    try:
        await run(Flaky(UnavailableError("slow down")), Clock(), RetryPolicy(base_delay=1))
    finally:
        on_retry.reset(token)
    assert lines == ["get 'k': slow down; attempt 2 of 5 in 1.00 s"]


async def test_an_attempt_that_hangs_times_out() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StorageTimeoutError, match="get 'k': no end within"):
        await retrying(hang, policy=RetryPolicy(attempts=1, attempt_timeout=0.01), describe="get 'k'")


async def test_a_timeout_of_the_caller_is_not_mistaken_for_ours() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.01):
            await retrying(hang, policy=RetryPolicy(), describe="x")
    assert not isinstance(caught.value, StorageTimeoutError)


async def test_cancel_during_the_pause_passes() -> None:
    pausing = asyncio.Event()

    async def sleep(_: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    flaky = Flaky(UnavailableError("a"))
    task = asyncio.create_task(retrying(flaky, policy=RetryPolicy(), describe="x", sleep=sleep))
    await pausing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert flaky.calls == 1


async def test_breaker_fails_at_once_then_lets_one_call_see() -> None:
    clock = Clock()
    breaker = CircuitBreaker(failures=2, cooldown=5, clock=clock)
    with pytest.raises(UnavailableError, match=r"^b$"):
        await run(
            Flaky(UnavailableError("a"), UnavailableError("b")), clock, RetryPolicy(attempts=2), breaker
        )
    untouched = Flaky()
    with pytest.raises(UnavailableError, match=r"2 requests in a row failed; again in 5\.0 s"):
        await run(untouched, clock, RetryPolicy(), breaker)
    assert untouched.calls == 0
    clock.now += 6
    breaker.check("probe")
    with pytest.raises(UnavailableError, match="in a row"):
        breaker.check("second call while the probe is out")
    clock.now += 6
    assert await run(Flaky(), clock, RetryPolicy(), breaker) == 42
    breaker.check("closed again")


@pytest.mark.parametrize(("share", "expected"), [(0.0, 8.0), (1.0, 4.0), (0.5, 6.0)])
def test_jitter_shortens_the_delay(share: float, expected: float) -> None:
    assert RetryPolicy(base_delay=8, max_delay=8, jitter=0.5).delay(1, share) == expected


def test_delay_of_a_huge_attempt_number_is_capped() -> None:
    assert RetryPolicy(max_delay=7, jitter=0).delay(5000, 0.0) == 7


@pytest.mark.parametrize(
    "arguments", [{"attempts": 0}, {"jitter": 1.5}, {"base_delay": -1.0}, {"budget": 0.0}]
)
def test_nonsense_policies_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        RetryPolicy(**arguments)  # type: ignore[arg-type]


async def test_what_is_loaded_first_has_no_time_limit() -> None:
    """The imports of a driver on a busy machine are not the store's doing."""
    loaded = []

    def load() -> None:
        threading.Event().wait(0.2)
        loaded.append(threading.current_thread())

    async def operation() -> str:
        return "done"

    policy = RetryPolicy(attempts=1, attempt_timeout=0.05, budget=0.1)
    retries = Retries(policy, load=load)
    assert await retries.run(operation, "a call") == "done"
    assert await retries.run(operation, "another call") == "done"
    assert len(loaded) == 1
    assert loaded[0] is not threading.current_thread()


async def test_what_can_not_be_loaded_is_tried_again() -> None:
    outcomes = iter([MissingExtraError("pip install it"), None])

    def load() -> None:
        error = next(outcomes)
        if error is not None:
            raise error

    async def operation() -> str:
        return "done"

    retries = Retries(RetryPolicy(), load=load)
    with pytest.raises(MissingExtraError):
        await retries.run(operation, "a call")
    assert await retries.run(operation, "a call") == "done"
