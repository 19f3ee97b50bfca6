"""A METAGRAPH bundle as its tables describe it, and whether they describe a STORE that can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncckpt.errors import LayoutError
from asyncckpt.formats.metagraph.codec import Codec
from asyncckpt.formats.metagraph.header import Header, Section, SectionType
from asyncckpt.formats.metagraph.metadata import BundleMetadata
from asyncckpt.formats.metagraph.records import Edges, Entry, Frame, Node
from asyncckpt.formats.metagraph.store import ALIGNMENT


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as its tables describe it. `hashes` are those of all sections, in the order of the section index."""

    header: Header
    sections: tuple[Section, ...]
    hashes: tuple[bytes, ...]
    root: bytes
    codec: Codec
    metadata: BundleMetadata
    nodes: tuple[Node, ...]
    edges: Edges
    entries: dict[bytes, Entry]
    frames: tuple[Frame, ...]
    signer: bytes | None
    warnings: tuple[str, ...]

    @property
    def store(self) -> Section:
        return next(section for section in self.sections if section.type == SectionType.STORE)


def check_store(bundle: Bundle) -> None:
    """Every node has its bytes, inside STORE, and no two share any unless an edge ties them. Raises LayoutError."""
    own = {node.id for node in bundle.nodes if not node.in_base}
    if own != bundle.entries.keys():
        raise LayoutError(f"INDEX has {len(bundle.entries)} entries, {len(own)} nodes need one each")
    for node in bundle.nodes:
        entry = bundle.entries.get(node.id)
        if entry is not None and entry.raw_size != node.size:
            raise LayoutError(
                f"tensor {node.tensor.name!r} of shape {list(node.tensor.shape)} and dtype {node.tensor.dtype} "
                f"has {node.size} bytes, INDEX says {entry.raw_size}"
            )
    if any(node.in_base for node in bundle.nodes) and bundle.metadata.base is None:
        raise LayoutError("a node lies in the base, but the bundle is no delta")
    entries = _untied(bundle)
    if bundle.codec.flags:
        _check_frames(bundle, entries)
    else:
        _check_plain(bundle, entries)


def _untied(bundle: Bundle) -> list[Entry]:
    """The entries, without those that repeat the one they are tied to."""
    entries = dict(bundle.entries)
    for source, target in bundle.edges.ties.items():
        own = entries.pop(bundle.nodes[source].id, None)
        other = bundle.entries.get(bundle.nodes[target].id)
        if own is None or other is None or own[1:] != other[1:] or target in bundle.edges.ties:
            raise LayoutError(f"nodes {source} and {target} are tied, but not stored as one")
    return list(entries.values())


def _check_plain(bundle: Bundle, entries: Sequence[Entry]) -> None:
    if bundle.frames:
        raise LayoutError("INDEX has frames, but the bundle is neither compressed nor encrypted")
    position = bundle.store.offset
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.stored_size)):
        if entry.frame_count or entry.stored_size != entry.raw_size or entry.offset % ALIGNMENT:
            raise LayoutError(f"node {entry.id.hex()} is not stored as a plain bundle stores it")
        if entry.offset < position:
            raise LayoutError(f"node {entry.id.hex()} at {entry.offset} overlaps what ends at {position}")
        position = entry.offset + entry.stored_size
    if position > bundle.store.end:
        raise LayoutError(f"the last tensor ends at {position}, STORE at {bundle.store.end}")


def _check_frames(bundle: Bundle, entries: Sequence[Entry]) -> None:
    position = bundle.store.offset
    for number, frame in enumerate(bundle.frames):
        if frame.offset != position:
            raise LayoutError(f"frame {number} begins at {frame.offset}, {position} was expected")
        position = frame.end
    if position != bundle.store.end:
        raise LayoutError(f"the last frame ends at {position}, STORE at {bundle.store.end}")
    frame_bytes = bundle.metadata.frame_bytes
    if not frame_bytes:
        raise LayoutError("the bundle has frames, but METADATA does not say of how many bytes")
    used = 0
    for entry in sorted((e for e in entries if e.frame_count), key=lambda entry: entry.first_frame):
        if entry.first_frame != used or entry.frames_end > len(bundle.frames):
            raise LayoutError(f"node {entry.id.hex()} begins with frame {entry.first_frame}, not {used}")
        first, last = bundle.frames[entry.first_frame], bundle.frames[entry.frames_end - 1]
        if (entry.offset, entry.offset + entry.stored_size) != (first.offset, last.end):
            raise LayoutError(f"node {entry.id.hex()} does not lie where its frames do")
        used = entry.frames_end
    if used != len(bundle.frames):
        raise LayoutError(f"the tensors use {used} frames, INDEX has {len(bundle.frames)}")
    for entry in entries:
        if entry.frame_count != -(-entry.raw_size // frame_bytes):
            raise LayoutError(
                f"node {entry.id.hex()} of {entry.raw_size} bytes has {entry.frame_count} frames of {frame_bytes}"
            )
