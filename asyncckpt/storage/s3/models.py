"""botocore's descriptions of S3, megabytes of JSON, read before the client needs them. Blocks: for a thread.

Python's parser is one call that holds the GIL: 80 ms for all of it, garbage collections included, during which the
event loop stands still whatever thread it runs in. With a hook that is Python code, threads can take turns.
"""

from __future__ import annotations

import gzip
import json
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from asyncckpt._aio import gc_paused

_OPEN: dict[str, Callable[[str, str], Any]] = {".json": open, ".json.gz": gzip.open}


@lru_cache(maxsize=4)
def model_loader(data_path: str | None) -> Any:
    """botocore's loader of service models, with its cache: one for all storages."""
    from botocore.loaders import create_loader

    loader = create_loader(data_path)
    loader.file_loader = YieldingFiles()
    return loader


def load_models(session: Any) -> None:
    """Fill the loader's cache: otherwise making the client would read and parse all of it on the loop."""
    loader = session.get_component("data_loader")
    with gc_paused():
        # With the very arguments that the client is made with: they are the keys of the cache.
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model("s3", kind, api_version=None)
        for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
            loader.load_data(name)


class YieldingFiles:
    """What botocore's loader asks of a file loader; paths come without their extension."""

    def exists(self, file_path: str) -> bool:
        return any(os.path.isfile(file_path + extension) for extension in _OPEN)

    def load_file(self, file_path: str) -> Any:
        for extension, opened in _OPEN.items():
            if os.path.isfile(file_path + extension):
                with opened(file_path + extension, "rb") as file:
                    return json.loads(file.read(), object_pairs_hook=_ordered)
        return None


def _ordered(pairs: list[tuple[str, Any]]) -> OrderedDict[str, Any]:
    return OrderedDict(pairs)
