"""Options that several commands share, and how they reach a storage or a format."""

from __future__ import annotations

import argparse
import json
from typing import Any

from asyncckpt.errors import UnsupportedOperationError

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
        metavar="NAME=VALUE",
        help="an option of the storage's driver, VALUE as JSON or text; may be given several times",
    )


def storage_options(options: argparse.Namespace, location: str) -> dict[str, Any] | None:
    """The driver's options. Raises UnsupportedOperationError for an option without a value."""
    chosen: dict[str, Any] = {}
    for text in options.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise UnsupportedOperationError(f"--option {name} needs a value: --option {name}=VALUE")
        chosen[name] = _value(value)
    if options.endpoint_url:
        if location.startswith("s3"):
            chosen["client_kwargs"] = {
                **chosen.get("client_kwargs", {}),
                "endpoint_url": options.endpoint_url,
            }
        else:
            chosen["endpoint_url"] = options.endpoint_url
    return chosen or None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
