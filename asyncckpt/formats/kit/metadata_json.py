"""The checkpoint's metadata as JSON, in the camelCase of the first format's documents.

Read by MLCP and its companions, and kept by the other formats inside their `asyncckpt` block. Members that this
release does not know survive a round trip; the original's `shardingStrategy` (a copy of `sharding`) and nulls are
read and not written. What JSON can't say exactly is in the member `asyncckptExact` (see beyond_json.py); where the
document belongs to another format's readers, that list is in the block instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from asyncckpt.errors import LayoutError, UnsupportedStateError
from asyncckpt.formats.kit.strict_json import dump_json, load_json
from asyncckpt.formats.kit.tensors import decode_tensors, encode_tensors
from asyncckpt.model.metadata import (
    CheckpointMetadata,
    Json,
    ShardingMetadata,
    ShardMetadata,
    TensorMetadata,
    TrainingMetadata,
)
from asyncckpt.model.state.beyond_json import JsonWriter, restore_exact
from asyncckpt.model.tensors import TensorTable

_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_MAX_INT = 1 << 63
EXACT_MEMBER = "asyncckptExact"
"""The values that the JSON beside it does not keep exactly."""
T = TypeVar("T")


class MetadataSerializer:
    """Turns metadata into JSON text and back, and checks what it reads."""

    @staticmethod
    def serialize(metadata: CheckpointMetadata) -> str:
        """Compact JSON. Raises UnsupportedStateError, with its place, for a value that can't be kept."""
        return dump_json(encode_metadata(metadata))

    @staticmethod
    def deserialize(text: str | bytes | memoryview) -> CheckpointMetadata:
        """Raises LayoutError for text that is not metadata."""
        data = text.encode() if isinstance(text, str) else text
        return decode_metadata(load_json(data, "the metadata"))

    @staticmethod
    def validate(metadata: CheckpointMetadata) -> list[str]:
        """Everything that contradicts itself, one line each; empty when all is well."""
        problems = []
        if metadata.world_size < 1:
            problems.append(f"worldSize is {metadata.world_size}, at least 1 is needed")
        if not 0 <= metadata.ddp_rank < max(1, metadata.world_size):
            problems.append(f"ddpRank is {metadata.ddp_rank}, worldSize {metadata.world_size}")
        ranks = [shard.rank for shard in metadata.shards]
        if len(set(ranks)) != len(ranks):
            problems.append(f"two shards have the same rank: {ranks}")
        sharding = metadata.sharding
        if sharding and sharding.shard_count and metadata.shards and sharding.shard_count != len(ranks):
            problems.append(f"shardCount is {sharding.shard_count}, there are {len(ranks)} shards")
        names: set[str] = set()
        for tensor in (t for shard in metadata.shards for t in shard.tensors):
            if tensor.name in names:
                problems.append(f"two tensors have the name {tensor.name!r}")
            names.add(tensor.name)
        return problems


def encode_metadata(metadata: CheckpointMetadata, *, shards: bool = True) -> dict[str, Json]:
    """The metadata as JSON members, in the order of the original; None and empty members are left out.

    `customFields` comes last, so that a format can splice its own last field in. Raises UnsupportedStateError, with its
    place, for a value that can't be kept.
    """
    writer = JsonWriter()
    members: dict[str, Json] = {"version": _text(metadata.version, "metadata.version")}
    if metadata.timestamp is not None:
        members["timestamp"] = encode_timestamp(metadata.timestamp)
    members["worldSize"] = _integer(metadata.world_size, "metadata.world_size")
    members["ddpRank"] = _integer(metadata.ddp_rank, "metadata.ddp_rank")
    if metadata.sharding is not None:
        members["sharding"] = _encode_sharding(metadata.sharding, writer)
    if shards:
        members["shards"] = [_encode_shard(shard, at, writer) for at, shard in enumerate(metadata.shards)]
    if metadata.training is not None:
        members["training"] = _encode_training(metadata.training, writer)
    members["format"] = _text(metadata.format, "metadata.format")
    if EXACT_MEMBER in metadata.extra:
        raise UnsupportedStateError(f"metadata.extra: the member {EXACT_MEMBER!r} is asyncckpt's own")
    members |= writer.mapping(metadata.extra, (), "metadata.extra")
    custom = writer.mapping(metadata.custom_fields, ("customFields",), "metadata.custom_fields")
    if writer.exact:
        members[EXACT_MEMBER] = writer.exact
    members["customFields"] = custom
    return members


