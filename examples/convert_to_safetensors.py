"""Hand a training checkpoint to others as safetensors, with proof that it is the same.

`python examples/convert_to_safetensors.py`. The file loads with the safetensors package, transformers, vLLM …
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np

import asyncckpt


async def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    state = {f"layers.{i}.weight": rng.random((1024, 1024), np.float32) for i in range(8)}
    source, target = folder / "model.checkpoint", folder / "model.safetensors"
    await asyncckpt.save(state, source, metadata={"license": "apache-2.0"})

    # Streams tensor by tensor under a byte budget: the checkpoint may be larger than the memory.
    report = await asyncckpt.convert(source, target, memory_bytes=64 * 1024 * 1024)
    print(f"{report.source_format} -> {report.format}: {report.tensors} tensors, {report.size:,} bytes")

    # Compared by the checksums in the two files; no tensor has to be read for that.
    delta = await asyncckpt.diff(source, target)
    print(f"{delta.unchanged} tensors are the same, {len(delta.changed)} changed; {'; '.join(delta.header)}")
    assert delta.same

    loaded = await asyncckpt.load(target)  # recognised by its bytes
    assert np.array_equal(loaded["layers.3.weight"], state["layers.3.weight"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
