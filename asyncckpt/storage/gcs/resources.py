"""How GCS describes an object, and how we describe one to GCS."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.http.errors import odd_answer

WRITE_ID_KEY = "asyncckpt-write-id"
CONTENT_TYPE = "application/octet-stream"
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
FIELDS = "name,size,generation,crc32c,metadata,updated"


def resource(name: str, write_id: str) -> dict[str, Any]:
    """What an upload says of the object it makes."""
    return {"name": name, "contentType": CONTENT_TYPE, "metadata": {WRITE_ID_KEY: write_id}}


def info_of(described: Mapping[str, Any], key: str, what: str) -> ObjectInfo:
    """An object's resource as we know objects; its generation is the version. Raises OddAnswerError."""
    size, generation = (str(described.get(name, "")) for name in ("size", "generation"))
    metadata = described.get("metadata") or {}
    if not _NUMBER.fullmatch(size) or not generation or not isinstance(metadata, dict):
        raise odd_answer(what, f"an object of size {size[:40]!r} and generation {generation[:40]!r}")
    return ObjectInfo(
        key=key,
        size=int(size),
        version=generation,
        write_id=metadata.get(WRITE_ID_KEY),
        modified=_parsed_time(described.get("updated")),
    )


def _parsed_time(text: Any) -> datetime | None:
    """None for one that is missing or unreadable: nothing depends on it."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def encode_crc32c(value: int) -> str:
    """A CRC32C as GCS writes it: base64 of the big-endian bytes."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
