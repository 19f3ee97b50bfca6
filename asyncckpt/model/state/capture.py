"""A copy of a state's containers, made at one instant: the only part of a save that must hold up the event loop.

Plain values can't change and arrays are copied later, so nothing else is looked at here: what is wrong with a state
is found when the copy is taken apart, in a worker thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from asyncckpt.model.state.plain import PLAIN_TYPES
from asyncckpt.model.state.tree import MAX_DEPTH


class CapturedTuple(list[Any]):
    """A tuple with more than plain values in it, whose containers can still be replaced by copies of them."""

    __slots__ = ()


_COPIES: Final[dict[type, Callable[[Any], Any]]] = {
    dict: dict.copy,
    OrderedDict: OrderedDict.copy,
    list: list.copy,
    tuple: CapturedTuple,
}
CAPTURED: Final = frozenset({dict, OrderedDict, list, CapturedTuple})
"""The types of the containers that `capture` makes."""


def capture(state: Any) -> Any:
    """The state with containers of its own. What is one container in two places, or around itself, is so in the copy.

    One turn of the loop for each container, and C's speed for its plain values. Deeper than a state may be
    nested, containers are left as they are: `walk_state` never gets there.
    """
    root = [state]
    level: list[Any] = [root]
    copied: dict[int, Any] = {}
    # Another thread may drop a container meanwhile; its id must not be taken for that of a new one.
    originals: list[Any] = []
    only_plain = PLAIN_TYPES.issuperset
    for _ in range(MAX_DEPTH + 2):
        if not level:
            break
        below: list[Any] = []
        for container in level:
            # Only values are replaced while it is iterated over, never keys.
            for key, child in container.items() if isinstance(container, dict) else enumerate(container):
                kind = type(child)
                if kind not in _COPIES or (kind is tuple and only_plain(map(type, child))):
                    continue
                copy = copied.get(id(child))
                if copy is None:
                    copy = _COPIES[kind](child)
                    # Containers of plain values, which are most, are in no cycle and need no entry.
                    if not only_plain(map(type, copy.values() if isinstance(copy, dict) else copy)):
                        copied[id(child)] = copy
                        originals.append(child)
                        below.append(copy)
                container[key] = copy
        level = below
    return root[0]
