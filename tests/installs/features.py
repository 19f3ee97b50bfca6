"""Tries everything that needs an extra, in an environment that has none. Run by core_alone.py, in that environment.

Usage: python features.py GOLDEN, the folder of the golden files. Ends with an error when something does not say
what to install, or when something that needs no extra does not work.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import asyncckpt
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.model.state.leaves import LEAVES

STATE: dict[str, Any] = {"w": np.arange(12, dtype=np.float32), "step": 3}
OPTIONAL = "s3fs urllib3 aiohttp gcsfs flatbuffers zlib_ng blake3 zstandard cryptography torch rich".split()
WORKS = ("mlcp", "mlcp-set", "safetensors", "safetensors-set", "gptrsten", "mldf")
KEY = bytes(32)


def features(folder: Path, golden: Path) -> dict[str, tuple[str, Callable[[], Any]]]:
    """What to try, and the extra that it must name."""

    def saving(name: str, **options: Any) -> Callable[[], Any]:
        return lambda: asyncckpt.blocking.save(STATE, folder / name, **options)

    def loading(name: str) -> Callable[[], Any]:
        return lambda: asyncckpt.blocking.load(golden / name)

    def opening(url: str) -> Callable[[], Any]:
        return lambda: asyncckpt.open_storage(url)

    return {
        "saving to S3": ("s3", lambda: asyncckpt.blocking.save(STATE, "s3://bucket/x.checkpoint")),
        "loading from S3": ("s3", lambda: asyncckpt.blocking.load("s3://bucket/x.checkpoint")),
        "opening S3": ("s3", opening("s3://bucket/run")),
        "saving to GCS": ("gcs", lambda: asyncckpt.blocking.save(STATE, "gs://bucket/x.checkpoint")),
        "opening GCS": ("gcs", opening("gs://bucket/run")),
        "saving SDNB": ("samediff", saving("x.sdnb")),
        "saving SDZ": ("samediff", saving("x.sdz")),
        "saving METAGRAPH": ("bundle", saving("x.mgb")),
        "saving compressed METAGRAPH": ("bundle", saving("y.mgb", format=MetagraphFormat(compress=True))),
        "saving encrypted METAGRAPH": ("bundle", saving("z.mgb", format=MetagraphFormat(key=KEY))),
        "saving signed METAGRAPH": ("bundle", saving("s.mgb", format=MetagraphFormat(signing_key=KEY))),
        "loading METAGRAPH": ("bundle", loading("metagraph/smallest.mgb")),
        "saving GPTRSCHK": ("gptrs", saving("x.gptrschk")),
        "loading GPTRSCHK": ("gptrs", loading("gptrschk/smallest.gptrschk")),
        "a torch tensor": ("torch", lambda: LEAVES.of_kind("torch").from_array(np.zeros(3))),
    }


def complaint_of(feature: Callable[[], Any], extra: str) -> str | None:
    """What is wrong with how the feature fails; None when it names its extra."""
    try:
        feature()
    except asyncckpt.MissingExtraError as error:
        line = f"pip install 'asyncckpt[{extra}]'"
        return None if line in str(error) else f"does not say {line}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works without its extra"


def require_core_works(folder: Path, golden: Path) -> None:
    for name in WORKS:
        path = folder / f"core-{name}{asyncckpt.get_format(name).extension}"
        asyncckpt.blocking.save(STATE, path, format=name)
        assert np.array_equal(asyncckpt.blocking.load(path)["w"], STATE["w"]), name
    for name in ("sdnb/smallest.sdnb", "sdz/smallest.sdz"):
        asyncckpt.blocking.load(golden / name)
    asyncio.run(require_fsspec_works())
    assert "adlfs" in unknown_driver(), unknown_driver()
    subprocess.run([sys.executable, "-m", "asyncckpt.cli", "--help"], check=True, stdout=subprocess.DEVNULL)


async def require_fsspec_works() -> None:
    await asyncckpt.save(STATE, "memory://run/x.checkpoint")
    assert (await asyncckpt.load("memory://run/x.checkpoint"))["step"] == 3


def unknown_driver() -> str:
    """What a scheme of fsspec says whose driver is not there; no extra of ours brings it."""
    try:
        asyncckpt.open_storage("abfs://container/run")
    except asyncckpt.MissingExtraError as error:
        return str(error)
    return "works without its driver"


def main() -> None:
    golden = Path(sys.argv[1])
    there = [name for name in OPTIONAL if importlib.util.find_spec(name) is not None]
    assert not there, f"this environment is not the core alone: it has {', '.join(there)}"
    with tempfile.TemporaryDirectory() as folder:
        require_core_works(Path(folder), golden)
        wrong = {
            name: complaint
            for name, (extra, feature) in features(Path(folder), golden).items()
            if (complaint := complaint_of(feature, extra)) is not None
        }
    for name, complaint in wrong.items():
        print(f"{name}: {complaint}")
    sys.exit(f"{len(wrong)} features do not name their extra" if wrong else 0)


if __name__ == "__main__":
    main()
