"""Read one slice of one tensor from a large checkpoint on S3, and count the bytes.

The place is set as in orchestrator.py, by ASYNCCKPT_EXAMPLE_S3_URL and ASYNCCKPT_EXAMPLE_S3_OPTIONS; without them
it is a temporary folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile

import numpy as np

import asyncckpt

OPTIONS = json.loads(os.environ.get("ASYNCCKPT_EXAMPLE_S3_OPTIONS", "null"))


async def main(root: str) -> None:
    rng = np.random.default_rng(0)
    state = {f"layers.{i}.weight": rng.random((2048, 2048), np.float32) for i in range(8)}
    async with asyncckpt.open_storage(root, storage_options=OPTIONS) as storage:
        location = (storage, "lazy/model.checkpoint")
        result = await asyncckpt.save(
            state, location, overwrite=True, copy=False
        )  # nobody changes the arrays
        print(f"saved {result.size:,} bytes")

        events: list[asyncckpt.ProgressEvent] = []
        async with asyncckpt.open_checkpoint(location, progress=events.append) as checkpoint:
            for name, tensor in checkpoint.tensors.items():
                print(f"  {name}  {tensor.dtype}  {list(tensor.shape)}")
            rows = await checkpoint.read_slice("layers.5.weight", (slice(1000, 1016), slice(None)))
        assert np.array_equal(rows, state["layers.5.weight"][1000:1016])
        read = max(event.bytes_done for event in events)
        # Verified, so the read is rounded to checksum chunks of 1 MiB; open with verify=False for the bare bytes.
        print(
            f"read {rows.shape} of layers.5.weight: {rows.nbytes:,} bytes wanted, {read:,} fetched and verified"
        )

        part = await asyncckpt.load(location, only="layers.[01].*")  # or some tensors, by a glob
        print(f"loaded a part: {', '.join(part)}")
        await storage.delete(location[1])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(os.environ.get("ASYNCCKPT_EXAMPLE_S3_URL", scratch)))
