"""Plans are values: what a file says of its tensors is known without reading it, and no file waits for another's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from asyncckpt.formats import (
    FileInfo,
    FilePlan,
    ICheckpointFormat,
    MetagraphFormat,
    MlcpSetFormat,
    SdnbFormat,
    SdzFormat,
    StoredTensor,
    StreamPlan,
)
from asyncckpt.formats.kit.decode import gather
from asyncckpt.formats.kit.encode import digest_content, format_digest, render
from asyncckpt.formats.kit.steps import parse_bytes
from tests.formats.state_files import content_of_state, from_views

STATE = {
    "small": np.arange(7, dtype=np.float32),
    "none": np.zeros((0, 2), np.float32),
    "large": np.arange(600_000, dtype=np.int32),
    "last": np.ones(5, np.float16),
}
STREAMS = {
    "sdz": SdzFormat(),
    "sdz, all appended": SdzFormat(inline_below=0),
    "sdz, shards": SdzFormat(shards=3),
    "metagraph, compressed": MetagraphFormat(compress=True),
    "metagraph, encrypted": MetagraphFormat(key=bytes(32)),
    "metagraph, all": MetagraphFormat(
        compress=True, key=bytes(32), signing_key=bytes(32), verify_key=bytes(32)
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_knows_where_its_tensors_are_when_it_is_made(name: str) -> None:
    format = STREAMS[name]
    content, views = content_of_state(STATE)
    (plan,) = format.plan(content, name=f"x{format.extension}")
    assert isinstance(plan, StreamPlan)
    body = b"".join(plan.chunks(from_views(views)))
    data = memoryview(plan.head() + body)
    known = plan.stored()
    found = parse_bytes(_parser(format).parse(FileInfo(plan.name, len(data))), data).tensors
    assert [described(stored, data) for stored in known] == [described(stored, data) for stored in found]


def _parser(format: ICheckpointFormat) -> ICheckpointFormat:
    # The signature is another one's: nobody asks for it here.
    return MetagraphFormat(key=bytes(32)) if format is STREAMS["metagraph, all"] else format


def described(stored: StoredTensor, data: memoryview) -> object:
    sums = None if stored.checksums is None else stored.checksums.tolist()
    raw = bytes(gather(stored, lambda extent: data[extent.offset : extent.end]))
    return (stored.metadata, stored.runs, sums, stored.chunk_bytes, stored.order, raw)


def test_a_stream_that_is_made_twice_knows_the_second_one() -> None:
    content, views = content_of_state(STATE)
    (plan,) = MetagraphFormat(compress=True).plan(content, name="x.mgb")
    assert isinstance(plan, StreamPlan)
    first = list(plan.chunks(from_views(views)))
    once = [stored.runs for stored in plan.stored()]
    assert list(plan.chunks(from_views(views))) == first
    assert [stored.runs for stored in plan.stored()] == once


@pytest.mark.parametrize("shards", [None, 2], ids=["one file", "a set"])
def test_the_tensors_inside_a_graph_are_named(shards: int | None) -> None:
    content, views = content_of_state(STATE)
    read = from_views(views)
    plans = SdnbFormat(inline_below=100, shards=shards).plan(content, name="x.sdnb")
    inside = set()
    for plan in plans:
        assert isinstance(plan, FilePlan)
        data = render(plan, read)
        for payload in plan.inline:
            assert data[payload.offset : payload.end] == bytes(read(payload.tensor, 0, payload.size))
            inside.add(content.tensors[payload.tensor].name)
    assert inside == {"small", "none", "last"}


def test_the_leader_of_a_set_is_handed_the_digests_of_its_shards() -> None:
    content, views = content_of_state(STATE)
    read = from_views(views)
    *shards, leader = MlcpSetFormat().plan(content, name="x.metadata.json")
    assert isinstance(leader, FilePlan)
    assert all(isinstance(plan, FilePlan) for plan in shards)
    digests = digest_content(leader.chunking, read)
    earlier = {plan.name: format_digest(plan, read) for plan in shards if isinstance(plan, FilePlan)}

    def refuse(tensor: int, start: int, end: int) -> bytes:
        raise AssertionError("the leader has no tensor of its own to read")

    handed = leader.finish(replace(digests, earlier=earlier), refuse)
    assert handed == leader.finish(digests, read)
