"""Google's resumable upload sessions: their single requests, and what the answers say. A session's URI is a secret."""

from __future__ import annotations

import json
from collections.abc import Sequence

from asyncckpt.errors import StorageError
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.gcs.client import Answer, GcsClient
from asyncckpt.storage.gcs.resources import CONTENT_TYPE, encode_crc32c, resource
from asyncckpt.storage.http.errors import odd_answer

GONE = (404, 410)
# 499 is Google's "cancelled by the client"; a session that is over or unknown needs no deletion.
_DELETED = (200, 204, 400, 499, *GONE)


class SessionGoneError(StorageError):
    """The session is over, or unknown: it was deleted, or the object has been completed."""


class ResumableSession:
    """One upload session of one object, and its single requests."""

    def __init__(self, client: GcsClient, uri: str, what: str) -> None:
        self._client = client
        self._uri = uri
        self._what = what

    @classmethod
    async def start(
        cls, client: GcsClient, name: str, *, exclusive: bool, write_id: str, what: str
    ) -> ResumableSession:
        """Ask for a session. Raises ObjectExistsError at once when `exclusive` and the name is taken."""
        params = {"uploadType": "resumable", "name": name}
        if exclusive:
            params["ifGenerationMatch"] = "0"
        answer = await client.request(
            "POST",
            client.upload_path,
            what=what,
            params=params,
            headers={"Content-Type": "application/json", "X-Upload-Content-Type": CONTENT_TYPE},
            body=[json.dumps(resource(name, write_id)).encode()],
        )
        if answer.status not in (200, 201):
            raise answer.error(what)
        uri = answer.headers.get("Location", "")
        if not client.serves(uri):
            # The credentials would go with every chunk.
            raise odd_answer(what, "its session has no address, or one at another host")
        return cls(client, uri, what)

    async def put(
        self, views: Sequence[Buffer], start: int, *, total: int | None, crc32c: int | None = None
    ) -> Answer:
        """Send bytes from `start` on; `total` completes the object. `crc32c` is checked by Google then."""
        size = total_bytes(views)
        span = f"{start}-{start + size - 1}" if size else "*"
        headers = {"Content-Range": f"bytes {span}/{'*' if total is None else total}"}
        if crc32c is not None:
            headers["X-Goog-Hash"] = f"crc32c={encode_crc32c(crc32c)}"
        return await self._client.request("PUT", self._uri, what=self._what, headers=headers, body=views)

    async def query(self, total: int | None) -> Answer:
        """How far the session is: 308 with a range, or the object if it is complete."""
        headers = {"Content-Range": f"bytes */{'*' if total is None else total}"}
        return await self._client.request("PUT", self._uri, what=self._what, headers=headers)

    async def delete(self) -> None:
        answer = await self._client.request("DELETE", self._uri, what=self._what)
        if answer.status not in _DELETED:
            raise answer.error(self._what)


def persisted_bytes(answer: Answer) -> int:
    """How many bytes a 308 says that the session has; without a Range header it has none."""
    last = answer.headers.get("Range", "").rpartition("-")[2]
    return int(last) + 1 if last.isascii() and last.isdigit() and len(last) < 20 else 0
