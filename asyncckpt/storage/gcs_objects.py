"""How GCS describes an object, and how we describe one to GCS."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from asyncckpt.storage.base import ObjectInfo

WRITE_ID_KEY = "asyncckpt-write-id"
CONTENT_TYPE = "application/octet-stream"
FIELDS = "name,size,generation,crc32c,metadata,updated"


def resource(name: str, write_id: str) -> dict[str, Any]:
    """What an upload says of the object it makes."""
    return {"name": name, "contentType": CONTENT_TYPE, "metadata": {WRITE_ID_KEY: write_id}}


def info_of(described: Mapping[str, Any], key: str) -> ObjectInfo:
    """An object's resource as we know objects; its generation is the version."""
    metadata = described.get("metadata") or {}
    updated = described.get("updated")
    return ObjectInfo(
        key=key,
        size=int(described["size"]),
        version=str(described["generation"]),
        write_id=metadata.get(WRITE_ID_KEY),
        modified=datetime.fromisoformat(updated) if updated else None,
    )


def encode_crc32c(value: int) -> str:
    """A CRC32C as GCS writes it: base64 of the big-endian bytes."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
