"""A loopback server that speaks enough S3 to store bytes, and does nothing else with them.

It hashes nothing, checks no signature and writes no file, so that on few cores it ranks the clients, not itself.
Bodies are received into memory that is kept and used again. Run in a process of its own by `sink_process`.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections import Counter
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.sink_objects import Bucket, SlabPool, Stored

SLICE_BYTES = 1024 * 1024
_HEAD_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_KEPT_HEADERS = "x-amz-meta-"


class Request:
    """One request's head, and the connection from which its body comes."""

    def __init__(self, connection: socket.socket, head: bytes, rest: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.method, target, _ = lines[0].split(" ", 2)
        parts = urlsplit(target)
        self.path = unquote(parts.path).lstrip("/")
        self.query = {name: values[0] for name, values in parse_qs(parts.query, True).items()}
        self.headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])
        }
        self.length = int(self.headers.get("content-length", 0))
        self._connection = connection
        self._rest = rest

    @property
    def key(self) -> str:
        return self.path.partition("/")[2]

    def receive(self, pool: SlabPool) -> memoryview:
        """The body, in a slab of the pool."""
        if "100-continue" in self.headers.get("expect", "").lower():
            self._connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = pool.take(self.length)
        done = len(self._rest)
        body[:done] = self._rest
        while done < self.length:
            wanted = min(SLICE_BYTES, self.length - done)
            got = self._connection.recv_into(body[done : done + wanted], wanted, socket.MSG_WAITALL)
            if not got:
                pool.give_back(body)
                raise ConnectionError("the client went away")
            done += got
        return body


