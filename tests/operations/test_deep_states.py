"""States and metadata that are nested very deep: every call keeps them, or refuses them in one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cli import main
from asyncckpt.errors import LayoutError, UnsupportedStateError
from asyncckpt.formats.kit.plan import Content
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.model.metadata import CheckpointMetadata, Json, TrainingMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.model.state.tree import MAX_DEPTH
from asyncckpt.testing.strategies import assert_identical
from tests.formats.state_files import encode_content

ARRAYS: dict[str, np.ndarray] = {"w": np.ones(2, np.float32), "long": np.arange(2)}
"""gptrschk can't hold the second."""
CONTAINERS = ("dict", "list", "tuple")


def nested(levels: int, container: str, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = {"a": leaf} if container == "dict" else [leaf] if container == "list" else (leaf,)
    return leaf


def deep_tree(levels: int, container: str) -> Json:
    """A structure that `flatten` never makes, with both tensors at its bottom."""
    node: Json = {"d": ["w", {"t": "w"}, "long", {"t": "long"}]}
    for _ in range(levels - 1):
        node = {"dict": {"d": ["a", node]}, "list": [node], "tuple": {"u": [node]}}[container]
    return node


@pytest.mark.parametrize("container", CONTAINERS)
async def test_the_deepest_state_goes_through_every_call(tmp_path: Path, container: str) -> None:
    path, lossy = tmp_path / "a.checkpoint", tmp_path / "b.gptrschk"
    await asyncckpt.save(
        nested(MAX_DEPTH - 1, container, ARRAYS), path, metadata=nested(MAX_DEPTH, "dict", 1)
    )
    assert_identical(await asyncckpt.load(path), nested(MAX_DEPTH - 1, container, ARRAYS))
    assert (await asyncckpt.verify(path)).ok
    assert (await asyncckpt.diff(path, path)).same
    report = await asyncckpt.convert(path, lossy, allow_loss=True)
    assert len(report.losses) == 1
    assert_identical(await asyncckpt.load(lossy), nested(MAX_DEPTH - 1, container, {"w": ARRAYS["w"]}))


def test_the_deepest_state_and_metadata_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "a.checkpoint"
    asyncckpt.blocking.save(
        nested(MAX_DEPTH - 1, "dict", ARRAYS), path, metadata=nested(MAX_DEPTH, "dict", 1)
    )
    for arguments in (["inspect", path], ["inspect", path, "--json"], ["diff", path, path, "--json"]):
        assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 100_000])
@pytest.mark.parametrize("container", CONTAINERS)
async def test_a_deeper_state_is_not_saved(tmp_path: Path, levels: int, container: str) -> None:
    with pytest.raises(UnsupportedStateError, match="nested deeper than 200 levels"):
        await asyncckpt.save(nested(levels, container, 1), tmp_path / "a.checkpoint")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 5_000, 100_000])
@pytest.mark.parametrize("container", CONTAINERS)
async def test_deeper_metadata_is_not_saved(tmp_path: Path, levels: int, container: str) -> None:
    deep = nested(levels - 1, container, {})
    described = CheckpointMetadata(training=TrainingMetadata(optimizer_state={"a": deep}))
    for metadata in ({"a": deep}, described):
        with pytest.raises(UnsupportedStateError, match="nested deeper than 200 levels"):
            await asyncckpt.save({}, tmp_path / "a.checkpoint", metadata=metadata)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnsupportedStateError, match="nested deeper than 200 levels"):
        await MlcpFormat().serialize([ShardData.from_arrays(ARRAYS)], described)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 320, 400])
async def test_a_file_with_a_deeper_tree_is_refused_by_whatever_needs_the_tree(
    tmp_path: Path, container: str, levels: int
) -> None:
    path, target = tmp_path / "a.checkpoint", tmp_path / "b.gptrschk"
    shard = ShardData.from_arrays(ARRAYS)
    content = Content(shard.tensor_info, (2,), CheckpointMetadata(), deep_tree(levels, container))
    path.write_bytes(encode_content(MlcpFormat(), content, shard.views))
    shallow = replace(content, tree=deep_tree(3, container))
    sound = encode_content(MlcpFormat(), shallow, shard.views)
    line = "state tree: nested deeper than 200 levels"
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: asyncckpt.load(path),
        lambda: asyncckpt.diff(path, sound),
        lambda: asyncckpt.convert(path, target, allow_loss=True),
        lambda: asyncckpt.convert(path, target),
        lambda: asyncckpt.convert(path, tmp_path / "c.checkpoint"),
    ]
    for call in calls:
        with pytest.raises(LayoutError, match=line):
            await call()
    assert [problem.message for problem in (await asyncckpt.verify(path)).problems] == [line]
    async with asyncckpt.open_checkpoint(path) as checkpoint:
        assert (await checkpoint.read("w")).tolist() == [1.0, 1.0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "target", ["b.checkpoint", "b.gptrschk", "b.mldf", "b.safetensors", "b.mgb", "b.sdnb"]
)
async def test_a_file_with_deeper_metadata_is_not_converted(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read; whether it could be written depended on the stack that was left."""
    path = tmp_path / "a.checkpoint"
    shard = ShardData.from_arrays(ARRAYS)
    metadata = CheckpointMetadata(custom_fields={"x": nested(MAX_DEPTH + 50, "list", 1)})
    with monkeypatch.context() as lax:
        lax.setattr("asyncckpt.model.state.beyond_json.MAX_DEPTH", 1000)
        path.write_bytes(
            encode_content(MlcpFormat(), Content(shard.tensor_info, (2,), metadata), shard.views)
        )
    assert (await asyncckpt.load(path))["w"].tolist() == [1.0, 1.0]
    with pytest.raises(UnsupportedStateError, match="nested deeper than 200 levels"):
        await asyncckpt.convert(path, tmp_path / target, allow_loss=True)
    assert list(tmp_path.iterdir()) == [path]
