"""Listing a bucket, and whether there is one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from datetime import datetime
from typing import Any

from asyncckpt.errors import AccessDeniedError, BucketNotFoundError
from asyncckpt.storage.gcs.client import GcsClient
from asyncckpt.storage.gcs.resources import FIELDS, info_of
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.http.messages import parsed_date
from asyncckpt.storage.listing import PAGE_OBJECTS, Page
from asyncckpt.storage.objects import ObjectInfo
from asyncckpt.storage.retry import Retries

_KIND = "storage#objects"


class GcsLister:
    """The listings of one storage, `root` its own prefix."""

    def __init__(self, client: GcsClient, root: str, retries: Retries) -> None:
        self._client = client
        self._root = root
        self._retries = retries
        self._bucket_seen = False

    async def require_bucket(self) -> None:
        """Find out once whether there is a bucket at all: the two 404s look alike. Raises BucketNotFoundError."""
        if self._bucket_seen:
            return
        try:
            await self._page("", {}, size=1)
        except AccessDeniedError:
            # What may not be listed is there.
            self._bucket_seen = True

    async def pages(self, prefix: str, *, start_after: str, limit: int | None) -> AsyncGenerator[Page, None]:
        """Raises OddAnswerError for answers that are no listing of this prefix, and StorageError's children."""
        options: dict[str, str] = {}
        if start_after:
            # It begins with that very key, which is left out again: hence one more.
            options["startOffset"] = self._root + start_after
        size = PAGE_OBJECTS if limit is None else min(limit + 1, PAGE_OBJECTS)
        while True:
            page, store_time = await self._page(prefix, options, size=size)
            listed = [self._listed(item, prefix) for item in _items(page, prefix)]
            yield Page([info for info in listed if info is not None], store_time)
            token = str(page.get("nextPageToken") or "")
            if not token:
                return
            if token == options.get("pageToken"):
                raise odd_answer(self._what(prefix), "the same page twice")
            options["pageToken"] = token

    def _what(self, prefix: str) -> str:
        return f"list of {self._root + prefix!r} in bucket {self._client.bucket!r}"

    def _listed(self, item: Mapping[str, Any], prefix: str) -> ObjectInfo | None:
        """One object of a page; None for a folder as the console makes them. Raises OddAnswerError."""
        name = item.get("name")
        if not isinstance(name, str) or not name.startswith(self._root + prefix):
            raise odd_answer(self._what(prefix), f"{str(name)[:200]!r} is listed, which has another prefix")
        key = name[len(self._root) :]
        return info_of(item, key, self._what(prefix)) if key and not key.endswith("/") else None

    async def _page(
        self, prefix: str, options: Mapping[str, str], *, size: int
    ) -> tuple[dict[str, Any], datetime | None]:
        what = self._what(prefix)
        params = {
            "prefix": self._root + prefix,
            "maxResults": str(size),
            # The kind is in every answer, an empty page too: what has none is no listing.
            "fields": f"kind,nextPageToken,items({FIELDS})",
            **options,
        }

        async def attempt() -> tuple[dict[str, Any], datetime | None]:
            answer = await self._client.request("GET", self._client.list_path, what=what, params=params)
            if answer.status == 404:
                raise BucketNotFoundError(
                    f"{what}: there is no bucket {self._client.bucket!r}; create it, or check its name"
                )
            if answer.status != 200:
                raise answer.error(what)
            page = answer.json(what)
            if page.get("kind") != _KIND:
                raise odd_answer(what, f"an answer of kind {str(page.get('kind'))[:60]!r}")
            return page, parsed_date(answer.headers.get("Date"))

        found = await self._retries.run(attempt, what)
        self._bucket_seen = True
        return found


def _items(page: Mapping[str, Any], prefix: str) -> list[Mapping[str, Any]]:
    items = page.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise odd_answer(f"list of {prefix!r}", "a page whose items are no objects")
    return items
