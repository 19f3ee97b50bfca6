"""An S3 server as tests see it: options for the storage under test, and a raw look at the medium beside it.

The raw look is plain botocore, synchronous, and shares no code with asyncckpt, so that mirrored mistakes can't
cancel out. It may be used inside an async test: only blocking calls made by asyncckpt itself fail a test.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any


@dataclass(frozen=True)
class S3Server:
    """A running S3 server with throw-away credentials."""

    endpoint_url: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str
    name: str
    ca_file: str | None = None

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options as s3fs takes them; a new dictionary each time."""
        client_kwargs: dict[str, Any] = {"endpoint_url": self.endpoint_url, "region_name": self.region}
        if self.ca_file is not None:
            client_kwargs["verify"] = self.ca_file
        return {
            "key": self.access_key,
            "secret": self.secret_key,
            "client_kwargs": client_kwargs,
            "config_kwargs": {"s3": {"addressing_style": "path"}},
        }

    def client(self) -> Any:
        """Return the synchronous botocore client of this server, one per process."""
        return _client(self)

    def new_bucket(self) -> S3Bucket:
        """Create a bucket with a fresh name."""
        bucket = S3Bucket(self, f"asyncckpt-{uuid.uuid4().hex[:20]}")
        self.client().create_bucket(Bucket=bucket.name)
        return bucket


@dataclass(frozen=True)
class S3Bucket:
    """One bucket, with its raw look: `keys`, `uploads`, `get`, `put`, `head`, `delete`."""

    server: S3Server
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return self.server.storage_options

    @property
    def _client(self) -> Any:
        return self.server.client()

    def keys(self, prefix: str = "") -> list[str]:
        """Return every key, sorted."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def uploads(self, prefix: str = "") -> list[tuple[str, str]]:
        """Return the key and the upload id of every multipart upload that is neither completed nor aborted.

        The prefix is applied here: MinIO answers a prefix that is not an exact key with an empty list.
        """
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name)
        found = [(entry["Key"], entry["UploadId"]) for page in pages for entry in page.get("Uploads", [])]
        return sorted(each for each in found if each[0].startswith(prefix))

    def get(self, key: str) -> bytes:
        body = self._client.get_object(Bucket=self.name, Key=key)["Body"]
        with body:
            return bytes(body.read())

    def put(self, key: str, data: bytes, **arguments: Any) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data, **arguments)

    def head(self, key: str) -> dict[str, Any]:
        """Return botocore's answer: ContentLength, ETag, Metadata and so on."""
        answer: dict[str, Any] = self._client.head_object(Bucket=self.name, Key=key)
        return answer

    def delete(self, *keys: str) -> None:
        for start in range(0, len(keys), 1000):
            batch = [{"Key": key} for key in keys[start : start + 1000]]
            self._client.delete_objects(Bucket=self.name, Delete={"Objects": batch, "Quiet": True})

    def remove(self) -> None:
        """Delete the bucket with all that is in it."""
        for key, upload_id in self.uploads():
            self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id)
        self.delete(*self.keys())
        self._client.delete_bucket(Bucket=self.name)


@lru_cache(maxsize=8)
def _client(server: S3Server) -> Any:
    import botocore.config
    import botocore.session

    config = botocore.config.Config(
        s3={"addressing_style": "path"},
        signature_version="s3v4",
        connect_timeout=5,
        read_timeout=60,
        retries={"max_attempts": 2},
    )
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=server.region,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        verify=server.ca_file,
        config=config,
    )
