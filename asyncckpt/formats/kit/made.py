"""A file that was made and given away: enough is kept to parse it, so its index is known without reading it."""

from __future__ import annotations

from bisect import bisect_right

from asyncckpt.formats.kit.index import Index, Need, ParseSteps
from asyncckpt.formats.kit.steps import Parsed, advance, clip


class MadeFile:
    """The bytes of a file in the order in which they are made; those of tensors are counted, the others kept."""

    def __init__(self, start: int = 0) -> None:
        """`start` is where the bytes begin that are made first."""
        self.size = start
        self._starts: list[int] = []
        self._runs: list[bytes] = []

    def keep(self, data: bytes) -> bytes:
        """The next bytes, which a parser may ask for. Returns them."""
        if data:
            self._starts.append(self.size)
            self._runs.append(data)
            self.size += len(data)
        return data

    def skip(self, data: bytes) -> bytes:
        """The next bytes, which are a tensor's. Returns them."""
        self.size += len(data)
        return data

    def parse(self, steps: ParseSteps, head: bytes = b"") -> Index:
        """What a parser says of the file, which begins with `head`. Raises what the parser raises."""

        def known(need: Need) -> memoryview:
            assert need.file == "", "the file is parsed alone"
            return self._bytes(*clip(need, self.size), head)

        done = advance(steps, None, known)
        assert isinstance(done, Parsed)
        return done.value

    def _bytes(self, start: int, end: int, head: bytes) -> memoryview:
        """What was kept of bytes [start, end); a parser that asks for more by the way gets zeros."""
        data = bytearray(end - start)
        first = head[start:end]
        data[: len(first)] = first
        number = max(0, bisect_right(self._starts, start) - 1)
        for at, run in zip(self._starts[number:], self._runs[number:], strict=True):
            begin, stop = max(at, start), min(at + len(run), end)
            if at >= end:
                break
            if begin < stop:
                data[begin - start : stop - start] = run[begin - at : stop - at]
        return memoryview(data).toreadonly()
