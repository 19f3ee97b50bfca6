"""torch CPU tensors as leaves: state dicts of models and optimizers, there and back."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from asyncckpt.errors import LayoutError, UnsupportedStateError
from asyncckpt.model.dtype import DTYPE_NAMES, array_from, as_bytes_view, dtype_name
from asyncckpt.model.state.fill import tensors_into
from asyncckpt.model.state.flatten import flatten
from asyncckpt.model.state.torch_leaf import TorchLeaf
from asyncckpt.model.state.tree import rebuild

pytestmark = pytest.mark.thorough

# The quick tests run where no framework is installed.
torch: Any = pytest.importorskip("torch")


def round_trip(state: Any) -> Any:
    """Through bytes and JSON, as a file would hold them."""
    flat = flatten(state)
    stored = {
        name: (bytearray(as_bytes_view(array)[1]), dtype_name(array.dtype), array.shape)
        for name, array in flat.tensors.items()
    }
    structure = json.loads(json.dumps(flat.tree, allow_nan=False))
    return rebuild(structure, {name: array_from(*parts) for name, parts in stored.items()})


def same(actual: Any, expected: Any) -> bool:
    return (
        type(actual) is torch.Tensor
        and actual.dtype == expected.dtype
        and actual.shape == expected.shape
        and bool(_bits(actual).equal(_bits(expected)))
    )


def _bits(tensor: Any) -> Any:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


DTYPES = ["float16", "float32", "float64", "bfloat16", "bool", "int8", "int16", "int32", "int64", "uint8"]
DTYPES += ["uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
DTYPES += ["float8_e4m3fnuz", "float8_e5m2fnuz"]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_and_shape(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    items = int(np.prod(shape, dtype=int))
    raw = torch.arange(items * dtype.itemsize, dtype=torch.int64).to(torch.uint8)
    tensor = ((raw % 2) if name == "bool" else raw + 120).to(torch.uint8).view(dtype).reshape(shape)
    flat = flatten({"t": tensor})
    assert dtype_name(flat.tensors["t"].dtype) == name
    assert same(round_trip({"t": tensor})["t"], tensor)


def test_no_copy_in_and_none_out() -> None:
    for tensor in (torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)):
        array = flatten([tensor]).tensors["0"]
        array.view(np.uint8)[:] = 1
        assert _bits(tensor).tolist() == [1] * tensor.nbytes
        back: Any = TorchLeaf().from_array(array)
        assert back.data_ptr() == tensor.data_ptr()


def test_layouts_and_lazy_bits() -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    complex_base = torch.tensor([1 + 2j, 3 - 4j])
    state = {
        "t": base.T,
        "strided": base[:, ::2],
        "bf16": base.to(torch.bfloat16).T,
        "expanded": torch.ones(1, 2).expand(3, 2),
        "conj": complex_base.conj(),
        "neg": complex_base.conj().imag,
    }
    restored = round_trip(state)
    assert all(same(restored[key], value) for key, value in state.items())
    assert restored["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert restored["neg"].tolist() == [-2.0, 4.0]


def test_the_state_of_a_model_with_tied_weights() -> None:
    model = torch.nn.ModuleDict(
        {"embed": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)}
    )
    model["norm"] = torch.nn.BatchNorm1d(3)
    model["head"].weight = model["embed"].weight
    model.to(torch.bfloat16)
    state = dict(model.state_dict())
    flat = flatten(state)
    assert "head.weight" not in flat.tensors
    restored = round_trip(state)
    assert restored["head.weight"] is restored["embed.weight"]
    assert list(restored) == list(state)
    assert all(same(restored[key], value) for key, value in state.items())
    model.load_state_dict(restored)


def test_a_state_dict_as_torch_gives_it() -> None:
    model = torch.nn.Linear(2, 2)
    state = model.state_dict()
    restored = round_trip(state)
    assert type(restored) is type(state)
    assert all(same(restored[key], value) for key, value in state.items())


@pytest.mark.parametrize("name", ["Adam", "SGD", "AdamW"])
def test_the_state_of_an_optimizer(name: str) -> None:
    model = torch.nn.Linear(3, 2)
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    restored = round_trip(state)
    assert restored["param_groups"] == state["param_groups"]
    assert restored["state"].keys() == state["state"].keys()
    for index, slots in state["state"].items():
        for slot, value in slots.items():
            assert same(restored["state"][index][slot], value)
    optimizer.load_state_dict(restored)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_parameters_and_gradients_come_back_as_they_were(dtype: str) -> None:
    plain = torch.ones(2, dtype=getattr(torch, dtype))
    state = {
        "parameter": torch.nn.Parameter(plain.clone()),
        "frozen": torch.nn.Parameter(plain.clone(), requires_grad=False),
        "grad": plain.clone().requires_grad_(),
        "plain": plain,
        "counter": torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
    }
    restored = round_trip(state)
    for name, tensor in state.items():
        assert type(restored[name]) is type(tensor), name
        assert restored[name].requires_grad == tensor.requires_grad, name
        assert torch.equal(restored[name].detach(), tensor.detach()), name
        assert restored[name].is_leaf, name
    flat = flatten(state)
    arrays = rebuild(flat.tree, flat.tensors, framework="numpy")
    assert {type(array) for array in arrays.values()} == {np.ndarray}


def test_a_result_of_a_computation_comes_back_as_a_leaf() -> None:
    restored = round_trip({"y": torch.ones(2, requires_grad=True) * 2})
    assert restored["y"].requires_grad
    assert restored["y"].is_leaf


def test_a_parameter_and_its_data_are_one_tensor_and_share_memory_again() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    state = {"parameter": parameter, "data": parameter.detach(), "again": parameter}
    assert list(flatten(state).tensors) == ["parameter"]
    restored = round_trip(state)
    assert restored["again"] is restored["parameter"]
    assert type(restored["data"]) is torch.Tensor
    assert restored["data"].data_ptr() == restored["parameter"].data_ptr()


@pytest.mark.parametrize("kind", ["torch.grad", "torch.parameter"])
def test_a_file_that_claims_a_gradient_of_integers(kind: str) -> None:
    with pytest.raises(
        LayoutError, match=r"tensor 'w': a torch tensor of dtype torch.int64 can't have a gradient"
    ):
        rebuild({"t": "w", "k": kind}, {"w": np.ones(2, np.int64)})


def test_a_file_from_before_parameters_had_a_kind() -> None:
    assert type(rebuild({"t": "w", "k": "torch"}, {"w": np.ones(2)})) is torch.Tensor


def test_views_that_differ_are_not_tied() -> None:
    base = torch.arange(4.0)
    flat = flatten([base, base[:2], base.reshape(2, 2), base.view(torch.int32), base.detach()])
    assert list(flat.tensors) == ["0", "1", "2", "3"]


def test_a_read_only_buffer_is_copied_without_a_warning() -> None:
    array = array_from(bytes(8), "float32", (2,))
    tensor: Any = TorchLeaf().from_array(array)
    tensor += 1
    assert array.tolist() == [0, 0]
    unaligned = array_from(memoryview(bytearray(9))[1:], "bfloat16", (4,))
    assert same(TorchLeaf().from_array(unaligned), torch.zeros(4, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", ["S3", "datetime64[s]", "int4"])
def test_a_file_that_claims_an_impossible_tensor(name: str) -> None:
    size = {"S3": 3, "datetime64[s]": 8, "int4": 1}[name]
    with pytest.raises(LayoutError, match="tensor 'w': a torch tensor can't have the dtype"):
        rebuild({"t": "w", "k": "torch"}, {"w": array_from(bytes(size), name, (1,))})


@pytest.mark.filterwarnings("ignore:.*support is experimental")
@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_complex_numbers_of_half_width(name: str) -> None:
    if not hasattr(torch, name) or name not in DTYPE_NAMES:
        pytest.skip(f"this torch or this ml_dtypes has no {name}")
    tensor = torch.arange(6, dtype=torch.int32).view(getattr(torch, name)).reshape(2, 3)
    assert same(round_trip({"w": tensor})["w"], tensor)


class Fancy(torch.Tensor):
    """What libraries make of tensors."""


REFUSED = {
    "meta device": lambda: torch.ones(2, device="meta"),
    "to_dense": lambda: torch.ones(2, 2).to_sparse(),
    "would come back as a plain one": lambda: torch.ones(2).as_subclass(Fancy),
    "type torch.dtype": lambda: torch.float32,
    "torch.Size is a subclass of tuple": lambda: torch.ones(2).shape,
    "type torch.device": lambda: torch.device("cpu"),
    "Linear": lambda: torch.nn.Linear(1, 1),
    "zeros without memory: .clone() it": lambda: torch._efficientzerotensor(3),
    "storage has 0 bytes of 16: it was freed": lambda: freed(0),
    "storage has 8 bytes of 16: it was freed": lambda: freed(8),
}


def freed(left: int) -> Any:
    """A tensor whose storage was taken away, as sharding frameworks do between two steps."""
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused_says_where_and_what_to_do(reason: str) -> None:
    with pytest.raises(UnsupportedStateError) as caught:
        flatten({"a": [REFUSED[reason]()]})
    assert str(caught.value).startswith("state['a'][0]: ")
    assert reason in str(caught.value)


def test_tensors_of_a_transformation_are_refused_in_one_line() -> None:
    seen = []

    def look(tensor: Any) -> Any:
        with pytest.raises(
            UnsupportedStateError, match=r"state\['w'\]: the tensor can't give its memory"
        ) as caught:
            flatten({"w": tensor})
        seen.append(str(caught.value))
        return tensor

    torch.func.vmap(look)(torch.ones(2, 2))
    torch.func.grad(lambda tensor: look(tensor).sum())(torch.ones(2))
    assert len(seen) == 2
    assert not any("\n" in line for line in seen)


def test_views_that_repeat_their_memory_are_stored_whole() -> None:
    assert round_trip({"w": torch.arange(2.0).expand(3, 2)})["w"].tolist() == [[0, 1]] * 3


def test_loading_into_tensors() -> None:
    saved = flatten({"w": torch.full((2, 2), 1.5, dtype=torch.bfloat16), "p": torch.arange(3)})
    state = {
        "w": torch.zeros(2, 2, dtype=torch.bfloat16).T,
        "p": torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False),
    }
    found = tensors_into(saved.tree, state)
    for name, arrays in found.arrays.items():
        arrays[0][...] = saved.tensors[name]
    assert state["w"].tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert state["p"].tolist() == [0, 1, 2]
    with pytest.raises(UnsupportedStateError, match=r"state\['w'\]: the array repeats its memory"):
        tensors_into(saved.tree, {"w": torch.zeros(1).expand(2)})
    lazy = torch.zeros(2, dtype=torch.complex64).conj()
    with pytest.raises(UnsupportedStateError, match=r"state\['w'\]: the tensor is a lazy conjugate"):
        tensors_into(saved.tree, {"w": lazy})


def test_torch_is_not_imported_before_the_user_does() -> None:
    script = (
        "import sys, numpy\n"
        "from asyncckpt.model.state.flatten import flatten\n"
        "from asyncckpt.model.state.tree import rebuild\n"
        "flat = flatten({'a': numpy.ones(1), 's': numpy.float32(1), 'n': [1, 'x']})\n"
        "rebuild(flat.tree, flat.tensors)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
