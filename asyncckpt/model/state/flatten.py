"""State trees: a state is taken apart into named tensors and a JSON tree (see tree.py).

A state is made of dicts and OrderedDicts (keys are str or int), lists and tuples, with arrays and plain values
at the leaves. A tensor's name is its keys joined by '.', as torch and safetensors have it; only a collision
adds '#2'. Large bytes and strings get a name of that kind, too (see payloads.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from asyncckpt.errors import UnsupportedDtypeError, UnsupportedStateError
from asyncckpt.model.metadata import Json
from asyncckpt.model.state.capture import CapturedTuple
from asyncckpt.model.state.leaves import LEAVES, LeafAdapter, LeafRegistry
from asyncckpt.model.state.payloads import PAYLOAD_SUFFIXES, encode_payload, is_payload, payload_node
from asyncckpt.model.state.plain import NONE_ROOT, PLAIN_TYPES, encode_integer, encode_plain, encode_string
from asyncckpt.model.state.tree import MAX_DEPTH, Path, clipped, show_key, show_path

ROOT_NAME: Final = "value"
"""The name of a tensor whose keys leave nothing to make a name of."""

# The tag of each container's node; a list is a list.
_CONTAINER_TAGS: Final[dict[type, str]] = {
    dict: "d",
    OrderedDict: "o",
    list: "",
    tuple: "u",
    CapturedTuple: "u",
}


@dataclass(frozen=True, slots=True)
class FlatState:
    """A state taken apart; the arrays still share memory with it, everything else is a copy or can't change.

    `payloads` are stored as tensors are, and are none: large bytes and strings.
    """

    tensors: dict[str, np.ndarray]
    tree: Json
    leaf_kinds: dict[str, str]
    payloads: dict[str, np.ndarray]


class Leaf(NamedTuple):
    """A leaf of a state: where it is, its name before collisions are settled, its node in the tree."""

    path: Path
    name: str
    value: Any
    adapter: LeafAdapter
    node: dict[str, str]


class PayloadPlace(NamedTuple):
    """A value that becomes a payload: its name before collisions are settled, and the nodes that speak of it."""

    name: str
    value: bytes | str
    nodes: list[dict[str, str]]


class Walked(NamedTuple):
    """A state's tree, in which tensors and payloads have no names yet, and what is to be named."""

    tree: Json
    places: list[Leaf]
    payloads: list[PayloadPlace]


def flatten(state: Any, *, registry: LeafRegistry = LEAVES, payloads: bool = True) -> FlatState:
    """Take a state apart. Tensors are in the order of the tree; what is the same array twice is there once.

    Without `payloads`, large bytes and strings stand in the tree as all other plain values do. Raises
    UnsupportedStateError, with the path, for what can't be stored.
    """
    walked = walk_state(state, registry=registry, payloads=payloads)
    first: dict[Hashable, Leaf] = {}
    arrays: list[np.ndarray] = []
    tied: list[tuple[Leaf, Leaf]] = []
    for place in walked.places:
        # Before ties are looked for: what can't be stored may share its memory with what can.
        array = _array_of(place)
        known = first.setdefault(tie_key(place), place)
        if known is place:
            arrays.append(array)
        else:
            tied.append((place, known))
    # Payloads come last, so that none of them takes a tensor's name.
    names = _distinct([place.name for place in first.values()] + [place.name for place in walked.payloads])
    kinds: dict[str, str] = {}
    for place, name in zip(first.values(), names, strict=False):
        kinds[name] = place.adapter.kind
        place.node["t"] = name
    for place, known in tied:
        place.node["t"] = known.node["t"]
    tensors = dict(zip(names, arrays, strict=False))
    payload_names = iter(names[len(arrays) :])
    return FlatState(tensors, walked.tree, kinds, _named_payloads(walked.payloads, payload_names))


def _named_payloads(places: list[PayloadPlace], names: Iterator[str]) -> dict[str, np.ndarray]:
    payloads: dict[str, np.ndarray] = {}
    for place, name in zip(places, names, strict=True):
        payloads[name] = encode_payload(place.value)
        for node in place.nodes:
            node.update(payload_node(place.value, name))
    return payloads


def tie_key(place: Leaf) -> Hashable:
    """Equal for two leaves of one walk that are the same memory seen in the same way."""
    identity = place.adapter.identity(place.value)
    return id(place) if identity is None else (place.adapter.kind.partition(".")[0], identity)


def _distinct(names: list[str]) -> list[str]:
    """The names, with a '#2', '#3' … that no other has after those that were there before."""
    natural = set(names)
    if len(natural) == len(names):
        return names
    used: set[str] = set()
    count: dict[str, int] = {}
    distinct = []
    for name in names:
        candidate = name
        while candidate in used or (candidate in natural and candidate != name):
            count[name] = count.get(name, 1) + 1
            candidate = f"{name}#{count[name]}"
        used.add(candidate)
        distinct.append(candidate)
    return distinct


def _array_of(place: Leaf) -> np.ndarray:
    try:
        return place.adapter.to_array(place.value)
    except (UnsupportedStateError, UnsupportedDtypeError) as error:
        raise UnsupportedStateError(f"{show_path(place.path)}: {error}") from error


