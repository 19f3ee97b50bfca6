"""Removing objects: one, or up to a thousand in a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncckpt.errors import ObjectNotFoundError, StorageError
from asyncckpt.storage.retry import RETRYABLE
from asyncckpt.storage.s3.errors import error_of_code
from asyncckpt.storage.s3.objects import S3Object
from asyncckpt.storage.s3.session import S3Session

BATCH = 1000
"""S3's limit for one request."""
_NO_STATUS = 400  # the code decides; without a known one it is an error that another attempt does not cure


async def delete_one(target: S3Object) -> None:
    """Remove the object; one that is not there is no error. Raises BucketNotFoundError, StorageError's children."""
    session, what = target.session, target.what("deleting")
    try:
        await session.retrying(lambda: session.call("delete_object", what, Key=target.full_key), what)
    except ObjectNotFoundError:
        # Some servers say so, and it is no error; but a web server says 404 to anything.
        await session.require_bucket()


async def delete_batch(session: S3Session, targets: Sequence[S3Object]) -> dict[str, StorageError]:
    """Remove up to `BATCH` objects in one request, and return by key what could not be removed.

    What the server could not remove just now is asked for again, by the storage's policy.
    """
    what = f"deleting {len(targets)} objects in bucket {session.bucket!r}"
    left = {target.full_key: target.key for target in targets}
    refused: dict[str, StorageError] = {}

    async def attempt() -> None:
        objects = [{"Key": full_key} for full_key in left]
        answer = await session.call("delete_objects", what, Delete={"Objects": objects, "Quiet": True})
        refused.clear()
        refused.update(_refusals(answer, left, what))
        for full_key in [full_key for full_key, key in left.items() if key not in refused]:
            del left[full_key]
        for error in refused.values():
            if isinstance(error, RETRYABLE):
                raise error

    try:
        await session.retrying(attempt, what)
    except StorageError as error:
        return {key: refused.get(key, error) for key in left.values()}
    return refused


def _refusals(answer: Mapping[str, Any], left: Mapping[str, str], what: str) -> dict[str, StorageError]:
    found: dict[str, StorageError] = {}
    for told in answer.get("Errors", []):
        key = left.get(str(told.get("Key", "")))
        error = error_of_code(
            str(told.get("Code", "")), _NO_STATUS, what, message=str(told.get("Message", ""))
        )
        if key is not None and not isinstance(error, ObjectNotFoundError):
            found[key] = error
    return found
