"""Options that several commands share, and how they reach a storage or a format."""

from __future__ import annotations

import argparse
import json
from typing import Any

import aiofiles

from asyncckpt.errors import DecryptionError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.registry import format_names

_KEY_BYTES = 32

Subparsers = Any
"""What `add_subparsers` returns; argparse has no public name for it."""


def add_common(parser: argparse.ArgumentParser) -> None:
    """`--json`, `--option`, `--endpoint-url`, `--quiet`."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--endpoint-url", metavar="URL", help="the server's address, for MinIO and the like")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        help="an option of the storage's driver, VALUE as JSON or text; may be given several times",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """`--format`, `--key-file` and `--allow-plain`: how a checkpoint is read."""
    parser.add_argument("--format", choices=format_names(), help="the format, where the bytes do not tell")
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="32 bytes, or 64 hex digits: the key of an encrypted bundle; anything else is then refused",
    )
    parser.add_argument(
        "--allow-plain", action="store_true", help="with --key-file: also read what is not encrypted"
    )


async def reading_format(options: argparse.Namespace, location: str) -> str | ICheckpointFormat | None:
    """How to read a checkpoint: None for "by its bytes".

    Whoever gives a key expects an encrypted bundle, whatever the file is called. Raises DecryptionError for a file
    that holds no key, and for a format that has no encryption.
    """
    name: str | None = options.format
    if options.key_file is None:
        return name
    key = await read_key(options.key_file)
    bundle = name == MetagraphFormat.name or (name is None and location.endswith(MetagraphFormat.extensions))
    if options.allow_plain and not bundle:
        return name
    if name not in (None, MetagraphFormat.name):
        raise DecryptionError(
            f"a key was given, but {name} is never encrypted: --allow-plain reads it all the same"
        )
    return MetagraphFormat(key=key, allow_plain=options.allow_plain)


async def read_key(path: str) -> bytes:
    """The key in a file, raw or in hex. Raises DecryptionError when there is none; the key itself is not shown."""
    try:
        async with aiofiles.open(path, "rb") as file:
            data = await file.read(1024)
    except OSError as error:
        raise DecryptionError(f"the key file {path!r} can't be read: {error.strerror}") from error
    if len(data) == _KEY_BYTES:
        return data
    try:
        key = bytes.fromhex(data.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise DecryptionError(f"the key file {path!r} holds neither 32 bytes nor 64 hex digits")
    return key


def storage_options(options: argparse.Namespace, location: str) -> dict[str, Any]:
    """The options of the location's driver; none for a path, which takes none."""
    if _is_path(location):
        return {}
    chosen: dict[str, Any] = dict(options.option)
    if options.endpoint_url:
        if location.startswith("s3"):
            chosen["client_kwargs"] = {
                **chosen.get("client_kwargs", {}),
                "endpoint_url": options.endpoint_url,
            }
        else:
            chosen["endpoint_url"] = options.endpoint_url
    return chosen


def _is_path(location: str) -> bool:
    return "://" not in location or location.startswith(("file://", "local://"))


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{name or 'an option'} needs a value: NAME=VALUE")
    return name, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
