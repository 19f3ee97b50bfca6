"""What the tests of the command line share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncckpt
from asyncckpt.cli import main


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        def refuse(name: str) -> Any:
            raise ValueError(f"{name} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""

    def call(*arguments: str | Path) -> Result:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse's way to end on wrong usage
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def state() -> dict[str, Any]:
    return {
        "model": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(3, np.float32)},
        "step": 7,
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small checkpoint in a folder of its own."""
    path = tmp_path / "run" / "a.checkpoint"
    asyncckpt.blocking.save(state(), path, metadata={"epoch": 3})
    return path


@pytest.fixture
def damaged(checkpoint: Path) -> Path:
    """A copy with one flipped bit in the bytes of `model.weight`."""
    data = bytearray(checkpoint.read_bytes())
    data[data.index(np.arange(6, dtype=np.float32).tobytes()) + 1] ^= 1
    path = checkpoint.with_name("damaged.checkpoint")
    path.write_bytes(data)
    return path
