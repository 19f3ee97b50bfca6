"""From the tables of a METAGRAPH bundle, and of the bundles it rests on, to the index of its tensors."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from asyncckpt.errors import (
    ChecksumMismatchError,
    IncompleteCheckpointError,
    LayoutError,
    LimitExceededError,
    MissingBaseError,
)
from asyncckpt.formats.kit.block.header import indexed
from asyncckpt.formats.kit.index import (
    Extent,
    FileInfo,
    Frames,
    Need,
    ParseSteps,
    RegionDigest,
    Seal,
    StoredTensor,
)
from asyncckpt.formats.metagraph.bundle import Bundle, Keys, read_bundle
from asyncckpt.formats.metagraph.codec import Codec, require_modest
from asyncckpt.formats.metagraph.delta import MAX_BASES, BaseReference
from asyncckpt.formats.metagraph.hashing import hash_of, new_hasher
from asyncckpt.formats.metagraph.header import CHECKSUM_SPAN, HEADER_BYTES, Flag, Section, SectionType
from asyncckpt.formats.metagraph.records import Entry, Frame, Node
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.metadata import Json, TensorMetadata

NAME = "metagraph"
_WINDOW_BYTES = 1 << 20
"""What is vouched for as a whole is hashed in runs of this size as well."""


def parse_file(source: FileInfo, keys: Keys) -> ParseSteps:
    """Raises FormatError subclasses; MissingBaseError for a delta whose base is not beside it."""
    bundle = yield from read_bundle(keys, size=source.size)
    files, bundles = [""], [bundle]
    while (reference := bundles[-1].metadata.base) is not None:
        if len(bundles) > MAX_BASES:
            raise LimitExceededError(f"the delta rests on more than {MAX_BASES} bundles")
        if reference.file in (*files, source.name):
            raise LayoutError(f"the delta rests on {reference.file!r}, which rests on it")
        bundles.append((yield from _read_base(reference, bundles[-1], keys)))
        files.append(reference.file)
    encrypted = bool(bundle.header.flags & Flag.ENCRYPTED)
    # An encrypted delta vouches for its base as a signed one does, and the base may be plain.
    stored = _stored_tensors(bundles, checked=encrypted or keys.verify_key is not None)
    index = indexed(
        stored,
        bundle.metadata.block,
        format=NAME,
        version=str(bundle.header.format_version),
        custom_fields=bundle.metadata.described,
        header_extents=_structure(bundles),
        files=tuple(files),
        warnings=bundle.warnings,
        digests=tuple(d for number, found in enumerate(bundles) for d in _digests(found, number)),
        details=_details(bundle),
        seals=seals_of(
            encrypted=any(found.header.flags & Flag.ENCRYPTED for found in bundles),
            signed=bool(bundle.header.flags & Flag.SIGNED),
        ),
    )
    counts = tuple(len(shard.tensors) for shard in index.metadata.shards)
    if bundle.metadata.block is not None and bundle.edges.shards not in (None, counts):
        raise LayoutError(f"EDGES has shards of {bundle.edges.shards} tensors, METADATA of {counts}")
    return index


def seals_of(*, encrypted: bool, signed: bool) -> frozenset[Seal]:
    found: dict[Seal, bool] = {"encrypted": encrypted, "signed": signed}
    return frozenset(seal for seal, there in found.items() if there)


def _read_base(reference: BaseReference, delta: Bundle, keys: Keys) -> Generator[Need, memoryview, Bundle]:
    needed = f"delta {delta.header.bundle_id:016x} needs its base, bundle {reference.bundle_id:016x}"
    try:
        base = yield from read_bundle(keys, file=reference.file, vouched=True)
    except IncompleteCheckpointError:
        raise MissingBaseError(f"{needed}: put {reference.file!r} beside it") from None
    if base.header.bundle_id != reference.bundle_id or base.root != reference.root:
        raise MissingBaseError(f"{needed}; {reference.file!r} is bundle {base.header.bundle_id:016x}")
    return base


# -- tensors ---------------------------------------------------------------------------------------------------


def _stored_tensors(bundles: Sequence[Bundle], *, checked: bool) -> list[StoredTensor]:
    """The tensors of the first bundle, wherever their bytes are."""
    top = bundles[0]
    if top.metadata.block is None:
        framed = [entry for bundle in bundles for entry in bundle.entries.values() if entry.frame_count]
        require_modest(sum(e.raw_size for e in framed), sum(e.stored_size for e in framed))
    nodes_below = [{node.id: node for node in bundle.nodes} for bundle in bundles[1:]]
    stored = []
    for node in top.nodes:
        level = _level_of(node, nodes_below)
        stored.append(_stored_tensor(node, bundles[level], level, checked))
    return stored


def _level_of(node: Node, nodes_below: Sequence[dict[bytes, Node]]) -> int:
    """How many bundles down the node's bytes are."""
    found, level = node, 0
    while found.in_base:
        below = nodes_below[level].get(node.id)
        if below is None or below.hash != node.hash or below.size != node.size:
            raise LayoutError(f"tensor {node.tensor.name!r} is not in the base as the delta says")
        found, level = below, level + 1
    return level


def _stored_tensor(node: Node, bundle: Bundle, level: int, checked: bool) -> StoredTensor:
    # Nobody needs the entry after this: of very many small tensors they take as much memory as the file has bytes.
    entry = bundle.entries.pop(node.id)
    tensor = node.tensor
    if entry.frame_count:
        return StoredTensor(tensor, frames=_frames(tensor, entry, bundle, level))
    extent = Extent(entry.offset, entry.stored_size, level)
    if checked and entry.raw_size:
        # CRC32C finds accidents. What a signature or a key vouches for has to stand up to intent.
        vouched = _Vouched(tensor.name, node.hash)
        frames = Frames(_WINDOW_BYTES, tuple(extent.cut(_WINDOW_BYTES)), vouched.decode, vouch=vouched)
        return StoredTensor(tensor, frames=frames)
    return StoredTensor(_placed(tensor, entry.offset), (extent,))


