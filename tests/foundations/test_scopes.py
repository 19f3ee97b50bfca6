"""Cancel scopes: one translation, real cancels win, nothing leaks out of the block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from asyncckpt._aio import run_shielded, shield
from asyncckpt.cancellation import CancellationToken, CancellationTokenSource, CancelScope, cancel_scope
from asyncckpt.errors import OperationCancelledError


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def this_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


def soon(function: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(function)


async def test_a_fired_token_ends_in_its_error_with_reason_and_cause() -> None:
    source = CancellationTokenSource()
    soon(lambda: source.cancel("enough"))
    with pytest.raises(OperationCancelledError) as caught:
        async with source.token.scope():
            await forever()
    assert caught.value.reason == "enough"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert this_task().cancelling() == 0
    await turns()


async def test_a_token_fired_before_entry_raises_on_entry() -> None:
    source = CancellationTokenSource()
    source.cancel("before")
    entered = False
    with pytest.raises(OperationCancelledError, match="before"):
        async with source.token.scope():
            entered = True
    assert not entered
    assert not source.token._scopes


async def test_a_synchronous_with_works_too() -> None:
    source = CancellationTokenSource()
    soon(source.cancel)
    with pytest.raises(OperationCancelledError) as caught:
        with source.token.scope():
            await forever()
    assert caught.value.reason is None


async def test_a_thread_can_fire_it() -> None:
    source = CancellationTokenSource()
    thread = threading.Thread(target=source.cancel, args=("from a thread",))
    soon(thread.start)
    with pytest.raises(OperationCancelledError, match="from a thread"):
        async with source.token.scope():
            await forever()
    thread.join()


async def test_a_body_that_ends_first_leaves_no_cancel_behind() -> None:
    source = CancellationTokenSource()
    async with source.token.scope():
        source.cancel("a moment too late")
    assert not source.token._callbacks
    assert not source.token._scopes
    await turns()
    assert this_task().cancelling() == 0


async def test_firing_inside_the_body_is_delivered_at_the_next_await() -> None:
    source = CancellationTokenSource()
    reached = False
    with pytest.raises(OperationCancelledError):
        async with source.token.scope():
            source.cancel()
            reached = True
            await asyncio.sleep(0)
            await forever()
    assert reached


async def test_the_bodys_own_error_passes() -> None:
    source = CancellationTokenSource()
    with pytest.raises(KeyError):
        async with source.token.scope():
            source.cancel()
            raise KeyError("own")
    await turns()
    assert this_task().cancelling() == 0


async def test_an_error_in_the_cleanup_passes_and_the_request_is_withdrawn() -> None:
    source = CancellationTokenSource()
    soon(source.cancel)
    with pytest.raises(KeyError):
        async with source.token.scope():
            try:
                await forever()
            finally:
                raise KeyError("cleanup")
    assert this_task().cancelling() == 0


async def test_a_swallowed_cancel_is_withdrawn_at_the_end() -> None:
    source = CancellationTokenSource()
    soon(source.cancel)
    async with source.token.scope():
        try:
            await forever()
        except asyncio.CancelledError:
            result = "survived"
    assert result == "survived"
    assert this_task().cancelling() == 0
    await turns()


async def outcome_of(
    body: Callable[[], Awaitable[object]], *actions: Callable[[asyncio.Task[object]], object]
) -> object:
    """Run the body in a task, do the actions one after another once it waits; its result or exception."""
    task: asyncio.Task[object] = asyncio.ensure_future(_call(body))
    await turns()
    for action in actions:
        action(task)
    await asyncio.wait([task])
    if task.cancelled():
        return asyncio.CancelledError
    return task.exception() or task.result()


async def _call(body: Callable[[], Awaitable[object]]) -> object:
    return await body()


async def test_a_real_cancel_stays_a_cancelled_error() -> None:
    source = CancellationTokenSource()

    async def body() -> None:
        async with source.token.scope():
            await forever()

    assert await outcome_of(body, lambda task: task.cancel()) is asyncio.CancelledError
    assert not source.token._callbacks


@pytest.mark.parametrize("token_first", [True, False])
async def test_when_both_happen_the_real_cancel_wins(token_first: bool) -> None:
    source = CancellationTokenSource()

    async def body() -> None:
        async with source.token.scope():
            await forever()

    actions: list[Callable[[asyncio.Task[object]], object]] = [
        lambda task: source.cancel("token"),
        lambda task: task.cancel(),
    ]
    assert await outcome_of(body, *(actions if token_first else actions[::-1])) is asyncio.CancelledError


async def test_a_real_cancel_during_the_tokens_cleanup_wins() -> None:
    source = CancellationTokenSource()
    cleaning = asyncio.Event()

    async def body() -> None:
        async with source.token.scope():
            try:
                await forever()
            finally:
                cleaning.set()
                await forever()

    task = asyncio.ensure_future(body())
    await turns()
    source.cancel("token")
    await cleaning.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_the_token_is_delivered_once_however_often_it_is_fired() -> None:
    source = CancellationTokenSource()
    cleaned = asyncio.Event()

    async def body() -> None:
        async with source.token.scope():
            try:
                await forever()
            finally:
                source.cancel("again")
                await turns(5)
                cleaned.set()

    result = await outcome_of(body, lambda _: source.cancel("once"))
    assert isinstance(result, OperationCancelledError)
    assert result.reason == "once"
    assert cleaned.is_set()


async def test_an_asyncio_timeout_outside_wins_over_the_token() -> None:
    source = CancellationTokenSource()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            soon(lambda: source.cancel("token"))
            soon(lambda: deadline.reschedule(0))
            async with source.token.scope():
                await forever()
    assert this_task().cancelling() == 0


async def test_the_token_wins_over_an_asyncio_timeout_inside() -> None:
    source = CancellationTokenSource()
    with pytest.raises(OperationCancelledError):
        async with source.token.scope():
            async with asyncio.timeout(None) as deadline:
                soon(lambda: deadline.reschedule(0))
                soon(lambda: source.cancel("token"))
                await forever()
    assert this_task().cancelling() == 0


async def test_a_timeout_alone_passes_through_the_scope() -> None:
    with pytest.raises(TimeoutError):
        async with CancellationTokenSource().token.scope():
            async with asyncio.timeout(0):
                await forever()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            async with CancellationTokenSource().token.scope():
                await forever()
    assert this_task().cancelling() == 0


async def test_two_tokens_nested_each_translate_their_own() -> None:
    outer, inner = CancellationTokenSource(), CancellationTokenSource()
    soon(lambda: inner.cancel("inner"))
    async with outer.token.scope():
        with pytest.raises(OperationCancelledError, match="inner"):
            async with inner.token.scope():
                await forever()
        await turns()
    soon(lambda: outer.cancel("outer"))
    other = CancellationTokenSource()
    with pytest.raises(OperationCancelledError, match="outer"):
        async with outer.token.scope():
            async with other.token.scope():
                await forever()


async def test_nested_scopes_of_one_token_translate_once() -> None:
    source = CancellationTokenSource()
    soon(lambda: source.cancel("once"))
    seen: list[type[BaseException]] = []
    with pytest.raises(OperationCancelledError, match="once"):
        async with source.token.scope():
            try:
                async with cancel_scope(source.token):
                    await forever()
            except BaseException as error:
                seen.append(type(error))
                await turns(5)
                raise
    assert seen == [asyncio.CancelledError]
    assert this_task().cancelling() == 0


async def test_a_child_task_of_the_same_token_has_its_own_scope() -> None:
    source = CancellationTokenSource()

    async def child() -> None:
        async with source.token.scope():
            await forever()

    async with source.token.scope():
        task = asyncio.ensure_future(child())
        await turns()
        source.cancel("child")
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await asyncio.wait([task])
    assert isinstance(task.exception(), OperationCancelledError)


async def test_commit_ignores_a_token_that_fires_later() -> None:
    source = CancellationTokenSource()
    async with source.token.scope() as scope:
        assert scope.commit() is False
        source.cancel("too late")
        await turns(5)
        result = await run_shielded(asyncio.sleep(0, "committed"), timeout=5)
    assert result == "committed"
    assert this_task().cancelling() == 0


async def test_commit_drops_a_request_on_its_way() -> None:
    source = CancellationTokenSource()
    async with source.token.scope() as scope:
        source.cancel("on its way")
        assert scope.commit() is False
        await turns(5)
    assert this_task().cancelling() == 0


async def test_commit_withdraws_a_request_that_was_absorbed() -> None:
    source = CancellationTokenSource()
    async with source.token.scope() as scope:
        soon(lambda: source.cancel("during the shield"))
        outcome = await shield(turns(5), timeout=5)
        before = (outcome.cancelled, scope.owns_cancellation, this_task().cancelling())
        assert before == (True, True, 1)
        assert scope.commit() is True
        assert (scope.owns_cancellation, this_task().cancelling()) == (False, 0)
        await turns(5)
    assert this_task().cancelling() == 0


async def test_an_absorbed_cancel_of_both_is_not_the_tokens_alone() -> None:
    source = CancellationTokenSource()
    seen: list[bool] = []

    async def body() -> str:
        async with source.token.scope() as scope:
            outcome = await shield(turns(8), timeout=5)
            seen.append(scope.owns_cancellation)
            scope.commit()
            outcome.raise_if_cancelled()
            return "not reached"

    result = await outcome_of(body, lambda _: source.cancel("token"), lambda task: task.cancel())
    await turns()
    assert result is asyncio.CancelledError
    assert seen == [False]


async def test_a_real_cancel_after_commit_is_raised_after_it() -> None:
    source = CancellationTokenSource()
    finished: list[str] = []

    async def commit() -> None:
        await turns(8)
        finished.append("committed")

    async def body() -> None:
        async with source.token.scope() as scope:
            scope.commit()
            await run_shielded(commit(), timeout=5)

    result = await outcome_of(
        body, lambda _: source.cancel("ignored"), lambda task: task.cancel(), lambda task: task.cancel()
    )
    assert result is asyncio.CancelledError
    assert finished == ["committed"]


async def test_a_timeout_after_commit_is_raised_after_it_as_a_timeout() -> None:
    source = CancellationTokenSource()
    finished: list[str] = []

    async def commit() -> None:
        await turns(8)
        finished.append("committed")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            async with source.token.scope() as scope:
                scope.commit()
                soon(lambda: deadline.reschedule(0))
                soon(lambda: source.cancel("ignored"))
                await run_shielded(commit(), timeout=5)
    assert finished == ["committed"]
    assert this_task().cancelling() == 0


async def test_commit_in_an_inner_scope_holds_the_outer_one_back_until_it_ends() -> None:
    source = CancellationTokenSource()
    result = ""
    with pytest.raises(OperationCancelledError, match="held back"):
        async with source.token.scope():
            async with cancel_scope(source.token) as inner:
                inner.commit()
                source.cancel("held back")
                await turns(5)
                result = await run_shielded(asyncio.sleep(0, "committed"), timeout=5)
            await forever()
    assert result == "committed"
    assert this_task().cancelling() == 0


async def test_an_outer_commit_right_after_the_inner_one_returns_the_result() -> None:
    source = CancellationTokenSource()
    async with source.token.scope() as outer:
        async with cancel_scope(source.token) as inner:
            inner.commit()
            source.cancel("ignored by both")
            await turns(5)
        outer.commit()
        await turns(5)
        async with cancel_scope(source.token):
            await turns()
    assert this_task().cancelling() == 0


async def test_commit_belongs_to_the_task_of_the_scope() -> None:
    async def commit_elsewhere(scope: CancelScope) -> None:
        scope.commit()

    async with CancellationTokenSource().token.scope() as scope:
        task = asyncio.ensure_future(commit_elsewhere(scope))
        await asyncio.wait([task])
        assert isinstance(task.exception(), RuntimeError)
    with pytest.raises(RuntimeError, match="while it is open"):
        scope.commit()


async def test_a_scope_is_used_once() -> None:
    scope = CancellationToken.none().scope()
    async with scope:
        pass
    with pytest.raises(RuntimeError, match="only once"):
        async with scope:
            pass


def test_a_scope_needs_a_task() -> None:
    with pytest.raises(RuntimeError):
        with CancellationTokenSource().token.scope():
            pass


async def test_bind_without_a_token_does_nothing() -> None:
    async with cancel_scope(None) as scope:
        await turns()
        assert scope.commit() is False
        assert not scope.owns_cancellation
    async with cancel_scope(None), cancel_scope(None):
        await turns()
    assert not CancellationToken.none()._scopes


def test_a_token_fired_after_the_loop_was_closed_is_no_trouble() -> None:
    source = CancellationTokenSource()

    loop = asyncio.new_event_loop()
    task = loop.create_task(_enter(source.token))
    loop.run_until_complete(turns())
    # Closing the loop under a waiting task is a crash of the owner; only the token must survive it.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    source.cancel("nobody listens")
    assert source.token.reason == "nobody listens"


async def _enter(token: CancellationToken) -> None:
    async with token.scope():
        await forever()
