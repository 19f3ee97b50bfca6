"""A byte budget: bounds the memory of what is in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self


class ByteBudget:
    """Grants bytes in the order of the requests, and no more than `total_bytes` at a time.

        async with budget.reserve(len(part)):
            await upload(part)

    A request larger than the whole budget is granted alone, when nothing else is held. For one event loop.
    """

    def __init__(self, total_bytes: int) -> None:
        if total_bytes < 1:
            raise ValueError(f"a byte budget needs at least 1 byte, got {total_bytes}")
        self._total = total_bytes
        self._held = 0
        self._peak = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def total_bytes(self) -> int:
        """The size of the budget."""
        return self._total

    @property
    def held(self) -> int:
        """The bytes granted and not yet given back."""
        return self._held

    @property
    def peak(self) -> int:
        """The most that was ever held."""
        return self._peak

    def reserve(self, size_bytes: int) -> Reservation:
        """A reservation, granted on entry of its `async with` block and given back at its end."""
        if size_bytes < 0:
            raise ValueError(f"can't reserve {size_bytes} bytes")
        return Reservation(self, size_bytes)

    async def _acquire(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._grant(size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = (size, granted)
        self._waiting.append(request)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                # Granted and cancelled in the same turn of the loop.
                self._release(size)
            else:
                self._waiting.remove(request)
                self._grant_waiting()
            raise

    def _release(self, size: int) -> None:
        self._held -= size
        self._grant_waiting()

    def _fits(self, size: int) -> bool:
        return self._held == 0 or self._held + size <= self._total

    def _grant(self, size: int) -> None:
        self._held += size
        self._peak = max(self._peak, self._held)

    def _grant_waiting(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            if granted.cancelled():
                continue
            self._grant(size)
            granted.set_result(None)


class Reservation:
    """Bytes of a `ByteBudget`, held from entry until the block ends or `release` is called. For one use."""

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size = size_bytes
        self._entered = False
        self._holding = False

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a reservation can be entered only once")
        self._entered = True
        await self._budget._acquire(self._size)
        self._holding = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the bytes back before the block ends. Idempotent."""
        if self._holding:
            self._holding = False
            self._budget._release(self._size)
