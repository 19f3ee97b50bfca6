"""A listing under way: pages that are asked for one by one, in the order of the keys' bytes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from asyncckpt.storage.objects import ObjectInfo

PAGE_OBJECTS = 1000
"""In one page: what S3 and GCS give at most."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects of a listing, and the store's own time when it answered, or a little earlier.

    An age is `store_time` less an object's `modified`: both are of one clock. None where the store does not say.
    """

    objects: Sequence[ObjectInfo]
    store_time: datetime | None = None


class Listing:
    """The pages that a backend has, cut to what was asked for; after a failed one it goes on behind the last key.

    `open_pages(start_after, limit)` begins at the backend, for which both are hints: to give more is no mistake.
    """

    def __init__(
        self,
        open_pages: Callable[[str, int | None], AsyncGenerator[Page, None]],
        *,
        start_after: str,
        limit: int | None,
    ) -> None:
        self._open_pages = open_pages
        self._after = self._opened_after = start_after
        self._left = limit
        self._pages: AsyncGenerator[Page, None] | None = None

    async def next(self) -> Page | None:
        """The next page, None at the end. Raises what the backend raises; may then be called again."""
        if self._left == 0:
            return None
        if self._pages is None:
            self._opened_after = self._after
            self._pages = self._open_pages(self._after, self._left)
        try:
            page = await anext(self._pages, None)
        except BaseException:
            # A generator that has raised is over.
            self._pages = None
            raise
        return None if page is None else self._cut(page)

    def _cut(self, page: Page) -> Page:
        after, objects = self._opened_after.encode(), list(page.objects)
        skipped = next((i for i, info in enumerate(objects) if info.key.encode() > after), len(objects))
        objects = objects[skipped:][: self._left]
        if objects:
            self._after = objects[-1].key
        if self._left is not None:
            self._left -= len(objects)
        return replace(page, objects=objects)

    async def aclose(self) -> None:
        """End it. Idempotent."""
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.aclose()
