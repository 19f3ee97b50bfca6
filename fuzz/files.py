"""Several files in one input of the fuzzer: a set's leading file first, the others in the order they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

SEPARATOR = b"\xf5\xf6next file\xf6\xf5"
MAX_FILES = 8


def join(files: list[bytes]) -> bytes:
    return SEPARATOR.join(files)


def split(data: bytes) -> list[bytes]:
    return data.split(SEPARATOR, MAX_FILES - 1)


class Siblings(Mapping[str, memoryview]):
    """Gives the next file to each new name, so that a fuzzer need not guess names; none when all are given."""

    def __init__(self, files: list[bytes]) -> None:
        self._left = list(reversed(files))
        self._given: dict[str, memoryview] = {}

    def __getitem__(self, name: str) -> memoryview:
        if name not in self._given:
            if not self._left:
                raise KeyError(name)
            self._given[name] = memoryview(self._left.pop())
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        # Those that are still to be given count, or the mapping would be false before the first is asked for.
        return len(self._given) + len(self._left)
