"""What the fuzzer starts from: small files of our own with various options, and the golden files."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from asyncckpt.bundles import MetagraphFormat, base_bundle
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.mlcp.set import MlcpSetFormat
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdnb.graph.build import VariableSpec, build_graph
from asyncckpt.formats.sdnb.java_manifest import ArrayRange, encode_manifest
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.metadata import CheckpointMetadata, ShardingMetadata, TrainingMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.model.state.flatten import flatten
from asyncckpt.operations.tables.reader import Field, TypeId, array_field, open_table_writer
from asyncckpt.storage.memory import MemoryStorage
from fuzz.files import join
from fuzz.targets import KEY

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"
_GOLDEN_FOLDERS = {
    "mlcp": ("mlcp/*.checkpoint",),
    "safetensors": ("safetensors/*.safetensors",),
    "gptrs": ("gptrschk/*.gptrschk", "gptrsten/*.gptrsten"),
    "mldf": ("mldf/*.mldf",),
    "mldf_table": ("mldf/*.mldf",),
    "sdnb": ("sdnb/*.sdnb",),
    "sdz": ("sdnb/*.sdz", "sdz/*.sdz"),
    "zip_directory": ("sdnb/*.sdz", "sdz/*.sdz"),
    "metagraph": ("metagraph/*.mgb",),
    "shard_header": ("mlcp/*.shard",),
    "metadata_json": ("mlcp/*.metadata.json",),
}
_GOLDEN_SETS = {
    "mlcp_set": ("mlcp/ckpt.metadata.json", "mlcp/ckpt_shard_*.shard"),
    "safetensors_set": ("safetensors/set/*.index.json", "safetensors/set/*.safetensors"),
    "sdnb": ("sdnb/sharded/*.shard0-of-3.sdnb", "sdnb/sharded/*.shard[12]-of-3.sdnb"),
}


def states() -> list[Any]:
    """Small states with a bit of everything that a format can hold."""
    shared = np.arange(4, dtype="<f4").reshape(2, 2)
    return [
        {"w": np.arange(3, dtype="<f4")},
        {
            "model": OrderedDict(weight=shared, tied=shared, bias=np.array([1, -2], "<i4")),
            "optimizer": {0: {"step": 7}, "lr": 1e-3},
            "empty": np.zeros((0, 3), "<f4"),
            "scalar": np.array(2.5, "<f4"),
            "plain": (None, True, "text", b"\x00\xff", float("inf"), 2**70, [1.5, -0.0]),
        },
        {},
    ]


def metadata() -> CheckpointMetadata:
    return CheckpointMetadata(
        timestamp=MOMENT,
        sharding=ShardingMetadata(strategy="fsdp", shard_count=1, precision="fp16"),
        training=TrainingMetadata(epoch=2, step=30, learning_rate=0.5, optimizer_type="adam"),
        custom_fields={"note": "größe", "list": [1, {"a": None}]},
    )


def files_of(
    format: ICheckpointFormat, state: Any, *, shards: int = 1, about: CheckpointMetadata | None = None
) -> list[bytes]:
    """The files that saving the state makes: the one that is opened first, then the others in order."""
    flat = flatten(state)
    shard = ShardData.from_arrays(flat.tensors | flat.payloads)
    views = shard.views
    counts = [len(views) // shards] * (shards - 1)
    content = Content(
        shard.tensor_info, (*counts, len(views) - sum(counts)), about or CheckpointMetadata(), flat.tree
    )
    files = []
    for plan in format.plan(content, name=f"model{format.extension}"):
        files.append(render(plan, lambda tensor, start, end: views[tensor][start:end]))
    return [files[-1], *files[:-1]]


def _formats() -> Iterator[tuple[str, ICheckpointFormat]]:
    yield "mlcp", MlcpFormat()
    yield "mlcp_set", MlcpSetFormat()
    yield "safetensors", SafetensorsFormat()
    yield "safetensors_set", HuggingFaceSetFormat(max_file_bytes=16)
    yield "gptrs", GptrsCheckpointFormat()
    yield "gptrs", GptrsTensorsFormat()
    yield "mldf", MldfFormat()
    yield "sdnb", SdnbFormat(clock=lambda: MOMENT)
    yield "sdnb", SdnbFormat(clock=lambda: MOMENT, inline_below=0)
    yield "sdnb", SdnbFormat(clock=lambda: MOMENT, shards=2)
    yield "sdz", SdzFormat(clock=lambda: MOMENT)
    yield "sdz", SdzFormat(clock=lambda: MOMENT, compress=False, inline_below=0)
    yield "sdz", SdzFormat(clock=lambda: MOMENT, shards=2)
    yield "metagraph", MetagraphFormat()
    yield "metagraph", MetagraphFormat(compress=True)
    yield "metagraph", MetagraphFormat(key=KEY)
    yield "metagraph", MetagraphFormat(compress=True, key=KEY, signing_key=KEY)


def format_seeds() -> Iterator[tuple[str, bytes]]:
    for target, format in _formats():
        for state in states():
            yield target, join(files_of(format, state))
        yield target, join(files_of(format, states()[1], shards=2, about=metadata()))
    yield "metagraph", join(_delta())


def _delta() -> list[bytes]:
    state = {"a": np.arange(4, dtype="<f4"), "b": np.arange(5, dtype="<i4")}
    (base,) = files_of(MetagraphFormat(), state)
    index = parse_bytes(MetagraphFormat().parse(FileInfo("base.mgb", len(base))), memoryview(base))
    changed = {**state, "b": np.arange(1, 6, dtype="<i4")}
    (delta,) = files_of(MetagraphFormat(base=base_bundle(index, "base.mgb")), changed)
    return [delta, base]


def side_seeds() -> Iterator[tuple[str, bytes]]:
    """For the targets that are parts of formats."""
    yield "java_manifest", encode_manifest({})
    yield "java_manifest", encode_manifest({"w": ArrayRange(100, 12), "größe": ArrayRange(112, 12)})
    specs = [VariableSpec("w", "float32", (2, 3), 24), VariableSpec("b", "int32", (0,))]
    updater = {"w": {"m": np.zeros((2, 3), "<f4")}}
    yield "flatgraph", build_graph(specs, [("a", "b"), ("c", "größe")], updater_state=updater).data
    for state in states():
        yield "structure", json.dumps(flatten(state).tree).encode()
    yield "structure", b'{"d":["a",{"i":"12"},"b",[null,true,1,"s",{"f":"inf"},{"t":"w","k":"torch"}]]}'
    yield (
        "block",
        (
            b'{"block":1,"at":"0000000000000100","outside":"00000000","chunk":1048576,"crc32c":"00112233",'
            b'"tree":{"d":[]},"boxes":{"w":[[4,6],[2,0]]},"metadata":{"version":"1"}}'
        ),
    )


async def _table(fields: list[Field], samples: list[Mapping[str, Any]]) -> bytes:
    storage = MemoryStorage()
    async with open_table_writer((storage, "t.mldf"), fields, page_bytes=64) as table:
        for sample in samples:
            await table.write(sample)
    return await storage.read("t.mldf")


def table_seeds() -> Iterator[tuple[str, bytes]]:
    plain = [Field("n", TypeId.INT), Field("f", TypeId.FLOAT), Field("t", TypeId.TEXT_RAW)]
    rows: list[Mapping[str, Any]] = [{"n": 3, "f": 0.5, "t": "größe"}, {"n": -1, "f": 2.0}]
    yield "mldf_table", asyncio.run(_table(plain, rows))
    rich = [array_field("x", "float32", (-1, 2)), Field("j", TypeId.JSON), Field("b" * 70, TypeId.BYTES)]
    yield (
        "mldf_table",
        asyncio.run(_table(rich, [{"x": np.zeros((3, 2), "<f4"), "j": {"a": [1]}, "b" * 70: b"\0\1"}])),
    )


def golden_seeds() -> Iterator[tuple[str, bytes]]:
    for target, patterns in _GOLDEN_FOLDERS.items():
        for pattern in patterns:
            for path in sorted(GOLDEN.glob(pattern)):
                yield target, path.read_bytes()
    for target, (leader, others) in _GOLDEN_SETS.items():
        for path in sorted(GOLDEN.glob(leader)):
            yield target, join([path.read_bytes(), *(p.read_bytes() for p in sorted(GOLDEN.glob(others)))])


def seeds(target: str) -> list[bytes]:
    """The seeds of a target; the sniffer begins with those of all."""
    every = [*format_seeds(), *side_seeds(), *table_seeds(), *golden_seeds()]
    if target == "sniff":
        return [data[:64] for _, data in every]
    if target == "zip_directory":
        return [data for name, data in every if name in (target, "sdz")]
    return [data for name, data in every if name == target]
