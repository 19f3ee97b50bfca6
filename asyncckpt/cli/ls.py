"""`asyncckpt ls`: the checkpoints under a folder or prefix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from asyncckpt._aio import run_in_thread
from asyncckpt.cli.options import Subparsers, add_common, storage_options
from asyncckpt.cli.output import print_json, print_table
from asyncckpt.cli.plain import human_size
from asyncckpt.formats.registry import format_for_name
from asyncckpt.storage.base import ObjectInfo
from asyncckpt.storage.factory import open_storage


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("ls", help="list the checkpoints under a folder or prefix")
    parser.add_argument("location", help="a folder, s3://bucket/prefix or gs://bucket/prefix")
    parser.add_argument("--all", action="store_true", help="every object, not just known formats")
    add_common(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    chosen = storage_options(options, options.location)
    async with open_storage(options.location, storage_options=chosen) as storage:
        listed = [info async for info in storage.list()]
    names = await run_in_thread(_format_names, listed)
    found = [(info, name) for info, name in zip(listed, names, strict=True) if name or options.all]
    if options.json:
        print_json(
            [{"key": i.key, "size": i.size, "modified": i.modified, "format": name} for i, name in found]
        )
        return 0
    rows = [
        (i.key, human_size(i.size), f"{i.modified:%Y-%m-%d %H:%M:%S}" if i.modified else "", name)
        for i, name in found
    ]
    print_table(("KEY", "SIZE", "MODIFIED", "FORMAT"), rows)
    return 0


def _format_names(listed: Sequence[ObjectInfo]) -> list[str]:
    known = [format_for_name(info.key) for info in listed]
    return [format.name if format else "" for format in known]
