"""Which formats there are, by name, by a file's extension and by its first bytes.

Third parties add theirs through the entry-point group `asyncckpt.formats`: the name is the format's, the value its
class. Of the formats that ship, a module is imported when a file of its own is met (`shipped` knows how they look
from outside), and a third party's when its class has to be asked. All of it reads files the first time: call it in
a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from asyncckpt.arguments import checked, did_you_mean
from asyncckpt.errors import MissingExtraError, UnknownFormatError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.shipped import SHIPPED

ENTRY_POINT_GROUP = "asyncckpt.formats"
SNIFF_BYTES = 64


def format_names() -> list[str]:
    """The names of all formats, our own first."""
    return [*SHIPPED, *_third_party_names()]


@checked
def get_format(name: str) -> ICheckpointFormat:
    """A format with its default options. Raises UnknownFormatError, MissingExtraError."""
    return _format_class(name)()


def format_for_name(file_name: str) -> ICheckpointFormat | None:
    """The format that a file's extension stands for; the longest extension wins. Raises MissingExtraError."""
    best, best_length = None, 0
    for name, extensions in _extensions():
        for extension in extensions:
            if file_name.endswith(extension) and len(extension) > best_length:
                best, best_length = name, len(extension)
    return None if best is None else get_format(best)


def sniff(head: memoryview, source: FileInfo) -> ICheckpointFormat:
    """The format of a file, by its first bytes. Raises UnknownFormatError with what was found there."""
    for candidate in _candidates(head):
        if candidate.sniff(head, source):
            return candidate
    if source.size == 0:
        raise UnknownFormatError(f"{source.name!r} is empty, not a checkpoint")
    raise UnknownFormatError(
        f"{source.name!r} is not a checkpoint of a known format (it begins with {bytes(head[:8]).hex(' ')}); "
        f"known are {', '.join(format_names())}"
    )


def _extensions() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, shipped in SHIPPED.items():
        yield name, shipped.extensions
    for name, other in _third_party_formats():
        yield name, other.extensions


def _candidates(head: memoryview) -> Iterator[ICheckpointFormat]:
    for name, shipped in SHIPPED.items():
        if shipped.may_be(head):
            yield get_format(name)
    for _, other in _third_party_formats():
        yield other


def _third_party_names() -> list[str]:
    return sorted(_third_party().keys() - SHIPPED.keys())


def _third_party_formats() -> Iterator[tuple[str, ICheckpointFormat]]:
    for name in _third_party_names():
        try:
            yield name, get_format(name)
        except MissingExtraError:
            continue


@lru_cache(maxsize=64)
def _format_class(name: str) -> type[ICheckpointFormat]:
    shipped = SHIPPED.get(name)
    if shipped is not None:
        return cast("type[ICheckpointFormat]", getattr(import_module(shipped.module), shipped.class_name))
    found = _third_party().get(name)
    if found is None:
        known = format_names()
        raise UnknownFormatError(
            f"no format is named {name!r}; known are {', '.join(known)}{did_you_mean(name, known)}"
        )
    loaded = found.load()
    if not (isinstance(loaded, type) and issubclass(loaded, ICheckpointFormat)):
        raise UnknownFormatError(f"the entry point of format {name!r} is not an ICheckpointFormat class")
    return loaded


@lru_cache(maxsize=1)
def _third_party() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
