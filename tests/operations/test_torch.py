"""torch state dicts, saved and loaded as they are: tensors come back as tensors, tied weights as one."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import asyncckpt
from asyncckpt.storage.memory import MemoryStorage
from tests.operations.places import EVERYWHERE, open_medium
from tests.operations.test_requests import RemoteMemory

pytestmark = pytest.mark.thorough

# The quick tests run where no framework is installed.
torch: Any = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def _same_numbers_each_time() -> Iterator[None]:
    before = torch.random.get_rng_state()
    torch.manual_seed(5)
    yield
    torch.random.set_rng_state(before)


class Net(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """Embedding and output layer share one weight, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 16)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 16)
        )
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.body(self.embedding(tokens)))


def trained() -> tuple[Net, Any]:
    """A model and its optimizer after one step, so that the optimizer has a state."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.8, 0.99))
    loss = model(torch.arange(20)).square().mean()
    loss.backward()
    optimizer.step()
    return model, optimizer


def assert_same(found: Any, expected: Any, path: str = "state") -> None:
    assert type(found) is type(expected), path
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key in expected:
            assert_same(found[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), path
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{path}[{i}]")
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, path
        assert torch.equal(found, expected), path
    else:
        assert found == expected, path


@pytest.mark.parametrize("kind", EVERYWHERE)
async def test_a_model_and_its_optimizer(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    async with open_medium(kind, tmp_path, request) as medium:
        place = (medium.storage, "a.checkpoint")
        await asyncckpt.save(state, place)
        loaded = await asyncckpt.load(place)
        assert_same(dict(loaded["model"]), dict(state["model"]))
        assert_same(loaded["optimizer"], state["optimizer"])
        fresh = Net()
        fresh.load_state_dict(loaded["model"])
        resumed = torch.optim.AdamW(fresh.parameters(), lr=5.0)
        resumed.load_state_dict(loaded["optimizer"])
        fresh.eval()
        model.eval()
        tokens = torch.arange(50)
        assert torch.equal(fresh(tokens), model(tokens))
        assert resumed.param_groups[0]["lr"] == 1e-2


async def test_the_state_dict_alone_is_a_state() -> None:
    model, optimizer = trained()
    storage = MemoryStorage()
    for key, state in (("model", model.state_dict()), ("optimizer", optimizer.state_dict())):
        await asyncckpt.save(state, (storage, key))
        loaded = await asyncckpt.load((storage, key))
        assert_same(dict(loaded), dict(state))
    assert isinstance(await asyncckpt.load((storage, "model")), OrderedDict)


async def test_tied_weights_are_stored_once_and_come_back_as_one() -> None:
    model, _ = trained()
    storage = MemoryStorage()
    result = await asyncckpt.save(model.state_dict(), (storage, "x"))
    assert result.tensors == len(model.state_dict()) - 1
    loaded = await asyncckpt.load((storage, "x"))
    assert loaded["head.weight"] is loaded["embedding.weight"]


DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_every_dtype(dtype: Any) -> None:
    tensor = torch.arange(24).remainder(2).reshape(4, 6).to(dtype)
    for storage in (MemoryStorage(), RemoteMemory()):
        await asyncckpt.save({"t": tensor}, (storage, "x"))
        found = (await asyncckpt.load((storage, "x")))["t"]
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


async def test_bfloat16_keeps_every_bit() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    storage = MemoryStorage()
    await asyncckpt.save({"t": bits.view(torch.bfloat16)}, (storage, "x"))
    found = (await asyncckpt.load((storage, "x")))["t"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.view(torch.int16), bits)


async def test_views_transposed_empty_and_scalar_tensors() -> None:
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    state = {
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    storage = MemoryStorage()
    await asyncckpt.save(state, (storage, "x"))
    loaded = await asyncckpt.load((storage, "x"))
    for name, tensor in state.items():
        assert torch.equal(loaded[name], tensor.detach()), name


async def test_into_a_model_that_exists() -> None:
    model, _ = trained()
    for storage in (MemoryStorage(), RemoteMemory()):
        await asyncckpt.save(model.state_dict(), (storage, "x"))
        fresh = Net()
        addresses = {name: tensor.data_ptr() for name, tensor in fresh.state_dict().items()}
        await asyncckpt.load((storage, "x"), into=fresh.state_dict())
        assert_same(dict(fresh.state_dict()), dict(model.state_dict()))
        assert {n: t.data_ptr() for n, t in fresh.state_dict().items()} == addresses


async def test_into_a_model_of_another_shape_is_refused() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"w": torch.ones(3)}, (storage, "x"))
    with pytest.raises(asyncckpt.MismatchError, match=r"'w' is float32 \[3\]"):
        await asyncckpt.load((storage, "x"), into={"w": torch.ones(4)})
    with pytest.raises(asyncckpt.MismatchError, match="'w' is float32"):
        await asyncckpt.load((storage, "x"), into={"w": torch.ones(3, dtype=torch.bfloat16)})


async def test_as_numpy_on_request() -> None:
    storage = MemoryStorage()
    await asyncckpt.save({"w": torch.ones(3)}, (storage, "x"))
    loaded = await asyncckpt.load((storage, "x"), framework="numpy")
    assert type(loaded["w"]) is np.ndarray


async def test_as_torch_on_request() -> None:
    """Also what was saved from numpy, and a foreign file; Parameters stay Parameters, numbers numbers."""
    storage = MemoryStorage()
    state = {"a": np.arange(3.0), "p": torch.nn.Parameter(torch.ones(2)), "s": np.float32(2), "n": 1}
    await asyncckpt.save(state, (storage, "x"))
    loaded = await asyncckpt.load((storage, "x"), framework="torch")
    assert [type(value) for value in loaded.values()] == [torch.Tensor, torch.nn.Parameter, np.float32, int]
    assert loaded["a"].dtype is torch.float64
    foreign = safetensors.numpy.save({"w": np.arange(4, dtype=np.float16)})
    assert torch.equal(
        (await asyncckpt.load(foreign, framework="torch"))["w"], torch.arange(4, dtype=torch.float16)
    )


async def test_what_has_no_memory_of_its_own_is_refused_with_its_path() -> None:
    storage = MemoryStorage()
    for tensor in (torch.ones(2, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(asyncckpt.UnsupportedStateError, match=r"state\['model'\]\['w'\]"):
            await asyncckpt.save({"model": {"w": tensor}}, (storage, "x"))
    assert not await storage.exists("x")


WITHOUT_TORCH = """
import asyncio, sys
import numpy as np
import asyncckpt
from asyncckpt.storage.memory import MemoryStorage

async def main():
    storage = MemoryStorage()
    await asyncckpt.save({"w": np.ones(3), "n": 1}, (storage, "x"))
    await asyncckpt.load((storage, "x"))
    await asyncckpt.load((storage, "x"), into={"w": np.zeros(3), "n": 0})
    await asyncckpt.load(sys.argv[1], framework="numpy")
    await asyncckpt.verify(sys.argv[1])
    async with asyncckpt.open_checkpoint(sys.argv[1]) as checkpoint:
        await checkpoint.read("w")
    assert "torch" not in sys.modules, "torch was imported"
    print("free of torch")
    state = await asyncckpt.load(sys.argv[1])
    assert type(state["w"]).__module__ == "torch"
    print("a tensor again")

asyncio.run(main())
"""


def test_torch_is_not_imported_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "torch.checkpoint"
    asyncckpt.blocking.save({"w": torch.ones(3)}, path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["free of torch", "a tensor again"]
