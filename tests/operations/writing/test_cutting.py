"""PartCutter and DigestBook: a planned file cut into parts, every byte in one of them, every checksum right."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.formats.kit.plan import Digests, FilePlan, Payload, TensorBytes
from asyncckpt.model.checksums import Buffer, Chunking, crc32c
from asyncckpt.model.ranges import ByteRange
from asyncckpt.operations.writing import cutting as parts
from asyncckpt.operations.writing.cutting import DigestBook, PartCutter, Span, zeros


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

    def view(self, span: Span) -> Buffer:
        if span.tensor is not None:
            return memoryview(self.tensors[span.tensor])[span.start : span.start + span.size]
        if span.late is not None:
            return memoryview(self.late[span.late])[span.start : span.start + span.size]
        return b""

    def sent(self, span: Span) -> bytes:
        return bytes(span.size) if span.tensor is None and span.late is None else bytes(self.view(span))


@st.composite
def planned(draw: st.DrawFn) -> Planned:
    """Tensors and late regions in any order, of any size (0 too), with gaps of zeros between them."""
    kinds = draw(st.lists(st.sampled_from(["tensor", "late"]), max_size=8))
    payloads: list[Payload] = []
    regions: list[ByteRange] = []
    tensors: list[bytes] = []
    late: list[bytes] = []
    position = 0
    for kind in kinds:
        position += draw(st.integers(0, 40))
        data = draw(st.binary(max_size=90))
        if kind == "tensor":
            payloads.append(Payload(len(tensors), position, len(data)))
            tensors.append(data)
        else:
            regions.append(ByteRange(position, position + len(data)))
            late.append(data)
        position += len(data)
    size = position + draw(st.integers(0, 40))
    chunking = Chunking.of(draw(st.sampled_from([8, 16, 64])), [len(t) for t in tensors])

    def finish(digests: Digests, read: TensorBytes) -> Sequence[bytes]:
        return late

    return Planned(
        FilePlan("x", size, tuple(payloads), tuple(regions), chunking, finish, True), tensors, late
    )


@given(case=planned(), part_bytes=st.integers(1, 100))
def test_the_parts_make_up_the_file(case: Planned, part_bytes: int) -> None:
    cutter = PartCutter(case.plan, part_bytes)
    found = bytearray()
    for index in range(cutter.count):
        spans = list(cutter.spans(index))
        assert sum(span.size for span in spans) == cutter.size(index)
        assert all(span.size > 0 for span in spans)
        assert cutter.size(index) == part_bytes or index == cutter.count - 1
        assert cutter.is_late(index) == any(span.late is not None for span in spans)
        for span in spans:
            found += case.sent(span)
    assert found == case.file


@given(
    case=planned(),
    part_bytes=st.integers(1, 100),
    seed=st.integers(0, 1000),
    hash_again_below=st.sampled_from([0, 16 * 1024]),
)
def test_checksums_collected_in_any_order_are_those_of_the_bytes(
    case: Planned, part_bytes: int, seed: int, hash_again_below: int
) -> None:
    cutter = PartCutter(case.plan, part_bytes)
    book = DigestBook(case.plan.chunking, np.zeros(case.plan.chunking.count, np.uint32), crc32=True)
    order = list(range(cutter.count))
    random.Random(seed).shuffle(order)
    original, parts._HASH_AGAIN_BELOW = parts._HASH_AGAIN_BELOW, hash_again_below
    try:
        for index in order:
            spans = list(cutter.spans(index))
            start = index * part_bytes
            checksum = book.hash_part(spans, [case.view(span) for span in spans])
            assert checksum == crc32c(case.file[start : start + cutter.size(index)])
    finally:
        parts._HASH_AGAIN_BELOW = original
    digests = book.digests()
    assert list(digests.crc32) == [zlib.crc32(data) for data in case.tensors]
    step = case.plan.chunking.chunk_bytes
    expected = [crc32c(t[start : start + step]) for t in case.tensors for start in range(0, len(t), step)]
    assert digests.checksums.dtype == np.uint32
    assert digests.checksums.tolist() == expected


def test_no_crc32_where_it_is_not_asked_for() -> None:
    chunking = Chunking.of(4, [6])
    book = DigestBook(chunking, np.zeros(2, np.uint32), crc32=False)
    book.hash_part([Span(6, 0, 0)], [b"abcdef"])
    digests = book.digests()
    assert digests.crc32 == ()
    assert digests.checksums.tolist() == [crc32c(b"abcd"), crc32c(b"ef")]


def test_an_empty_file_has_no_parts() -> None:
    plan = FilePlan("x", 0, (), (), Chunking.of(8, []), lambda digests, read: ())
    assert PartCutter(plan, 8).count == 0


@given(size=st.integers(0, 3 * 1024 * 1024 + 5))
def test_zeros_are_as_many_as_asked_for_and_take_no_memory(size: int) -> None:
    views = list(zeros(size))
    assert sum(len(view) for view in views) == size
    assert all(view.obj is views[0].obj for view in views)
    assert not any(view[0] or view[-1] for view in views)
