"""Arguments are refused for what they are, before anything is done: one line, with the name and what it must be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import asyncckpt
from asyncckpt import tables
from asyncckpt.arguments import AtLeastOne, Between, Called, NotNegative, check_fields, checked
from asyncckpt.errors import InvalidArgumentError
from asyncckpt.formats.gptrs.format import GptrsCheckpointFormat, GptrsTensorsFormat
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.mlcp.set import MlcpSetFormat
from asyncckpt.formats.mldf.format import MldfFormat
from asyncckpt.formats.safetensors.file import SafetensorsFormat
from asyncckpt.formats.safetensors.set import HuggingFaceSetFormat
from asyncckpt.formats.sdnb.format import SdnbFormat
from asyncckpt.formats.sdz.format import SdzFormat
from asyncckpt.model.state.leaves import LEAVES
from asyncckpt.storage.fsspec.storage import FsspecStorage
from asyncckpt.storage.gcs.storage import GcsStorage
from asyncckpt.storage.s3.storage import S3Storage
from tests.disks import files_in

# --- the mechanism ----------------------------------------------------------------------------------------------


class Shape(Protocol):
    def area(self) -> float: ...


@checked
def call(
    place: Annotated[str | bytes, Called("a place")],
    *,
    level: Literal["header", "full", 3] = "full",
    flag: bool = False,
    count: AtLeastOne | None = None,
    start: NotNegative = 0,
    share: Annotated[float, Between(0, 1)] = 0.5,
    secret: bytes | None = None,
    options: Mapping[str, Any] | None = None,
    when: Callable[[], float] | None = None,
    shape: Shape | None = None,
    anything: Any = None,
    rest: Sequence[object] = (),
) -> str:
    return "called"


@pytest.mark.parametrize(
    "options",
    [
        {"level": "header"},
        {"level": 3},
        {"flag": np.bool_(True)},
        {"count": None},
        {"count": np.int64(7)},
        {"start": 0},
        {"share": 1},
        {"share": np.float32(0.25)},
        {"secret": b""},
        {"options": {}},
        {"when": float},
        {"shape": 5},
        {"anything": object()},
        {"rest": "abc"},
    ],
)
def test_what_is_allowed(options: dict[str, Any]) -> None:
    assert call("here", **options) == "called"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"level": "ful"}, "level must be 'header', 'full' or 3, not 'ful'; did you mean 'full'?"),
        ({"level": "nothing alike"}, "level must be 'header', 'full' or 3, not 'nothing alike'"),
        ({"level": True}, "level must be 'header', 'full' or 3, not True"),
        ({"level": ["full"]}, "level must be 'header', 'full' or 3, not list"),
        ({"flag": "no"}, "flag must be True or False, not 'no'"),
        ({"flag": 1}, "flag must be True or False, not 1"),
        ({"count": "1GB"}, "count must be an int of at least 1 or None, not '1GB'"),
        ({"count": 0}, "count must be an int of at least 1 or None, not 0"),
        ({"count": 1.0}, "count must be an int of at least 1 or None, not 1.0"),
        ({"count": True}, "count must be an int of at least 1 or None, not True"),
        ({"start": -1}, "start must be an int of at least 0, not -1"),
        ({"share": 1.5}, "share must be a number from 0 to 1, not 1.5"),
        ({"share": float("nan")}, "share must be a number from 0 to 1, not nan"),
        ({"secret": "hunter2"}, "secret must be bytes or None, not str"),
        ({"options": "hunter2"}, "options must be a mapping or None, not str"),
        ({"when": 5}, "when must be a function or None, not int"),
        ({"rest": 5}, "rest must be Sequence, not int"),
    ],
    ids=str,
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        call("here", **options)
    assert str(caught.value) == says
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TypeError)


def test_positional_arguments_are_checked_too() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^place must be a place, not int$"):
        call(5)  # type: ignore[arg-type]


def test_a_dataclass_of_options_is_checked() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^count must be an int of at least 1, not 'many'$"):
        _Options("many")  # type: ignore[arg-type]
    assert _Options(3).count == 3


@dataclass(frozen=True)
class _Options:
    count: AtLeastOne = 1

    def __post_init__(self) -> None:
        check_fields(self)


# --- every public call ------------------------------------------------------------------------------------------


class Anything:
    """Of no type that any argument has."""

    def __repr__(self) -> str:
        return "<anything>"


FORMATS = (
    GptrsCheckpointFormat, GptrsTensorsFormat, HuggingFaceSetFormat, MetagraphFormat, MldfFormat, MlcpSetFormat,
    SafetensorsFormat, SdnbFormat, SdzFormat, asyncckpt.SingleFileCheckpointFormat,
)  # fmt: skip
STORAGES = (asyncckpt.LocalStorage, asyncckpt.MemoryStorage, FsspecStorage, GcsStorage, S3Storage)
# Values for the arguments that a call can't do without; what they are does not matter.
NEEDED: dict[str, Any] = {
    "state": {}, "location": b"", "source": b"", "target": "x", "a": b"", "b": b"", "url": "memory://x", "bucket": "x",
    "root": "x", "fields": [], "metadata": {}, "name": "mlcp", "adapter": LEAVES.of_kind("torch"), "prefix": "x",
    "format": asyncckpt.SingleFileCheckpointFormat(), "storage": asyncckpt.MemoryStorage(), "index": 0,
}  # fmt: skip
# Values that the model describes and nothing acts upon, until a save checks all of it; errors; and what only
# asyncckpt itself makes.
NOT_CALLED = (
    asyncckpt.CheckpointMetadata, asyncckpt.ShardMetadata, asyncckpt.ShardingMetadata, asyncckpt.TensorMetadata,
    asyncckpt.TrainingMetadata, asyncckpt.ShardData, asyncckpt.Checkpoint, asyncckpt.Capabilities, asyncckpt.ObjectInfo,
    asyncckpt.ProgressEvent, asyncckpt.SaveResult, asyncckpt.LoadReport, asyncckpt.VerifyReport, asyncckpt.Problem,
    asyncckpt.ConvertReport, asyncckpt.DiffReport, asyncckpt.TensorChange, asyncckpt.MetadataSerializer,
    asyncckpt.Phase, asyncckpt.ICheckpointFormat, asyncckpt.ICheckpointStorage, asyncckpt.CancellationToken,
    asyncckpt.CancellationTokenSource, asyncckpt.LocationWithOptions,
)  # fmt: skip


def public_calls() -> dict[str, Callable[..., Any]]:
    """Every public function, and every constructor that takes options."""
    named = {name: getattr(asyncckpt, name) for name in asyncckpt.__all__}
    named |= {f"tables.{name}": getattr(tables, name) for name in ("open_table", "open_table_writer")}
    named |= {kind.__name__: kind for kind in (*FORMATS, *STORAGES)}
    return {
        name: call
        for name, call in named.items()
        if callable(call)
        and call not in NOT_CALLED
        and not (isinstance(call, type) and issubclass(call, Exception))
    }


def closed(annotation: Any) -> bool:
    """Whether only a few values, or only numbers, are allowed: what a wrong one would mean is a guess."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return closed(get_args(annotation)[0])
    if origin is Union or type(annotation).__name__ == "UnionType":
        return any(closed(part) for part in get_args(annotation))
    return origin is Literal or annotation in (bool, int, float)


