"""From a URL or a path to a storage: `open_storage`, and `split_location` for a checkpoint's own URL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from os import PathLike, fspath
from typing import Any
from urllib.parse import unquote

from asyncckpt._aio import run_in_thread
from asyncckpt.arguments import checked
from asyncckpt.errors import InvalidKeyError, UnsupportedOperationError
from asyncckpt.storage.base import ICheckpointStorage
from asyncckpt.storage.keys import validate_key
from asyncckpt.storage.local import LocalStorage
from asyncckpt.storage.urls import is_http, redacted, refuse_raw_password

Location = str | PathLike[str]
_Maker = Callable[[dict[str, Any]], ICheckpointStorage]

ENTRY_POINT_GROUP = "asyncckpt.storages"
"""Entry points named by their scheme: a callable `(url, storage_options) -> ICheckpointStorage`."""

_SCHEME = re.compile(r"([^/:\s]+(?:::[^/:\s]+)*)://")
_QUERY = re.compile(r"\?[\w.-]+=")
_LOCAL = frozenset({"file", "local"})
_S3 = frozenset({"s3", "s3a"})
_GCS = frozenset({"gs", "gcs"})


@checked
def open_storage(url: Location, *, storage_options: Mapping[str, Any] | None = None) -> ICheckpointStorage:
    """The storage whose root is `url`: use it as `async with open_storage(url) as storage`.

    A path, `file://`, `s3://`, `gs://`, any scheme of fsspec, or one that an entry point of the group
    `asyncckpt.storages` serves; `storage_options` go to the driver. Nothing is sent yet. The drivers of S3 and GCS
    are imported at the first request, in a thread, but one of fsspec or of an entry point here: on a running loop
    give save and load the URL instead, or call this by `asyncio.to_thread`. Raises UnsupportedOperationError for
    an unknown scheme, MissingExtraError when the driver is not installed.
    """
    return _maker(url)(dict(storage_options or {}))


async def open_location(
    url: Location, *, storage_options: Mapping[str, Any] | None = None
) -> tuple[ICheckpointStorage, str]:
    """The storage and the key of one object, on a running event loop: what has to be imported or looked up on disk
    first is, in a thread. Raises as `split_location` and `open_storage` do."""
    is_local = _split_scheme(url)[0] in _LOCAL  # which is there already
    make, key = _look_up(url) if is_local else await run_in_thread(_look_up, url)
    return make(dict(storage_options or {})), key


def _look_up(url: Location) -> tuple[_Maker, str]:
    root, key = split_location(url)
    return _maker(root), key


def _maker(url: Location) -> _Maker:
    """What makes the storage of a URL out of its options. Imports the storage and its driver, so it blocks.

    Raises UnsupportedOperationError, InvalidKeyError, MissingExtraError.
    """
    scheme, rest = _split_scheme(url)
    if scheme in _LOCAL:
        return partial(_local_storage, rest)
    text = fspath(url)
    if scheme in _S3:
        from asyncckpt.storage.s3.storage import S3Storage

        s3_bucket, s3_prefix = _bucket_and_prefix(text, rest)
        return lambda options: S3Storage(s3_bucket, s3_prefix, storage_options=options)
    if scheme in _GCS:
        from asyncckpt.storage.gcs.storage import GcsStorage

        gcs_bucket, gcs_prefix = _bucket_and_prefix(text, rest)
        return lambda options: GcsStorage(gcs_bucket, gcs_prefix, storage_options=options)
    return _registered(scheme, text) or _of_fsspec(scheme, text)


def split_location(url: Location) -> tuple[str, str]:
    """The root and the key of one object: `s3://bucket/run/a.ckpt` → (`s3://bucket/run`, `a.ckpt`).

    The query of a web address stays with the root: it is sent along with every key. Raises InvalidKeyError when the
    last part of the URL or path is not a key.
    """
    scheme, rest = _split_scheme(url)
    if scheme in _LOCAL:
        folder, name = os.path.split(rest)
        return folder or ".", _key_of(name, url)
    _refuse_query(scheme, rest, url)
    rest, question, query = rest.partition("?") if is_http(scheme) else (rest, "", "")
    head, slash, name = rest.rpartition("/")
    if scheme in _S3 | _GCS and not slash:
        raise InvalidKeyError(
            f"{redacted(url)!r} names a bucket; add the object's key, as in s3://bucket/key"
        )
    if "::" in rest:
        raise UnsupportedOperationError(
            f"{redacted(url)!r} chains one file inside another; open the storage and give (storage, key) instead"
        )
    # A signature is not part of a key: keys are shown.
    return f"{scheme}://{head}{question}{query}", _key_of(name, url)


def _refuse_query(scheme: str, rest: str, url: Location) -> None:
    """A driver of fsspec has no use for a query: it would be part of the key, and shown, signature and all."""
    if not _QUERY.search(rest) or is_http(scheme) or scheme in _S3 | _GCS:
        return
    if not entry_points(group=ENTRY_POINT_GROUP, name=scheme):
        raise InvalidKeyError(
            f"{redacted(url)!r}: only http:// and https:// take a query; credentials go into storage_options"
        )


def _split_scheme(url: Location) -> tuple[str, str]:
    """The scheme in lower case and what follows; a path has the scheme `file`."""
    text = fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidKeyError("a location is a URL or a path, got an empty one")
    match = _SCHEME.match(text)
    if match is None:
        return "file", os.path.expanduser(text) if isinstance(url, str) else text
    refuse_raw_password(text)
    scheme, rest = match.group(1).lower(), text[match.end() :]
    if scheme in _LOCAL:
        return scheme, _path_of_file_url(rest)
    return scheme, rest


def _path_of_file_url(rest: str) -> str:
    host, _, path = rest.partition("/")
    if host == "localhost":
        rest = f"/{path}"
    elif host and host not in (".", ".."):
        raise UnsupportedOperationError(
            f"a file URL with a host is not a local path: write file:///{path.partition('?')[0]}"
        )
    return unquote(rest)


def _bucket_and_prefix(url: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.partition("/")
    if not bucket or "@" in bucket or ":" in bucket:
        raise InvalidKeyError(
            f"{redacted(url)!r} has no plain bucket name; credentials and endpoints go into storage_options"
        )
    prefix = prefix.strip("/")
    return bucket, validate_key(prefix) if prefix else ""


def _key_of(name: str, url: Location) -> str:
    if not name:
        raise InvalidKeyError(f"{redacted(url)!r} names a folder; add the name of the object")
    return validate_key(name)


def _local_storage(path: str, options: dict[str, Any]) -> ICheckpointStorage:
    if options:
        raise UnsupportedOperationError(
            f"a local path takes no storage_options, got {', '.join(sorted(options))}"
        )
    return LocalStorage(path)


def _registered(scheme: str, url: str) -> _Maker | None:
    """What an entry point has for the scheme."""
    entry = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=scheme)), None)
    if entry is None:
        return None
    factory, value = entry.load(), entry.value

    def make(options: dict[str, Any]) -> ICheckpointStorage:
        storage = factory(url, options)
        if not isinstance(storage, ICheckpointStorage):
            raise UnsupportedOperationError(
                f"the entry point {value!r} for {scheme}:// gave a {type(storage).__name__}, no storage"
            )
        return storage

    return make


def _of_fsspec(scheme: str, url: str) -> _Maker:
    from fsspec import available_protocols

    if not set(scheme.split("::")) <= set(available_protocols()):
        raise UnsupportedOperationError(
            f"no storage serves {scheme}:// ({redacted(url)!r}); use a path, s3://, gs:// or a scheme of fsspec"
        )
    from asyncckpt.storage.fsspec.driver import class_of
    from asyncckpt.storage.fsspec.storage import FsspecStorage

    class_of(url)  # imports the driver
    return lambda options: FsspecStorage(url=url, storage_options=options)
