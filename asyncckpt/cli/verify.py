"""`asyncckpt verify`: check every byte of a checkpoint, and say all that is wrong."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from asyncckpt.cli.options import Subparsers, add_common, add_format, reading_format, storage_options
from asyncckpt.cli.output import print_json, print_line, progress_bar
from asyncckpt.cli.plain import human_size
from asyncckpt.operations.verify import VerifyReport, verify


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("verify", help="check every byte")
    parser.add_argument("location")
    parser.add_argument("--level", choices=("header", "full"), default="full", help="how much to read")
    add_format(parser)
    add_common(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    format = await reading_format(options, options.location)
    with progress_bar(wanted=not options.quiet and not options.json) as bar:
        report = await verify(
            options.location,
            level=options.level,
            format=format,
            progress=bar,
            storage_options=storage_options(options, options.location),
        )
    if options.json:
        print_json({**asdict(report), "ok": report.ok})
        return 0 if report.ok else 1
    for problem in report.problems:
        print_line(f"PROBLEM  {problem}", "red")
    for line in (*report.warnings, *report.unchecked):
        print_line(f"note     {line}", "yellow")
    summary = f"{_verdict(report)}: {report.tensors} tensors, {human_size(report.bytes_checked)} read"
    print_line(summary, "green" if report.ok and not report.unchecked else "")
    return 0 if report.ok else 1


def _verdict(report: VerifyReport) -> str:
    """`ok` is said only where everything has a checksum."""
    if not report.ok:
        return f"{len(report.problems)} problem(s)"
    if report.unchecked:
        return f"nothing wrong was found, but {len(report.unchecked)} thing(s) could not be checked"
    return "ok"
