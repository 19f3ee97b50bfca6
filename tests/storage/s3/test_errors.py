"""What servers and the driver say, and which error it becomes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from botocore import exceptions

from asyncckpt.errors import (
    AccessDeniedError,
    InvalidKeyError,
    ObjectExistsError,
    ObjectNotFoundError,
    RangeError,
    StorageError,
    StorageFullError,
    StorageTimeoutError,
    UnavailableError,
    UnsupportedOperationError,
)
from asyncckpt.storage.http.errors import ConnectTimeoutError, RefusedError, UnreachableError
from asyncckpt.storage.http.messages import HttpAnswer
from asyncckpt.storage.s3.errors import (
    BodyMismatchError,
    UploadGoneError,
    WriteConflictError,
    error_of_answer,
    error_of_driver,
)

BY_CODE = [
    ("NoSuchKey", 404, ObjectNotFoundError),
    ("NoSuchBucket", 404, ObjectNotFoundError),
    ("NoSuchUpload", 404, UploadGoneError),
    ("AccessDenied", 403, AccessDeniedError),
    ("InvalidAccessKeyId", 403, AccessDeniedError),
    ("SignatureDoesNotMatch", 403, AccessDeniedError),
    ("ExpiredToken", 400, AccessDeniedError),
    ("PreconditionFailed", 412, ObjectExistsError),
    ("ConditionalRequestConflict", 409, WriteConflictError),
    ("InvalidRange", 416, RangeError),
    ("BadDigest", 400, BodyMismatchError),
    ("XAmzContentChecksumMismatch", 400, BodyMismatchError),
    ("SlowDown", 503, UnavailableError),
    ("InternalError", 500, UnavailableError),
    ("SomethingNew", 502, UnavailableError),
    ("RequestTimeout", 400, StorageTimeoutError),
    ("QuotaExceeded", 403, StorageFullError),
    ("XMinioStorageFull", 507, StorageFullError),
    ("KeyTooLongError", 400, InvalidKeyError),
    ("NotImplemented", 501, UnsupportedOperationError),
    ("SomethingNew", 400, StorageError),
]


@pytest.mark.parametrize(("code", "status", "kind"), BY_CODE)
def test_both_roads_map_alike(code: str, status: int, kind: type[StorageError]) -> None:
    body = f"<Error><Code>{code}</Code><Message>Said\nso.</Message></Error>".encode()
    over_transfer = error_of_answer(HttpAnswer(status, {}, body), "reading 'k' in bucket 'b'")
    over_driver = error_of_driver(
        exceptions.ClientError(
            {
                "Error": {"Code": code, "Message": "Said\nso."},
                "ResponseMetadata": {"HTTPStatusCode": status},
            },  # type: ignore[typeddict-item, unused-ignore]
            "GetObject",
        ),
        "reading 'k' in bucket 'b'",
    )
    assert type(over_transfer) is type(over_driver)
    assert isinstance(over_transfer, kind)
    assert str(over_transfer) == str(over_driver)
    assert code in str(over_transfer)
    assert "bucket 'b'" in str(over_transfer)
    assert "\n" not in str(over_transfer)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, ObjectNotFoundError),
        (403, AccessDeniedError),
        (412, ObjectExistsError),
        (416, RangeError),
        (503, UnavailableError),
        (507, StorageFullError),
        (409, WriteConflictError),
    ],
)
def test_an_answer_without_a_code_maps_by_its_status(status: int, kind: type[StorageError]) -> None:
    assert isinstance(error_of_answer(HttpAnswer(status, {}, b"<html>no XML of S3"), "x"), kind)
    head = exceptions.ClientError(
        {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item, unused-ignore]
        "HeadObject",
    )
    assert isinstance(error_of_driver(head, "x"), kind)


def test_a_bucket_elsewhere_names_its_region() -> None:
    answer = HttpAnswer(301, {"x-amz-bucket-region": "eu-west-1"}, b"<Code>PermanentRedirect</Code>")
    assert "'region_name': 'eu-west-1'" in str(error_of_answer(answer, "x"))


def test_a_connection_that_was_reset_may_have_carried_the_request() -> None:
    reset = exceptions.EndpointConnectionError(
        endpoint_url="http://h", error=aiohttp.ClientOSError(104, "reset")
    )
    assert type(error_of_driver(reset, "completing")) is UnavailableError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.NoCredentialsError(), AccessDeniedError),
        (exceptions.ConnectTimeoutError(endpoint_url="http://h"), ConnectTimeoutError),
        (exceptions.ReadTimeoutError(endpoint_url="http://h"), StorageTimeoutError),
        (exceptions.EndpointConnectionError(endpoint_url="http://h"), UnreachableError),
        (
            exceptions.EndpointConnectionError(
                endpoint_url="http://h",
                error=aiohttp.ClientConnectorError(cast(Any, SimpleNamespace(host="h")), OSError(111, "x")),
            ),
            RefusedError,
        ),
        (exceptions.SSLError(endpoint_url="http://h", error="x"), UnreachableError),
        (exceptions.ConnectionClosedError(endpoint_url="http://h"), UnavailableError),
        (exceptions.HTTPClientError(error="x"), UnavailableError),
        (OSError("x"), UnavailableError),
        (exceptions.ParamValidationError(report="bad name"), StorageError),
        (RuntimeError("x"), StorageError),
    ],
)
def test_driver_errors_are_mapped(error: Exception, kind: type[StorageError]) -> None:
    mapped = error_of_driver(error, "listing 'p' in bucket 'b'")
    assert isinstance(mapped, kind)
    assert str(mapped).startswith("listing 'p' in bucket 'b': ")
