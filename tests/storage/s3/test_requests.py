"""What S3Storage sends: signed checksums, the user's options, fresh credentials, few requests, no secrets in logs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.session
import pytest

from asyncckpt.errors import StorageError
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.base import ObjectWriter
from asyncckpt.storage.s3.objects import S3Object, encoded_crc
from asyncckpt.storage.s3.storage import S3Storage
from asyncckpt.storage.s3.writer import S3Writer
from tests.guards import call_blocking
from tests.servers import S3Bucket, S3Server
from tests.storage.relay import Relay

MIB = 1024 * 1024
DATA = os.urandom(12 * MIB + 17)


@pytest.fixture
def relay(minio: S3Server) -> Iterator[Relay]:
    with Relay(minio.endpoint_url) as relay:
        yield relay


def options(relay: Relay, bucket: S3Bucket, **more: Any) -> dict[str, Any]:
    given = bucket.storage_options
    given["client_kwargs"] = {**given["client_kwargs"], "endpoint_url": relay.endpoint_url}
    return {**given, **more}


async def save(storage: S3Storage, key: str, data: bytes, *, exclusive: bool = False) -> ObjectWriter:
    async with storage.open_writer(key, size=len(data), part_bytes=5 * MIB, exclusive=exclusive) as writer:
        for index, start in enumerate(range(0, len(data), writer.part_bytes)):
            await writer.write_part(index, [memoryview(data)[start : start + writer.part_bytes]])
    return writer


async def test_checksums_write_ids_and_conditions_are_signed(relay: Relay, minio_bucket: S3Bucket) -> None:
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket)) as storage:
        await storage.write_new("small", b"abc", write_id="one")
        await save(storage, "large", DATA)
        async with storage.open_reader("large", first_bytes=10) as reader:
            await reader.read_range(100, 200)
    by_operation = {seen.operation: seen for seen in relay.seen}
    moved = [by_operation["Put"], by_operation["UploadPart"], by_operation["Get"]]
    for seen in moved:
        signed = seen.query["X-Amz-SignedHeaders"][0].split(";")
        unsigned = {name for name in seen.headers if name.startswith("x-amz-")} - set(signed)
        assert not unsigned, f"{seen.operation} sends {unsigned} unsigned: AWS answers 403 to that"
    put = by_operation["Put"].query["X-Amz-SignedHeaders"][0].split(";")
    assert {"x-amz-checksum-crc32c", "x-amz-meta-asyncckpt-write-id", "if-none-match"} <= set(put)
    assert "x-amz-checksum-crc32c" in by_operation["UploadPart"].query["X-Amz-SignedHeaders"][0]
    assert by_operation["UploadPart"].headers["x-amz-checksum-crc32c"]
    assert by_operation["Get"].headers["if-match"] == minio_bucket.head("large")["ETag"]
    assert minio_bucket.head("small")["Metadata"] == {"asyncckpt-write-id": "one"}


async def test_few_requests(relay: Relay, minio_bucket: S3Bucket) -> None:
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket)) as storage:
        await storage.write_new("small", b"abc")
        assert await storage.read("small") == b"abc"
        assert relay.operations() == ["Put", "Get"]
        relay.seen.clear()
        await save(storage, "large", DATA)
        assert sorted(relay.operations()) == ["Complete", "CreateUpload", *["UploadPart"] * 3]
        relay.seen.clear()
        async with storage.open_reader("large", first_bytes=1000) as reader:
            await reader.read_range(5 * MIB, 6 * MIB)
        assert relay.operations() == ["Get", "Get"]
        known = await storage.stat("large")
        relay.seen.clear()
        async with storage.open_reader("large", known=known) as reader:
            assert relay.operations() == []
            await reader.read_range(5 * MIB, 6 * MIB)
        assert relay.operations() == ["Get"]


async def test_few_requests_to_list_and_to_delete(relay: Relay, minio_bucket: S3Bucket) -> None:
    keys = [f"run/{number:04}" for number in range(1001)]
    for key in keys:
        call_blocking(minio_bucket.put, key, b"")
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket)) as storage:
        found = [info.key async for info in storage.list("run/", start_after=keys[997], limit=2)]
        assert found == keys[998:1000]
        assert relay.operations() == ["List"]
        assert relay.seen[0].query["start-after"] == [keys[997]]
        assert relay.seen[0].query["max-keys"] == ["2"]
        relay.seen.clear()
        await storage.delete_many(keys)
        assert relay.operations() == ["DeleteMany", "DeleteMany"]
    assert minio_bucket.keys() == []


async def test_a_flipped_bit_is_refused_and_sent_again(relay: Relay, minio_bucket: S3Bucket) -> None:
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket)) as storage:
        relay.once("UploadPart", "flip a bit")
        await save(storage, "large", DATA)
        relay.once("Put", "flip a bit")
        await storage.write("small", b"abc")
    assert minio_bucket.get("large") == DATA
    assert minio_bucket.get("small") == b"abc"
    assert relay.operations().count("UploadPart") == 4
    assert relay.operations().count("Put") == 2


@pytest.mark.parametrize("server", ["minio_bucket", "seaweedfs_bucket"])
async def test_a_wrong_checksum_is_refused_and_blamed_on_the_data(
    server: str, request: pytest.FixtureRequest
) -> None:
    bucket: S3Bucket = request.getfixturevalue(server)
    async with S3Storage(bucket.name, storage_options=bucket.storage_options) as storage:
        with pytest.raises(StorageError, match="the data changed while it was being written"):
            async with storage.open_writer("k", size=5) as writer:
                await writer.write_part(0, [b"hello"], crc32c=0x12345678)
    assert bucket.keys() == []
    assert bucket.uploads() == []


async def test_options_of_the_user_hold_for_the_bytes_too(relay: Relay, minio_bucket: S3Bucket) -> None:
    more = {
        "s3_additional_kwargs": {"StorageClass": "STANDARD", "Metadata": {"team": "a"}},
        "requester_pays": True,
    }
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket, **more)) as storage:
        await storage.write("small", b"abc")
        await save(storage, "large", DATA)
        assert await storage.read("small") == b"abc"
    for seen in relay.seen:
        if seen.operation in ("Put", "UploadPart", "Get"):
            assert seen.headers["x-amz-request-payer"] == "requester"
            assert "x-amz-request-payer" in seen.query["X-Amz-SignedHeaders"][0]
        if seen.operation in ("Put", "CreateUpload"):
            assert seen.headers["x-amz-storage-class"] == "STANDARD"
    for key in ("small", "large"):
        assert minio_bucket.head(key)["Metadata"].keys() == {"team", "asyncckpt-write-id"}


async def test_server_side_encryption_is_asked_for_and_signed(minio_bucket: S3Bucket) -> None:
    given = {
        **minio_bucket.storage_options,
        "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key-1"},
    }
    async with S3Storage(minio_bucket.name, storage_options=given) as storage:
        session = storage._session
        put = await session.sign("put_object", "PUT", "x", Key="k")
        part = await session.sign("upload_part", "PUT", "x", Key="k", UploadId="u", PartNumber=1)
    assert put.headers["x-amz-server-side-encryption"] == "aws:kms"
    assert put.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    assert "x-amz-server-side-encryption" in put.url
    # S3 takes it with the upload, and refuses it with a part.
    assert "x-amz-server-side-encryption" not in part.headers


@pytest.mark.parametrize(
    ("style", "start"),
    [("virtual", "http://bucket.s3.example:81/"), ("path", "http://s3.example:81/bucket/")],
)
async def test_addressing_styles(style: str, start: str) -> None:
    given = {
        "key": "k",
        "secret": "s",
        "client_kwargs": {"endpoint_url": "http://s3.example:81", "region_name": "eu-north-1"},
        "config_kwargs": {"s3": {"addressing_style": style}},
    }
    async with S3Storage("bucket", storage_options=given) as storage:
        request = await storage._session.sign("get_object", "GET", "x", Key="a b/ü+%")
    assert request.url.startswith(start)
    assert "a%20b/%C3%BC%2B%25" in request.url
    assert "eu-north-1" in request.url


async def test_credentials_refresh_in_the_middle_of_a_save(relay: Relay, minio_bucket: S3Bucket) -> None:
    from aiobotocore.credentials import AioRefreshableCredentials
    from aiobotocore.session import AioSession

    async def assume_role() -> dict[str, str]:
        made = call_blocking(temporary_credentials, minio_bucket.server)
        soon = datetime.now(UTC) + timedelta(minutes=1)
        # About to expire already: whoever asks the session for credentials makes it refresh them.
        return {
            "access_key": made["AccessKeyId"],
            "secret_key": made["SecretAccessKey"],
            "token": made["SessionToken"],
            "expiry_time": soon.isoformat(),
        }

    class Provider:
        METHOD = CANONICAL_NAME = "test"

        async def load(self) -> AioRefreshableCredentials:
            return AioRefreshableCredentials.create_from_metadata(
                await assume_role(), refresh_using=assume_role, method="test"
            )

    session = AioSession()
    session.get_component("credential_provider").providers = [Provider()]
    given = options(relay, minio_bucket, session=session)
    del given["key"], given["secret"]
    async with S3Storage(minio_bucket.name, storage_options=given) as storage:
        await save(storage, "k", DATA)
    assert minio_bucket.get("k") == DATA
    users = {
        seen.query["X-Amz-Credential"][0].partition("/")[0]
        for seen in relay.seen
        if seen.operation == "UploadPart"
    }
    assert len(users) == 3, "each part is signed with the credentials of its moment"


def temporary_credentials(server: S3Server) -> dict[str, str]:
    sts = botocore.session.get_session().create_client(
        "sts",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    made: dict[str, str] = sts.assume_role(
        RoleArn="arn:minio:ignored:by:it", RoleSessionName="test", DurationSeconds=900
    )["Credentials"]
    return made


@pytest.mark.parametrize("where", ["minio_bucket", "minio_tls_bucket"])
async def test_no_log_and_no_repr_has_a_secret(
    where: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    bucket: S3Bucket = request.getfixturevalue(where)
    caplog.set_level(logging.DEBUG)
    given = {**bucket.storage_options, "s3_additional_kwargs": {}}
    signatures: list[str] = []
    async with S3Storage(bucket.name, storage_options=given) as storage:
        sign = storage._session.sign

        async def sign_and_note(*args: Any, **kwargs: Any) -> Any:
            made = await sign(*args, **kwargs)
            signatures.append(made.url.partition("X-Amz-Signature=")[2][:64])
            return made

        storage._session.sign = sign_and_note  # type: ignore[method-assign]
        await save(storage, "large", DATA)
        await storage.write("small", b"abc")
        assert await storage.read("small") == b"abc"
        with pytest.raises(FileNotFoundError) as caught:
            await storage.read("missing")
        shown = f"{storage!r} {storage._session!r} {caught.value!r} {caught.value.__cause__!r}"
    assert len(signatures) >= 6
    for secret in [*signatures, bucket.server.secret_key, "Signature="]:
        assert secret
        assert secret not in caplog.text
        assert secret not in shown


async def test_a_driver_elsewhere_keeps_its_logs(
    minio_bucket: S3Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        await storage.write("a", b"")
    caplog.clear()
    logging.getLogger("botocore.auth").debug("of another user")
    assert "of another user" in caplog.text


async def test_many_ranges_come_back_right_and_only_theirs(relay: Relay, minio_bucket: S3Bucket) -> None:
    minio_bucket.put("k", DATA)
    ranges = [ByteRange(start, start + 1000 + start % 77) for start in range(0, 10 * MIB, 300_000)]
    ranges += [ByteRange(5, 5), ByteRange(100, 1100), ByteRange(0, len(DATA))]
    into = [memoryview(bytearray(wanted.size)) for wanted in ranges]
    filled: list[int] = []
    async with S3Storage(minio_bucket.name, storage_options=options(relay, minio_bucket)) as storage:
        async with storage.open_reader("k") as reader:
            await reader.read_ranges(ranges, into, filled=filled.append)
    assert [bytes(buffer) for buffer in into] == [DATA[wanted.start : wanted.end] for wanted in ranges]
    assert sorted(filled) == list(range(len(ranges)))


async def test_parts_in_flight_are_bounded(minio_bucket: S3Bucket) -> None:
    async with S3Storage(
        minio_bucket.name, storage_options=minio_bucket.storage_options, concurrency=2
    ) as storage:
        _, transport = await storage._session.open()
        exchange, now, most = transport.exchange, 0, 0

        async def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            try:
                return await exchange(*args, **kwargs)
            finally:
                now -= 1

        transport.exchange = counting  # type: ignore[method-assign]
        async with storage.open_writer("k", size=len(DATA), part_bytes=5 * MIB) as writer:
            assert writer.concurrency == 2
            async with asyncio.TaskGroup() as group:
                for index in range(3):
                    views = [memoryview(DATA)[index * 5 * MIB : (index + 1) * 5 * MIB]]
                    group.create_task(writer.write_part(index, views))
    assert most == 2
    assert minio_bucket.get("k") == DATA


async def test_a_large_object_written_whole_goes_up_in_parts(
    relay: Relay, minio_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncckpt.storage.s3.storage.SINGLE_PUT_BYTES", 6 * MIB)
    given = options(relay, minio_bucket)
    async with S3Storage(minio_bucket.name, storage_options=given, part_bytes=5 * MIB) as storage:
        info = await storage.write_new("k", [DATA[:100], memoryview(DATA)[100:]])
        assert info.size == len(DATA)
        assert (await storage.stat("k")).version == info.version
        with pytest.raises(FileExistsError):
            await storage.write_new("k", DATA)
    assert minio_bucket.get("k") == DATA
    assert minio_bucket.uploads() == []
    assert relay.operations().count("UploadPart") == 6


async def test_a_part_beyond_the_ten_thousandth_is_refused(minio_bucket: S3Bucket) -> None:
    async with S3Storage(minio_bucket.name, storage_options=minio_bucket.storage_options) as storage:
        target = S3Object(storage._session, "k", "k")
        writer = S3Writer(target, exclusive=False, part_bytes=5 * MIB, concurrency=1, write_id="w")
        with pytest.raises(ValueError, match="10000 parts"):
            await writer.write_part(10_000, [b"x"])
        await writer.abort()


def test_the_checksum_is_encoded_as_s3_has_it() -> None:
    # CRC32C of b"123456789" is e3069283 (RFC 3720); base64 of those four bytes.
    assert encoded_crc(0xE3069283) == "4waSgw=="
