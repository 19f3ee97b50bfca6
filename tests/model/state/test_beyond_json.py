"""Metadata values that JSON has no word for: kept to the bit beside strict JSON, or refused with their place."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt import CheckpointMetadata, MetadataSerializer, ShardMetadata, TrainingMetadata
from asyncckpt.errors import LayoutError, UnsupportedStateError
from asyncckpt.formats.kit.metadata_json import decode_metadata, encode_metadata
from asyncckpt.model.state.beyond_json import JsonWriter, restore_exact
from asyncckpt.model.state.plain import decode_plain
from asyncckpt.testing.strategies import assert_identical, keys, numpy_scalars, plain_values


def there_and_back(value: Any) -> Any:
    """The value, after it was text that the strictest reader takes."""
    writer = JsonWriter()
    text = json.dumps([writer.value({"v": value}, ("doc",), "metadata"), writer.exact], allow_nan=False)
    document, exact = json.loads(text)
    found = {"doc": document}
    restore_exact(found, exact)
    return found["doc"]["v"]


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(keys(), children, max_size=3),
        st.dictionaries(keys(), children, max_size=3).map(OrderedDict),
        # What looks like a node of the tree, and is none.
        st.dictionaries(st.sampled_from(("f", "g", "u", "t", "d", "i")), children, max_size=1),
    )


@given(st.recursive(st.one_of(plain_values(), numpy_scalars()), _containers, max_leaves=12))
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    assert_identical(there_and_back(value), value)


@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(-1e9, 1e9), st.text("ab")
        ),
        lambda children: st.one_of(
            st.lists(children, max_size=3), st.dictionaries(st.text("ab"), children, max_size=3)
        ),
    )
)
def test_what_is_json_stands_for_itself(value: Any) -> None:
    writer = JsonWriter()
    assert writer.value(value, (), "metadata") == value
    assert writer.exact == []


def test_what_stands_in_the_json() -> None:
    values = [
        math.nan,
        math.inf,
        -math.inf,
        np.float32(0.5),
        np.int8(3),
        np.bool_(True),
        (1, 2),
        b"ab",
        1 << 2000,
    ]
    nearest = JsonWriter().value(values, (), "metadata")
    assert nearest == ["NaN", "Infinity", "-Infinity", 0.5, 3, True, [1, 2], "YWI=", hex(1 << 2000)]
    assert JsonWriter().value({1: {"a": np.datetime64("2026-01-02")}}, (), "m") == {"1": {"a": "2026-01-02"}}


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "metadata['a'][1]: a value of type object can't be kept"),
        (np.zeros(2), "arrays belong into the state"),
        (np.longdouble(1), "metadata['a'][1]: dtype"),
        ({1.5: 1}, "metadata['a'][1]: the key 1.5 is a float"),
        (Colour.RED, "Colour is a subclass of int"),
        (Point(1), "Point is a subclass of tuple"),
        (defaultdict(int), "defaultdict is a subclass of dict"),
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
        ({"set": {1}}, "metadata['a'][1]['set']: a value of type set"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(value: Any, says: str) -> None:
    with pytest.raises(UnsupportedStateError) as caught:
        JsonWriter().mapping({"a": [0, value]}, (), "metadata")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cycles_and_depth_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    with pytest.raises(UnsupportedStateError, match="a cycle"):
        JsonWriter().value(cycle, (), "metadata")
    deep: list[Any] = []
    for _ in range(1_000):
        deep = [deep]
    with pytest.raises(UnsupportedStateError, match="deeper than 200"):
        JsonWriter().value(deep, (), "metadata")


def test_a_mapping_has_names() -> None:
    assert JsonWriter().mapping(MappingProxyType({"a": 1}), (), "m") == {"a": 1}
    with pytest.raises(UnsupportedStateError, match=r"metadata.extra: the key 1 is a int; it must be a str"):
        encode_metadata(CheckpointMetadata(extra={1: 2}))  # type: ignore[dict-item]
    with pytest.raises(UnsupportedStateError, match=r"metadata.custom_fields: must be a mapping, not a list"):
        encode_metadata(CheckpointMetadata(custom_fields=[1]))  # type: ignore[arg-type]


# --- the fields that have a type ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        (CheckpointMetadata(world_size="two"), "metadata.world_size: must be an int, not 'two'"),  # type: ignore[arg-type]
        (CheckpointMetadata(ddp_rank=1 << 70), "metadata.ddp_rank: 0x400000000000000000 is beyond 64 bits"),
        (CheckpointMetadata(version=1), "metadata.version: must be a str"),  # type: ignore[arg-type]
        (CheckpointMetadata(timestamp="now"), "metadata.timestamp: must be a datetime"),  # type: ignore[arg-type]
        (
            CheckpointMetadata(timestamp=datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))),
            "beyond the calendar",
        ),
        (CheckpointMetadata(training=TrainingMetadata(step=True)), "metadata.training.step: must be an int"),
        (
            CheckpointMetadata(training=TrainingMetadata(learning_rate="0.1")),  # type: ignore[arg-type]
            "metadata.training.learning_rate: must be a float",
        ),
        (CheckpointMetadata(shards=(ShardMetadata(rank=0.5),)), "metadata.shards[0].rank: must be an int"),  # type: ignore[arg-type]
        (CheckpointMetadata(extra={"asyncckptExact": []}), "asyncckpt's own"),
    ],
    ids=str,
)
def test_what_could_not_be_read_again_is_not_written(metadata: CheckpointMetadata, says: str) -> None:
    with pytest.raises(UnsupportedStateError) as caught:
        MetadataSerializer.serialize(metadata)
    assert says in str(caught.value)


def test_numpy_numbers_in_typed_fields_become_python_s() -> None:
    training = TrainingMetadata(step=np.int64(5), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    metadata = CheckpointMetadata(world_size=np.uint8(4), training=training)  # type: ignore[arg-type]
    found = MetadataSerializer.deserialize(MetadataSerializer.serialize(metadata))
    assert found.training is not None
    assert_identical([found.world_size, found.training.step, found.training.learning_rate], [4, 5, 0.5])


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (timedelta(0), "Z"),
        (timedelta(hours=2), "+02:00"),
        (-timedelta(hours=9, minutes=30), "-09:30"),
    ],
)
def test_the_time_zone_of_a_timestamp_comes_back(offset: timedelta, text: str) -> None:
    moment = datetime(2026, 1, 8, 4, 35, tzinfo=timezone(offset))
    written = MetadataSerializer.serialize(CheckpointMetadata(timestamp=moment))
    assert f'"2026-01-08T04:35:00{text}"' in written
    found = MetadataSerializer.deserialize(written).timestamp
    assert found == moment
    assert found is not None
    assert found.utcoffset() == offset


def test_an_offset_of_seconds_becomes_utc() -> None:
    moment = datetime(1890, 1, 1, 12, tzinfo=timezone(timedelta(minutes=53, seconds=28)))
    found = MetadataSerializer.deserialize(MetadataSerializer.serialize(CheckpointMetadata(timestamp=moment)))
    assert found.timestamp == moment


# --- what a hostile file says -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exact",
    [
        {},
        [1],
        [[]],
        [[[], 1]],
        [["customFields", 1]],
        [[["customFields"]]],
        [[["nowhere"], 1]],
        [[["customFields", "list", -1], 1]],
        [[["customFields", "list", 2], 1]],
        [[["customFields", "list", "0"], 1]],
        [[["customFields", "list", True], 1]],
        [[["customFields", "a", "b"], 1]],
        [[["customFields", "a"], {"t": "w"}]],
        [[["customFields", "a"], {"z": ""}]],
        [[["customFields", "a"], {"g": "float32:0000"}]],
        [[["customFields", "a"], {"g": "float32:0000803F"}]],
        [[["customFields", "a"], {"g": "U1:ffffffff"}]],
        [[["customFields", "a"], {"g": "object:00"}]],
        [[["customFields", "a"], {"g": ""}]],
        [[["customFields"], 3]],
        [[["worldSize"], {"u": []}]],
    ],
    ids=str,
)
def test_a_hostile_list_is_refused(exact: Any) -> None:
    members = {"worldSize": 1, "asyncckptExact": exact, "customFields": {"a": 1, "list": [1, 2]}}
    with pytest.raises(LayoutError):
        decode_metadata(members)


def test_scalars_are_no_views_of_anything() -> None:
    assert decode_plain({"g": "V3:616263"}).tobytes() == b"abc"
    assert decode_plain({"g": "float32:0000803f"}) == np.float32(1)
