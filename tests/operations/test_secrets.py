"""Secrets and presigned URLs never appear in reprs, errors, logs, progress or files."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Iterator
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.operations.location import resolve
from asyncckpt.storage.memory import MemoryStorage
from asyncckpt.storage.retry import NO_RETRY
from asyncckpt.storage.s3 import S3Storage
from tests.servers import S3Bucket

SECRET = "s3cr3t-Zq7xV1"
TOKEN = "t0ken-Kp9wB2"
PRESIGNED = ("X-Amz-Signature", "X-Amz-Credential", "Signature=", "X-Amz-Security-Token")


def options(**more: Any) -> dict[str, Any]:
    return {
        "key": "someone",
        "secret": SECRET,
        "token": TOKEN,
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:9", "region_name": "us-east-1"},
        **more,
    }


def assert_clean(text: str, *more: str) -> None:
    for secret in (SECRET, TOKEN, *PRESIGNED, *more):
        assert secret not in text, f"{secret} in {text}"


async def failure_of(call: Awaitable[object]) -> str:
    """All that a user may see of a failed call: the error, its notes and causes, the traceback."""
    with pytest.raises(asyncckpt.AsyncCkptError) as caught:
        await call
    return "".join(traceback.format_exception(caught.value)) + repr(caught.value)


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


async def test_a_storage_shows_where_it_is_and_nothing_else() -> None:
    async with S3Storage("bucket", "run", storage_options=options()) as storage:
        assert repr(storage) == "S3Storage('s3://bucket/run/')"
        assert_clean(repr(storage) + repr(vars(storage)))


async def test_errors_of_an_unreachable_server(logs: pytest.LogCaptureFixture) -> None:
    large = {"w": np.zeros(4_000_000, np.float32)}
    async with S3Storage("bucket", storage_options=options(), retry=NO_RETRY) as storage:
        for call in (
            asyncckpt.save({"a": 1}, (storage, "x")),
            asyncckpt.save(large, (storage, "x"), overwrite=True),
            asyncckpt.load((storage, "x")),
        ):
            assert_clean(await failure_of(call))
    assert_clean(logs.text)


async def test_a_whole_round_trip_logs_no_secret_at_any_level(
    minio_bucket: S3Bucket, logs: pytest.LogCaptureFixture
) -> None:
    secret = minio_bucket.server.secret_key
    events: list[asyncckpt.ProgressEvent] = []
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        state = {"w": np.zeros(4_000_000, np.float32)}
        result = await asyncckpt.save(state, (storage, "a.checkpoint"), progress=events.append)
        await asyncckpt.load((storage, "a.checkpoint"), progress=events.append)
        async with asyncckpt.open_checkpoint((storage, "a.checkpoint")) as checkpoint:
            assert_clean(repr(checkpoint) + repr(checkpoint.files) + repr(checkpoint.metadata), secret)
        missing = await failure_of(asyncckpt.load((storage, "none")))
    assert_clean(missing, secret)
    assert_clean(logs.text, secret)
    assert_clean(repr(result) + repr(events), secret)
    stored = minio_bucket.get("a.checkpoint")
    assert secret.encode() not in stored
    assert secret not in repr(minio_bucket.head("a.checkpoint")["Metadata"])


async def test_errors_of_a_server_that_refuses(
    minio_bucket: S3Bucket, logs: pytest.LogCaptureFixture
) -> None:
    wrong = {**minio_bucket.storage_options, "secret": SECRET}
    location = f"{minio_bucket.url}/a.checkpoint"
    for call in (
        asyncckpt.save({"a": 1}, location, storage_options=wrong),
        asyncckpt.load(location, storage_options=wrong),
        asyncckpt.verify(location, storage_options=wrong),
    ):
        assert_clean(await failure_of(call))
    assert_clean(logs.text)


@pytest.mark.parametrize(
    "location",
    [
        f"sftp://someone:{SECRET}@host.invalid/a.checkpoint",
        f"https://host.invalid/a.checkpoint?X-Amz-Signature={SECRET}",
        f"nowhere://someone:{SECRET}@host/a.checkpoint",
        f"s3://someone:{SECRET}@bucket/a.checkpoint",
        f"s3://someone:{SECRET}@bucket",
    ],
)
async def test_a_url_with_a_password_is_not_repeated(location: str) -> None:
    try:
        async with resolve(location) as place:
            shown = place.shown + repr(place.storage)
    except (asyncckpt.AsyncCkptError, ValueError) as error:
        shown = str(error) + repr(error)
    assert SECRET not in shown


async def test_options_that_the_driver_does_not_take_are_not_repeated() -> None:
    storage_options = options(no_such_option=SECRET)
    storage_options.pop("token")
    async with S3Storage("bucket", storage_options=storage_options, retry=NO_RETRY) as storage:
        shown = await failure_of(storage.exists("x"))
    assert SECRET not in shown


async def test_a_storage_in_a_pair_is_shown_by_its_own_repr() -> None:
    storage = MemoryStorage()
    shown = await failure_of(asyncckpt.load((storage, "none")))
    assert "MemoryStorage(0 objects)/none" in shown


async def test_a_signed_url_is_not_repeated_by_errors() -> None:
    url = "http://127.0.0.1:9/bucket/model.checkpoint?X-Amz-Signature=topsecret"
    with pytest.raises(asyncckpt.AsyncCkptError) as caught:
        await asyncckpt.load(url)
    shown = "".join(traceback.format_exception_only(caught.value))
    cause = caught.value.__cause__
    while cause is not None:
        shown += str(cause)
        cause = cause.__cause__
    assert "topsecret" not in shown


async def test_a_file_url_with_a_password_is_not_repeated() -> None:
    with pytest.raises(asyncckpt.AsyncCkptError) as caught:
        await asyncckpt.load("file://user:topsecret@host/a.checkpoint")
    assert "topsecret" not in str(caught.value)