def _encode_shard(shard: ShardMetadata, at: int, writer: JsonWriter) -> dict[str, Json]:
    shown = f"metadata.shards[{at}]"
    return {
        "rank": _integer(shard.rank, f"{shown}.rank"),
        "filePath": _text(shard.file_path, f"{shown}.file_path"),
        "fileSize": _integer(shard.file_size, f"{shown}.file_size"),
        "tensors": encode_tensors(shard.tensors),
        "checksum": _text(shard.checksum, f"{shown}.checksum"),
        **writer.mapping(shard.extra, ("shards", at), f"{shown}.extra"),
    }


def _encode_sharding(sharding: ShardingMetadata, writer: JsonWriter) -> dict[str, Json]:
    shown = "metadata.sharding"
    return {
        "strategy": _text(sharding.strategy, f"{shown}.strategy"),
        "shardCount": _integer(sharding.shard_count, f"{shown}.shard_count"),
        "precision": _text(sharding.precision, f"{shown}.precision"),
        "strategySpecificInfo": writer.mapping(
            sharding.strategy_specific_info,
            ("sharding", "strategySpecificInfo"),
            f"{shown}.strategy_specific_info",
        ),
        **writer.mapping(sharding.extra, ("sharding",), f"{shown}.extra"),
    }


def _encode_training(training: TrainingMetadata, writer: JsonWriter) -> dict[str, Json]:
    shown = "metadata.training"
    rate = _number(training.learning_rate, f"{shown}.learning_rate")
    return {
        "epoch": _integer(training.epoch, f"{shown}.epoch"),
        "step": _integer(training.step, f"{shown}.step"),
        "learningRate": writer.value(rate, ("training", "learningRate"), f"{shown}.learning_rate"),
        "optimizerType": _text(training.optimizer_type, f"{shown}.optimizer_type"),
        "optimizerState": writer.mapping(
            training.optimizer_state, ("training", "optimizerState"), f"{shown}.optimizer_state"
        ),
        **writer.mapping(training.extra, ("training",), f"{shown}.extra"),
    }


