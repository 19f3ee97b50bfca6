"""What is known of the formats without importing them is what their classes say; third parties are asked too."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint
from inspect import isabstract, isclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncckpt.errors import MissingExtraError, UnknownFormatError
from asyncckpt.formats import registry
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import FileInfo
from asyncckpt.formats.mlcp.file import MlcpFormat
from asyncckpt.formats.registry import SNIFF_BYTES, format_for_name, format_names, get_format, sniff
from asyncckpt.formats.shipped import SHIPPED

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
EXAMPLE_HEADS = {
    path: path.read_bytes()[:SNIFF_BYTES]
    for path in sorted(GOLDEN.rglob("*"))
    if path.is_file() and path.suffix != ".md"
}


class Tiny(MlcpFormat):
    """A third party's format, known by an ending and two bytes."""

    name = "tiny"
    extensions: ClassVar[tuple[str, ...]] = (".v2.checkpoint", ".tiny")  # type: ignore[assignment]

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:2]) == b"TY"


class NotInstalled(Tiny):
    """A third party's format that needs something else."""

    def __init__(self) -> None:
        raise MissingExtraError("pip install something")


@pytest.fixture
def third_parties(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    here = "tests.formats.test_registry"
    declared = [
        EntryPoint("tiny", f"{here}:Tiny", registry.ENTRY_POINT_GROUP),
        EntryPoint("absent", f"{here}:NotInstalled", registry.ENTRY_POINT_GROUP),
        EntryPoint("mlcp", f"{here}:Tiny", registry.ENTRY_POINT_GROUP),  # never in place of our own
    ]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: declared)
    registry._third_party.cache_clear()
    registry._format_class.cache_clear()
    yield
    registry._third_party.cache_clear()
    registry._format_class.cache_clear()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_table_is_what_the_class_says(name: str) -> None:
    format = get_format(name)
    assert (format.name, format.extensions) == (name, SHIPPED[name].extensions)
    assert type(format).__module__ == SHIPPED[name].module


def test_every_format_class_that_ships_is_in_the_table() -> None:
    names = set()
    for path in (ROOT / "asyncckpt" / "formats").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for found in vars(import_module(module)).values():
            if isclass(found) and issubclass(found, ICheckpointFormat) and not isabstract(found):
                names.add(found.name)
    assert names == set(SHIPPED)


@given(head=st.binary(max_size=SNIFF_BYTES), name=st.sampled_from(["x", "model.safetensors.index.json"]))
@example(head=b"\x00" * SNIFF_BYTES, name="x")
def test_no_class_takes_a_file_that_the_table_rules_out(head: bytes, name: str) -> None:
    beginnings = {
        head,
        *(known + head for known in EXAMPLE_HEADS.values()),
        b" \n{" + head,
        b"8bytes..{" + head,
    }
    for beginning in beginnings:
        view = memoryview(beginning[:SNIFF_BYTES])
        for format, shipped in SHIPPED.items():
            takes = get_format(format).sniff(view, FileInfo(name, 1 << 20))
            assert shipped.may_be(view) or not takes, (format, bytes(view))


@pytest.mark.parametrize("path", EXAMPLE_HEADS, ids=lambda path: path.name)
def test_golden_files_are_recognised_as_when_all_classes_are_asked(path: Path) -> None:
    view, source = memoryview(EXAMPLE_HEADS[path]), FileInfo(path.name, path.stat().st_size)
    expected = [name for name in SHIPPED if get_format(name).sniff(view, source)]
    if expected:
        assert sniff(view, source).name == expected[0]
    else:
        with pytest.raises(UnknownFormatError, match="not a checkpoint"):
            sniff(view, source)


def test_the_longest_extension_wins() -> None:
    assert _name(format_for_name("model.safetensors.index.json")) == "safetensors-set"
    assert _name(format_for_name("model.safetensors")) == "safetensors"
    assert _name(format_for_name("a.metadata.json")) == "mlcp-set"
    assert format_for_name("a.json") is None


def test_third_parties_are_asked(third_parties: None) -> None:
    assert format_names() == [*SHIPPED, "absent", "tiny"]
    assert type(get_format("mlcp")) is MlcpFormat
    assert _name(format_for_name("a.tiny")) == "tiny"
    assert _name(format_for_name("a.v2.checkpoint")) == "tiny"
    assert _name(format_for_name("a.checkpoint")) == "mlcp"
    assert sniff(memoryview(b"TY" + b"\xff" * 20), FileInfo("a", 22)).name == "tiny"
    with pytest.raises(MissingExtraError, match="something"):
        get_format("absent")


def _name(format: ICheckpointFormat | None) -> str | None:
    return None if format is None else format.name
