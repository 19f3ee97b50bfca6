"""A front for fake-gcs-server that keeps resumable sessions as Google documents them, and loses answers on request.

The emulator (1.56.1) deviates in just that part of the API: a status query completes the object, chunks are
appended whatever their offset, a deleted session lives on, a completed one is forgotten, and X-Goog-Hash is
not looked at. Here sessions follow the public description of the JSON API; the emulator gets each finished
object in one piece and stays the judge of preconditions, names, listings and reads.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yarl
from aiohttp import web

from asyncckpt.model.checksums import crc32c
from tests.servers import GcsBucket

QUANTUM = 256 * 1024
_HOP_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-encoding"})


@dataclass
class Session:
    """An upload session: what it has received, and how it ended."""

    emulator_uri: str
    received: bytearray = field(default_factory=bytearray)
    answer: tuple[int, bytes] | None = None
    deleted: bool = False


@dataclass
class Seen:
    """One request, as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Fault:
    """What to do to the next request that matches: `answer` it with a status, lose it `before` it has an
    effect or `after`, keep `cut` bytes of its body and break the connection, or `damage` a bit of its body.
    """

    matches: Callable[[Seen], bool]
    kind: str
    status: int = 503
    cut_bytes: int = 0


class GcsFront:
    """The front: `endpoint_url` for the storage under test, `faults` and `requests` for the test."""

    def __init__(self, bucket: GcsBucket) -> None:
        self.bucket = bucket
        self.requests: list[Seen] = []
        self.faults: list[Fault] = []
        self.sessions: dict[str, Session] = {}
        self.on_request: Callable[[Seen], None] | None = None
        self.endpoint_url = ""
        self._client: aiohttp.ClientSession | None = None
        self._released = asyncio.Event()

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**self.bucket.storage_options, "endpoint_url": self.endpoint_url}

    @property
    def open_sessions(self) -> list[str]:
        """Sessions that were neither completed nor deleted."""
        return [key for key, value in self.sessions.items() if not value.deleted and value.answer is None]

    def fail_next(
        self, kind: str, method: str, *, status: int = 503, cut_bytes: int = 0, **query: str
    ) -> None:
        """Add a fault for the next request with that method and query; `content_range` matches its header."""
        content_range = query.pop("content_range", None)

        def matches(seen: Seen) -> bool:
            if content_range is not None and content_range not in seen.headers.get("Content-Range", ""):
                return False
            return seen.method == method and query.items() <= seen.query.items()

        self.faults.append(Fault(matches, kind, status, cut_bytes))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[GcsFront]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.endpoint_url = f"http://{host}:{port}"
        async with aiohttp.ClientSession(auto_decompress=False) as self._client:
            try:
                yield self
            finally:
                self._released.set()
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path, dict(request.query), dict(request.headers))
        self.requests.append(seen)
        if self.on_request is not None:
            self.on_request(seen)
        fault = next((each for each in self.faults if each.matches(seen)), None)
        if fault is None:
            return await self._serve(request, await request.read())
        self.faults.remove(fault)
        return await self._fail(request, fault)

    async def _fail(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.kind == "answer":
            await request.read()
            return web.json_response({}, status=fault.status)
        if fault.kind == "hang":
            await self._released.wait()
        if fault.kind == "damage":
            damaged = bytearray(await request.read())
            damaged[len(damaged) // 2] ^= 1
            return await self._serve(request, bytes(damaged))
        if fault.kind == "after":
            await self._serve(request, await request.read())
        elif fault.kind == "cut":
            body = await request.content.readexactly(fault.cut_bytes)
            self._receive_interrupted(request, body)
        elif fault.kind == "truncate":
            return await self._truncated(request, fault.cut_bytes)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _truncated(self, request: web.Request, size: int) -> web.StreamResponse:
        """Answer in full, but break the connection after `size` bytes of the body."""
        whole = await self._serve(request, await request.read())
        assert isinstance(whole, web.Response)
        assert isinstance(whole.body, bytes)
        response = web.StreamResponse(status=whole.status, headers=whole.headers)
        response.content_length = len(whole.body)
        await response.prepare(request)
        await response.write(whole.body[:size])
        assert request.transport is not None
        request.transport.close()
        return response

    async def _serve(self, request: web.Request, body: bytes) -> web.Response:
        if "upload_id" in request.query:
            return await self._session_request(request, body)
        if request.query.get("uploadType") == "resumable":
            return await self._new_session(request, body)
        return await self._forward(request, body)

    # -- sessions ------------------------------------------------------------------------------------------------

    async def _new_session(self, request: web.Request, body: bytes) -> web.Response:
        if request.query.get("ifGenerationMatch") == "0" and self._taken(request.query["name"]):
            return web.json_response({"error": {"code": 412}}, status=412)
        answer = await self._forward(request, body)
        uri = answer.headers.get("Location", "")
        if uri:
            upload_id = yarl.URL(uri).query["upload_id"]
            self.sessions[upload_id] = Session(self._emulator(yarl.URL(uri).raw_path_qs))
            answer.headers["Location"] = self.endpoint_url + str(yarl.URL(uri).raw_path_qs)
        return answer

    def _taken(self, name: str) -> bool:
        return name in self.bucket.keys(name)

    def _receive_interrupted(self, request: web.Request, body: bytes) -> None:
        """What Google keeps of a chunk whose connection broke: whole quanta."""
        session = self.sessions[request.query["upload_id"]]
        start = int(request.headers["Content-Range"].split()[1].split("-")[0])
        if start == len(session.received):
            session.received += body[: len(body) // QUANTUM * QUANTUM]

    async def _session_request(self, request: web.Request, body: bytes) -> web.Response:
        session = self.sessions.get(request.query["upload_id"])
        if session is None:
            return web.Response(status=404)
        if request.method == "DELETE" or session.deleted:
            session.deleted = session.answer is None
            return web.Response(status=499 if session.deleted else 404)
        if session.answer is not None:
            status, content = session.answer
            return web.Response(status=status, body=content, content_type="application/json")
        return await self._receive(session, request.headers, body)

    async def _receive(self, session: Session, headers: Any, body: bytes) -> web.Response:
        span, _, total = headers["Content-Range"].removeprefix("bytes ").partition("/")
        if span != "*":
            start, end = map(int, span.split("-"))
            if end - start + 1 != len(body) or start > len(session.received):
                return web.Response(status=400)
            if total == "*" and len(body) % QUANTUM:
                return web.Response(status=400)
            session.received += body[len(session.received) - start :]
        if total == "*" or int(total) != len(session.received):
            return self._incomplete(session)
        expected = headers.get("X-Goog-Hash", "")
        actual = base64.b64encode(crc32c(bytes(session.received)).to_bytes(4, "big")).decode()
        if expected and expected != f"crc32c={actual}":
            session.deleted = True
            return web.json_response({"error": {"code": 400}}, status=400)
        return await self._complete(session)

    def _incomplete(self, session: Session) -> web.Response:
        # Without a Range header: nothing has arrived yet.
        headers = {"Range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
        return web.Response(status=308, headers=headers)

    async def _complete(self, session: Session) -> web.Response:
        assert self._client is not None
        size = len(session.received)
        span = f"0-{size - 1}/{size}" if size else "*/0"
        async with self._client.put(
            yarl.URL(session.emulator_uri, encoded=True),
            data=io.BytesIO(session.received),
            headers={"Content-Range": f"bytes {span}"},
        ) as answer:
            content = await answer.read()
        session.answer = (answer.status, content)
        return web.Response(status=answer.status, body=content, content_type="application/json")

    # -- everything else -----------------------------------------------------------------------------------------

    def _emulator(self, path: str) -> str:
        return self.bucket.server.endpoint_url + path

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        assert self._client is not None
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP_HEADERS}
        async with self._client.request(
            request.method,
            yarl.URL(self._emulator(request.raw_path), encoded=True),
            data=io.BytesIO(body) if body else None,
            headers=headers,
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOP_HEADERS}
            return web.Response(status=answer.status, body=content, headers=kept)
