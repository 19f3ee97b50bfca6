"""One METAGRAPH bundle as its tables describe it: header, tables and metadata, read and verified; no tensor yet."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from asyncckpt.errors import (
    ChecksumMismatchError,
    DecryptionError,
    LayoutError,
    SignatureError,
    TruncatedError,
)
from asyncckpt.formats.kit.index import Need, need_exactly
from asyncckpt.formats.metagraph.codec import Codec
from asyncckpt.formats.metagraph.hashing import ID_BYTES, hash_of, root_of, short_hash
from asyncckpt.formats.metagraph.header import (
    HEADER_BYTES,
    KNOWN_TYPES,
    Flag,
    Header,
    Section,
    SectionType,
    decode_header,
    decode_sections,
)
from asyncckpt.formats.metagraph.metadata import BundleMetadata, decode_bundle_metadata
from asyncckpt.formats.metagraph.records import (
    Edges,
    Entry,
    Frame,
    Node,
    decode_edges,
    decode_index,
    decode_nodes,
)
from asyncckpt.formats.metagraph.signature import check_signature
from asyncckpt.formats.metagraph.store import ALIGNMENT

_TABLES = frozenset(KNOWN_TYPES - {SectionType.STORE})
_NEAR_BYTES = 64 * 1024
"""Sections that are no farther apart are asked for together."""


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """What the caller gave: to encrypt with, to check signatures with, to sign with. Never shown.

    With a `key`, a bundle that is not encrypted is refused unless `allow_plain`: anyone could have put it there.
    """

    key: bytes | None = None
    verify_key: bytes | None = None
    signing_key: bytes | None = None
    allow_plain: bool = False


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


# -- reading ---------------------------------------------------------------------------------------------------


def read_bundle(
    keys: Keys, *, size: int | None = None, file: str = "", vouched: bool = False
) -> Generator[Need, memoryview, Bundle]:
    """Read and verify everything but the tensors. `size` is None where only the bundle itself says it.

    `vouched` means that the caller compares the root with one that it trusts, so neither a signature nor encryption
    is asked for.
    Raises FormatError subclasses.
    """
    head = yield from need_exactly(0, HEADER_BYTES, "the header", file=file)
    raw_header = bytes(head)
    header = decode_header(head)
    yield from _check_size(header, size, file)
    _check_keys(header, keys, vouched=vouched)
    rows = yield from need_exactly(
        HEADER_BYTES, header.sections_end - HEADER_BYTES, "the section index", file=file
    )
    sections = decode_sections(rows, header)
    stored = yield from _read_tables(sections, file)
    codec = Codec(
        compress=bool(header.flags & Flag.COMPRESSED),
        key=keys.key if header.flags & Flag.ENCRYPTED else None,
        bundle_id=header.bundle_id,
    )
    tables = _Tables(sections, stored, codec)
    metadata = decode_bundle_metadata(tables.raw(SectionType.METADATA))
    hashes = tables.hashes(metadata)
    root = root_of(rows, [digest for _, digest in hashes])
    if short_hash(root) != header.bundle_checksum:
        raise ChecksumMismatchError(
            f"the section index is damaged: the root is {short_hash(root):016x}, the header says "
            f"{header.bundle_checksum:016x}"
        )
    signature = bytes(stored.get(SectionType.SIGNATURE, b""))
    if keys.verify_key is not None and not vouched:
        check_signature(signature, keys.verify_key, raw_header, root)
    return _decoded(header, sections, tables, metadata, hashes, root, signature, keys)


def _decoded(
    header: Header,
    sections: tuple[Section, ...],
    tables: _Tables,
    metadata: BundleMetadata,
    hashes: Sequence[tuple[Section, bytes]],
    root: bytes,
    signature: bytes,
    keys: Keys,
) -> Bundle:
    if (metadata.base is not None) != bool(header.flags & Flag.DELTA):
        raise LayoutError("the flag DELTA and the delta_base of METADATA must come together")
    if metadata.base is not None and metadata.base.bundle_id & 0xFFFFFFFF != header.delta_base_id:
        raise LayoutError("the header and METADATA name different bases")
    nodes = decode_nodes(tables.raw(SectionType.NODES), tables.items(SectionType.NODES))
    edges = Edges(None, {})
    if SectionType.EDGES in tables.stored:
        edges = decode_edges(tables.raw(SectionType.EDGES), tables.items(SectionType.EDGES), len(nodes))
    entries, frames = decode_index(tables.raw(SectionType.INDEX), tables.items(SectionType.INDEX))
    bundle = Bundle(
        header=header,
        sections=sections,
        hashes=tuple(digest for _, digest in hashes),
        root=root,
        codec=tables.codec,
        metadata=metadata,
        nodes=tuple(nodes),
        edges=edges,
        entries={entry.id: entry for entry in entries},
        frames=tuple(frames),
        signer=signature[:ID_BYTES] or None,
        warnings=tuple(_warnings(header, sections, signature, keys)),
    )
    check_store(bundle)
    return bundle


def _check_size(header: Header, size: int | None, file: str) -> Generator[Need, memoryview, None]:
    if size is None:
        # The last byte must be there, and nothing behind it.
        end = yield Need(max(0, header.total_size - 1), 2, file)
        if len(end) != 1:
            raise TruncatedError(
                f"{file!r} is {'longer' if end else 'shorter'} than the bundle's {header.total_size} bytes"
            )
    elif size < header.total_size:
        raise TruncatedError(f"the bundle has {header.total_size} bytes, the file {size}")
    elif size > header.total_size:
        raise LayoutError(f"{size - header.total_size} bytes are left over after the bundle's end")


def _check_keys(header: Header, keys: Keys, *, vouched: bool) -> None:
    """Whatever can't succeed fails here, before anything else is read."""
    if header.flags & Flag.ENCRYPTED and keys.key is None:
        raise DecryptionError(
            f"bundle {header.bundle_id:016x} is encrypted: open it with format=MetagraphFormat(key=...)"
        )
    if vouched:
        return
    if keys.key is not None and not keys.allow_plain and not header.flags & Flag.ENCRYPTED:
        raise DecryptionError(
            f"bundle {header.bundle_id:016x} is not encrypted, though a key was given: anyone could have written it; "
            "allow_plain=True (--allow-plain) reads it all the same"
        )
    if keys.verify_key is not None and not header.flags & Flag.SIGNED:
        raise SignatureError(f"bundle {header.bundle_id:016x} is not signed, though a verify_key was given")


