"""Which formats there are, by name, by a file's extension and by its first bytes.

Third parties add theirs through the entry-point group `asyncckpt.formats`: the name is the format's, the value its
class. A module is imported when its format is first needed, so a missing extra costs nothing until then.
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
from asyncckpt.formats.index import SourceInfo

ENTRY_POINT_GROUP = "asyncckpt.formats"
SNIFF_BYTES = 64
_BUILT_IN = {
    "mlcp": "asyncckpt.formats.mlcp:MlcpFormat",
    "safetensors": "asyncckpt.formats.safetensors:SafetensorsFormat",
    "safetensors-set": "asyncckpt.formats.hf_set:HuggingFaceSetFormat",
    "gptrschk": "asyncckpt.formats.gptrs:GptrsCheckpointFormat",
    "gptrsten": "asyncckpt.formats.gptrs:GptrsTensorsFormat",
    "mldf": "asyncckpt.formats.mldf:MldfFormat",
    "metagraph": "asyncckpt.formats.metagraph:MetagraphFormat",
    "sdz": "asyncckpt.formats.sdz:SdzFormat",
    "mlcp-set": "asyncckpt.formats.mlcp_set:MlcpSetFormat",
    # Last, because it also takes bare FlatBuffers, which have no magic number.
    "sdnb": "asyncckpt.formats.sdnb:SdnbFormat",
}


def format_names() -> list[str]:
    """The names of all formats, our own first."""
    return [*_BUILT_IN, *sorted(set(_third_party()) - set(_BUILT_IN))]


@checked
def get_format(name: str) -> ICheckpointFormat:
    """A format with its default options. Raises UnknownFormatError, MissingExtraError."""
    return _format_class(name)()


def format_for_name(file_name: str) -> ICheckpointFormat | None:
    """The format that a file's extension stands for; the longest extension wins."""
    best: tuple[int, ICheckpointFormat] | None = None
    for candidate in _available():
        for extension in candidate.extensions:
            if file_name.endswith(extension) and (best is None or len(extension) > best[0]):
                best = (len(extension), candidate)
    return best[1] if best else None


def sniff(head: memoryview, source: SourceInfo) -> ICheckpointFormat:
    """The format of a file, by its first bytes. Raises UnknownFormatError with what was found there."""
    for candidate in _available():
        if candidate.sniff(head, source):
            return candidate
    if source.size == 0:
        raise UnknownFormatError(f"{source.name!r} is empty, not a checkpoint")
    raise UnknownFormatError(
        f"{source.name!r} is not a checkpoint of a known format (it begins with {bytes(head[:8]).hex(' ')}); "
        f"known are {', '.join(format_names())}"
    )


def _available() -> Iterator[ICheckpointFormat]:
    for name in format_names():
        try:
            yield get_format(name)
        except MissingExtraError:
            continue


@lru_cache(maxsize=64)
def _format_class(name: str) -> type[ICheckpointFormat]:
    target = _BUILT_IN.get(name)
    if target is not None:
        module, _, attribute = target.partition(":")
        return cast("type[ICheckpointFormat]", getattr(import_module(module), attribute))
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
