"""Where checkpoints go: a local disk, MinIO, the sink. Each target knows who can be compared there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.factory import open_storage
from benchmarks.contenders.base import Contender
from benchmarks.contenders.obstore_raw import RawObstore
from benchmarks.contenders.ours import Ours
from benchmarks.contenders.plain_s3fs import PlainS3fs
from benchmarks.contenders.plain_safetensors import PlainSafetensors
from benchmarks.contenders.torch_dcp import LocalDcp, S3Dcp
from benchmarks.sink_process import SinkServer, start_sink
from tests.servers import S3Bucket, start_minio

LOCAL, MINIO, SINK = "local", "minio", "sink"
TARGETS = (SINK, MINIO, LOCAL)


@dataclass(frozen=True)
class Target:
    """`storage` opens one of ours; `sink` has counters, `bucket` a raw look at what is stored."""

    name: str
    storage: Callable[[], ICheckpointStorage]
    contenders: Callable[[], list[Contender]]
    sink: SinkServer | None = None
    bucket: S3Bucket | None = None


@contextmanager
def open_target(name: str) -> Iterator[Target]:
    """Start what the target needs; it ends with the block. Raises ServerUnavailableError."""
    if name == LOCAL:
        with tempfile.TemporaryDirectory(prefix="asyncckpt-bench-") as folder:
            yield _local(Path(folder))
    elif name == MINIO:
        with start_minio() as server:
            bucket = server.new_bucket()
            try:
                yield _s3(MINIO, bucket, None)
            finally:
                bucket.remove()
    else:
        with start_sink() as sink:
            yield _s3(SINK, sink.s3.new_bucket(), sink)


def _local(folder: Path) -> Target:
    def storage() -> ICheckpointStorage:
        return open_storage(folder / "ours")

    def contenders() -> list[Contender]:
        return [Ours(storage, unverified=True), PlainSafetensors(folder), LocalDcp(folder)]

    return Target(LOCAL, storage, contenders)


def _s3(name: str, bucket: S3Bucket, sink: SinkServer | None) -> Target:
    def storage() -> ICheckpointStorage:
        return open_storage(bucket.url, storage_options=bucket.storage_options)

    def contenders() -> list[Contender]:
        return [Ours(storage), RawObstore(bucket), PlainS3fs(bucket), S3Dcp(bucket)]

    return Target(name, storage, contenders, sink, bucket)