def _placed(tensor: TensorMetadata, offset: int) -> TensorMetadata:
    return TensorMetadata(
        tensor.name, tensor.dtype, tensor.shape, offset, tensor.checksum, tensor.global_shape, tensor.origin
    )


def _frames(tensor: TensorMetadata, entry: Entry, bundle: Bundle, level: int) -> Frames:
    frames = bundle.frames[entry.first_frame : entry.frames_end]
    frame_bytes = bundle.metadata.frame_bytes
    decoder = _FrameDecoder(tensor.name, bundle.codec, entry.first_frame, frames, frame_bytes, entry.raw_size)
    return Frames(frame_bytes, tuple(Extent(f.offset, f.size, level) for f in frames), decoder)


@dataclass(frozen=True, slots=True)
class _FrameDecoder:
    """Decodes the frames of one tensor; called from several threads."""

    name: str
    codec: Codec
    first: int
    frames: Sequence[Frame]
    frame_bytes: int
    raw_size: int

    def __call__(self, number: int, stored: Buffer) -> bytes:
        what = f"frame {number} of tensor {self.name!r}"
        if hash_of(stored) != self.frames[number].hash:
            raise ChecksumMismatchError(
                f"tensor {self.name!r} is damaged: its frame {number} has another BLAKE3 than INDEX says",
                tensor=self.name,
            )
        raw_size = min(self.frame_bytes, self.raw_size - number * self.frame_bytes)
        return self.codec.decode_frame(self.first + number, stored, raw_size=raw_size, what=what)


class _Vouched:
    """Hands a plain tensor out only if it is the one that was vouched for: by a signature, or by a key's owner.

    Its hash is over all of it. Whoever has seen all of it once also knows the hash of each window, so that a slice
    takes no second pass.
    """

    def __init__(self, name: str, expected: bytes) -> None:
        self._name = name
        self._expected = expected
        self._windows: list[bytes] | None = None

    @property
    def passed(self) -> bool:
        return self._windows is not None

    def decode(self, number: int, stored: Buffer) -> Buffer:
        if self._windows is not None and hash_of(stored) != self._windows[number]:
            raise self._refusal()
        return stored

    def begin(self) -> _Vouching:
        return _Vouching(self)

    def accept(self, digest: bytes, windows: list[bytes]) -> None:
        if digest != self._expected:
            raise self._refusal()
        self._windows = windows

    def _refusal(self) -> ChecksumMismatchError:
        return ChecksumMismatchError(
            f"tensor {self._name!r} is not the one that was signed or sealed: its BLAKE3 is another",
            tensor=self._name,
        )


class _Vouching:
    """One pass over all windows."""

    def __init__(self, vouched: _Vouched) -> None:
        self._vouched = vouched
        self._hasher = new_hasher()
        self._windows: list[bytes] = []

    def update(self, raw: Buffer) -> None:
        self._hasher.update(raw)
        self._windows.append(hash_of(raw))

    def finish(self) -> None:
        self._vouched.accept(self._hasher.digest(), self._windows)


# -- what verify and inspect use -------------------------------------------------------------------------------


def _digests(bundle: Bundle, file: int) -> list[RegionDigest]:
    start, end = CHECKSUM_SPAN
    header_checksum = bundle.header.encode()[start:end]
    found = [
        RegionDigest(
            "the header",
            "blake3",
            Extent(0, HEADER_BYTES, file),
            header_checksum,
            zeroed=(Extent(start, end - start, file),),
        )
    ]
    sections = [section for section in bundle.sections if section.type != SectionType.SIGNATURE]
    for section, digest in zip(sections, bundle.hashes, strict=True):
        extent = Extent(section.offset, section.size, file)
        found.append(RegionDigest(f"section {section.name}", "blake3", extent, digest))
    return found


def _structure(bundles: Sequence[Bundle]) -> tuple[Extent, ...]:
    """All that is not padding. Of a base only its digests are checked: tensors of it may have been replaced."""
    top = bundles[0]
    tables = [
        Extent(section.offset, section.size)
        for section in top.sections
        if section.type != SectionType.STORE or top.metadata.block is None
    ]
    below = [Extent(0, base.header.total_size, number) for number, base in enumerate(bundles) if number]
    return (Extent(0, top.header.sections_end), *tables, *below)


def _details(bundle: Bundle) -> dict[str, Json]:
    header = bundle.header
    return {
        "bundleId": f"{header.bundle_id:016x}",
        "root": bundle.root.hex(),
        "apiVersion": f"{header.api_version[0]}.{header.api_version[1]}",
        "creationTime": header.creation_time,
        "flags": [flag.name for flag in Flag if header.flags & flag],
        "signer": None if bundle.signer is None else bundle.signer.hex(),
        "base": None if bundle.metadata.base is None else bundle.metadata.base.encode(),
        "sections": [_section_details(section) for section in bundle.sections],
        "metadata": bundle.metadata.described,
    }


def _section_details(section: Section) -> dict[str, Json]:
    return {
        "name": section.name,
        "type": section.type,
        "flags": section.flags,
        "offset": section.offset,
        "size": section.size,
        "items": section.item_count,
        "checksum": f"{section.checksum:016x}",
    }
