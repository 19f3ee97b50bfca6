"""What is different between the plain values of two states, and between their containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from asyncckpt.model.metadata import Json
from asyncckpt.model.plain import decode_plain, encode_plain
from asyncckpt.model.structure import Path, clipped, rebuild, show_path

_LONGEST = 80


class _Tensor:
    """Stands for a tensor, whose bytes are compared elsewhere."""


class _TensorEverywhere(Mapping[Path, Any]):
    """Gives `rebuild` a mark for every tensor, so that none is read."""

    def __contains__(self, path: object) -> bool:
        return True

    def __getitem__(self, path: Path) -> Any:
        return _Tensor

    def __iter__(self) -> Iterator[Path]:
        return iter(())

    def __len__(self) -> int:
        return 0


def state_changes(before: Json, after: Json) -> list[str]:
    """One line for each plain value or container that differs, by its path. For a worker thread.

    Nothing for a file without a tree. Raises LayoutError for a structure that is malformed.
    """
    if before is None or after is None:
        return []
    old, new = _leaves(before), _leaves(after)
    lines = []
    for path in {**old, **new}:
        a, b = old.get(path), new.get(path)
        if a != b and not _is_container_alone(a, b):
            lines.append(f"{show_path(path)}: {_shown(a)} -> {_shown(b)}")
    return lines


def _leaves(structure: Json) -> dict[Path, tuple[str, Any]]:
    """Every plain value, as what encodes it to the bit, and every container's type, by path."""
    found: dict[Path, tuple[str, Any]] = {}
    stack: list[tuple[Path, Any]] = [((), rebuild(structure, {}, existing=_TensorEverywhere()))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict | list | tuple):
            found[path] = (type(value).__name__, None)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            stack.extend(((*path, key), item) for key, item in reversed(list(items)))
        elif value is not _Tensor:
            # With the type, because True == 1 == 1.0.
            found[path] = ("", (type(value), encode_plain(value)))
    return found


def _is_container_alone(a: tuple[str, Any] | None, b: tuple[str, Any] | None) -> bool:
    """A container that only one of them has: what is in it is told already."""
    return (a is None and b is not None and b[0] != "") or (b is None and a is not None and a[0] != "")


def _shown(leaf: tuple[str, Any] | None) -> str:
    if leaf is None:
        return "nothing"
    return leaf[0] or clipped(repr(decode_plain(leaf[1][1])), _LONGEST)
