"""What S3 servers answer, as errors of ours: decided by error code and status, never by the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncckpt.errors import (
    AccessDeniedError,
    BucketNotFoundError,
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
from asyncckpt.storage.http.errors import (
    ConnectTimeoutError,
    RefusedError,
    UnreachableError,
    error_for_status,
)
from asyncckpt.storage.http.messages import HttpAnswer


class UploadGoneError(StorageError):
    """The multipart upload is unknown: it was aborted, or has been completed."""


class BodyMismatchError(StorageError):
    """The server received bytes that do not fit the checksum sent along with them."""


class WriteConflictError(UnavailableError):
    """Another conditional write of the same key is under way."""


_CREDENTIALS = "check the credentials (key, secret, token) in storage_options"
_PERMISSIONS = "check that the credentials may do this in the bucket"
_BY_CODE: dict[str, tuple[type[StorageError], str]] = {
    "NoSuchBucket": (BucketNotFoundError, "create the bucket, or check its name"),
    "NoSuchKey": (ObjectNotFoundError, ""),
    "NoSuchUpload": (UploadGoneError, ""),
    "AccessDenied": (AccessDeniedError, _PERMISSIONS),
    "AllAccessDisabled": (AccessDeniedError, _PERMISSIONS),
    "InvalidAccessKeyId": (AccessDeniedError, _CREDENTIALS),
    "SignatureDoesNotMatch": (AccessDeniedError, _CREDENTIALS),
    "AuthorizationHeaderMalformed": (AccessDeniedError, "check the region_name in client_kwargs"),
    "ExpiredToken": (AccessDeniedError, "get a fresh session token"),
    "InvalidToken": (AccessDeniedError, _CREDENTIALS),
    "RequestTimeTooSkewed": (AccessDeniedError, "set this machine's clock"),
    "PreconditionFailed": (ObjectExistsError, ""),
    "ConditionalRequestConflict": (WriteConflictError, "try again"),
    "OperationAborted": (WriteConflictError, "try again"),
    "InvalidRange": (RangeError, ""),
    "BadDigest": (BodyMismatchError, ""),
    "XAmzContentChecksumMismatch": (BodyMismatchError, ""),
    "QuotaExceeded": (StorageFullError, "free some space, or raise the quota"),
    "XMinioAdminBucketQuotaExceeded": (StorageFullError, "free some space, or raise the quota"),
    "XMinioStorageFull": (StorageFullError, "free some space on the server"),
    "SlowDown": (UnavailableError, "try later"),
    "SlowDownRead": (UnavailableError, "try later"),
    "SlowDownWrite": (UnavailableError, "try later"),
    "RequestTimeout": (StorageTimeoutError, "try later"),
    "InternalError": (UnavailableError, "try later"),
    "ServiceUnavailable": (UnavailableError, "try later"),
    "KeyTooLongError": (InvalidKeyError, "use a shorter key or prefix"),
    "XMinioInvalidObjectName": (InvalidKeyError, "use another key"),
    "InvalidBucketName": (BucketNotFoundError, "check the bucket's name"),
    "NotImplemented": (UnsupportedOperationError, ""),
}
_BY_STATUS: dict[int, str] = {409: "ConditionalRequestConflict", 507: "XMinioStorageFull"}
_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9._-]{1,100})\s*</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,300})</Message>")


def error_of_answer(answer: HttpAnswer, what: str) -> StorageError:
    """The error for an answer that came over a presigned request."""
    elsewhere = _elsewhere(answer.status, answer.headers, what)
    if elsewhere is not None:
        return elsewhere
    code, message = _CODE.search(answer.body), _MESSAGE.search(answer.body)
    return error_of_code(
        code.group(1).decode() if code else "",
        answer.status,
        what,
        message=message.group(1).decode(errors="replace") if message else "",
    )


def _elsewhere(status: int, headers: Mapping[str, str], what: str) -> StorageError | None:
    """The error for a bucket in another region, if the server says in which."""
    region = headers.get("x-amz-bucket-region")
    if status not in (301, 307) or not region:
        return None
    wanted = f"client_kwargs={{'region_name': {region[:60]!r}}}"
    return StorageError(f"{what}: the bucket is in another region; pass {wanted}")


def error_of_code(code: str, status: int, what: str, *, message: str = "") -> StorageError:
    """The error for S3's error code; where the server sent none, or none that is known, for the HTTP status."""
    known = _BY_CODE.get(code) or _BY_CODE.get(_BY_STATUS.get(status, ""))
    detail = ", ".join(part for part in (code if code != str(status) else "", _one_line(message)) if part)
    if known is None:
        return error_for_status(status, what, detail=detail)
    kind, advice = known
    said = f"{what}: {detail or f'HTTP {status}'}"
    return kind(f"{said}; {advice}" if advice else said)


def error_of_driver(error: Exception, what: str) -> StorageError:
    """The error for what botocore raised in a control call or while signing."""
    from botocore import exceptions

    if isinstance(error, exceptions.ClientError):
        answer: dict[str, Any] = error.response
        told = answer.get("Error", {})
        described = answer.get("ResponseMetadata", {})
        status = int(described.get("HTTPStatusCode", 0) or 0)
        elsewhere = _elsewhere(status, described.get("HTTPHeaders", {}), what)
        if elsewhere is not None:
            return elsewhere
        code = str(told.get("Code", ""))
        if not status and code.isdigit():
            status = int(code)
        return error_of_code(code, status, what, message=str(told.get("Message", "")))
    if isinstance(error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError):
        return AccessDeniedError(f"{what}: no credentials found; {_CREDENTIALS}, or pass anon=True")
    if isinstance(error, exceptions.ConnectTimeoutError):
        return ConnectTimeoutError(f"{what}: no connection in time; check the endpoint")
    if isinstance(error, exceptions.ReadTimeoutError):
        return StorageTimeoutError(f"{what}: the server did not answer in time")
    if isinstance(error, exceptions.SSLError):
        return UnreachableError(
            f"{what}: no trusted TLS connection; pass the certificate authority as client_kwargs={{'verify': 'ca.pem'}}"
        )
    if isinstance(error, exceptions.EndpointConnectionError | exceptions.ProxyConnectionError) and not _sent(
        error
    ):
        return RefusedError(f"{what}: the server can't be reached; check the endpoint")
    if isinstance(error, exceptions.ParamValidationError):
        return StorageError(f"{what}: refused before it was sent: {_one_line(str(error))}")
    if isinstance(error, exceptions.HTTPClientError | exceptions.ConnectionError | OSError):
        cause = getattr(error, "kwargs", {}).get("error") or error
        return UnavailableError(f"{what}: the connection broke ({type(cause).__name__}); check the endpoint")
    return StorageError(f"{what}: {type(error).__name__}: {_one_line(str(error))}")


def _sent(error: Any) -> bool:
    """Whether the connection had been made: aiobotocore has one name for one that was refused and one that broke."""
    import aiohttp

    cause = error.kwargs.get("error")
    broke = isinstance(cause, aiohttp.ClientOSError | aiohttp.ServerConnectionError)
    return broke and not isinstance(cause, aiohttp.ClientConnectorError)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(". ")
