"""Listing a bucket: in the order of the keys' bytes, also where the server has another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from asyncckpt.errors import InvalidKeyError
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.listing import PAGE_OBJECTS, Page
from asyncckpt.storage.objects import ObjectInfo
from asyncckpt.storage.s3.answers import required, required_size, server_time
from asyncckpt.storage.s3.objects import bare_etag
from asyncckpt.storage.s3.session import S3Session


class S3Lister:
    """The listings of one storage. AWS's directory buckets list in no order at all, SeaweedFS folder by folder."""

    def __init__(self, session: S3Session, root: str) -> None:
        self._session = session
        self._root = root
        self._ordered = not session.bucket.endswith("--x-s3")

    async def pages(
        self, prefix: str, *, start_after: str = "", limit: int | None = None
    ) -> AsyncGenerator[Page, None]:
        """Raises OddAnswerError for answers that are no listing of this prefix, and StorageError's children."""
        hinted = self._ordered and (start_after != "" or limit is not None)
        held: list[Page] = []
        listed_otherwise = False
        async with aclosing(self._pages(prefix, start_after, limit)) as pages:
            first = True
            async for page in pages:
                if self._ordered:
                    yield page
                elif first and hinted:
                    listed_otherwise = True
                    break
                else:
                    held.append(page)
                first = False
        if listed_otherwise:
            # "After" and "the first few" mean something else there: all of it is needed.
            async with aclosing(self._pages(prefix, "", None)) as pages:
                held = [page async for page in pages]
        if held:
            objects = sorted((info for page in held for info in page.objects), key=_by_bytes)
            yield Page(objects, held[0].store_time)

    async def _pages(self, prefix: str, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        """The server's pages; notes when they are not in order."""
        what = f"listing {self._root + prefix!r} in bucket {self._session.bucket!r}"
        options: dict[str, Any] = {"Prefix": self._root + prefix}
        if start_after and self._ordered:
            options["StartAfter"] = self._root + start_after
        if limit is not None and self._ordered:
            options["MaxKeys"] = min(limit, PAGE_OBJECTS)
        while True:
            call = partial(self._session.call, "list_objects_v2", what, **options)
            answer = await self._session.retrying(call, what)
            listed = [self._listed(entry, prefix, what) for entry in answer.get("Contents", [])]
            objects = [info for info in listed if info is not None]
            self._ordered = self._ordered and _is_ordered(answer, objects)
            yield Page(objects, server_time(answer))
            if not answer.get("IsTruncated"):
                return
            token = required(answer, "NextContinuationToken", what)
            if token == options.get("ContinuationToken"):
                raise odd_answer(what, "the same page twice")
            options["ContinuationToken"] = token

    def _listed(self, entry: Mapping[str, Any], prefix: str, what: str) -> ObjectInfo | None:
        """One line of a listing; None for what is no object of ours, such as a folder's marker.

        Raises OddAnswerError for what was not asked for.
        """
        full_key: str = required(entry, "Key", what)
        if not full_key.startswith(self._root + prefix):
            raise odd_answer(what, f"{full_key[:200]!r} is listed, which has another prefix")
        key = full_key.removeprefix(self._root)
        try:
            validate_key(key)
        except InvalidKeyError:
            return None
        size = required_size(entry, "Size", what)
        etag = required(entry, "ETag", what)
        return ObjectInfo(key, size, bare_etag(etag), modified=entry.get("LastModified"))


def _is_ordered(answer: Mapping[str, Any], objects: Sequence[ObjectInfo]) -> bool:
    server = str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("server", ""))
    return not server.startswith("SeaweedFS") and list(objects) == sorted(objects, key=_by_bytes)


def _by_bytes(info: ObjectInfo) -> bytes:
    return info.key.encode()
