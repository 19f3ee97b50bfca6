"""torch CPU tensors as leaves, without importing torch before the user does.

dtypes that numpy lacks (bfloat16, float8) pass through an integer type of the same width, bit by bit. Whether a
tensor is a Parameter, and whether it wants a gradient, is in the leaf's kind: 'torch', 'torch.grad',
'torch.parameter', 'torch.parameter.frozen'.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import numpy as np

from asyncckpt.errors import LayoutError, MissingExtraError, UnsupportedStateError
from asyncckpt.model.dtype import DTYPE_NAMES, dtype_name, numpy_dtype

_CARRIERS: Final = {1: "uint8", 2: "int16", 4: "int32"}
# The names that numpy itself does not have, so that torch refuses to exchange them with it directly.
_CARRIED: Final = frozenset(
    name
    for name in DTYPE_NAMES
    if name.startswith(("bfloat", "float8")) or name in ("complex32", "bcomplex32")
)
# Same name in torch, other layout: torch packs several of these into a byte.
_PACKED: Final = frozenset({"int4", "uint4", "int2", "uint2", "float4_e2m1fn"})


class TorchLeaf:
    """Dense CPU tensors and Parameters; everything else of torch is refused with the way out."""

    def __init__(self, kind: str = "torch", *, parameter: bool = False, requires_grad: bool = False) -> None:
        self.kind = kind
        self._parameter = parameter
        self._requires_grad = requires_grad

    def matches(self, value: object) -> bool:
        torch = sys.modules.get("torch")
        # While torch is half imported it has no Tensor yet, and so has no one a value of it.
        if torch is None or not isinstance(value, getattr(torch, "Tensor", ())):
            return False
        tensor: Any = value
        is_parameter = isinstance(value, torch.nn.Parameter)
        return (is_parameter, bool(tensor.requires_grad)) == (self._parameter, self._requires_grad)

    def to_array(self, value: Any) -> np.ndarray:
        _check_storable(value)
        with _giving_memory():
            return _shared_array(value.detach().resolve_conj().resolve_neg())

    def from_array(self, array: np.ndarray) -> object:
        torch = _import_torch()
        name = dtype_name(array.dtype)
        if name not in _torch_dtypes(torch).values():
            raise LayoutError(f"a torch tensor can't have the dtype {name}")
        if not (array.flags.writeable and array.flags.aligned and array.flags.c_contiguous):
            array = array.copy()
        if name not in _CARRIED:
            tensor = torch.from_numpy(array)
        else:
            carrier = _CARRIERS[array.dtype.itemsize]
            tensor = torch.from_numpy(array.view(carrier)).view(getattr(torch, name))
        return self._dressed(tensor, torch)

    def _dressed(self, tensor: Any, torch: Any) -> object:
        if self._requires_grad and not (tensor.is_floating_point() or tensor.is_complex()):
            raise LayoutError(f"a torch tensor of dtype {tensor.dtype} can't have a gradient")
        if self._parameter:
            return torch.nn.Parameter(tensor, requires_grad=self._requires_grad)
        return tensor.requires_grad_() if self._requires_grad else tensor

    def destination(self, value: Any) -> np.ndarray:
        _check_storable(value)
        if value.is_conj() or value.is_neg():
            raise UnsupportedStateError(
                "the tensor is a lazy conjugate and can't be loaded into: .clone() it"
            )
        with _giving_memory():
            return _shared_array(value.detach())

    def identity(self, value: Any) -> Hashable:
        # What the other methods refuse may have no address or strides to ask for.
        if type(value) not in _plain_types() or _refusal(value) is not None or value.numel() == 0:
            return id(value)
        view = tuple(value.shape), value.stride(), value.dtype, value.is_conj(), value.is_neg()
        return value.data_ptr(), view


TORCH_LEAVES: Final = (
    TorchLeaf(),
    TorchLeaf("torch.grad", requires_grad=True),
    TorchLeaf("torch.parameter", parameter=True, requires_grad=True),
    TorchLeaf("torch.parameter.frozen", parameter=True),
)


def _import_torch() -> Any:
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingExtraError(
            "torch tensors are to be made and torch is not installed: "
            "pip install 'asyncckpt[torch]', or load with framework='numpy'"
        ) from error


def _plain_types() -> tuple[type, ...]:
    torch: Any = sys.modules["torch"]
    return torch.Tensor, torch.nn.Parameter


@lru_cache(maxsize=1)
def _torch_dtypes(torch: Any) -> dict[Any, str]:
    """The torch dtypes that can be stored, with their canonical names."""
    names = (name for name in DTYPE_NAMES if name not in _PACKED)
    return {getattr(torch, name): name for name in names if hasattr(torch, name)}


def _check_storable(tensor: Any) -> None:
    if type(tensor) not in _plain_types():
        raise UnsupportedStateError(
            f"{type(tensor).__name__} is a subclass of torch.Tensor and would come back as a plain one: "
            "convert it first (a DTensor with .full_tensor())"
        )
    reason = _refusal(tensor)
    if reason is not None:
        raise UnsupportedStateError(reason)


@contextmanager
def _giving_memory() -> Iterator[None]:
    """Tensors inside torch's own transformations (vmap, grad …), and others that only look like one, have none."""
    try:
        yield
    except (RuntimeError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UnsupportedStateError(f"the tensor can't give its memory: {reason}") from error


def _refusal(tensor: Any) -> str | None:
    torch: Any = sys.modules["torch"]
    if tensor.device.type == "meta":
        return "the tensor is on the meta device and has no data: materialise it first"
    if tensor.device.type != "cpu":
        return f"the tensor is on the device {tensor.device}: call .cpu() first"
    if tensor.is_nested:
        return "a nested torch tensor can't be stored: store its parts, tensor.unbind()"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} can't be stored: call .to_dense() or store its parts"
    if tensor.is_quantized:
        return "a quantised tensor can't be stored: store .int_repr() and its scales, or .dequantize() it"
    if tensor.dtype not in _torch_dtypes(torch):
        return f"a tensor of dtype {tensor.dtype} can't be stored: convert it to a dtype of whole bytes"
    if tensor._is_zerotensor():
        return "the tensor is one of torch's zeros without memory: .clone() it"
    return _freed(tensor)


def _freed(tensor: Any) -> str | None:
    """Frameworks that shard free the storage of a tensor that lives on: reading it would read strangers' memory."""
    with _giving_memory():
        held = tensor.untyped_storage().nbytes()
    if held >= (tensor.storage_offset() + tensor.numel()) * tensor.element_size() or not tensor.numel():
        return None
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    if held >= needed:
        return None
    return f"the tensor's storage has {held} bytes of {needed}: it was freed; gather the tensor first"


def _shared_array(tensor: Any) -> np.ndarray:
    torch: Any = sys.modules["torch"]
    name = _torch_dtypes(torch)[tensor.dtype]
    if name not in _CARRIED:
        array: np.ndarray = tensor.numpy()
        return array
    dtype = numpy_dtype(name)
    carried: np.ndarray = tensor.view(getattr(torch, _CARRIERS[dtype.itemsize])).numpy()
    return carried.view(dtype)
