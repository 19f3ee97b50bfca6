"""The tree of a state from which some tensors are taken out."""

from __future__ import annotations

from collections.abc import Set

from asyncckpt.model.metadata import Json
from asyncckpt.model.state.plain import NONE_ROOT

_PAIRS = ("d", "o")


def prune(tree: Json, dropped: Set[str]) -> Json:
    """The tree, which `check_tree` has passed, without the dropped tensors.

    They are gone from dicts, and None in lists and tuples. A loop, as all walks over trees are.
    """
    if not dropped:
        return tree
    root: list[Json] = [tree]
    stack = [root]
    while stack:
        nodes = stack.pop()
        for at, node in enumerate(nodes):
            if isinstance(node, list):
                nodes[at] = list(node)
                stack.append(nodes[at])
            elif isinstance(node, dict):
                nodes[at] = _pruned(node, dropped, stack)
    return NONE_ROOT if root[0] is None and tree is not None else root[0]


def _pruned(node: dict[str, Json], dropped: Set[str], stack: list[list[Json]]) -> Json:
    """The node with a list of its own, which still has to be visited, if it is a container."""
    if "t" in node:
        return None if node["t"] in dropped else node
    for tag in (*_PAIRS, "u"):
        if tag in node:
            nodes = _without(node[tag], dropped) if tag in _PAIRS else list(node[tag])
            stack.append(nodes)
            return {tag: nodes}
    return node


def _without(pairs: list[Json], dropped: Set[str]) -> list[Json]:
    kept: list[Json] = []
    for key, node in zip(pairs[::2], pairs[1::2], strict=True):
        if not (isinstance(node, dict) and node.get("t") in dropped):
            kept += [key, node]
    return kept
