"""What makes an archive of ours checkable to its last byte.

We write archives in one way only: given the entries, every other byte of headers, descriptors and directory follows.
An archive that carries our mark, in its comment or in a central record, must therefore be exactly that. One that was
packed by others carries none and is read as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.index import Extent, RegionDigest
from asyncckpt.formats.kit.zip import (
    STORED,
    Archive,
    ZipEntry,
    aligned_extra,
    central_directory,
    data_descriptor,
    local_header,
)
from asyncckpt.formats.sdnb.header import ALIGNMENT
from asyncckpt.formats.sdz.frames import FRAMES_EXTRA, FramePointer
from asyncckpt.model.checksums import crc32c

COMMENT = b"asyncckpt sdz 1"


def entry_header(entry: ZipEntry) -> bytes:
    """The local header; a STORED entry's ends at a multiple of 64."""
    bare = local_header(entry)
    if entry.method != STORED:
        return bare
    return local_header(entry, extra=aligned_extra(entry.header_offset + len(bare), ALIGNMENT))


def entry_trailer(entry: ZipEntry) -> bytes:
    return b"" if entry.method == STORED else data_descriptor(entry)


def sealed_directory(
    entries: Sequence[ZipEntry], offset: int, *, record_bytes: int = 0, sums: Sequence[int] = ()
) -> bytes:
    """The central directory at `offset`, with our marks; `sums` are the CRC32C of DEFLATE entries as stored."""
    marked = []
    for number, entry in enumerate(entries):
        place = offset - record_bytes if record_bytes else 0
        pointer = FramePointer(place, record_bytes, number, sums[number] if sums else 0)
        marked.append(replace(entry, extra={FRAMES_EXTRA: pointer.encode()}))
    return central_directory(marked, offset, comment=COMMENT)


def is_sealed(archive: Archive) -> bool:
    """Whether the archive says that it is ours."""
    return archive.comment == COMMENT or any(FRAMES_EXTRA in e.extra for e in archive.entries.values())


def seal_digests(archive: Archive) -> tuple[RegionDigest, ...]:
    """The checks of an archive of ours outside its SDNB files. Raises LayoutError where it is not as we write it."""
    entries = list(archive.entries.values())
    pointers = [FramePointer.of(entry) for entry in entries]
    if any(pointer is None for pointer in pointers):
        raise LayoutError("the archive has the mark of asyncckpt, but not in all entries: it is damaged")
    known = [pointer for pointer in pointers if pointer is not None]
    record_bytes = known[0].record_bytes if known else 0
    if record_bytes > archive.directory_offset:
        raise LayoutError(
            f"the frame record can't have {record_bytes} bytes before {archive.directory_offset}"
        )
    sums = [p.crc32c if e.method != STORED else 0 for e, p in zip(entries, known, strict=True)]
    expected = sealed_directory(entries, archive.directory_offset, record_bytes=record_bytes, sums=sums)
    if archive.tail != expected:
        raise LayoutError("the central directory is not as asyncckpt writes it: it is damaged")
    _require_no_gaps(entries, archive.directory_offset - record_bytes)
    return tuple(
        digest for entry, total in zip(entries, sums, strict=True) for digest in _digests(entry, total)
    )


def _require_no_gaps(entries: Sequence[ZipEntry], end: int) -> None:
    position = 0
    for entry in entries:
        header_bytes = len(entry_header(entry))
        if entry.header_offset != position or entry.data_offset != position + header_bytes:
            raise LayoutError(f"the entry {entry.name!r} does not begin at {position} as it should")
        position = entry.end + len(entry_trailer(entry))
    if position != end:
        raise LayoutError(f"the entries end at {position}, {end} was expected")


def _digests(entry: ZipEntry, total: int) -> Iterator[RegionDigest]:
    header, trailer = entry_header(entry), entry_trailer(entry)
    data = Extent(entry.data_offset, entry.compressed)
    yield _literal(f"the local header of {entry.name!r}", entry.header_offset, header)
    if entry.method == STORED:
        yield entry_digest(entry)
    else:
        yield RegionDigest(f"the entry {entry.name!r}", "crc32c", data, total.to_bytes(4, "big"))
        yield _literal(f"the data descriptor of {entry.name!r}", entry.end, trailer)


def entry_digest(entry: ZipEntry) -> RegionDigest:
    """ZIP's own CRC32, which is over the stored bytes only where they are not compressed."""
    extent = Extent(entry.data_offset, entry.size)
    return RegionDigest(f"the entry {entry.name!r}", "crc32", extent, entry.crc32.to_bytes(4, "big"))


def _literal(what: str, offset: int, data: bytes) -> RegionDigest:
    return RegionDigest(what, "crc32c", Extent(offset, len(data)), crc32c(data).to_bytes(4, "big"))
