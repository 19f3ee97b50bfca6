"""Tokens and sources: firing, reasons, links, timers."""

from __future__ import annotations

import asyncio
import threading

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
