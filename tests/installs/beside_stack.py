"""asyncckpt[s3,gcs] resolves, imports and works together with datasets, ray and boto3, which pin what it uses too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.installs.throwaway import throwaway_environment

BESIDE = ("datasets", "ray", "boto3")
WORKS = """
import asyncio, importlib, importlib.metadata, os, tempfile
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
for name in ("asyncckpt", "datasets", "ray", "boto3", "s3fs", "gcsfs", "fsspec", "aiobotocore", "botocore", "numpy"):
    importlib.import_module(name)
    print(f"{name} {importlib.metadata.version(name)}")
import asyncckpt, numpy

async def round_trip(folder):
    location = os.path.join(folder, "model.checkpoint")
    await asyncckpt.save({"w": numpy.arange(10)}, location)
    return await asyncckpt.load(location)

with tempfile.TemporaryDirectory() as folder:
    state = asyncio.run(round_trip(folder))
assert list(state) == ["w"] and (state["w"] == numpy.arange(10)).all()
print("saved and loaded")
"""


def main() -> None:
    with throwaway_environment() as environment:
        environment.install("-e", ".[s3,gcs]", *BESIDE)
        environment.run("-c", WORKS)


if __name__ == "__main__":
    main()
