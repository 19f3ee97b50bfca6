"""Leaves: how values that hold numbers become arrays without a copy, and come back.

numpy arrays, numpy scalars and torch CPU tensors are built in. A third party adds its own kind with
`register_leaf`, or by an entry point of the group `asyncckpt.leaves` that names a `LeafAdapter` object. The
module of such an adapter must not import its framework: a value of the framework can only exist once the user
has imported it, and `from_array` may import it then.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np

from asyncckpt.arguments import checked
from asyncckpt.errors import LayoutError, MissingExtraError, UnsupportedStateError
from asyncckpt.model.dtype import plain_array
from asyncckpt.model.state.torch_leaf import TORCH_LEAVES

ENTRY_POINT_GROUP: Final = "asyncckpt.leaves"
KIND_PATTERN: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)

Framework = Literal["numpy", "torch"]
"""Whose arrays all arrays of a state come back as; without one, as what they were saved from."""


@runtime_checkable
class LeafAdapter(Protocol):
    """Turns one kind of value into an array and back. Every method is quick, and none does any I/O."""

    @property
    def kind(self) -> str:
        """The name that is stored in the file: lower case, such as 'torch'."""

    def matches(self, value: object) -> bool:
        """Whether the value is of this kind; never imports the framework."""

    def to_array(self, value: Any) -> np.ndarray:
        """The value's numbers, sharing its memory where possible.

        Raises UnsupportedStateError with the reason, without a path, when the value can't be stored.
        """

    def from_array(self, array: np.ndarray) -> object:
        """The value over the array's memory. Raises MissingExtraError, or LayoutError for a wrong dtype."""

    def destination(self, value: Any) -> np.ndarray | None:
        """A writable array over the value's own memory; None for a value that can't change.

        Raises UnsupportedStateError with the reason when the value should have one and has not.
        """

    def identity(self, value: Any) -> Hashable | None:
        """Equal for two values that are the same memory seen in the same way; None: never tied.

        Kinds whose names begin with the same word, as 'torch' and 'torch.parameter' do, share their identities.
        """


class NumpyArrayLeaf:
    """numpy arrays, memory maps included."""

    kind = "numpy"

    def matches(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def to_array(self, value: np.ndarray) -> np.ndarray:
        return plain_array(value)

    def from_array(self, array: np.ndarray) -> np.ndarray:
        return array

    def destination(self, value: np.ndarray) -> np.ndarray:
        array = plain_array(value)
        if not array.flags.writeable:
            raise UnsupportedStateError("the array is read-only and can't be loaded into")
        return array

    def identity(self, value: np.ndarray) -> Hashable:
        # The address is slow to ask for and few arrays need it: one that owns its memory is known by itself.
        root = value.base
        if root is None or value.size == 0:
            return id(value)
        view = _address(value), value.shape, value.strides, value.dtype
        spans_root = (
            isinstance(root, np.ndarray)
            and root.base is None
            and view == (_address(root), root.shape, root.strides, root.dtype)
        )
        return id(root) if spans_root else view


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class NumpyScalarLeaf:
    """numpy scalars: stored as tensors without dimensions, restored as scalars."""

    kind = "scalar"

    def matches(self, value: object) -> bool:
        return isinstance(value, np.generic)

    def to_array(self, value: np.generic) -> np.ndarray:
        return plain_array(np.asarray(value))

    def from_array(self, array: np.ndarray) -> object:
        if array.ndim != 0:
            raise LayoutError(f"a scalar has no dimensions, the tensor has the shape {list(array.shape)}")
        # A void scalar is a view: the copy keeps it from holding, and showing changes of, a whole file.
        return array.copy()[()]

    def destination(self, value: np.generic) -> None:
        return None

    def identity(self, value: np.generic) -> None:
        return None


class LeafRegistry:
    """The known leaf adapters: numpy's, then those registered, then torch, then those of entry points."""

    def __init__(self, declared: Iterable[EntryPoint] = ()) -> None:
        self._array = NumpyArrayLeaf()
        self._numpy: dict[str, LeafAdapter] = {leaf.kind: leaf for leaf in (self._array, NumpyScalarLeaf())}
        self._registered: dict[str, LeafAdapter] = {}
        self._builtin: dict[str, LeafAdapter] = {leaf.kind: leaf for leaf in TORCH_LEAVES}
        self._declared = tuple(declared)
        self._plugins: dict[str, LeafAdapter] | None = None
        self._broken: dict[str, Exception] = {}

    def register(self, adapter: LeafAdapter, *, replace: bool = False) -> None:
        """Add an adapter; it is asked before torch's. Raises ValueError for a kind that is taken."""
        if not KIND_PATTERN.fullmatch(adapter.kind):
            raise ValueError(f"leaf kind {adapter.kind!r} is not a short lower-case name")
        if adapter.kind in self._numpy:
            raise ValueError(f"leaf kind {adapter.kind!r} belongs to numpy")
        if not replace and (adapter.kind in self._registered or adapter.kind in self._builtin):
            raise ValueError(
                f"leaf kind {adapter.kind!r} is registered already; pass replace=True to replace it"
            )
        self._registered[adapter.kind] = adapter

    def find(self, value: object) -> LeafAdapter | None:
        """The adapter for the value; None when no one knows it."""
        if type(value) is np.ndarray:
            return self._array
        for adapters in (self._numpy, self._registered, self._builtin):
            for adapter in adapters.values():
                if adapter.matches(value):
                    return adapter
        return next((plugin for plugin in self._load_plugins().values() if plugin.matches(value)), None)

    def of_kind(self, kind: str) -> LeafAdapter:
        """The adapter of that kind. Raises MissingExtraError when there is none."""
        for adapters in (self._numpy, self._registered, self._builtin):
            if kind in adapters:
                return adapters[kind]
        plugin = self._load_plugins().get(kind)
        if plugin is None:
            raise MissingExtraError(
                f"no installed package has an adapter for leaves of kind {kind!r}{self.complaint()}; "
                "load with framework='numpy' to get arrays"
            )
        return plugin

    def complaint(self) -> str:
        """What to add to a refusal: the entry points that could not be loaded, or nothing."""
        return "".join(
            f" (the leaf adapter {name!r} failed to load: {error})" for name, error in self._broken.items()
        )

    def _load_plugins(self) -> dict[str, LeafAdapter]:
        if self._plugins is None:
            self._plugins = {}
            for entry in self._declared:
                self._load_plugin(entry, self._plugins)
        return self._plugins

    def _load_plugin(self, entry: EntryPoint, plugins: dict[str, LeafAdapter]) -> None:
        # A stranger's broken package must not stop saves that do not need it; `complaint` tells of it.
        try:
            adapter = entry.load()
        except Exception as error:
            self._broken[entry.name] = error
            return
        if not isinstance(adapter, LeafAdapter) or not KIND_PATTERN.fullmatch(adapter.kind):
            self._broken[entry.name] = TypeError("it is not a LeafAdapter object")
            return
        plugins.setdefault(adapter.kind, adapter)


# The declarations are read at import, because that reads files; the adapters are loaded when first needed.
LEAVES: Final = LeafRegistry(entry_points(group=ENTRY_POINT_GROUP))
"""The registry that saves and loads use unless they are given another."""


@checked
def register_leaf(adapter: LeafAdapter, *, replace: bool = False) -> None:
    """Make a kind of leaf known to every save and load. Raises ValueError for a kind that is taken."""
    LEAVES.register(adapter, replace=replace)
