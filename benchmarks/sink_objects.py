"""What the sink keeps: objects made of slabs, multipart uploads, and the pool that the slabs return to."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from itertools import count

_SMALLEST_SLAB_BYTES = 64 * 1024


class SlabPool:
    """Memory that was touched once and is used again: fresh pages would cost more than the copy into them."""

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """A view of `size` bytes of a slab."""
        slab_bytes = max(_SMALLEST_SLAB_BYTES, 1 << max(0, size - 1).bit_length())
        with self._lock:
            free = self._free.get(slab_bytes)
            slab = free.pop() if free else None
        return (slab or memoryview(mmap.mmap(-1, slab_bytes)))[:size]

    def give_back(self, view: memoryview) -> None:
        """Take back what `take` gave, whole again."""
        slab = memoryview(view.obj)
        with self._lock:
            self._free.setdefault(len(slab), []).append(slab)


@dataclass(frozen=True)
class Stored:
    """One object: slabs one after another."""

    slabs: Sequence[memoryview]
    etag: str
    metadata: Mapping[str, str]
    modified: str

    @property
    def size(self) -> int:
        return sum(len(slab) for slab in self.slabs)

    def views(self, start: int, end: int, step: int) -> Iterator[memoryview]:
        """Bytes [start, end), in slices of at most `step`."""
        offset = 0
        for slab in self.slabs:
            low, high = max(start - offset, 0), min(end - offset, len(slab))
            for position in range(low, high, step):
                yield slab[position : min(position + step, high)]
            offset += len(slab)


class Bucket:
    """Objects and uploads by name. All methods may be called from any thread."""

    def __init__(self, pool: SlabPool) -> None:
        self._pool = pool
        self._objects: dict[str, Stored] = {}
        self._uploads: dict[str, tuple[Mapping[str, str], dict[int, memoryview]]] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()

    def get(self, key: str) -> Stored | None:
        return self._objects.get(key)

    def listed(self, prefix: str) -> list[tuple[str, Stored]]:
        with self._lock:
            return sorted((key, found) for key, found in self._objects.items() if key.startswith(prefix))

    def put(self, key: str, slabs: Sequence[memoryview], metadata: Mapping[str, str]) -> Stored:
        stored = Stored(slabs, f'"{next(self._numbers):032x}"', metadata, formatdate(usegmt=True))
        with self._lock:
            replaced = self._objects.pop(key, None)
            self._objects[key] = stored
        self._release(replaced)
        return stored

    def copy(self, key: str, target: str) -> Stored:
        found = self._objects[key]
        slabs = []
        for slab in found.slabs:
            copied = self._pool.take(len(slab))
            copied[:] = slab
            slabs.append(copied)
        return self.put(target, slabs, found.metadata)

    def delete(self, key: str) -> None:
        with self._lock:
            removed = self._objects.pop(key, None)
        self._release(removed)

    def _release(self, stored: Stored | None) -> None:
        for slab in stored.slabs if stored else ():
            self._pool.give_back(slab)

    def uploads(self) -> list[str]:
        return list(self._uploads)

    def has_upload(self, identity: str) -> bool:
        return identity in self._uploads

    def create_upload(self, metadata: Mapping[str, str]) -> str:
        identity = f"upload-{next(self._numbers)}"
        self._uploads[identity] = (metadata, {})
        return identity

    def put_part(self, identity: str, number: int, body: memoryview) -> str:
        """The part's ETag; empty when there is no such upload."""
        with self._lock:
            upload = self._uploads.get(identity)
            if upload is not None:
                replaced = upload[1].pop(number, None)
                upload[1][number] = body
        if upload is None:
            self._pool.give_back(body)
            return ""
        if replaced is not None:
            self._pool.give_back(replaced)
        return f'"{next(self._numbers):032x}"'

    def complete(self, identity: str, key: str, numbers: Sequence[int]) -> Stored | None:
        with self._lock:
            upload = self._uploads.pop(identity, None)
        if upload is None:
            return None
        metadata, parts = upload
        return self.put(key, [parts[number] for number in numbers], metadata)

    def abort(self, identity: str) -> None:
        with self._lock:
            upload = self._uploads.pop(identity, None)
        for body in upload[1].values() if upload else ():
            self._pool.give_back(body)
