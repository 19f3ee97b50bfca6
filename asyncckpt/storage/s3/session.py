"""One storage's conversation with its S3 server: control calls, signing, and the transport for the bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from asyncckpt._aio import run_in_thread
from asyncckpt.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ObjectNotFoundError,
    StorageError,
    UnsupportedOperationError,
)
from asyncckpt.model.buffers import Buffer
from asyncckpt.storage.http.errors import odd_answer
from asyncckpt.storage.http.messages import HttpAnswer, HttpRequest, Receiver
from asyncckpt.storage.retry import Retries, RetryPolicy
from asyncckpt.storage.s3.answers import hearing, refuse_redirects
from asyncckpt.storage.s3.driver import connection_settings, load_driver, make_filesystem, secrets_unlogged
from asyncckpt.storage.s3.errors import error_of_answer, error_of_driver

if TYPE_CHECKING:
    from asyncckpt.storage.http.transfer import Transport

T = TypeVar("T")

_SIGNATURE_SECONDS = 900
# Made by http.client, or by nobody: the rest of a signed request's headers has to be sent as it was signed.
_NOT_SENT = frozenset({"host", "user-agent", "content-length", "expect", "transfer-encoding"})
_signing: ContextVar[list[Any] | None] = ContextVar("asyncckpt_s3_signing", default=None)


class S3Session:
    """Connects on first use, on the loop of that use. Its repr shows no option: they hold secrets."""

    def __init__(self, bucket: str, options: Mapping[str, Any], *, threads: int, policy: RetryPolicy) -> None:
        self.bucket = bucket
        self._options = dict(options)
        self._thread_count = threads
        self._retries = Retries(policy, load=load_driver)
        self._opening = asyncio.Lock()
        self._filesystem: Any = None
        self._client: Any = None
        self._transport: Transport | None = None
        self._closed = False
        self._bucket_seen = False

    def __repr__(self) -> str:
        return f"S3Session({self.bucket!r})"

    async def open(self) -> tuple[Any, Transport]:
        """The client and the transport. Raises MissingExtraError, StorageError."""
        if self._client is not None and self._transport is not None:
            return self._client, self._transport
        if self._closed:
            raise StorageError(f"the storage of bucket {self.bucket!r} is closed; open it again")
        async with self._opening:
            if self._transport is None:
                await self._connect()
        assert self._transport is not None
        return self._client, self._transport

    async def _connect(self) -> None:
        filesystem = self._filesystem or await run_in_thread(make_filesystem, self._options)
        self._filesystem = filesystem
        what = f"opening bucket {self.bucket!r}"
        try:
            # Finding a bucket's region is a request too.
            refuse_redirects(await filesystem.set_session())
            client = await filesystem.get_s3(self.bucket)
            refuse_redirects(client)
        except StorageError:
            raise
        except (TypeError, ValueError) as error:
            raise StorageError(f"{what}: s3fs does not take these storage_options: {error}") from error
        except Exception as error:
            raise error_of_driver(error, what) from error
        settings = await run_in_thread(
            lambda: connection_settings(filesystem, client, idle=self._thread_count + 1)
        )
        client.meta.events.register("before-sign.s3", _keep_request)
        # Imported by make_filesystem, in its thread.
        from asyncckpt.storage.http.transfer import Transport

        self._client = client
        self._transport = Transport(settings, threads=self._thread_count)

    async def aclose(self) -> None:
        """Join the threads, close the connections and the client. Idempotent."""
        self._closed = True
        transport, self._transport = self._transport, None
        client, self._client = self._client, None
        filesystem, self._filesystem = self._filesystem, None
        try:
            if transport is not None:
                await transport.aclose()
        finally:
            for each in {
                id(c): c for c in (client, getattr(filesystem, "_s3", None)) if c is not None
            }.values():
                await each.close()

    async def call(self, method: str, what: str, **parameters: Any) -> dict[str, Any]:
        """One control call, once. Raises StorageError's children, OddAnswerError for what is not an answer to it."""
        client, _ = await self.open()
        function = getattr(client, method)
        arguments = self._arguments(function, parameters)
        with secrets_unlogged(), hearing(method, what) as heard:
            try:
                answer: dict[str, Any] = await function(**arguments)
            except Exception as error:
                raise heard.problem() or heard.unreadable(error) or error_of_driver(error, what) from None
        problem = heard.problem()
        if problem is not None:
            raise problem
        self._bucket_seen = True
        return answer

    async def require_bucket(self) -> None:
        """Find out once whether there is a bucket at all: a HEAD of an object does not tell one 404 from the other.

        Raises BucketNotFoundError, and StorageError's children when the server does not say.
        """
        if self._bucket_seen:
            return
        what = f"looking for bucket {self.bucket!r}"
        try:
            await self.retrying(lambda: self.call("list_objects_v2", what, MaxKeys=1), what)
        except ObjectNotFoundError as error:
            raise BucketNotFoundError(str(error)) from None
        except AccessDeniedError:
            # What may not be listed is there.
            self._bucket_seen = True

    async def sign(self, method: str, http_method: str, what: str, **parameters: Any) -> HttpRequest:
        """A presigned request, with the credentials that the session has now. Raises StorageError's children."""
        client, _ = await self.open()
        arguments = self._arguments(getattr(client, method), parameters)
        kept: list[Any] = []
        token = _signing.set(kept)
        with secrets_unlogged():
            try:
                url = await client.generate_presigned_url(
                    method, Params=arguments, ExpiresIn=_SIGNATURE_SECONDS
                )
            except Exception as error:
                raise error_of_driver(error, what) from None
            finally:
                _signing.reset(token)
        headers = {
            name: value if isinstance(value, str) else value.decode()
            for request in kept
            for name, value in request.headers.items()
            if name.lower() not in _NOT_SENT
        }
        return HttpRequest(http_method, url, headers)

    async def exchange(
        self,
        request: HttpRequest,
        what: str,
        *,
        body: Sequence[Buffer] = (),
        receiver: Receiver | None = None,
    ) -> HttpAnswer:
        """Send a signed request; an answer that is not a success is raised as its error."""
        _, transport = await self.open()
        answer = await transport.exchange(request, body=body, receiver=receiver)
        if answer.status >= 300:
            raise error_of_answer(answer, what)
        if answer.status != 200 and (receiver is None or answer.status != 206):
            raise odd_answer(what, f"HTTP {answer.status} instead of 200")
        self._bucket_seen = True
        return answer

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run something long in one of the transfer threads."""
        _, transport = await self.open()
        result: T = await transport.run(function, *args)
        return result

    async def moving(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        what: str,
        *,
        size_bytes: int,
    ) -> T:
        """Retry an operation that moves bytes, once there is a connection to spare for it."""
        _, transport = await self.open()
        async with transport.slots:
            return await self.retrying(operation, what, size_bytes=size_bytes)

    async def retrying(
        self,
        operation: Callable[[], Coroutine[Any, Any, T]],
        what: str,
        *,
        size_bytes: int = 0,
    ) -> T:
        """Retry an operation that may be repeated, by the storage's policy."""
        # Connecting loads the driver, which is nobody's attempt.
        await self.open()
        return await self._retries.run(operation, what, size_bytes=size_bytes)

    def metadata(self, name: str, value: str) -> dict[str, str]:
        """An object's user metadata: the user's own, from `s3_additional_kwargs`, and one entry of ours."""
        extra = self._options.get("s3_additional_kwargs") or {}
        return {**extra.get("Metadata", {}), name: value}

    def _arguments(self, function: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Our parameters, with what the user's options add to every call (encryption, requester pays …)."""
        wanted = {"Bucket": self.bucket, **parameters}
        arguments: dict[str, Any] = self._filesystem._get_s3_method_kwargs(function, **wanted)
        lost = wanted.keys() - arguments.keys()
        if lost:
            raise UnsupportedOperationError(
                f"the installed botocore can't send {', '.join(sorted(lost))} with {function.__name__}; "
                "pip install -U 'asyncckpt[s3]'"
            )
        return arguments


def _keep_request(request: Any, **_: object) -> None:
    """Hand the request that is being signed to `sign`: a presigned URL alone does not say what was signed."""
    kept = _signing.get()
    if kept is not None:
        kept.append(request)
