"""save and load through toxiproxy in front of MinIO: they succeed by retry, or fail truthfully within their timeout.

Whatever happens, no upload is left, no checkpoint is torn, and the old one still loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.storage.retry import RetryPolicy
from asyncckpt.storage.s3.storage import S3Storage
from asyncckpt.testing.strategies import assert_identical
from tests.guards import call_blocking
from tests.operations.places import S3_PART_BYTES
from tests.servers import S3Bucket, Toxiproxy
from tests.servers.toxiproxy import Proxy

KEY = "run/a.checkpoint"
OLD = {"old": np.arange(5)}
PATIENT = RetryPolicy(attempts=20, base_delay=0.02, max_delay=0.1, attempt_timeout=10.0)
IMPATIENT = RetryPolicy(attempts=2, base_delay=0.01, budget=3.0, attempt_timeout=0.4)


def large_state() -> dict[str, Any]:
    """Three parts of S3's smallest size."""
    return {"w": [np.random.default_rng(i).random(450_000, np.float32) for i in range(7)], "step": 3}


@dataclass
class Link:
    """A proxy in front of the bucket's server, and storages that go through it."""

    proxy: Proxy
    bucket: S3Bucket
    events: list[asyncckpt.ProgressEvent] = field(default_factory=list)

    @asynccontextmanager
    async def storage(self, policy: RetryPolicy) -> AsyncIterator[S3Storage]:
        options = self.bucket.storage_options
        options["client_kwargs"]["endpoint_url"] = self.proxy.endpoint_url
        options["config_kwargs"] |= {"connect_timeout": 1, "read_timeout": 2}
        async with S3Storage(
            self.bucket.name, storage_options=options, part_bytes=S3_PART_BYTES, concurrency=2, retry=policy
        ) as storage:
            yield storage

    @asynccontextmanager
    async def direct(self) -> AsyncIterator[S3Storage]:
        """Past the proxy, to look at what is really there."""
        async with S3Storage(self.bucket.name, storage_options=self.bucket.storage_options) as storage:
            yield storage

    @property
    def retries(self) -> int:
        return self.events[-1].retries

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if event.reason]


@pytest.fixture
def link(toxiproxy: Toxiproxy, minio_bucket: S3Bucket) -> Iterator[Link]:
    with toxiproxy.proxy(minio_bucket.server.endpoint_url) as proxy:
        yield Link(proxy, minio_bucket)


class Healing:
    """A progress callback that heals the line at the first retry: what was cut has been noticed then."""

    def __init__(self, link: Link, toxic: str) -> None:
        self._link = link
        self._toxic: str | None = toxic

    def __call__(self, event: asyncckpt.ProgressEvent) -> None:
        self._link.events.append(event)
        if event.retries and self._toxic is not None:
            call_blocking(self._link.proxy.remove_toxic, self._toxic)
            self._toxic = None

    @property
    def healed(self) -> bool:
        return self._toxic is None


async def test_a_save_whose_connections_are_cut_in_the_middle_of_a_part(link: Link) -> None:
    """Each connection dies after 2 MB of upload, less than half a part, until the first retry is seen."""
    state = large_state()
    async with link.storage(PATIENT) as storage:
        healing = Healing(link, link.proxy.add_toxic("limit_data", stream="upstream", bytes=2_000_000))
        await asyncckpt.save(state, (storage, KEY), progress=healing)
        assert healing.healed
        assert link.retries >= 1
        assert any("part" in reason for reason in link.reasons)
        assert_identical(await asyncckpt.load((storage, KEY)), state)
    assert (link.bucket.keys(), link.bucket.uploads()) == ([KEY], [])


async def test_a_load_whose_connections_are_cut_in_the_middle_of_a_range(link: Link) -> None:
    state = large_state()
    async with link.direct() as direct:
        await asyncckpt.save(state, (direct, KEY))
    async with link.storage(PATIENT) as storage:
        healing = Healing(link, link.proxy.add_toxic("limit_data", stream="downstream", bytes=1_000_000))
        assert_identical(await asyncckpt.load((storage, KEY), progress=healing), state)
    assert healing.healed
    assert link.retries >= 1
    assert any("reading" in reason for reason in link.reasons)


async def test_connections_reset_while_small_objects_move(link: Link) -> None:
    """A PUT whose acknowledgement is lost is settled by the write id, not written twice or reported as a conflict."""
    async with link.storage(PATIENT) as storage:
        healing = Healing(link, link.proxy.add_toxic("limit_data", stream="downstream", bytes=10))
        result = await asyncckpt.save(OLD, (storage, KEY), progress=healing)
        assert result.key == KEY
        assert_identical(await asyncckpt.load((storage, KEY)), OLD)
    assert link.bucket.keys() == [KEY]
    assert link.retries >= 1


