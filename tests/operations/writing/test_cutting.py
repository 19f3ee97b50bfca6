"""A planned file cut into parts and hashed: every byte in one of them, every checksum right, whatever the source."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.formats.kit import encode
from asyncckpt.formats.kit.encode import ChunkDigests, SetDigests
from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, TensorBytes
from asyncckpt.model.checksums import Chunking, crc32c
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.writing import hashing
from asyncckpt.operations.writing.cutting import PartCutter, Run, Span, zeros
from asyncckpt.operations.writing.source import MemorySource, PoolSource, TensorSource
from asyncckpt.operations.writing.staging.layout import Layout, normalise


class Planned:
    """A plan with the bytes of its tensors and late regions, and the file that it stands for."""

    def __init__(self, plan: FilePlan, tensors: list[bytes], late: list[bytes]) -> None:
        self.plan = plan
        self.tensors = tensors
        self.late = late
        self.file = bytearray(plan.size)
        for payload in plan.payloads:
            self.file[payload.offset : payload.end] = tensors[payload.tensor]
        for region, data in zip(plan.deferred, late, strict=True):
            self.file[region.start : region.end] = data

    def source(self, kind: str) -> TensorSource:
        if kind == "views":
            return MemorySource([memoryview(data) for data in self.tensors])
        return pooled(self.tensors)


def pooled(tensors: Sequence[bytes]) -> PoolSource:
    """The tensors in a pool, as a stager puts them there."""
    arrays = {f"t{i}": np.frombuffer(data, np.uint8) for i, data in enumerate(tensors)}
    layout = Layout.of(normalise(arrays, {}))
    memory = memoryview(bytearray(b"\xff" * layout.size))
    for batch in layout.batches():
        layout.copy(batch, memory)
    return PoolSource(memory.toreadonly(), layout.positions, layout.others)


@st.composite
def planned(draw: st.DrawFn) -> Planned:
    """Tensors and late regions in any order, of any size (0 too), with gaps of zeros between them."""
    kinds = draw(st.lists(st.sampled_from(["tensor", "tensor", "late"]), max_size=12))
    alignment = draw(st.sampled_from([1, 64]))
    places: list[tuple[int, int]] = []
    regions: list[ByteRange] = []
    tensors: list[bytes] = []
    late: list[bytes] = []
    position = 0
    for kind in kinds:
        # Most formats have no more than what aligns the next tensor; some have anything.
        position += draw(st.sampled_from([0, 0, 0, 1, 64, 130]))
        position = -(-position // alignment) * alignment
        data = draw(st.binary(max_size=90) | st.sampled_from([b"\1" * 64, b"\2" * 128]))
        if kind == "tensor":
            places.append((position, len(data)))
            tensors.append(data)
        else:
            regions.append(ByteRange(position, position + len(data)))
            late.append(data)
        position += len(data)
    size = position + draw(st.integers(0, 40))
    order = draw(st.permutations(range(len(tensors)))) if draw(st.booleans()) else range(len(tensors))
    numbered = sorted(zip(order, places, tensors, strict=True))
    tensors = [data for _, _, data in numbered]
    payloads = [Payload(number, *place) for number, place, _ in numbered]
    chunking = Chunking.of(draw(st.sampled_from([8, 64, 256])), [len(t) for t in tensors])

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        return late

    return Planned(
        FilePlan("x", size, tuple(payloads), tuple(regions), chunking, finish, True), tensors, late
    )


PARTS = st.integers(1, 100) | st.sampled_from([256, 4096])
SOURCES = st.sampled_from(["views", "pool"])


@given(case=planned(), part_bytes=PARTS, kind=SOURCES)
def test_the_parts_make_up_the_file(case: Planned, part_bytes: int, kind: str) -> None:
    cutter, source = PartCutter(case.plan, part_bytes), case.source(kind)
    found = bytearray()
    for index in range(cutter.count):
        pieces = list(cutter.pieces(index))
        assert sum(piece.size for piece in pieces) == cutter.size(index)
        assert all(piece.size > 0 for piece in pieces)
        assert cutter.size(index) == part_bytes or index == cutter.count - 1
        late = any(isinstance(piece, Span) and piece.late is not None for piece in pieces)
        assert cutter.is_late(index) == late
        found += b"".join(hashing.sent(hashing.gather(pieces, source, case.late)))
    assert found == case.file


@given(
    case=planned(),
    part_bytes=PARTS,
    kind=SOURCES,
    seed=st.integers(0, 1000),
    hash_again_below=st.sampled_from([0, 16 * 1024]),
)
def test_checksums_collected_in_any_order_are_those_of_the_bytes(
    case: Planned, part_bytes: int, kind: str, seed: int, hash_again_below: int
) -> None:
    cutter, source = PartCutter(case.plan, part_bytes), case.source(kind)
    digests = ChunkDigests(case.plan.chunking, crc32=True)
    order = list(range(cutter.count))
    random.Random(seed).shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_HASH_AGAIN_BELOW", hash_again_below)
        for index in order:
            pieces = list(cutter.pieces(index))
            gathered = hashing.gather(pieces, source, case.late)
            start = index * part_bytes
            checksum = hashing.hash_part(digests, pieces, gathered)
            assert checksum == crc32c(case.file[start : start + cutter.size(index)])
            assert hashing.checksum(hashing.sent(gathered)) == checksum
    assert_digests(digests.digests(), case)


def assert_digests(digests: Digests, case: Planned) -> None:
    assert list(digests.crc32) == [zlib.crc32(data) for data in case.tensors]
    step = case.plan.chunking.chunk_bytes
    expected = [crc32c(t[start : start + step]) for t in case.tensors for start in range(0, len(t), step)]
    assert digests.checksums.dtype == np.uint32
    assert digests.checksums.tolist() == expected


@given(case=planned(), kind=SOURCES)
def test_the_payloads_hashed_ahead_have_the_same_checksums(case: Planned, kind: str) -> None:
    digests = ChunkDigests(case.plan.chunking, crc32=True)
    digests.add_payloads(case.plan.payloads, case.source(kind).read)
    assert_digests(digests.digests(), case)


@given(case=planned(), cut=st.integers(0, 12))
def test_the_digests_of_files_side_by_side_are_those_of_all(case: Planned, cut: int) -> None:
    earlier = SetDigests()
    files = [case.plan.payloads[:cut], case.plan.payloads[cut : cut + 2], case.plan.payloads[cut + 2 :]]
    for number, payloads in enumerate(files):
        own = ChunkDigests(case.plan.chunking)
        own.add_payloads(payloads, case.source("views").read)
        if number < 2:
            earlier.add(f"file {number}", own.digests(number))
    joined = earlier.with_earlier(own.digests("last"))
    step = case.plan.chunking.chunk_bytes
    expected = [crc32c(t[start : start + step]) for t in case.tensors for start in range(0, len(t), step)]
    assert joined.checksums.tolist() == expected
    assert (joined.format, joined.earlier) == ("last", {"file 0": 0, "file 1": 1})


def test_small_tensors_that_lie_as_they_are_staged_are_one_view() -> None:
    tensors = [bytes([i]) * size for i, size in enumerate([64, 10, 128, 7])]
    offsets = [1000, 1064, 1128, 1256]
    payloads = tuple(
        Payload(i, at, len(data)) for i, (at, data) in enumerate(zip(offsets, tensors, strict=True))
    )
    plan = FilePlan("x", 1263, payloads, (), Chunking.of(256, [64, 10, 128, 7]), lambda digests, read: ())
    [gap, run] = PartCutter(plan, 4096).pieces(0)
    assert gap == Span(1000)
    assert isinstance(run, Run)
    [view] = pooled(tensors).read_run(run).sent
    assert bytes(view) == b"".join(data.ljust(-(-len(data) // 64) * 64, b"\0") for data in tensors)[:263]


def test_no_crc32_where_it_is_not_asked_for() -> None:
    digests = ChunkDigests(Chunking.of(4, [6]))
    digests.add(0, 0, b"abcdef")
    assert digests.digests().crc32 == ()
    assert digests.digests().checksums.tolist() == [crc32c(b"abcd"), crc32c(b"ef")]


def test_an_empty_file_has_no_parts() -> None:
    plan = FilePlan("x", 0, (), (), Chunking.of(8, []), lambda digests, read: ())
    assert PartCutter(plan, 8).count == 0


@given(size=st.integers(0, 3 * 1024 * 1024 + 5))
def test_zeros_are_as_many_as_asked_for_and_take_no_memory(size: int) -> None:
    views = list(zeros(size))
    assert sum(len(view) for view in views) == size
    assert all(view.obj is views[0].obj for view in views)
    assert not any(view[0] or view[-1] for view in views)
