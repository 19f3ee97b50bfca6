"""Answers to S3's control calls: from the server that was asked, read with a limit, and checked to be answers.

aiohttp would follow a redirect to any host with the session token, and botocore reads whatever is no XML of the
expected kind as an empty answer: a listing without objects. Redirects to another region are botocore's own affair:
it asks the right endpoint itself, which needs no redirect to be followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asyncckpt.errors import StorageError, UnsupportedOperationError
from asyncckpt.storage.http.errors import REDIRECTS, error_for_status, odd_answer
from asyncckpt.storage.http.messages import MAX_ERROR_BODY_BYTES, parsed_date, read_limited

_MAX_BODY_BYTES = 8 * 1024 * 1024
"""Twice a page of 1000 keys that are as long as S3 allows, with every byte of them escaped."""
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>)?\s*<(?:[\w.-]+:)?([\w.-]{1,60})[\s/>]")
_EXPECTED: dict[str, tuple[int, str]] = {
    "list_objects_v2": (200, "ListBucketResult"),
    "list_multipart_uploads": (200, "ListMultipartUploadsResult"),
    "list_parts": (200, "ListPartsResult"),
    "create_multipart_upload": (200, "InitiateMultipartUploadResult"),
    "complete_multipart_upload": (200, "CompleteMultipartUploadResult"),
    "upload_part_copy": (200, "CopyPartResult"),
    "head_object": (200, ""),
    "delete_object": (204, ""),
    "delete_objects": (200, "DeleteResult"),
}


@dataclass(frozen=True, slots=True)
class _Answer:
    """A whole answer, as aiobotocore wants to find it."""

    url: Any
    status: int
    headers: Any
    raw_headers: Any
    body: bytes

    @property
    def kind(self) -> str:
        return _kind(self.body)

    @property
    def leads_nowhere(self) -> bool:
        """Whether it is a redirect that does not say in which region the bucket is."""
        return self.status in REDIRECTS and not self.headers.get("x-amz-bucket-region")

    async def read(self) -> bytes:
        return self.body


def _kind(body: bytes) -> str:
    """The name of the XML's root, or what is there instead."""
    found = _ROOT.match(body)
    return found.group(1).decode() if found else f"{len(body)} bytes that are no XML"


class Hearing:
    """What is answered while one control call is made, and what is wrong with it."""

    def __init__(self, method: str, what: str) -> None:
        self._expected = _EXPECTED.get(method)
        self._what = what
        self._answers: list[_Answer] = []

    def take(self, answer: _Answer) -> None:
        """Note the answer; raises OSError for one that botocore must not see."""
        self._answers.append(answer)
        # Later ones may be about the bucket's region; the last of all is looked at when the call is over.
        if answer.status < 300 and len(self._answers) == 1 and self.problem() is not None:
            raise OSError("an answer to something else")
        if sum(each.leads_nowhere for each in self._answers) > 1:
            # botocore asked for the bucket's region and was sent away again; it would ask for ever.
            raise OSError("redirected without a region")

    def problem(self) -> StorageError | None:
        """What is wrong with the last answer, if botocore would not notice, or not tell."""
        if not self._answers:
            return None
        last = self._answers[-1]
        if last.leads_nowhere:
            return error_for_status(last.status, self._what)
        if last.status >= 300 or self._expected is None or last.kind == "Error":
            return None
        status, root = self._expected
        if last.status != status:
            return odd_answer(self._what, f"HTTP {last.status} instead of {status}")
        if root and last.kind != root:
            return odd_answer(self._what, f"HTTP {status} with {last.kind} instead of {root}")
        return None

    def unreadable(self, error: Exception) -> StorageError | None:
        """The error for what botocore could not read, although it is an answer to what was asked."""
        if self._answers and self._answers[-1].status < 300 and self._answers[-1].kind != "Error":
            return odd_answer(self._what, f"an answer that can't be read ({type(error).__name__})")
        return None


_hearing: ContextVar[Hearing | None] = ContextVar("asyncckpt_s3_hearing", default=None)


@contextmanager
def hearing(method: str, what: str) -> Iterator[Hearing]:
    """While the block runs, the answers to this task's control calls are heard."""
    heard = Hearing(method, what)
    token = _hearing.set(heard)
    try:
        yield heard
    finally:
        _hearing.reset(token)


class _DirectSession:
    """aiohttp's session as aiobotocore uses it, but that no redirect is followed and no body is endless."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def request(self, *args: Any, **options: Any) -> _Answer:
        response = await self._session.request(*args, **{**options, "allow_redirects": False})
        try:
            limit = _MAX_BODY_BYTES if response.status < 300 else MAX_ERROR_BODY_BYTES
            body = await read_limited(response.content, limit)
            if _kind(body) == "Error":
                body = body[:MAX_ERROR_BODY_BYTES]
        finally:
            # Gives the connection back when everything was read, and drops it otherwise.
            response.release() if response.content.at_eof() else response.close()
        answer = _Answer(response.url, response.status, response.headers, response.raw_headers, body)
        heard = _hearing.get()
        if heard is not None:
            heard.take(answer)
        return answer


class _DirectSessions(AsyncExitStack):
    """Where aiobotocore keeps the sessions that it opens, one for each proxy."""

    async def enter_async_context(self, context: Any) -> Any:
        return _DirectSession(await super().enter_async_context(context))


def refuse_redirects(client: Any) -> None:
    """Let this client's requests go to its own endpoints only. Raises UnsupportedOperationError where it can't."""
    import aiohttp
    from aiobotocore.httpsession import AIOHTTPSession

    session = client._endpoint.http_session
    if isinstance(session, AIOHTTPSession):
        if getattr(session, "_sessions", None) == {} and type(session._exit_stack) is AsyncExitStack:
            session._exit_stack = _DirectSessions()
        elif isinstance(getattr(session, "_session", None), aiohttp.ClientSession):
            session._session = _DirectSession(session._session)
    if not _is_direct(session):
        raise UnsupportedOperationError(
            f"{type(session).__module__}.{type(session).__name__} can't be kept from following redirects; "
            "leave http_session_cls out of config_kwargs, or pip install -U 'asyncckpt[s3]'"
        )


def _is_direct(session: Any) -> bool:
    return isinstance(getattr(session, "_exit_stack", None), _DirectSessions) or isinstance(
        getattr(session, "_session", None), _DirectSession
    )


def server_time(answer: Mapping[str, Any]) -> datetime | None:
    """The server's clock when it answered, if it says."""
    return parsed_date(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))


def required(answer: Mapping[str, Any], name: str, what: str) -> Any:
    """A field that every such answer has. Raises OddAnswerError when it is missing, or empty."""
    value = answer.get(name)
    if value is None or value == "":
        raise odd_answer(what, f"an answer without {name}")
    return value


def required_size(answer: Mapping[str, Any], name: str, what: str) -> int:
    """The same for a number of bytes."""
    size = int(required(answer, name, what))
    if size < 0:
        raise odd_answer(what, f"{name} is {size}")
    return size
