"""asyncckpt from code without an event loop: `asyncckpt.blocking`. `python examples/sync_code.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from asyncckpt import CheckpointMetadata, TrainingMetadata, blocking


def train(folder: Path) -> None:
    weights = {"w": np.zeros((256, 256), np.float32), "b": np.zeros(256, np.float32)}
    for step in (1, 2, 3):
        weights["w"] += 0.5
        metadata = CheckpointMetadata(training=TrainingMetadata(step=step, learning_rate=1e-3))
        result = blocking.save(
            {"model": weights, "step": step}, folder / f"step-{step}.checkpoint", metadata=metadata
        )
        print(f"step {step}: {result.size:,} bytes")

    resumed = {"w": np.empty((256, 256), np.float32), "b": np.empty(256, np.float32)}
    state = blocking.load(folder / "step-2.checkpoint", into={"model": resumed, "step": 0})
    assert state["step"] == 2
    assert resumed["w"][0, 0] == 1.0  # filled in place: no second copy of the weights
    print(f"resumed from step {state['step']}; verified: {blocking.verify(folder / 'step-2.checkpoint').ok}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        train(Path(scratch))