def _integer(value: Any, shown: str) -> int:
    """An integer as the original has it; numpy's become Python's."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UnsupportedStateError(f"{shown}: must be an int, not {str(value)[:40]!r}")
    if not -_MAX_INT <= value < _MAX_INT:
        raise UnsupportedStateError(f"{shown}: {int(value):#x} is beyond 64 bits")
    return int(value)


def _number(value: Any, shown: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise UnsupportedStateError(f"{shown}: must be a float, not {str(value)[:40]!r}")
    try:
        return float(value)
    except OverflowError:
        raise UnsupportedStateError(f"{shown}: an integer beyond any float") from None


def _text(value: Any, shown: str) -> str:
    if not isinstance(value, str):
        raise UnsupportedStateError(f"{shown}: must be a str, not {str(value)[:40]!r}")
    return str.__str__(value)


def encode_timestamp(moment: datetime) -> str:
    """ISO 8601 with the offset of the time zone, or a Z as .NET writes it. A naive moment counts as UTC.

    Raises UnsupportedStateError for what is not a datetime, and for one that UTC has no year for.
    """
    if not isinstance(moment, datetime):
        raise UnsupportedStateError(f"metadata.timestamp: must be a datetime, not a {type(moment).__name__}")
    offset = moment.utcoffset() or timedelta(0)
    try:
        in_utc = moment.replace(tzinfo=None) - offset
    except OverflowError:
        raise UnsupportedStateError(f"metadata.timestamp: {moment} is beyond the calendar in UTC") from None
    if offset % timedelta(minutes=1):
        # No reader takes seconds here, and no time zone has had any for decades.
        moment, offset = in_utc, timedelta(0)
    text = moment.replace(tzinfo=None).isoformat()
    if not offset:
        return text + "Z"
    minutes = abs(offset) // timedelta(minutes=1)
    return f"{text}{'+' if offset > timedelta(0) else '-'}{minutes // 60:02d}:{minutes % 60:02d}"


def decode_metadata(value: Json) -> CheckpointMetadata:
    """Takes the lists of tensors out of `value`, and puts exact values into it.

    Raises LayoutError for members of the wrong type.
    """
    if isinstance(value, dict) and EXACT_MEMBER in value:
        value = dict(value)
        restore_exact(value, value.pop(EXACT_MEMBER))
    members = _Members(value, "the metadata")
    sharding = members.take("sharding", dict, None) or members.take("shardingStrategy", dict, None)
    members.take("shardingStrategy", dict, None)
    training = members.take("training", dict, None)
    timestamp = members.take("timestamp", str, None)
    return CheckpointMetadata(
        version=members.take("version", str, ""),
        timestamp=None if timestamp is None else decode_timestamp(timestamp),
        world_size=members.integer("worldSize", 1),
        ddp_rank=members.integer("ddpRank", 0),
        sharding=None if sharding is None else _decode_sharding(sharding),
        shards=tuple(_decode_shard(shard) for shard in members.take("shards", list, [])),
        training=None if training is None else _decode_training(training),
        custom_fields=members.take("customFields", dict, {}),
        format=members.take("format", str, ""),
        extra=members.rest(),
    )


def decode_timestamp(text: str) -> datetime:
    """The moment, with the offset that it was written with; without one it is UTC.

    .NET writes up to seven fractional digits; beyond microseconds they are cut. Raises LayoutError.
    """
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        seconds, fraction, zone = match.groups()
        zone = "+00:00" if zone in (None, "Z") else zone
        moment = datetime.fromisoformat(f"{seconds}.{(fraction or '0')[:6]:0<6}{zone}")
        moment.astimezone(UTC)  # raises for what is not a moment of any calendar
        return moment
    except (ValueError, OverflowError):
        raise LayoutError(f"timestamp {text[:60]!r} is not ISO 8601") from None


def _decode_sharding(value: Json) -> ShardingMetadata:
    members = _Members(value, "sharding")
    return ShardingMetadata(
        strategy=members.take("strategy", str, ""),
        shard_count=members.integer("shardCount", 0),
        precision=members.take("precision", str, ""),
        strategy_specific_info=members.take("strategySpecificInfo", dict, {}),
        extra=members.rest(),
    )


def _decode_training(value: Json) -> TrainingMetadata:
    members = _Members(value, "training")
    rate = members.take("learningRate", (int, float), 0.0)
    return TrainingMetadata(
        epoch=members.integer("epoch", 0),
        step=members.integer("step", 0),
        learning_rate=_decode_rate(rate),
        optimizer_type=members.take("optimizerType", str, ""),
        optimizer_state=members.take("optimizerState", dict, {}),
        extra=members.rest(),
    )


def _decode_rate(rate: float) -> float:
    try:
        return float(rate)
    except OverflowError:
        raise LayoutError("'learningRate' of training is an integer beyond any float") from None


def _decode_shard(value: Json) -> ShardMetadata:
    members = _Members(value, "a shard")
    return ShardMetadata(
        rank=members.integer("rank", 0),
        file_path=members.take("filePath", str, ""),
        file_size=members.integer("fileSize", 0),
        tensors=decode_tensors(members.take("tensors", list, [])),
        checksum=members.take("checksum", str, ""),
        extra=members.rest(),
    )


class _Members:
    """The members of a JSON object, taken one by one; what is left is unknown. Null counts as absent."""

    def __init__(self, value: Json, what: str) -> None:
        if not isinstance(value, dict):
            raise LayoutError(f"{what} is {type(value).__name__}, not an object")
        self._members: dict[str, Json] = dict(value)
        self._what = what

    def take(self, name: str, kind: type[Any] | tuple[type[Any], ...], default: Any) -> Any:
        value = self._members.pop(name, None)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise LayoutError(f"{name!r} of {self._what} is {type(value).__name__}")
        return value

    def integer(self, name: str, default: int) -> int:
        value: int = self.take(name, int, default)
        if not -_MAX_INT <= value < _MAX_INT:
            raise LayoutError(f"{name!r} of {self._what} is {value}, beyond 64 bits")
        return value

    def rest(self) -> dict[str, Json]:
        return {name: value for name, value in self._members.items() if value is not None}


def with_shards(
    metadata: CheckpointMetadata,
    tensors: Sequence[Sequence[TensorMetadata]],
) -> CheckpointMetadata:
    """The metadata, with the tensors that are really there. Raises LayoutError when the shards are others."""
    given = metadata.shards or tuple(ShardMetadata(rank=rank) for rank in range(len(tensors)))
    if len(given) != len(tensors):
        raise LayoutError(f"the metadata lists {len(given)} shards, {len(tensors)} are to be written")
    shards = tuple(
        replace(shard, tensors=own if isinstance(own, TensorTable) else tuple(own))
        for shard, own in zip(given, tensors, strict=True)
    )
    return replace(metadata, shards=shards)
