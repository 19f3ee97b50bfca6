"""Save a training state, load it back, verify it: `python examples/quickstart.py [FOLDER]`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np

import asyncckpt


async def main(folder: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((512, 512), np.float32)
    state = {
        "model": {"encoder.weight": weight, "decoder.weight": weight},  # tied: stored once
        "optimizer": {"step": 1200, "betas": (0.9, 0.95), "moments": [np.zeros(512, np.float32)]},
        "note": "plain values come back with their types",
    }

    result = await asyncckpt.save(state, folder / "step-1200.checkpoint", metadata={"loss": 2.31})
    print(f"saved {result.tensors} tensors, {result.size:,} bytes, as {result.format}")

    loaded = await asyncckpt.load(folder / "step-1200.checkpoint")
    assert loaded["optimizer"]["betas"] == (0.9, 0.95)
    assert loaded["model"]["encoder.weight"] is loaded["model"]["decoder.weight"]
    assert np.array_equal(loaded["model"]["encoder.weight"], weight)
    print("loaded: the tree is as it was, the tied weights are still one array")

    report = await asyncckpt.verify(folder / "step-1200.checkpoint")
    print(f"verified {report.bytes_checked:,} bytes: {'ok' if report.ok else report.problems}")

    # A checkpoint is never replaced by accident.
    try:
        await asyncckpt.save(state, folder / "step-1200.checkpoint")
    except asyncckpt.CheckpointExistsError:
        print("saving again under the same name is refused; overwrite=True replaces it in one step")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else scratch)))
