"""METAGRAPH bundles that are compressed, encrypted or signed: round trips, wrong keys, bombs, tampering."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given

from asyncckpt.bundles import MetagraphFormat, verify_key_of
from asyncckpt.errors import (
    ChecksumMismatchError,
    DecryptionError,
    FormatError,
    LayoutError,
    LimitExceededError,
    SignatureError,
)
from asyncckpt.formats.base import content_of
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.plan import StreamPlan
from asyncckpt.formats.metagraph import bundle as bundle_reader
from asyncckpt.formats.metagraph import codec as metagraph_codec
from asyncckpt.formats.metagraph.codec import Codec
from asyncckpt.formats.metagraph.hashing import hash_of
from asyncckpt.formats.metagraph.header import Section, SectionType
from asyncckpt.formats.metagraph.metadata import decode_bundle_metadata
from asyncckpt.model.checksums import crc32c
from asyncckpt.model.metadata import CheckpointMetadata
from asyncckpt.model.shard import ShardData
from tests.formats.attacks import HOSTILE_NUMBERS, mutations, outcome
from tests.formats.metagraph.files import (
    Opened,
    made,
    parsed,
    read_back,
    resealed,
    with_header,
    with_same_crc,
)
from tests.formats.parser_steps import drive_noting
from tests.formats.state_files import from_views, read_all

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
SIGNING_KEY = b"\x07" * 32
VERIFY_KEY = verify_key_of(SIGNING_KEY)
INDEX, METADATA, STORE = 4, 5, 3
MIB = 1 << 20


def counting() -> Callable[[int], bytes]:
    """Random bytes that are not: each call gives the next number. Threads may call it in any order."""
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


SEALS: dict[str, dict[str, Any]] = {
    "compressed": {"compress": True},
    "encrypted": {"key": KEY},
    "signed": {"signing_key": SIGNING_KEY, "verify_key": VERIFY_KEY},
    "compressed, encrypted": {"compress": True, "key": KEY},
    "all": {"compress": True, "key": KEY, "signing_key": SIGNING_KEY, "verify_key": VERIFY_KEY},
}
SMALL = {"w": np.arange(40, dtype="<f4").reshape(5, 8), "e": np.zeros((0, 2)), "s": np.array(True)}


@pytest.mark.parametrize("seal", SEALS)
async def test_shards_come_back_as_they_were(seal: str) -> None:
    fmt = MetagraphFormat(**SEALS[seal])
    noise = np.random.default_rng(3).integers(0, 256, 2 * MIB + 5, dtype="u1")
    shards = [
        ShardData.from_arrays({**SMALL, "noise": noise}, rank=0),
        ShardData.from_arrays({"zeros": np.zeros(MIB, "<i4")}, rank=1),
    ]
    data = await fmt.serialize(shards, CheckpointMetadata(custom_fields={"x": 1}))
    again, metadata = await fmt.deserialize(data)
    assert metadata.custom_fields == {"x": 1}
    assert [shard.rank for shard in again] == [0, 1]
    for before, after in zip(shards, again, strict=True):
        for name, array in before.arrays().items():
            assert after.array(name).tobytes() == array.tobytes()
            assert after.array(name).shape == array.shape
    index = parsed(fmt, data)
    assert index.warnings == ()
    frames = {t.name: len(t.frames.extents) for t in index.tensors if t.frames is not None}
    assert frames == {"w": 1, "s": 1, "noise": 3, "zeros": 4}


def test_zeros_shrink_and_noise_does_not_grow_beyond_the_bound() -> None:
    fmt = MetagraphFormat(compress=True)
    assert len(made(fmt, {"z": np.zeros(4 * MIB, "u1")})) < 10_000
    noise = np.random.default_rng(0).integers(0, 256, MIB, dtype="u1")
    assert len(made(fmt, {"n": noise})) < MIB + 10_000


def test_all_that_can_be_hidden_is_hidden() -> None:
    data = made(MetagraphFormat(key=KEY, description="plain text"), {"secret.name": np.full(64, 7, "u1")})
    assert b"secret.name" not in data
    assert b"plain text" not in data
    assert b"\x07" * 16 not in data


def test_compressed_bundles_are_deterministic_and_encrypted_ones_are_not() -> None:
    assert made(MetagraphFormat(compress=True), SMALL) == made(MetagraphFormat(compress=True), SMALL)
    assert made(MetagraphFormat(key=KEY), SMALL) != made(MetagraphFormat(key=KEY), SMALL)
    one = {"w": np.arange(8)}
    fixed = [made(MetagraphFormat(key=KEY, random=counting()), one) for _ in range(2)]
    assert fixed[0] == fixed[1]


def test_opening_reads_two_runs_of_the_file() -> None:
    data = made(MetagraphFormat(key=KEY), {"n": np.zeros(2 * MIB, "u1")})
    steps = MetagraphFormat(key=KEY).parse(FileInfo("m.mgb", len(data)))
    _, asked = drive_noting(steps, data, len(data))
    store = Opened.of(data).rows[0]
    assert [start for start, _ in asked if start >= store.offset] == [-(-store.end // 64) * 64]


# -- keys --------------------------------------------------------------------------------------------------------


def test_a_missing_or_wrong_key_is_a_decryption_error() -> None:
    data = made(MetagraphFormat(key=KEY), SMALL)
    with pytest.raises(
        DecryptionError, match=r"is encrypted: open it with format=MetagraphFormat\(key=\.\.\.\)"
    ):
        parsed(MetagraphFormat(), data)
    with pytest.raises(DecryptionError, match="section METADATA can't be decrypted: the key is another one"):
        parsed(MetagraphFormat(key=OTHER_KEY), data)
    with pytest.raises(DecryptionError, match="32 bytes long"):
        MetagraphFormat(key=b"short")


@pytest.mark.parametrize("options", [{}, {"compress": True}, {"signing_key": SIGNING_KEY}])
def test_with_a_key_a_plain_bundle_is_refused(options: dict[str, Any]) -> None:
    """Whoever can write to the storage could put it there in the place of the encrypted one."""
    data = made(MetagraphFormat(**options), SMALL)
    line = "is not encrypted, though a key was given: .* allow_plain=True"
    with pytest.raises(DecryptionError, match=line):
        parsed(MetagraphFormat(key=KEY), data)
    with pytest.raises(DecryptionError, match=line):
        parsed(MetagraphFormat(key=KEY, verify_key=VERIFY_KEY), data)


def test_a_plain_bundle_is_read_with_a_key_where_that_is_allowed() -> None:
    fmt = MetagraphFormat(key=KEY, allow_plain=True)
    data = made(MetagraphFormat(), SMALL)
    assert parsed(fmt, data).warnings == ("a key was given, but the bundle is not encrypted",)
    assert read_back(fmt, data)["w"].tolist() == SMALL["w"].tolist()
    assert parsed(fmt, made(fmt, SMALL)).warnings == ()


def test_what_protects_a_bundle_stands_in_its_index() -> None:
    for options in SEALS.values():
        fmt = MetagraphFormat(**options)
        expected = [s for s, o in (("encrypted", "key"), ("signed", "signing_key")) if o in options]
        assert sorted(fmt.seals) == sorted(parsed(fmt, made(fmt, SMALL)).seals) == expected


def test_no_key_is_ever_shown() -> None:
    fmt = MetagraphFormat(key=KEY, signing_key=SIGNING_KEY, verify_key=VERIFY_KEY)
    data = made(fmt, SMALL)
    shown = [repr(fmt), str(vars(fmt)), repr(parsed(fmt, data))]
    with pytest.raises(FormatError) as caught:
        parsed(MetagraphFormat(key=OTHER_KEY, verify_key=VERIFY_KEY), data)
    shown += [str(caught.value), repr(caught.value)]
    for text in shown:
        for secret in (KEY, OTHER_KEY, SIGNING_KEY):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text


def test_frames_and_sections_cannot_change_places() -> None:
    fmt = MetagraphFormat(key=KEY, random=counting())
    data = made(fmt, {"a": np.zeros(MIB, "u1"), "b": np.ones(MIB, "u1")})
    stored = parsed(fmt, data).tensors
    assert stored[0].frames is not None
    assert stored[1].frames is not None
    codec = Codec(compress=False, key=KEY, bundle_id=Opened.of(data).header.bundle_id)
    first = stored[0].frames.extents[0]
    run = data[first.offset : first.end]
    assert codec.decode_frame(0, run, raw_size=MIB, what="frame 0") == bytes(MIB)
    with pytest.raises(DecryptionError, match="frame 1 can't be decrypted"):
        codec.decode_frame(1, run, raw_size=MIB, what="frame 1")
    other = Codec(compress=False, key=KEY, bundle_id=5)
    with pytest.raises(DecryptionError):
        other.decode_frame(0, run, raw_size=MIB, what="frame 0")
    with pytest.raises(DecryptionError, match="too short"):
        codec.decode_frame(0, run[:27], raw_size=MIB, what="frame 0")
    with pytest.raises(LayoutError, match="has 1048576 bytes, 5 were expected"):
        codec.decode_frame(0, run, raw_size=5, what="frame 0")


def test_a_bundle_cannot_pretend_that_it_is_not_encrypted() -> None:
    data = made(MetagraphFormat(key=KEY), SMALL)
    with pytest.raises(LayoutError, match="disagree on being encrypted"):
        parsed(MetagraphFormat(), with_header(data, flags=0))


# -- signatures --------------------------------------------------------------------------------------------------


def test_a_signature_is_checked_against_the_key_and_the_bundle() -> None:
    data = made(MetagraphFormat(signing_key=SIGNING_KEY), SMALL)
    assert read_back(MetagraphFormat(verify_key=VERIFY_KEY), data)["w"].tolist() == SMALL["w"].tolist()
    assert parsed(MetagraphFormat(), data).warnings[0].endswith("was not checked: give a verify_key")
    with pytest.raises(SignatureError, match="was signed with the key"):
        parsed(MetagraphFormat(verify_key=verify_key_of(KEY)), data)
    with pytest.raises(SignatureError, match="does not fit the bundle"):
        parsed(MetagraphFormat(verify_key=VERIFY_KEY), data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SignatureError, match="not signed, though a verify_key was given"):
        parsed(MetagraphFormat(verify_key=VERIFY_KEY), made(MetagraphFormat(), SMALL))
    with pytest.raises(SignatureError, match="32 raw bytes"):
        MetagraphFormat(signing_key=b"x")


def test_a_resealed_header_or_table_does_not_fit_the_signature() -> None:
    data = made(MetagraphFormat(signing_key=SIGNING_KEY), SMALL)
    fmt = MetagraphFormat(verify_key=VERIFY_KEY)
    with pytest.raises(SignatureError, match="changed after signing"):
        parsed(fmt, with_header(data, creation_time=1))
    opened = Opened.of(data)
    opened.sections[METADATA] = opened.sections[METADATA].replace(b"asyncckpt", b"asyncckpT", 1)
    with pytest.raises(SignatureError, match="changed after signing"):
        parsed(fmt, opened.sealed())


def test_a_signed_tensor_is_held_to_its_hash_not_only_to_its_crc() -> None:
    data = made(MetagraphFormat(signing_key=SIGNING_KEY), {"w": np.arange(40, dtype="<f4")})
    place = parsed(MetagraphFormat(), data).tensors[0].extents[0]
    before = data[place.offset : place.end]
    forged = with_same_crc(before)
    assert forged != before
    assert crc32c(forged) == crc32c(before)
    tampered = data[: place.offset] + forged + data[place.end :]
    assert read_back(MetagraphFormat(), tampered)["w"].tobytes() == forged
    with pytest.raises(ChecksumMismatchError, match="tensor 'w' is not the one that was signed"):
        read_back(MetagraphFormat(verify_key=VERIFY_KEY), tampered)


def test_the_flag_and_the_section_come_together() -> None:
    data = made(MetagraphFormat(signing_key=SIGNING_KEY), SMALL)
    with pytest.raises(LayoutError, match="SIGNED and a last section SIGNATURE"):
        parsed(MetagraphFormat(), with_header(data, flags=0))
    opened = Opened.of(data)
    opened.rows[-1] = replace(opened.rows[-1], checksum=3)
    with pytest.raises(LayoutError, match="SIGNATURE has a checksum"):
        parsed(MetagraphFormat(), opened.sealed())


# -- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("seal", SEALS)
def test_flipped_bytes_and_cuts_are_noticed(seal: str) -> None:
    fmt = MetagraphFormat(**SEALS[seal])
    data = made(fmt, SMALL)
    index = parsed(fmt, data)
    known = [*(index.header_extents or ()), *(e for t in index.tensors if t.frames for e in t.frames.extents)]
    for extent in known:
        for position in range(extent.offset, extent.end):
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            assert outcome(lambda data: read_all(fmt, data), bytes(damaged)) is None, position
    for size in range(0, len(data), 7):
        assert outcome(lambda data: read_all(fmt, data), data[:size]) is None, size


COMPRESSED = made(MetagraphFormat(compress=True), SMALL)


@given(mutations(COMPRESSED))
def test_mutations_are_noticed(damaged: bytes) -> None:
    fmt = MetagraphFormat(compress=True)
    found = outcome(lambda data: read_all(fmt, data), damaged)
    assert found is None or found == read_all(fmt, COMPRESSED)


ENCRYPTED = made(MetagraphFormat(key=KEY), SMALL)


@given(mutations(ENCRYPTED))
def test_mutations_of_encrypted_bundles_are_noticed(damaged: bytes) -> None:
    fmt = MetagraphFormat(key=KEY)
    found = outcome(lambda data: read_all(fmt, data), damaged)
    assert found is None or found == read_all(fmt, ENCRYPTED)


def unpacked(data: bytes) -> bytes:
    """A compressed bundle whose INDEX and METADATA are stored as they are, so that tests can edit them."""
    opened = Opened.of(data)
    expand = zstandard.ZstdDecompressor().decompress
    index, metadata = expand(opened.sections[INDEX]), expand(opened.sections[METADATA])
    metadata = metadata.replace(hash_of(opened.sections[INDEX]).hex().encode(), hash_of(index).hex().encode())
    opened.sections |= {INDEX: index, METADATA: metadata}
    opened.change_row(INDEX, flags=0, size=len(index))
    opened.change_row(METADATA, flags=0, size=len(metadata))
    end = max(row.end for row in opened.rows)
    opened.header = replace(opened.header, total_size=end)
    sealed = opened.sealed()
    assert len(sealed) == end
    return sealed


ONE = unpacked(made(MetagraphFormat(compress=True), {"w": np.arange(100, dtype="<i4")}))


def test_the_edited_bundle_is_valid_before_it_is_attacked() -> None:
    assert read_back(MetagraphFormat(), ONE)["w"].tolist() == list(range(100))


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_frames_with_right_checksums_are_refused(value: int) -> None:
    whole = read_all(MetagraphFormat(), ONE)
    fields = [(16, "<Q"), (24, "<Q"), (32, "<Q"), (40, "<I"), (44, "<I"), (48, "<Q"), (56, "<Q"), (64, "<Q")]
    for at, layout in fields:
        damaged = resealed(ONE, INDEX, at, layout, value)
        found = outcome(lambda data: read_all(MetagraphFormat(), data), damaged)
        assert found is None or found == whole, (at, value)


def test_a_frame_that_grows_to_more_than_its_tensor_has_is_refused() -> None:
    codec = Codec(compress=True, key=None)
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    assert len(bomb) < 16_384
    with pytest.raises(LayoutError, match="says that it grows to 67108864 bytes, 400 were expected"):
        codec.decode_frame(0, bomb, raw_size=400, what="frame 0")
    with pytest.raises(LayoutError, match="not valid zstd"):
        codec.decode_frame(0, b"junk", raw_size=400, what="frame 0")
    lying = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    with pytest.raises(LayoutError, match="grows to"):
        codec.decode_frame(0, lying, raw_size=400, what="frame 0")
    with pytest.raises(LayoutError, match="not valid zstd"):
        codec.decode_frame(0, zstandard.compress(bytes(400)) + b"more", raw_size=400, what="frame 0")


def test_a_section_that_grows_without_end_is_refused() -> None:
    codec = Codec(compress=True, key=None)
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    row = Section(SectionType.METADATA, 1, 0, len(bomb), 0, 1)
    with pytest.raises(LimitExceededError, match="would grow from"):
        codec.decode_section(row, memoryview(bomb))
    with pytest.raises(LayoutError, match="section METADATA is not valid zstd"):
        codec.decode_section(row, memoryview(b"nothing"))


def test_a_section_that_would_shrink_too_well_is_stored_as_it_is() -> None:
    fmt = MetagraphFormat(compress=True)
    metadata = CheckpointMetadata(custom_fields={"zeros": [0] * 2 * MIB})
    data = made(fmt, {}, metadata)
    flags = {row.type: row.flags for row in Opened.of(data).rows}
    assert (flags[METADATA], flags[STORE]) == (0, 1)
    assert parsed(fmt, data).metadata.custom_fields == metadata.custom_fields


def test_memory_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Greedy:
        def decompress(self, *_: object, **__: object) -> bytes:
            raise MemoryError

    monkeypatch.setattr(metagraph_codec.Codec, "_decompressor", lambda self: Greedy())
    codec = Codec(compress=True, key=None)
    with pytest.raises(LimitExceededError, match="frame 0 needs 400 bytes of memory"):
        codec.decode_frame(0, zstandard.compress(bytes(400)), raw_size=400, what="frame 0")


# -- the stream --------------------------------------------------------------------------------------------------


def stream_of(tensors: int) -> tuple[StreamPlan, Iterator[bytes]]:
    content, views = content_of(
        [ShardData.from_arrays({f"t{i}": np.zeros(MIB, "u1") for i in range(tensors)})], CheckpointMetadata()
    )
    (plan,) = MetagraphFormat(compress=True).plan(content, name="m.mgb")
    assert isinstance(plan, StreamPlan)
    return plan, plan.chunks(from_views(views))


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("metagraph")]


def test_its_threads_end_when_the_stream_is_closed_half_way() -> None:
    _, chunks = stream_of(40)
    for _ in range(3):
        next(chunks)
    assert own_threads()
    chunks.close()  # type: ignore[attr-defined]
    assert not own_threads()


def test_a_source_that_fails_fails_the_stream_and_ends_its_threads() -> None:
    content, _ = content_of([ShardData.from_arrays({"a": np.zeros(8 * MIB, "u1")})], CheckpointMetadata())
    (plan,) = MetagraphFormat(compress=True).plan(content, name="m.mgb")
    assert isinstance(plan, StreamPlan)

    def read(tensor: int, start: int, end: int) -> bytes:
        if start >= 6 * MIB:
            raise OSError("gone")
        return bytes(end - start)

    with pytest.raises(OSError, match="gone"):
        list(plan.chunks(read))
    assert not own_threads()
    with pytest.raises(LayoutError, match="known only when all of it was made"):
        plan.head()


def test_a_stream_can_be_made_again() -> None:
    content, views = content_of([ShardData.from_arrays(SMALL)], CheckpointMetadata())
    (plan,) = MetagraphFormat(compress=True).plan(content, name="m.mgb")
    assert isinstance(plan, StreamPlan)
    bodies = [b"".join(plan.chunks(from_views(views))) + plan.head() for _ in range(2)]
    assert bodies[0] == bodies[1]


# -- bombs -------------------------------------------------------------------------------------------------------


def test_a_bundle_of_others_may_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = MetagraphFormat(compress=True)
    data = made(fmt, {"zeros": np.zeros(4 * MIB, "u1")})
    monkeypatch.setattr(metagraph_codec, "_FREE_TENSOR_BYTES", MIB)
    assert parsed(fmt, data).tensors[0].metadata.size == 4 * MIB  # ours: its block vouches for the size
    decode = decode_bundle_metadata
    monkeypatch.setattr(
        bundle_reader, "decode_bundle_metadata", lambda data: replace(decode(data), block=None)
    )
    with pytest.raises(LimitExceededError, match=rf"would grow to {4 * MIB}, beyond 1:200"):
        parsed(fmt, data)
    monkeypatch.setattr(metagraph_codec, "_FREE_TENSOR_BYTES", 4 * MIB)
    assert parsed(fmt, data).tensors[0].metadata.size == 4 * MIB
