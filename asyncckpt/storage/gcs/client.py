"""Requests to the JSON API of Google Cloud Storage, over gcsfs's own session and credentials.

gcsfs brings endpoints, credentials, proxies and `session_kwargs`; its request functions are not used, because
they retry in secret, log URLs and refresh tokens on the event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from asyncckpt._aio import run_in_thread
from asyncckpt.errors import AsyncCkptError, MissingExtraError
from asyncckpt.model.buffers import Buffer, total_bytes
from asyncckpt.storage.gcs.errors import answer_error, connection_error, credentials_error
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.http.messages import MAX_ERROR_BODY_BYTES, read_limited
from asyncckpt.storage.urls import host_of

SLICE_BYTES = 256 * 1024
"""What is handed to the socket at a time, and between two turns of the loop."""
MAX_JSON_BYTES = 16 * 1024 * 1024
"""Of an answer in JSON: far beyond a page of 1000 objects with all that GCS lets users say of them."""
_READ_BUFFER_BYTES = 256 * 1024
_GOOGLE = ".googleapis.com"
# gcsfs renews a token that has less than 300 s to live, on the loop: this comes first, in a thread.
_RENEW_BEFORE = timedelta(seconds=330)


class Slices:
    """A request body: views that are sent without being joined, slice by slice, the loop free in between."""

    def __init__(self, views: Sequence[Buffer]) -> None:
        self._views = views
        self.size_bytes = total_bytes(views)

    async def __aiter__(self) -> AsyncIterator[memoryview]:
        for view in self._views:
            if not memoryview(view).nbytes:
                continue
            whole = memoryview(view).cast("B")
            for start in range(0, len(whole), SLICE_BYTES):
                yield whole[start : start + SLICE_BYTES]
                await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Its headers can hold a session URI, so they are kept out of the repr."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)

    def json(self, what: str) -> dict[str, Any]:
        """The JSON object that it has to be. Raises OddAnswerError."""
        try:
            found = json.loads(self.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise odd_answer(
                what, f"HTTP {self.status} with {len(self.content)} bytes that are no JSON object"
            )
        return found

    def error(self, what: str) -> AsyncCkptError:
        return answer_error(self.status, self.content, what)


class GcsClient:
    """One bucket as seen through one gcsfs filesystem, which is made at the first request, in a thread."""

    def __init__(self, bucket: str, options: Mapping[str, Any]) -> None:
        self.bucket = bucket
        self._options = dict(options)
        self._filesystem: Any = None
        self._starting = asyncio.Lock()
        self._renewing = asyncio.Lock()

    def object_path(self, name: str) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o/{quote(name, safe='')}"

    @property
    def list_path(self) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o"

    @property
    def upload_path(self) -> str:
        return f"/upload/storage/v1/b/{quote(self.bucket, safe='')}/o"

    async def request(
        self,
        method: str,
        path: str,
        *,
        what: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
        limit: int = MAX_JSON_BYTES,
    ) -> Answer:
        """Send one request, once, and return the answer whatever its status, with at most `limit` bytes of it.

        `path` is a path of the API, or a session URI. Raises UnavailableError, StorageTimeoutError,
        AccessDeniedError; never anything that shows the URI.
        """
        async with self.stream(
            method, path, what=what, params=params, headers=headers, body=body
        ) as response:
            content = await self.read(response, what, limit=limit)
            return Answer(response.status, response.headers, content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        what: str,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] = (),
    ) -> AsyncIterator[Any]:
        """The same as `request`, with the answer's content still to come."""
        response = await self._send(method, path, what, params, headers, body)
        try:
            yield response
        finally:
            # Gives the connection back when everything was read, and drops it otherwise.
            response.release() if response.content.at_eof() else response.close()

    async def _send(
        self,
        method: str,
        path: str,
        what: str,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: Sequence[Buffer],
    ) -> Any:
        filesystem = await self._connect(what)
        # Imported by make_filesystem, in its thread.
        import aiohttp
        import yarl

        session = await filesystem._set_session()
        slices = Slices(body)
        sent_headers = {
            "User-Agent": "asyncckpt",
            **await self._authorization(filesystem, what),
            **(headers or {}),
            "Content-Length": str(slices.size_bytes),
        }
        if method == "GET":
            del sent_headers["Content-Length"]
        try:
            return await session.request(
                method,
                yarl.URL(self._url(filesystem, path, params or {}), encoded=True),
                headers=sent_headers,
                data=slices if slices.size_bytes else None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None),
                read_bufsize=_READ_BUFFER_BYTES,
            )
        except (aiohttp.ClientError, OSError) as error:
            problem = connection_error(error, what, self.endpoint)
        raise problem

    async def read(self, response: Any, what: str, *, limit: int = MAX_ERROR_BODY_BYTES) -> bytes:
        """What is left of an answer, with a limit; a lower one for what is not a success."""
        import aiohttp

        try:
            return await read_limited(
                response.content, limit if response.status < 300 else min(limit, MAX_ERROR_BODY_BYTES)
            )
        except (aiohttp.ClientError, OSError) as error:
            problem = connection_error(error, what, self.endpoint)
        raise problem

    async def read_some(self, response: Any, what: str) -> bytes:
        """What has arrived of an answer's content; empty at its end."""
        import aiohttp

        try:
            return bytes(await response.content.readany())
        except (aiohttp.ClientError, OSError) as error:
            problem = connection_error(error, what, self.endpoint)
        raise problem

    @property
    def endpoint(self) -> str:
        """Where requests go, without anything secret that a URL may carry."""
        location = (
            "https://storage.googleapis.com" if self._filesystem is None else self._filesystem._location
        )
        return host_of(str(location))

    def serves(self, uri: str) -> bool:
        """Whether the credentials may be sent there: to the endpoint's own host, or from Google to Google."""
        if self._filesystem is None:
            return False
        own, other = _origin(str(self._filesystem._location)), _origin(uri)
        if own == other:
            return True
        return all(scheme == "https" and host.endswith(_GOOGLE) for scheme, host, _ in (own, other))

    def _url(self, filesystem: Any, path: str, params: Mapping[str, str]) -> str:
        if not path.startswith("/"):
            return path
        query = urlencode(filesystem._get_params(dict(params)), quote_via=quote, safe="")
        return f"{filesystem._location}{path}?{query}" if query else f"{filesystem._location}{path}"

    async def _connect(self, what: str) -> Any:
        if self._filesystem is not None:
            return self._filesystem
        async with self._starting:
            if self._filesystem is None:
                self._filesystem = await self._guarded(lambda: make_filesystem(self._options), what)
        return self._filesystem

    async def _authorization(self, filesystem: Any, what: str) -> dict[str, str]:
        credentials = filesystem.credentials.credentials
        if credentials is None:
            return {}
        if _near_expiry(credentials):
            async with self._renewing:
                if _near_expiry(credentials):
                    await self._guarded(filesystem.credentials.maybe_refresh, what)
        headers: dict[str, str] = {}
        credentials.apply(headers)
        return headers

    async def _guarded(self, function: Any, what: str) -> Any:
        """Run something of gcsfs that finds credentials, in a thread, its errors translated."""
        try:
            return await run_in_thread(function)
        except (AsyncCkptError, TypeError):
            raise  # ours, or an option that gcsfs does not know
        except Exception as error:
            problem = credentials_error(error, what)
        # The driver's message may quote a key file.
        raise problem

    async def aclose(self) -> None:
        filesystem, self._filesystem = self._filesystem, None
        session = getattr(filesystem, "_session", None)
        if session is not None:
            await session.close()


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port
    except ValueError:
        return "", "", None


def load_driver() -> None:
    """Import gcsfs and what it stands on. Blocks. Raises MissingExtraError."""
    try:
        import aiohttp  # noqa: F401 - the loop takes these two from sys.modules
        import gcsfs.core  # noqa: F401
        import yarl  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"gs:// needs {error.name or 'gcsfs'}: pip install 'asyncckpt[gcs]'"
        ) from error


def make_filesystem(options: Mapping[str, Any]) -> Any:
    """A gcsfs filesystem of our own. Blocks. Raises MissingExtraError without gcsfs."""
    load_driver()
    # Not gcsfs.GCSFileSystem, which may be the one that probes buckets over gRPC.
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(
        **{**options, "asynchronous": True, "skip_instance_cache": True, "use_listings_cache": False}
    )


def _near_expiry(credentials: Any) -> bool:
    if not credentials.valid:
        return True
    expiry = credentials.expiry
    return expiry is not None and expiry.replace(tzinfo=UTC) - datetime.now(UTC) < _RENEW_BEFORE
