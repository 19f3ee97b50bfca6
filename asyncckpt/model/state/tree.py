"""The tree of a state as JSON, and the way back: a state from its tree and its tensors.

A node of the tree is one of::

    null, true, 3, 0.5, "text", {"i": ...}, ...    a plain value (see plain.py)
    [node, ...]                                    a list
    {"u": [node, ...]}                             a tuple
    {"d": [key, node, key, node, ...]}             a dict, in its order; a key is a str or an int
    {"o": [key, node, ...]}                        an OrderedDict
    {"t": name}, {"t": name, "k": kind}            a tensor: a numpy array, or a leaf of another kind
    {"pb": name}, {"ps": name}                     large bytes, a large string (see payloads.py)

Positions map to names explicitly, so nothing ever parses a name. Keys stand in arrays and not in objects, so
that no JSON tool reorders them. All walks are loops: no depth of nesting can exhaust the stack. A tree
comes out of a file, so nothing in it is taken on trust: whatever is wrong is a LayoutError.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from asyncckpt.errors import LayoutError
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.leaves import KIND_PATTERN, LEAVES, Framework, LeafRegistry
from asyncckpt.model.state.payloads import Payload, payload_of
from asyncckpt.model.state.plain import decode_key, decode_plain, encode_plain, encode_string

MAX_DEPTH: Final = 200
"""How deep a tree may be nested: two levels of JSON for each still pass through any JSON reader."""

Path: TypeAlias = tuple[str | int, ...]
_SMALL_NODES = 1_000
_SMALL_TEXT = 1_000
"""So many characters count as one node more: they may be base64."""
_SCALAR_KIND: Final = "scalar"
_SIMPLE: Final = frozenset({type(None), bool, int, str, float})
_KEYS: Final = frozenset({str, int})
_Trail: TypeAlias = tuple[Any, str | int] | None
"""A path that is still being walked: the trail to the container, and the key in it."""


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
    tree: Json,
    tensors: Mapping[str, np.ndarray],
    *,
    framework: Framework | None = None,
    partial: bool = False,
    existing: Mapping[Path, Any] | None = None,
    registry: LeafRegistry = LEAVES,
) -> Any:
    """Put a state together. Tied tensors come back as one object.

    `tensors` has the payloads, too. With `partial`, tensors that are not given are left out: their entries of dicts
    are gone, and their places in lists and tuples hold None. `existing` has objects to put in the place of tensors.
    With a `framework` all arrays come back as its own, whatever they were saved from.

    Raises LayoutError for a tree that `flatten` never makes, or that names tensors or payloads that are not given,
    MissingExtraError for leaves whose framework is not installed.
    """
    made: dict[tuple[str, str], Any] = {}
    tuples: list[tuple[Any, str | int, list[Any]]] = []
    root: list[Any] = [None]
    stack: list[tuple[Json, Any, str | int, _Trail, int]] = [(tree, root, 0, None, 0)]
    while stack:
        node, parent, key, trail, depth = stack.pop()
        opened = _open(node, trail, depth)
        if opened is not None:
            container, children, is_tuple = opened
            parent[key] = container
            if is_tuple:
                tuples.append((parent, key, container))
            stack.extend((child, container, at, (trail, at), depth + 1) for at, child in reversed(children))
            continue
        leaf = _leaf_of(node, trail)
        if leaf is None:
            parent[key] = _value_of(node, trail, tensors, made)
        elif existing is not None and (path := _path_of(trail)) in existing:
            parent[key] = existing[path]
        elif leaf[0] in tensors:
            if leaf not in made:
                made[leaf] = _restored(leaf, tensors, framework, registry)
            parent[key] = made[leaf]
        elif not partial:
            raise _malformed(trail, f"the tensor {show_key(leaf[0])} is missing")
        elif isinstance(parent, dict):
            del parent[key]
    # Tuples can't be filled, so they were lists until now; the inner ones come later in the list.
    for parent, key, items in reversed(tuples):
        parent[key] = tuple(items)
    return root[0]


def check_tree(tree: Json) -> None:
    """Raises LayoutError for a tree that `rebuild` refuses whatever tensors it is given."""
    if tree is not None:
        deque(tree_values(tree), maxlen=0)


class _Opened(NamedTuple):
    """A container that has its simple values already, and the nodes that are still to be placed in it."""

    container: Any
    children: Sequence[tuple[str | int, Json]]
    is_tuple: bool = False


def _open(node: Json, trail: _Trail, depth: int) -> _Opened | None:
    """The container that the node is; None for any other node."""
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
        raise _malformed(trail, "a container without a list")
    if depth >= MAX_DEPTH:
        raise LayoutError(f"state tree: nested deeper than {MAX_DEPTH} levels")
    # Simple values are placed at once and at C's speed: a state may have a million numbers in a list.
    if tag in ("", "u"):
        if _are_simple(nodes, trail):
            return _Opened(nodes.copy(), (), tag == "u")
        items = [item if type(item) in _SIMPLE else None for item in nodes]
        return _Opened(items, [pair for pair in enumerate(nodes) if type(pair[1]) not in _SIMPLE], tag == "u")
    if len(nodes) % 2:
        raise _malformed(trail, "a key without a value")
    keys, values = nodes[::2], nodes[1::2]
    if not _KEYS.issuperset(map(type, keys)):
        keys = [_decoded_key(key, trail) for key in keys]
    container: dict[str | int, Any] = (dict if tag == "d" else OrderedDict)(zip(keys, values, strict=True))
    if len(container) != len(keys):
        raise _malformed(trail, "a key stands there twice")
    if _are_simple(values, trail):
        return _Opened(container, ())
    return _Opened(container, [pair for pair in container.items() if type(pair[1]) not in _SIMPLE])


def _are_simple(nodes: list[Json], trail: _Trail) -> bool:
    """Whether all of them stand for themselves. Raises LayoutError for a float that is not finite."""
    kinds = set(map(type, nodes))
    if float in kinds and not all(isfinite(node) for node in nodes if type(node) is float):
        raise _malformed(trail, "an infinite number or none at all")
    return kinds <= _SIMPLE


def _decoded_key(node: Json, trail: _Trail) -> str | int:
    try:
        return decode_key(node)
    except LayoutError as error:
        raise _malformed(trail, str(error)) from error


def _value_of(
    node: Json, trail: _Trail, tensors: Mapping[str, np.ndarray], made: dict[tuple[str, str], Any]
) -> Any:
    """A plain value; a payload that was one object is one again."""
    value = _decoded(node, trail)
    if not isinstance(value, Payload):
        return value
    if value not in made:
        if value.name not in tensors:
            raise _malformed(trail, f"the payload {show_key(value.name)} is missing")
        try:
            made[value] = value.decode(tensors[value.name])
        except LayoutError as error:
            raise _malformed(trail, str(error)) from error
    return made[value]


def _decoded(node: Json, trail: _Trail) -> Any:
    """A plain value, or the payload that holds it."""
    try:
        payload = payload_of(node)
        return decode_plain(node) if payload is None else payload
    except LayoutError as error:
        raise _malformed(trail, str(error)) from error


def _leaf_of(node: Json, trail: _Trail) -> tuple[str, str] | None:
    """The name and kind of a tensor; None for any other node."""
    if type(node) is not dict or "t" not in node:
        return None
    name, kind = node["t"], node.get("k", "numpy")
    if type(name) is not str or type(kind) is not str or not KIND_PATTERN.fullmatch(kind):
        raise _malformed(trail, "a tensor without a proper name or kind")
    if len(node) != (2 if "k" in node else 1):
        raise _malformed(trail, "a tensor with unknown properties")
    return name, kind


def _path_of(trail: _Trail) -> Path:
    keys: list[str | int] = []
    while trail is not None:
        trail, key = trail
        keys.append(key)
    return tuple(reversed(keys))


def _malformed(trail: _Trail, reason: str) -> LayoutError:
    return LayoutError(f"state tree: {clipped(show_path(_path_of(trail)), 160)}: {reason}")


def _restored(
    leaf: tuple[str, str],
    tensors: Mapping[str, np.ndarray],
    framework: Framework | None,
    registry: LeafRegistry,
) -> Any:
    name, kind = leaf
    # A Parameter of torch stays one there; a numpy scalar is a number in every framework.
    foreign = framework is not None and kind.partition(".")[0] not in (framework, _SCALAR_KIND)
    try:
        return registry.of_kind(framework if framework and foreign else kind).from_array(tensors[name])
    except LayoutError as error:
        raise LayoutError(f"tensor {show_key(name)}: {error}") from error


def tree_leaves(tree: Json) -> list[tuple[Path, str, str]]:
    """Path, name and kind of every tensor, in the order of the tree. Raises LayoutError."""
    found: list[tuple[Path, str, str]] = []
    stack: list[tuple[Json, _Trail, int]] = [(tree, None, 0)]
    while stack:
        node, trail, depth = stack.pop()
        opened = _open(node, trail, depth)
        if opened is not None:
            stack.extend((child, (trail, key), depth + 1) for key, child in reversed(opened.children))
            continue
        leaf = _leaf_of(node, trail)
        if leaf is not None:
            found.append((_path_of(trail), *leaf))
    return found


def tree_values(tree: Json) -> Iterator[tuple[Path, Any]]:
    """Path and value of every node that is not a tensor: a container's type, a plain value, or a `Payload`.

    Raises LayoutError.
    """
    stack: list[tuple[Json, _Trail, int]] = [(tree, None, 0)]
    while stack:
        node, trail, depth = stack.pop()
        opened = _open(node, trail, depth)
        if opened is not None:
            container = opened.container
            yield _path_of(trail), tuple if opened.is_tuple else type(container)
            pending = dict(opened.children)
            items = container.items() if isinstance(container, dict) else enumerate(container)
            # Those without a node are simple: they are their own.
            stack += [(pending.get(key, value), (trail, key), depth + 1) for key, value in items][::-1]
        elif _leaf_of(node, trail) is None:
            yield _path_of(trail), _decoded(node, trail)


def with_values(tree: Json, payloads: Mapping[str, np.ndarray]) -> Json:
    """The tree with these payloads' values in it, for a format that has none. Changes the one it is given.

    Raises LayoutError for a payload that is none.
    """
    values: dict[Payload, Json] = {}

    def inlined(node: Json) -> Json:
        payload = payload_of(node)
        if payload is None or payload.name not in payloads:
            return node
        if payload not in values:
            values[payload] = encode_plain(payload.decode(payloads[payload.name]))
        return values[payload]

    root = [tree]
    stack: list[list[Json]] = [root]
    while stack:
        nodes = stack.pop()
        for position, node in enumerate(nodes):
            if type(node) is list:
                stack.append(node)
            elif type(node) is dict:
                stack += [value for value in node.values() if type(value) is list]
                nodes[position] = inlined(node)
    return root[0]


def tree_names(tree: Json) -> list[str]:
    """The names of the tensors, each once, in the order of the tree. Raises LayoutError."""
    return list(dict.fromkeys(name for _, name, _ in tree_leaves(tree)))


def flat_tree(names: list[str], *, kind: str = "numpy") -> Json:
    """The tree of a flat dict of tensors, for files that bring none of their own."""
    extra = {} if kind == "numpy" else {"k": kind}
    return {"d": [part for name in names for part in (encode_string(name), {"t": name, **extra})]}


def needs_framework(tree: Json) -> bool:
    """Whether `rebuild` makes leaves of a framework, which may have to be imported first.

    A cheap look that never misses one; a malformed tree is `rebuild`'s to refuse.
    """
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "k" in node:
                return True
            stack.extend(value for value in node.values() if isinstance(value, list))
        elif isinstance(node, list):
            stack.extend(item for item in node if isinstance(item, dict | list))
    return False


def is_small(tree: Json) -> bool:
    """Whether walks over the tree take less than a millisecond; a bounded look, however large it is."""
    room = _SMALL_NODES
    stack = [tree]
    while stack and room >= 0:
        node = stack.pop()
        if type(node) is dict:
            room -= 1
            stack.extend(node.values())
        elif type(node) is list:
            room -= len(node)
            if room >= 0:
                stack.extend(node)
        elif type(node) is str:
            room -= len(node) // _SMALL_TEXT
    return room >= 0