def walk_state(state: Any, *, registry: LeafRegistry = LEAVES, payloads: bool = True) -> Walked:
    """The tree, and its tensors and payloads in the order of the tree. The state may be a captured one.

    Raises UnsupportedStateError, with the path, for anything but containers, plain values and known leaves.
    """
    return _Walk(registry, payloads=payloads).run(state)


class _OpenContainer(NamedTuple):
    """A container whose children are being visited."""

    children: Iterator[tuple[str | int, Any]]
    nodes: list[Json]
    has_keys: bool
    name: str | None
    path: Path
    around: tuple[int, ...]


class _Walk:
    """One pass over a state, in its order; the stack of containers is kept here and not in Python's."""

    def __init__(self, registry: LeafRegistry, *, payloads: bool) -> None:
        self._places: list[Leaf] = []
        # By identity: nobody can change them, so what is one object is one payload. The places keep them alive.
        self._payloads: dict[int, PayloadPlace] = {}
        self._registry = registry
        self._with_payloads = payloads
        self._frames: list[_OpenContainer] = []

    def run(self, state: Any) -> Walked:
        root = self._visit(state, None, (), ())
        while self._frames:
            if self._advance(self._frames[-1]):
                self._frames.pop()
        return Walked(NONE_ROOT if root is None else root, self._places, list(self._payloads.values()))

    def _advance(self, frame: _OpenContainer) -> bool:
        """Visit children until one is a container itself; True when there are no more."""
        children, nodes, has_keys, name, path, around = frame
        depth = len(self._frames)
        for key, child in children:
            # Of very many tensors this is most of the work, so what is common is done here, without a call.
            simple = type(key) is str and key.isascii()
            if has_keys:
                nodes.append(key if simple else _encode_key(key, path))
            kind = type(child)
            if kind in PLAIN_TYPES and not is_payload(child):
                nodes.append(encode_plain(child))
                continue
            joined = f"{name}.{key}" if simple and name is not None else _joined(name, key)
            if kind is np.ndarray:
                place = _leaf_place(child, joined, (*path, key), self._registry)
                self._places.append(place)
                nodes.append(place.node)
                continue
            nodes.append(self._visit(child, joined, (*path, key), around))
            if len(self._frames) > depth:
                return False
        return True

    def _visit(self, value: Any, name: str | None, path: Path, around: tuple[int, ...]) -> Json:
        kind = type(value)
        if kind in PLAIN_TYPES:
            return self._payload(value, name) if is_payload(value) else encode_plain(value)
        if kind not in _CONTAINER_TAGS:
            place = _leaf_place(value, name, path, self._registry)
            self._places.append(place)
            return place.node
        _check_nesting(value, path, around)
        tag = _CONTAINER_TAGS[kind]
        nodes: list[Json] = []
        has_keys = isinstance(value, dict)
        # A copy, because what is visited between two children may be changed by another thread.
        children: Iterable[tuple[str | int, Any]] = value.copy().items() if has_keys else enumerate([*value])
        self._frames.append(_OpenContainer(iter(children), nodes, has_keys, name, path, (*around, id(value))))
        return {tag: nodes} if tag else nodes

    def _payload(self, value: Any, name: str | None) -> Json:
        if not self._with_payloads:
            return encode_plain(value)
        place = self._payloads.get(id(value))
        if place is None:
            named = (name or ROOT_NAME) + PAYLOAD_SUFFIXES[type(value)]
            place = self._payloads[id(value)] = PayloadPlace(named, value, [])
        node: dict[str, str] = {}
        place.nodes.append(node)
        return node


def _check_nesting(value: Any, path: Path, around: tuple[int, ...]) -> None:
    if id(value) in around:
        outer = show_path(path[: around.index(id(value))])
        raise UnsupportedStateError(f"{show_path(path)}: a cycle, this is {outer} again")
    if len(around) >= MAX_DEPTH:
        raise UnsupportedStateError(f"{clipped(show_path(path), 160)}: nested deeper than {MAX_DEPTH} levels")


def _encode_key(key: Any, path: Path) -> Json:
    if type(key) is str:
        return encode_string(key)
    if type(key) is int:
        return encode_integer(key)
    raise UnsupportedStateError(
        f"{show_path(path)}: the key {show_key(key)} is a {type(key).__name__}; keys are str or int"
    )


def _joined(name: str | None, key: str | int) -> str:
    # Names go into files as UTF-8; the tree keeps the key itself.
    text = format(key, "d" if abs(key) < 2**64 else "x") if isinstance(key, int) else key
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    return text if name is None else f"{name}.{text}"


def _leaf_place(value: Any, name: str | None, path: Path, registry: LeafRegistry) -> Leaf:
    adapter = registry.find(value)
    if adapter is None:
        raise UnsupportedStateError(f"{show_path(path)}: {_refusal(value)}{registry.complaint()}")
    node = {"t": ""} if adapter.kind == "numpy" else {"t": "", "k": adapter.kind}
    return Leaf(path, name or ROOT_NAME, value, adapter, node)


def _refusal(value: Any) -> str:
    kind = type(value)
    full = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    for base in (dict, list, tuple, bool, int, float, str, bytes, complex):
        if isinstance(value, base):
            return f"{full} is a subclass of {base.__name__} and would come back as one: convert it first"
    return (
        f"a value of type {full} can't be stored; a state is made of dicts, lists, tuples, arrays, "
        "numbers, strings, bytes and None"
    )
