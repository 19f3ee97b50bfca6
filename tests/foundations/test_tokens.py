"""Tokens and sources: firing, reasons, links, timers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from asyncckpt.cancellation import CancellationToken, CancellationTokenSource
from asyncckpt.errors import AsyncCkptError, OperationCancelledError


def test_a_new_token_has_not_fired() -> None:
    token = CancellationTokenSource().token
    assert not token.is_cancelled
    assert token.reason is None
    token.raise_if_cancelled()


def test_the_first_reason_wins() -> None:
    source = CancellationTokenSource()
    source.cancel("first")
    source.cancel("second")
    assert source.token.is_cancelled
    assert source.token.reason == "first"
    with pytest.raises(OperationCancelledError) as caught:
        source.token.raise_if_cancelled()
    assert caught.value.reason == "first"
    assert isinstance(caught.value, AsyncCkptError)


def test_none_is_one_token_that_keeps_no_callbacks() -> None:
    token = CancellationToken.none()
    assert token is CancellationToken.none()
    calls: list[str | None] = []
    token.add_callback(calls.append)()
    assert not token._callbacks
    assert not token.is_cancelled
    assert calls == []


def test_callbacks_run_once_with_the_reason_and_can_be_removed() -> None:
    source = CancellationTokenSource()
    kept: list[str | None] = []
    removed: list[str | None] = []
    source.token.add_callback(kept.append)
    remove = source.token.add_callback(removed.append)
    remove()
    remove()
    source.cancel("why")
    source.cancel("again")
    assert kept == ["why"]
    assert removed == []


def test_a_callback_added_after_the_firing_runs_at_once() -> None:
    source = CancellationTokenSource()
    source.cancel("early")
    calls: list[str | None] = []
    source.token.add_callback(calls.append)
    assert calls == ["early"]
    assert not source.token._callbacks


def test_many_threads_cancel_and_register_at_once() -> None:
    source = CancellationTokenSource()
    calls: list[str | None] = []
    start = threading.Barrier(8)

    def cancel(name: str) -> None:
        start.wait()
        source.cancel(name)

    def register() -> None:
        start.wait()
        for _ in range(200):
            source.token.add_callback(calls.append)

    threads = [threading.Thread(target=cancel, args=(str(n),)) for n in range(4)]
    threads += [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 800
    assert set(calls) == {source.token.reason}


def test_cancel_inside_a_callback_does_not_deadlock() -> None:
    source = CancellationTokenSource()
    source.token.add_callback(lambda reason: source.cancel("nested"))
    source.cancel("outer")
    assert source.token.reason == "outer"


def test_linked_carries_the_reason_of_whichever_fires() -> None:
    first, second = CancellationTokenSource(), CancellationTokenSource()
    with CancellationTokenSource.linked(first.token, second.token) as both:
        second.cancel("second")
        first.cancel("first")
        assert both.token.reason == "second"


def test_linked_to_a_fired_token_has_fired() -> None:
    fired = CancellationTokenSource()
    fired.cancel("before")
    both = CancellationTokenSource.linked(CancellationToken.none(), fired.token)
    assert both.token.reason == "before"


def test_close_removes_the_links_and_leaves_the_token_usable() -> None:
    parent = CancellationTokenSource()
    child = CancellationTokenSource.linked(parent.token)
    assert len(parent.token._callbacks) == 1
    child.close()
    child.close()
    assert not parent.token._callbacks
    parent.cancel("parent")
    assert not child.token.is_cancelled
    child.cancel("own")
    assert child.token.reason == "own"


def test_a_child_does_not_fire_its_parent() -> None:
    parent = CancellationTokenSource()
    with CancellationTokenSource.linked(parent.token) as child:
        child.cancel("child")
    assert not parent.token.is_cancelled


def failing(error: BaseException) -> Callable[[str | None], None]:
    def fail(reason: str | None) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError("mine")])
def test_a_callback_that_raises_stops_no_other(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    source = CancellationTokenSource()
    calls: list[str] = []
    source.token.add_callback(lambda _: calls.append("first"))
    source.token.add_callback(failing(error))
    child = CancellationTokenSource.linked(source.token)
    child.token.add_callback(failing(error))
    child.token.add_callback(lambda _: calls.append("of the child"))
    source.token.add_callback(lambda _: calls.append("last"))
    with caplog.at_level(logging.ERROR, logger="asyncckpt"):
        source.cancel("why")
    assert calls == ["first", "of the child", "last"]
    assert child.token.reason == "why"
    logged = [(record.name, record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert logged == [("asyncckpt", error)] * 2


async def test_a_callback_that_raises_stops_no_scope(caplog: pytest.LogCaptureFixture) -> None:
    source = CancellationTokenSource()
    source.token.add_callback(failing(ValueError("mine")))
    with pytest.raises(OperationCancelledError, match="why"):
        async with source.token.scope():
            source.cancel("why")
            await asyncio.Event().wait()
    assert len(caplog.records) == 1


def test_a_callback_added_after_the_firing_that_raises_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = CancellationTokenSource()
    source.cancel()
    source.token.add_callback(failing(ValueError("mine")))
    assert [record.getMessage() for record in caplog.records] == [
        "a cancellation callback failed; the others run all the same"
    ]


def test_an_interrupt_in_a_callback_is_raised_when_all_have_run() -> None:
    source = CancellationTokenSource()
    calls: list[str | None] = []
    source.token.add_callback(failing(KeyboardInterrupt()))
    source.token.add_callback(failing(SystemExit()))
    source.token.add_callback(calls.append)
    with pytest.raises(KeyboardInterrupt):
        source.cancel("why")
    assert calls == ["why"]


def test_a_chain_of_a_hundred_thousand_linked_tokens_fires_to_its_end() -> None:
    first = CancellationTokenSource()
    chain = [first]
    for _ in range(100_000):
        chain.append(CancellationTokenSource.linked(chain[-1].token))
    order: list[int] = []
    for number in (0, 50_000, 100_000):
        chain[number].token.add_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    first.cancel("why")
    assert sum(source.token.reason == "why" for source in chain) == 100_001
    assert order == [100_000, 50_000, 0]


def test_a_token_with_two_hundred_thousand_links_fires_them_all() -> None:
    # Quadratic work would be 40 000 000 000 steps here: some 20 s.
    parent = CancellationTokenSource()
    children = [CancellationTokenSource.linked(parent.token) for _ in range(200_000)]
    parent.cancel("why")
    assert sum(child.token.reason == "why" for child in children) == 200_000
    assert not parent.token._callbacks


def test_callbacks_that_add_callbacks_to_the_fired_token_do_not_nest() -> None:
    source = CancellationTokenSource()
    depths: list[int] = []
    depth = 0

    def add_another(reason: str | None) -> None:
        nonlocal depth
        depth += 1
        source.token.add_callback(lambda _: depths.append(depth))
        depth -= 1

    for _ in range(2_000):
        source.token.add_callback(add_another)
    source.cancel()
    assert depths == [1] * 2_000


def test_a_source_with_a_cancel_of_its_own_is_cancelled_through_it() -> None:
    class Noting(CancellationTokenSource):
        noted: str | None = None

        def cancel(self, reason: str | None = None) -> None:
            self.noted = reason
            super().cancel(reason)

    parent = CancellationTokenSource()
    child = Noting.linked(parent.token)
    parent.cancel("why")
    assert (child.noted, child.token.reason) == ("why", "why")


def test_a_callback_removed_by_an_earlier_one_does_not_run() -> None:
    source = CancellationTokenSource()
    calls: list[str | None] = []
    source.token.add_callback(lambda _: remove())
    remove = source.token.add_callback(calls.append)
    source.cancel()
    assert calls == []


async def test_cancel_after_fires_with_its_reason() -> None:
    fired = asyncio.Event()
    source = CancellationTokenSource()
    source.token.add_callback(lambda _: fired.set())
    source.cancel_after(0.001, "too slow")
    await fired.wait()
    assert source.token.reason == "too slow"
    assert source._timer is None


async def test_a_later_cancel_after_replaces_the_earlier() -> None:
    fired = asyncio.Event()
    with CancellationTokenSource() as source:
        source.token.add_callback(lambda _: fired.set())
        source.cancel_after(0, "earlier")
        source.cancel_after(0.001, "later")
        await fired.wait()
        assert source.token.reason == "later"


async def test_close_and_cancel_stop_the_timer() -> None:
    closed, cancelled = CancellationTokenSource(), CancellationTokenSource()
    closed.cancel_after(60)
    cancelled.cancel_after(60)
    handles = [source._timer[1] for source in (closed, cancelled) if source._timer]
    closed.close()
    cancelled.cancel("now")
    assert [handle.cancelled() for handle in handles] == [True, True]
    with pytest.raises(RuntimeError, match="closed"):
        closed.cancel_after(1)


async def test_close_from_another_thread_stops_the_timer_on_its_loop() -> None:
    source = CancellationTokenSource()
    source.cancel_after(60)
    assert source._timer is not None
    handle = source._timer[1]
    await asyncio.to_thread(source.close)
    await asyncio.sleep(0)
    assert handle.cancelled()
    await asyncio.get_running_loop().shutdown_default_executor()


def test_a_timer_of_a_closed_loop_is_no_trouble() -> None:
    source = CancellationTokenSource()

    async def arm() -> None:
        source.cancel_after(60)

    asyncio.run(arm())
    source.close()
    source.cancel("later")
    assert source.token.reason == "later"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
async def test_cancel_after_refuses_impossible_delays(seconds: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        CancellationTokenSource().cancel_after(seconds)


def test_cancel_after_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError):
        CancellationTokenSource().cancel_after(1)
