"""A GCS server as tests see it: options for gcsfs, and a raw look at the medium by plain HTTP."""

from __future__ import annotations

import json
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

PROJECT = "asyncckpt-test"


@dataclass(frozen=True)
class GcsServer:
    """A running GCS emulator; it asks for no credentials."""

    endpoint_url: str
    name: str = "fake-gcs-server"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options as gcsfs takes them; a new dictionary each time."""
        return {"endpoint_url": self.endpoint_url, "token": "anon", "project": PROJECT}

    def request(self, method: str, path: str, *, body: bytes | None = None, content_type: str = "") -> bytes:
        """Send one request and return the body of the answer. Raises urllib's HTTPError for a refusal."""
        headers = {"Content-Type": content_type} if content_type else {}
        request = urllib.request.Request(self.endpoint_url + path, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())

    def new_bucket(self) -> GcsBucket:
        """Create a bucket with a fresh name."""
        bucket = GcsBucket(self, f"asyncckpt-{uuid.uuid4().hex[:20]}")
        body = json.dumps({"name": bucket.name}).encode()
        self.request("POST", f"/storage/v1/b?project={PROJECT}", body=body, content_type="application/json")
        return bucket


@dataclass(frozen=True)
class GcsBucket:
    """One bucket, with its raw look: `keys`, `get`, `put`, `head`, `delete`."""

    server: GcsServer
    name: str

    @property
    def url(self) -> str:
        return f"gs://{self.name}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return self.server.storage_options

    def keys(self, prefix: str = "") -> list[str]:
        """Return every key, sorted."""
        found: list[str] = []
        token = ""
        while True:
            query = urlencode({"prefix": prefix, "pageToken": token})
            answer = json.loads(self.server.request("GET", f"/storage/v1/b/{self.name}/o?{query}"))
            found += [entry["name"] for entry in answer.get("items", [])]
            token = answer.get("nextPageToken", "")
            if not token:
                return sorted(found)

    def get(self, key: str) -> bytes:
        return self.server.request("GET", f"{self._object(key)}?alt=media")

    def put(self, key: str, data: bytes) -> None:
        query = urlencode({"uploadType": "media", "name": key})
        path = f"/upload/storage/v1/b/{self.name}/o?{query}"
        self.server.request("POST", path, body=data, content_type="application/octet-stream")

    def head(self, key: str) -> dict[str, Any]:
        """Return the object's resource: size, generation, crc32c, metadata and so on."""
        resource: dict[str, Any] = json.loads(self.server.request("GET", self._object(key)))
        return resource

    def delete(self, *keys: str) -> None:
        for key in keys:
            self.server.request("DELETE", self._object(key))

    def remove(self) -> None:
        """Delete the bucket with all that is in it."""
        self.delete(*self.keys())
        self.server.request("DELETE", f"/storage/v1/b/{self.name}")

    def _object(self, key: str) -> str:
        return f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}"
