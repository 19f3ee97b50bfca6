"""The structure of a state tree as JSON, and the way back: a state from its structure and its tensors.

A node of the structure is one of::

    null, true, 3, 0.5, "text", {"i": ...}, ...    a plain value (see plain.py)
    [node, ...]                                    a list
    {"u": [node, ...]}                             a tuple
    {"d": [key, node, key, node, ...]}             a dict, in its order; a key is a str or an int
    {"o": [key, node, ...]}                        an OrderedDict
    {"t": name}, {"t": name, "k": kind}            a tensor: a numpy array, or a leaf of another kind

Positions map to names explicitly, so nothing ever parses a name. Keys stand in arrays and not in objects, so
that no JSON tool reorders them. All walks are loops: no depth of nesting can exhaust the stack. A structure
comes out of a file, so nothing in it is taken on trust: whatever is wrong is a LayoutError.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.model.leaves import KIND_PATTERN, LEAVES, LeafRegistry, Leaves
from asyncckpt.model.metadata import Json
from asyncckpt.model.plain import decode_key, decode_plain, encode_string

MAX_DEPTH: Final = 200
"""How deep a tree may be nested: two levels of JSON for each still pass through any JSON reader."""

Path: TypeAlias = tuple[str | int, ...]
_NUMPY_KINDS: Final = frozenset({"numpy", "scalar"})
_SIMPLE: Final = frozenset({type(None), bool, int, str})


def show_path(path: Path) -> str:
    """The path as one would write it in Python: state['layers'][0]."""
    return "state" + "".join(f"[{show_key(key)}]" for key in path)


def show_key(key: object) -> str:
    """The key in one short line."""
    # Python refuses to write very long integers in decimal.
    text = hex(key) if isinstance(key, int) and abs(key) >= 2**64 else repr(key)
    return clipped(text, 80)


def clipped(text: str, limit: int) -> str:
    """The text in one line of at most `limit` characters."""
    line = " ".join(text.splitlines())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def rebuild(
    structure: Json,
    tensors: Mapping[str, np.ndarray],
    *,
    leaves: Leaves = "native",
    partial: bool = False,
    existing: Mapping[Path, Any] | None = None,
    registry: LeafRegistry = LEAVES,
) -> Any:
    """Put a state together. Tied tensors come back as one object.

    With `partial`, tensors that are not given are left out: their entries of dicts are gone, and their places
    in lists and tuples hold None. `existing` has objects to put in the place of tensors. With
    `leaves="numpy"` everything that was an array of some framework comes back as numpy's. Raises LayoutError
    for a structure that `flatten` never makes or that names tensors that are not given, MissingExtraError for
    leaves whose framework is not installed.
    """
    made: dict[tuple[str, str], Any] = {}
    tuples: list[tuple[Any, str | int, list[Any]]] = []
    root: list[Any] = [None]
    stack: list[tuple[Json, Any, str | int, Path]] = [(structure, root, 0, ())]
    while stack:
        node, parent, key, path = stack.pop()
        opened = _open(node, path)
        if opened is not None:
            container, children, is_tuple = opened
            parent[key] = container
            if is_tuple:
                tuples.append((parent, key, container))
            stack.extend((child, container, at, (*path, at)) for at, child in reversed(children))
            continue
        leaf = _leaf_of(node, path)
        if leaf is None:
            parent[key] = _plain_of(node, path)
        elif existing is not None and path in existing:
            parent[key] = existing[path]
        elif leaf[0] in tensors:
            if leaf not in made:
                made[leaf] = _restored(leaf, tensors, leaves, registry)
            parent[key] = made[leaf]
        elif not partial:
            raise _malformed(path, f"the tensor {show_key(leaf[0])} is missing")
        elif isinstance(parent, dict):
            del parent[key]
    # Tuples can't be filled, so they were lists until now; the inner ones come later in the list.
    for parent, key, items in reversed(tuples):
        parent[key] = tuple(items)
    return root[0]


def check_structure(structure: Json) -> None:
    """Raises LayoutError for a structure that `rebuild` refuses whatever tensors it is given."""
    if structure is not None:
        rebuild(structure, {}, leaves="numpy", partial=True)


def _open(node: Json, path: Path) -> tuple[Any, list[tuple[str | int, Json]], bool] | None:
    """A container that has its simple values already, the nodes still to place in it, and whether it is a tuple.

    None for any other node.
    """
    tag, nodes = "", node
    if type(node) is dict:
        if len(node) != 1:
            return None
        [(tag, nodes)] = node.items()
        if tag not in ("d", "o", "u"):
            return None
    elif type(node) is not list:
        return None
    if type(nodes) is not list:
        raise _malformed(path, "a container without a list")
    if len(path) >= MAX_DEPTH:
        raise LayoutError(f"state tree: nested deeper than {MAX_DEPTH} levels")
    if tag in ("", "u"):
        items = [node if _is_simple(node) else None for node in nodes]
        return items, [pair for pair in enumerate(nodes) if not _is_simple(pair[1])], tag == "u"
    if len(nodes) % 2:
        raise _malformed(path, "a key without a value")
    keys = [_decoded_key(key, path) for key in nodes[::2]]
    pairs = list(zip(keys, nodes[1::2], strict=True))
    container: dict[str | int, Any] = (dict if tag == "d" else OrderedDict)(
        (key, node if _is_simple(node) else None) for key, node in pairs
    )
    if len(container) != len(keys):
        raise _malformed(path, "a key stands there twice")
    return container, [pair for pair in pairs if not _is_simple(pair[1])], False


def _is_simple(node: Json) -> bool:
    # Placed at once, without the detour over the stack: a state may have a million numbers in a list.
    return type(node) in _SIMPLE


def _decoded_key(node: Json, path: Path) -> str | int:
    try:
        return decode_key(node)
    except LayoutError as error:
        raise _malformed(path, str(error)) from error


def _plain_of(node: Json, path: Path) -> Any:
    try:
        return decode_plain(node)
    except LayoutError as error:
        raise _malformed(path, str(error)) from error


def _leaf_of(node: Json, path: Path) -> tuple[str, str] | None:
    """The name and kind of a tensor; None for any other node."""
    if type(node) is not dict or "t" not in node:
        return None
    name, kind = node["t"], node.get("k", "numpy")
    if type(name) is not str or type(kind) is not str or not KIND_PATTERN.fullmatch(kind):
        raise _malformed(path, "a tensor without a proper name or kind")
    if len(node) != (2 if "k" in node else 1):
        raise _malformed(path, "a tensor with unknown properties")
    return name, kind


def _malformed(path: Path, reason: str) -> LayoutError:
    return LayoutError(f"state tree: {clipped(show_path(path), 160)}: {reason}")


def _restored(
    leaf: tuple[str, str], tensors: Mapping[str, np.ndarray], leaves: Leaves, registry: LeafRegistry
) -> Any:
    name, kind = leaf
    array = tensors[name]
    if leaves == "numpy" and kind not in _NUMPY_KINDS:
        return array
    try:
        return registry.of_kind(kind).from_array(array)
    except LayoutError as error:
        raise LayoutError(f"tensor {show_key(name)}: {error}") from error


def structure_leaves(structure: Json) -> list[tuple[Path, str, str]]:
    """Path, name and kind of every tensor, in the order of the tree. Raises LayoutError."""
    found: list[tuple[Path, str, str]] = []
    stack: list[tuple[Json, Path]] = [(structure, ())]
    while stack:
        node, path = stack.pop()
        opened = _open(node, path)
        if opened is not None:
            stack.extend((child, (*path, key)) for key, child in reversed(opened[1]))
            continue
        leaf = _leaf_of(node, path)
        if leaf is not None:
            found.append((path, *leaf))
    return found


def structure_names(structure: Json) -> list[str]:
    """The names of the tensors, each once, in the order of the tree. Raises LayoutError."""
    return list(dict.fromkeys(name for _, name, _ in structure_leaves(structure)))


def flat_structure(names: list[str], *, kind: str = "numpy") -> Json:
    """The structure of a flat dict of tensors, for files that bring none of their own."""
    extra = {} if kind == "numpy" else {"k": kind}
    return {"d": [part for name in names for part in (encode_string(name), {"t": name, **extra})]}


def needs_framework(structure: Json) -> bool:
    """Whether `rebuild` makes leaves of a framework, which may have to be imported first.

    A cheap look that never misses one; a malformed structure is `rebuild`'s to refuse.
    """
    stack = [structure]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "k" in node:
                return True
            stack.extend(value for value in node.values() if isinstance(value, list))
        elif isinstance(node, list):
            stack.extend(item for item in node if isinstance(item, dict | list))
    return False
