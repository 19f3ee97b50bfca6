"""The first save and load of a fresh process, with the ticker beside them. Run by scenarios/cold.py.

Usage: python -m benchmarks.cold_process, with a JSON object on the standard input: `url` and `options`. Prints the
worst gap of the save and of the load, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np

import asyncckpt
from benchmarks.measure import measure

_FLOATS = 250_000


async def main(url: str, options: dict[str, Any] | None) -> dict[str, float]:
    state = {"w": np.ones(_FLOATS, np.float32), "step": 1}
    saved, _ = await measure(lambda: asyncckpt.save(state, url, overwrite=True, storage_options=options))
    loaded, _ = await measure(lambda: asyncckpt.load(url, storage_options=options))
    return {"save": saved.worst_gap, "load": loaded.worst_gap}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(asyncio.run(main(asked["url"], asked["options"]))))