async def test_latency_makes_it_slow_and_nothing_else(link: Link) -> None:
    state = large_state()
    with link.proxy.toxic("latency", latency=60, jitter=20):
        async with link.storage(PATIENT) as storage:
            await asyncckpt.save(state, (storage, KEY), progress=link.events.append)
            assert_identical(await asyncckpt.load((storage, KEY)), state)
    assert link.retries == 0
    assert link.bucket.uploads() == []


@pytest.mark.parametrize("large", [False, True], ids=["small", "in parts"])
async def test_a_server_that_stops_answering_fails_the_save_in_time(link: Link, large: bool) -> None:
    async with link.direct() as direct:
        await asyncckpt.save(OLD, (direct, KEY))
    async with link.storage(IMPATIENT) as storage:
        await asyncckpt.load((storage, KEY))  # connected, and then silence
        with link.proxy.toxic("timeout", stream="upstream", timeout=0):
            state = large_state() if large else {"w": np.ones(10)}
            kinds = (asyncckpt.StorageTimeoutError, asyncckpt.UnavailableError, asyncckpt.OutcomeUnknownError)
            with pytest.raises(kinds) as caught:
                await asyncckpt.save(state, (storage, KEY), overwrite=True, progress=link.events.append)
            assert KEY in str(caught.value)
    assert link.events[-1].phase is asyncckpt.Phase.FAILED
    assert link.bucket.uploads() == []
    async with link.direct() as direct:
        assert_identical(await asyncckpt.load((direct, KEY)), OLD)


async def test_a_server_that_stops_answering_in_the_middle_of_a_save(link: Link) -> None:
    """The upload exists by then: once the line is back, the clean-up removes it."""
    async with link.storage(IMPATIENT) as storage:
        silence: list[str] = []

        def fall_silent(event: asyncckpt.ProgressEvent) -> None:
            link.events.append(event)
            if event.bytes_done and not silence:
                silence.append(
                    call_blocking(partial(link.proxy.add_toxic, "timeout", stream="upstream", timeout=0))
                )
            elif event.retries and len(silence) == 1:
                call_blocking(link.proxy.remove_toxic, silence[0])
                silence.append("over")

        state = large_state()
        try:
            await asyncckpt.save(state, (storage, KEY), progress=fall_silent)
        except asyncckpt.StorageError:
            assert link.bucket.keys() == []
        else:
            assert_identical(await asyncckpt.load((storage, KEY)), state)
    assert silence
    assert link.bucket.uploads() == []


async def test_a_server_that_stops_answering_fails_the_load_in_time(link: Link) -> None:
    async with link.direct() as direct:
        await asyncckpt.save(large_state(), (direct, KEY))
    async with link.storage(IMPATIENT) as storage:
        await storage.exists(KEY)
        with link.proxy.toxic("timeout", stream="upstream", timeout=0):
            with pytest.raises((asyncckpt.StorageTimeoutError, asyncckpt.UnavailableError)) as caught:
                await asyncckpt.load((storage, KEY), progress=link.events.append)
            assert KEY in str(caught.value)
        assert link.events[-1].phase is asyncckpt.Phase.FAILED
        assert link.retries == IMPATIENT.attempts - 1
        assert_identical(await asyncckpt.load((storage, KEY)), large_state())


async def test_a_server_that_goes_away_and_comes_back(link: Link) -> None:
    state = large_state()
    async with link.storage(PATIENT) as storage:

        def outage(event: asyncckpt.ProgressEvent) -> None:
            link.events.append(event)
            call_blocking(link.proxy.set_enabled, event.retries > 0 or not event.bytes_done)

        await asyncckpt.save(state, (storage, KEY), progress=outage)
        link.proxy.set_enabled(True)
        assert link.retries >= 1
        assert_identical(await asyncckpt.load((storage, KEY)), state)
    assert link.bucket.uploads() == []


async def test_a_cancel_through_a_silent_line_ends_in_a_bounded_time(link: Link) -> None:
    """Nothing can be cleaned up over a dead line; what the caller gets is the cancel, and not a hang."""
    async with link.storage(IMPATIENT) as storage:
        await storage.exists(KEY)
        begun = asyncio.Event()
        saving = asyncio.create_task(
            asyncckpt.save(
                large_state(),
                (storage, KEY),
                progress=lambda event: begun.set() if event.phase is asyncckpt.Phase.WRITE else None,
            )
        )
        await begun.wait()
        with link.proxy.toxic("timeout", stream="upstream", timeout=0):
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
    assert link.bucket.keys() == []
