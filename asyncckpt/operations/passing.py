"""A tensor that has to be decoded or joined, checked in one pass over its file."""

from __future__ import annotations

from collections.abc import Callable

from asyncckpt.errors import FormatError, LayoutError
from asyncckpt.formats.kit.decode import compare_chunk
from asyncckpt.formats.kit.index import StoredTensor
from asyncckpt.model.checksums import Buffer, crc32c


class PassingTensor:
    """A tensor that is checked while its stored bytes pass by: decoded frame by frame, and never held whole."""

    def __init__(self, stored: StoredTensor) -> None:
        self.stored = stored
        frames = stored.frames
        self._vouching = None if frames is None or frames.vouch is None else frames.vouch.begin()
        self._position = 0 if frames is None else -frames.skip
        self._value = 0
        self._failed = False

    def take_frame(self, number: int, data: Buffer) -> str | None:
        """The stored bytes of the next frame; returns what is wrong, once."""
        frames = self.stored.frames
        assert frames is not None
        return self._told(lambda: self._feed(memoryview(frames.decode(number, data))))

    def take(self, view: memoryview) -> str | None:
        """The next bytes of a tensor without frames; returns what is wrong, once."""
        return self._told(lambda: self._feed(view))

    def finish(self) -> str | None:
        """All that is stored of it was given; returns what is wrong, once."""
        return self._told(self._finish)

    def _told(self, step: Callable[[], None]) -> str | None:
        if not self._failed:
            try:
                step()
            except FormatError as error:
                self._failed = True
                return str(error)
        return None

    def _feed(self, raw: memoryview) -> None:
        if self._vouching is not None:
            self._vouching.update(raw)
        stored, size, step = self.stored, self.stored.metadata.size, self.stored.chunk_bytes
        raw = raw[max(0, -self._position) : size - self._position]
        self._position = max(0, self._position)
        if stored.checksums is None:
            self._position += len(raw)
            return
        while len(raw):
            border = min(step - self._position % step, len(raw))
            self._value = crc32c(raw[:border], self._value)
            self._position += border
            raw = raw[border:]
            if self._position % step == 0 or self._position == size:
                compare_chunk(stored, (self._position - 1) // step, self._value)
                self._value = 0

    def _finish(self) -> None:
        if self._position < self.stored.metadata.size:
            raise LayoutError(
                f"tensor {self.stored.name!r} has {self._position} stored bytes, its shape needs "
                f"{self.stored.metadata.size}"
            )
        if self._vouching is not None:
            self._vouching.finish()
