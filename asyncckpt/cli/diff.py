"""`asyncckpt diff`: what changed between two checkpoints, of any formats."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from asyncckpt.cli.options import Subparsers, add_common, add_format, reading_format, storage_options
from asyncckpt.cli.output import print_json, print_line
from asyncckpt.operations.diff import DiffReport, TensorChange, diff
from asyncckpt.operations.location import at


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("diff", help="compare two checkpoints")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--values", action="store_true", help="also the largest and mean difference")
    add_format(parser)
    add_common(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    before = await reading_format(options, options.before)
    after = await reading_format(options, options.after)
    report = await diff(
        at(options.before, storage_options=storage_options(options, options.before), format=before),
        at(options.after, storage_options=storage_options(options, options.after), format=after),
        values=options.values,
    )
    if options.json:
        print_json({**asdict(report), "same": report.same})
    else:
        _print(report)
    return 0 if report.same else 1


def _print(report: DiffReport) -> None:
    for line in (*report.header, *report.metadata, *report.state):
        print_line(f"  {line}")
    for name in report.removed:
        print_line(f"- {name}", "red")
    for name in report.added:
        print_line(f"+ {name}", "green")
    for change in report.changed:
        changed = f"{change.what}: {change.before} -> {change.after}{_distance(change)}"
        print_line(f"~ {change.name}  {changed}", "yellow")
    print_line(
        f"{len(report.added)} added, {len(report.removed)} removed, {len(report.changed)} changed, "
        f"{report.unchanged} the same"
    )


def _distance(change: TensorChange) -> str:
    if change.largest is None:
        return ""
    return f"  (largest {change.largest:.6g}, mean {change.mean:.6g})"