class Sink:
    """All buckets share one namespace per name; counters tell what clients really asked for."""

    def __init__(self) -> None:
        self._pool = SlabPool()
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    def serve(self, connection: socket.socket) -> None:
        """One connection until it closes."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        held = b""
        with connection:
            try:
                while True:
                    head, held = _read_head(connection, held)
                    if not head:
                        return
                    length = _content_length(head)
                    body, held = held[:length], held[length:]
                    self._answer(connection, Request(connection, head, body))
            except (ConnectionError, TimeoutError):
                return

    def _answer(self, connection: socket.socket, request: Request) -> None:
        if request.path == "-/stats":
            _send(connection, 200, json.dumps({**self._requests, **self._bytes}).encode(), "application/json")
            return
        if request.path == "-/reset":
            with self._lock:
                self._requests.clear()
                self._bytes.clear()
            _send(connection, 200)
            return
        name = request.path.partition("/")[0]
        with self._lock:
            bucket = self._buckets.setdefault(name, Bucket(self._pool))
            self._requests["requests"] += 1
            self._requests[f"requests {_operation(request)}"] += 1
        match request.method:
            case "PUT":
                self._put(connection, request, bucket)
            case "GET" | "HEAD":
                self._get(connection, request, bucket)
            case "POST":
                self._post(connection, request, bucket)
            case "DELETE":
                if "uploadId" in request.query:
                    bucket.abort(request.query["uploadId"])
                elif request.key:
                    bucket.delete(request.key)
                _send(connection, 204)
            case _:
                _send(connection, 405)

    def _put(self, connection: socket.socket, request: Request, bucket: Bucket) -> None:
        source = request.headers.get("x-amz-copy-source")
        if source is not None:
            _, _, key = unquote(source).lstrip("/").partition("/")
            copied = bucket.copy(key, request.key)
            _send_xml(connection, f"<CopyObjectResult><ETag>{copied.etag}</ETag></CopyObjectResult>")
            return
        body = request.receive(self._pool)
        self._count("bytes received", len(body))
        if not request.key:
            _send(connection, 200)
            return
        upload = request.query.get("uploadId")
        if upload is not None:
            etag = bucket.put_part(upload, int(request.query["partNumber"]), body)
            _send(connection, 200 if etag else 404, etag=etag)
            return
        if _must_be_new(request) and bucket.get(request.key) is not None:
            self._pool.give_back(body)
            _send_error(connection, 412, "PreconditionFailed")
            return
        _send(connection, 200, etag=bucket.put(request.key, [body], _metadata(request)).etag)

    def _get(self, connection: socket.socket, request: Request, bucket: Bucket) -> None:
        if not request.key:
            _send_xml(connection, _listing(request, bucket))
            return
        if "uploadId" in request.query:
            known = bucket.has_upload(request.query["uploadId"])
            if known:
                _send_xml(connection, "<ListPartsResult></ListPartsResult>")
            else:
                _send_error(connection, 404, "NoSuchUpload")
            return
        stored = bucket.get(request.key)
        if stored is None:
            _send_error(connection, 404, "NoSuchKey", head_only=request.method == "HEAD")
        elif request.headers.get("if-match", stored.etag) not in (stored.etag, stored.etag.strip('"')):
            _send_error(connection, 412, "PreconditionFailed", head_only=request.method == "HEAD")
        else:
            self._send_object(connection, request, stored)

    def _send_object(self, connection: socket.socket, request: Request, stored: Stored) -> None:
        start, end, status = 0, stored.size, 200
        headers = [*stored.metadata.items(), ("Accept-Ranges", "bytes"), ("Last-Modified", stored.modified)]
        found = _RANGE.fullmatch(request.headers.get("range", ""))
        if found is not None:
            start = int(found.group(1))
            end = min(int(found.group(2)) + 1 if found.group(2) else stored.size, stored.size)
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{stored.size}"))
            if start >= stored.size:
                _send_error(connection, 416, "InvalidRange")
                return
        _send_head(connection, status, end - start, [*headers, ("ETag", stored.etag)])
        if request.method == "GET":
            self._count("bytes sent", end - start)
            for view in stored.views(start, end, SLICE_BYTES):
                connection.sendall(view)

    def _post(self, connection: socket.socket, request: Request, bucket: Bucket) -> None:
        body = request.receive(self._pool)
        text = bytes(body).decode()
        self._pool.give_back(body)
        if "uploads" in request.query:
            upload = bucket.create_upload(_metadata(request))
            _send_xml(
                connection,
                f"<InitiateMultipartUploadResult><Key>{request.key}</Key><UploadId>{upload}</UploadId>"
                "</InitiateMultipartUploadResult>",
            )
        elif "delete" in request.query:
            keys = re.findall(r"<Key>(.*?)</Key>", text)
            for key in keys:
                bucket.delete(key)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            _send_xml(connection, f"<DeleteResult>{deleted}</DeleteResult>")
        elif _must_be_new(request) and bucket.get(request.key) is not None:
            _send_error(connection, 412, "PreconditionFailed")
        else:
            numbers = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
            stored = bucket.complete(request.query["uploadId"], request.key, numbers)
            if stored is None:
                _send_error(connection, 404, "NoSuchUpload")
                return
            _send_xml(
                connection,
                "<CompleteMultipartUploadResult>"
                f"<Key>{request.key}</Key><ETag>{stored.etag}</ETag></CompleteMultipartUploadResult>",
            )

    def _count(self, what: str, count: int) -> None:
        with self._lock:
            self._bytes[what] += count


def _operation(request: Request) -> str:
    kind = next(
        (name for name in ("uploads", "uploadId", "delete", "list-type") if name in request.query), ""
    )
    return f"{request.method} {kind}".strip()


def _read_head(connection: socket.socket, held: bytes) -> tuple[bytes, bytes]:
    """The next head, and what was received behind it."""
    while b"\r\n\r\n" not in held:
        more = connection.recv(_HEAD_BYTES)
        if not more:
            return b"", b""
        held += more
    head, _, rest = held.partition(b"\r\n\r\n")
    return head, rest


def _content_length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length:\s*(\d+)", head, re.IGNORECASE)
    return int(found.group(1)) if found else 0


def _must_be_new(request: Request) -> bool:
    return request.headers.get("if-none-match") == "*"


def _metadata(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith(_KEPT_HEADERS)}


def _listing(request: Request, bucket: Bucket) -> str:
    if "location" in request.query:
        return "<LocationConstraint></LocationConstraint>"
    if "uploads" in request.query:
        found = "".join(
            f"<Upload><Key>upload</Key><UploadId>{identity}</UploadId></Upload>"
            for identity in bucket.uploads()
        )
        return f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{found}</ListMultipartUploadsResult>"
    prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
    contents, folders = [], set()
    for key, stored in bucket.listed(prefix):
        head, found_delimiter, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if found_delimiter:
            folders.add(f"{prefix}{head}{delimiter}")
            continue
        contents.append(
            f"<Contents><Key>{key}</Key><Size>{stored.size}</Size><ETag>{stored.etag}</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        )
    common = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders))
    return (
        f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{len(contents) + len(folders)}</KeyCount>"
        f"{''.join(contents)}{common}</ListBucketResult>"
    )


def _send_head(connection: socket.socket, status: int, length: int, headers: list[tuple[str, str]]) -> None:
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {length}", f"Date: {formatdate(usegmt=True)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))


def _send(
    connection: socket.socket, status: int, body: bytes = b"", kind: str = "text/plain", *, etag: str = ""
) -> None:
    headers = [("Content-Type", kind)] + ([("ETag", etag)] if etag else [])
    _send_head(connection, status, len(body), headers)
    if body:
        connection.sendall(body)


def _send_xml(connection: socket.socket, text: str) -> None:
    _send(connection, 200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), "application/xml")


def _send_error(connection: socket.socket, status: int, code: str, *, head_only: bool = False) -> None:
    if head_only:
        _send(connection, status)
        return
    text = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    )
    _send(connection, status, text.encode(), "application/xml")


def main() -> None:
    """Serve until standard input closes; the first line on standard output is the port."""
    sink = Sink()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)

        def accept() -> None:
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=sink.serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
