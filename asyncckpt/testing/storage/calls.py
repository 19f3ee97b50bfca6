"""Every public method of a storage, by its name."""

from __future__ import annotations

from asyncckpt.cancellation import CancellationToken
from asyncckpt.model.ranges import ByteRange
from asyncckpt.storage.base import ICheckpointStorage

METHODS: tuple[str, ...] = tuple(
    "write write_new open_writer open_reader read read_range read_ranges stat exists list list_pages delete "
    "delete_many".split()
)


async def call(storage: ICheckpointStorage, method: str, key: str, token: CancellationToken | None) -> None:
    """Call one public method in its plainest form."""
    if method in ("write", "write_new"):
        await getattr(storage, method)(key, b"data", cancellation=token)
    elif method == "open_writer":
        async with storage.open_writer(key, cancellation=token) as writer:
            await writer.write_part(0, [b"data"])
    elif method == "open_reader":
        async with storage.open_reader(key, first_bytes=1, cancellation=token) as reader:
            await reader.read_range(0, 1)
    elif method == "read_range":
        await storage.read_range(key, 0, 1, cancellation=token)
    elif method == "read_ranges":
        into = [memoryview(bytearray(1))]
        await storage.read_ranges(key, [ByteRange(0, 1)], into, cancellation=token)
    elif method in ("list", "list_pages"):
        async for _ in getattr(storage, method)(key, cancellation=token):
            pass
    elif method == "delete_many":
        await storage.delete_many([key], cancellation=token)
    else:
        await getattr(storage, method)(key, cancellation=token)
