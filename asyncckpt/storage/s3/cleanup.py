"""Getting rid of multipart uploads: the one that was aborted, and one whose id never reached us."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from asyncckpt.errors import AccessDeniedError, ObjectNotFoundError, StorageError
from asyncckpt.storage.s3.answers import required, server_time
from asyncckpt.storage.s3.errors import UploadGoneError
from asyncckpt.storage.s3.objects import S3Object

_logger = logging.getLogger("asyncckpt")
_ROUNDS = 5
_PAUSE_SECONDS = 0.05
_CLOCK_SLACK_SECONDS = 2.0


async def remove_upload(target: S3Object, upload_id: str, *, idle: asyncio.Event) -> None:
    """Abort the upload until the server has forgotten it. Raises StorageError's children.

    `idle` is set when no part is being sent any more: one that was on its way can still arrive after an abort.
    """
    await _abort(target, upload_id)
    await idle.wait()
    for _ in range(_ROUNDS):
        if await _first_parts(target, upload_id) is None:
            return
        await _abort(target, upload_id)
        await asyncio.sleep(_PAUSE_SECONDS)
    raise StorageError(f"{target.what('aborting the upload of')}: still there after {_ROUNDS} attempts")


async def remove_lost_uploads(target: S3Object, *, keep: str | None, age: float) -> None:
    """Abort the uploads of this key that began in the last `age` seconds and have no part yet, but for `keep`.

    For a create whose answer was lost: its id can't be known. That another writer of the same key is at this
    very point too is so rare that its save may fail; nothing of it can be damaged.
    """
    what = target.what("looking for a lost upload of")
    try:
        answer = await target.session.call("list_multipart_uploads", what, Prefix=target.full_key)
        now = server_time(answer) or datetime.now(UTC)
        for upload in answer.get("Uploads", []):
            key, upload_id, begun = (
                required(upload, name, what) for name in ("Key", "UploadId", "Initiated")
            )
            recent = (now - begun).total_seconds() <= age + _CLOCK_SLACK_SECONDS
            candidate = key == target.full_key and upload_id != keep and recent
            if candidate and await _first_parts(target, upload_id) == []:
                await _abort(target, upload_id)
    except StorageError as error:
        # The save can go on; what may be left is for the bucket's lifecycle rule.
        _logger.warning("%s", error)


async def _abort(target: S3Object, upload_id: str) -> None:
    what = target.what("aborting the upload of")
    try:
        await target.session.retrying(
            lambda: target.session.call(
                "abort_multipart_upload", what, Key=target.full_key, UploadId=upload_id
            ),
            what,
        )
    except (UploadGoneError, ObjectNotFoundError):
        return


async def _first_parts(target: S3Object, upload_id: str) -> list[dict[str, Any]] | None:
    """The first of the upload's parts; None when the server knows no such upload (any more)."""
    what = target.what("looking for parts of")
    try:
        answer = await target.session.retrying(
            lambda: target.session.call(
                "list_parts", what, Key=target.full_key, UploadId=upload_id, MaxParts=1
            ),
            what,
        )
    except (UploadGoneError, ObjectNotFoundError):
        return None
    except AccessDeniedError:
        # Listing parts is a permission of its own; without it the server's word for the abort must do.
        return None
    return list(answer.get("Parts", []))