def closed_arguments() -> list[tuple[str, str]]:
    found = []
    for name, function in public_calls().items():
        target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        hints = get_type_hints(target, include_extras=True)
        found += [(name, parameter) for parameter, hint in hints.items() if closed(hint)]
    return sorted(found)


async def made(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Call the function, and await or enter what it returns."""
    result = function(**arguments)
    if inspect.isawaitable(result):
        await result
    elif hasattr(result, "__aenter__"):
        async with result:
            pass


def needed(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: NEEDED[p.name] for p in parameters if p.default is p.empty and p.kind != p.VAR_KEYWORD}


def test_the_walk_finds_what_it_should() -> None:
    found = closed_arguments()
    assert {("verify", "level"), ("load", "framework"), ("load", "verify"), ("save", "memory_bytes")} <= set(
        found
    )
    assert {("RetryPolicy", "jitter"), ("SdzFormat", "level"), ("S3Storage", "concurrency")} <= set(found)
    assert len(found) > 40


@pytest.mark.parametrize(("name", "argument"), closed_arguments(), ids=str)
@pytest.mark.parametrize("wrong", ["no such thing", Anything(), b"\x00"], ids=str)
async def test_a_wrong_value_in_every_closed_argument(
    name: str, argument: str, wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    function = public_calls()[name]
    with pytest.raises(InvalidArgumentError, match=f"^{argument} must be ") as caught:
        await made(function, needed(function) | {argument: wrong})
    assert "\n" not in str(caught.value)
    assert files_in(tmp_path) == {}


@pytest.mark.parametrize("name", sorted(public_calls()))
async def test_a_wrong_type_in_every_argument(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where any text or any object of a class is allowed. What is Any, or has no annotation, is not checked."""
    monkeypatch.chdir(tmp_path)
    function = public_calls()[name]
    target = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    for argument, hint in get_type_hints(target, include_extras=True).items():
        if argument == "return" or hint is Any or Any in get_args(hint):
            continue
        with pytest.raises(InvalidArgumentError, match=f"^{argument} must be "):
            await made(function, needed(function) | {argument: Anything()})
    assert files_in(tmp_path) == {}


async def test_no_secret_is_quoted() -> None:
    for options in ({"storage_options": "hunter2"}, {"format": b"hunter2"}, {"cancellation": "hunter2"}):
        with pytest.raises(InvalidArgumentError) as caught:
            await asyncckpt.load(b"", **options)
        assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidArgumentError) as caught:
        MetagraphFormat(key="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


async def test_a_format_of_another_name() -> None:
    with pytest.raises(
        asyncckpt.UnknownFormatError, match=r"no format is named 'safetensor'; .*did you mean 'safetensors'\?"
    ):
        await asyncckpt.save({}, (asyncckpt.MemoryStorage(), "x"), format="safetensor")


def test_blocking_calls_check_the_same() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^level must be"):
        asyncckpt.blocking.verify(b"", level="none")
    with pytest.raises(InvalidArgumentError, match=r"^memory_bytes must be"):
        asyncckpt.blocking.save({}, "x", memory_bytes="1GB")
