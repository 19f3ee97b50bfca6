"""`asyncckpt convert`: write a checkpoint again in another format, or on another storage."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from asyncckpt.cli.options import (
    Subparsers,
    add_common,
    add_format,
    read_key,
    reading_format,
    storage_options,
)
from asyncckpt.cli.output import print_json, print_line, progress_bar
from asyncckpt.cli.plain import human_size
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.metagraph.format import MetagraphFormat
from asyncckpt.formats.registry import format_names
from asyncckpt.operations.convert import convert
from asyncckpt.operations.location import at


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("convert", help="write a checkpoint in another format")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--to", choices=format_names(), help="the format; by default the target's extension")
    parser.add_argument(
        "--allow-loss",
        action="store_true",
        help="leave out what the format can't hold, encryption and signature included",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the target")
    parser.add_argument("--target-key-file", metavar="FILE", help="encrypt a METAGRAPH target with this key")
    add_format(parser)
    add_common(parser)
    parser.set_defaults(run=run)


async def _target_format(options: argparse.Namespace) -> str | ICheckpointFormat | None:
    if options.target_key_file is None:
        name: str | None = options.to
        return name
    return MetagraphFormat(key=await read_key(options.target_key_file))


async def run(options: argparse.Namespace) -> int:
    format = await reading_format(options, options.source)
    target = await _target_format(options)
    with progress_bar(wanted=not options.quiet and not options.json) as bar:
        report = await convert(
            at(
                options.source,
                storage_options=storage_options(options, options.source),
                format=format,
            ),
            options.target,
            to=target,
            allow_loss=options.allow_loss,
            overwrite=options.overwrite,
            progress=bar,
            storage_options=storage_options(options, options.target),
        )
    if options.json:
        print_json(asdict(report))
        return 0
    for line in (*report.warnings, *report.losses):
        print_line(f"note  {line}", "yellow")
    print_line(
        f"{report.source_format} {report.source_version} -> {report.format}: {report.tensors} tensors, "
        f"{human_size(report.size)}"
    )
    return 0