def _warnings(header: Header, sections: Sequence[Section], signature: bytes, keys: Keys) -> list[str]:
    found = header.warnings()
    found += [f"section {s.name} is unknown and was skipped" for s in sections if s.type not in KNOWN_TYPES]
    if signature and keys.verify_key is None:
        found.append(
            f"the signature by the key {signature[:ID_BYTES].hex()} was not checked: give a verify_key"
        )
    if keys.key is not None and not header.flags & Flag.ENCRYPTED:
        found.append("a key was given, but the bundle is not encrypted")
    return found


def _read_tables(
    sections: Sequence[Section], file: str
) -> Generator[Need, memoryview, dict[int, memoryview]]:
    """The stored bytes of all known sections but STORE, near ones in one request."""
    stored: dict[int, memoryview] = {}
    group: list[Section] = []
    for section in sorted((s for s in sections if s.type in _TABLES), key=lambda s: s.offset):
        if group and section.offset - group[-1].end > _NEAR_BYTES:
            stored |= yield from _read_group(group, file)
            group = []
        group.append(section)
    stored |= yield from _read_group(group, file)
    return stored


def _read_group(group: Sequence[Section], file: str) -> Generator[Need, memoryview, dict[int, memoryview]]:
    start, end = group[0].offset, group[-1].end
    data = yield from need_exactly(start, end - start, f"section {group[-1].name}", file=file)
    return {section.type: data[section.offset - start : section.end - start] for section in group}


def _section(sections: Sequence[Section], number: SectionType) -> Section:
    return next(section for section in sections if section.type == number)


@dataclass(frozen=True, slots=True)
class _Tables:
    """The stored sections, and how they are turned into their records."""

    sections: tuple[Section, ...]
    stored: dict[int, memoryview]
    codec: Codec

    def raw(self, number: SectionType) -> memoryview:
        """A section's records, verified against the section index. Raises FormatError subclasses."""
        section = _section(self.sections, number)
        data = self.stored[number]
        value = short_hash(hash_of(data))
        if value != section.checksum:
            raise ChecksumMismatchError(
                f"section {section.name} is damaged: its BLAKE3 is {value:016x}, the section index says "
                f"{section.checksum:016x}"
            )
        return self.codec.decode_section(section, data)

    def items(self, number: SectionType) -> int:
        return _section(self.sections, number).item_count

    def hashes(self, metadata: BundleMetadata) -> list[tuple[Section, bytes]]:
        """Every section but SIGNATURE with its hash: made from what was read, taken from METADATA for the rest."""
        found = []
        for section in self.sections:
            if section.type == SectionType.SIGNATURE:
                if section.checksum:
                    raise LayoutError("section SIGNATURE has a checksum; it must be 0")
                continue
            read = self.stored.get(section.type)
            listed = metadata.hashes.get(section.type)
            digest = listed if read is None else hash_of(read)
            if digest is None:
                raise LayoutError(f"METADATA has no hash for section {section.name}")
            if short_hash(digest) != section.checksum or listed not in (None, digest):
                raise ChecksumMismatchError(
                    f"section {section.name} is damaged: the section index and METADATA disagree on its hash"
                )
            found.append((section, digest))
        return found


# -- whether the tables describe a STORE that can be -----------------------------------------------------------


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
        raise LayoutError("a node lies in the base, but the bundle is not a delta")
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
