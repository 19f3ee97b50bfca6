"""`asyncckpt inspect`: what is in a checkpoint, without reading its tensors."""

from __future__ import annotations

import argparse

from asyncckpt.cli.options import Subparsers, add_common, add_format, reading_format, storage_options
from asyncckpt.cli.output import print_json, print_line, print_table
from asyncckpt.cli.plain import human_size
from asyncckpt.formats.kit.metadata_json import EXACT_MEMBER, encode_metadata
from asyncckpt.model.metadata import Json, TensorMetadata
from asyncckpt.operations.checkpoint import Checkpoint, open_checkpoint

_HEX_BYTES = 256


def add_parser(commands: Subparsers) -> None:
    parser = commands.add_parser("inspect", help="show format, metadata and tensors")
    parser.add_argument("location")
    add_format(parser)
    parser.add_argument("--hex", action="store_true", help=f"also the first {_HEX_BYTES} bytes")
    add_common(parser)
    parser.set_defaults(run=run)


async def run(options: argparse.Namespace) -> int:
    format = await reading_format(options, options.location)
    chosen = storage_options(options, options.location)
    async with open_checkpoint(options.location, format=format, storage_options=chosen) as checkpoint:
        head = checkpoint.files[0].known(0, min(_HEX_BYTES, checkpoint.files[0].size)) or memoryview(b"")
        if options.json:
            print_json(_as_json(checkpoint, bytes(head) if options.hex else None))
        else:
            _print(checkpoint)
            if options.hex:
                print("\n".join(["", *hex_dump(bytes(head))]))
    return 0


def _as_json(checkpoint: Checkpoint, head: bytes | None) -> Json:
    shown = {
        "format": checkpoint.format,
        "version": checkpoint.version,
        "size": checkpoint.size,
        "files": [file.location.name for file in checkpoint.files],
        "warnings": list(checkpoint.warnings),
        "metadata": _metadata_json(checkpoint),
        "details": dict(checkpoint.details),
        "tensors": [_tensor_json(tensor) for tensor in checkpoint.tensors.values()],
        "payloads": [{"name": p.name, "size": p.size} for p in checkpoint.payloads.values()],
    }
    return shown if head is None else {**shown, "hex": head.hex()}


def _metadata_json(checkpoint: Checkpoint) -> dict[str, Json]:
    members = encode_metadata(checkpoint.metadata, shards=False)
    members.pop(EXACT_MEMBER, None)
    return members


def _tensor_json(tensor: TensorMetadata) -> Json:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "size": tensor.size,
        "pieces": len(tensor.pieces),
    }


def _print(checkpoint: Checkpoint) -> None:
    tensors = checkpoint.tensors.values()
    stored = sum(tensor.size for tensor in tensors)
    print(f"format    {checkpoint.format} {checkpoint.version}")
    print(f"size      {human_size(checkpoint.size)} in {len(checkpoint.files)} file(s)")
    print(f"tensors   {len(checkpoint.tensors)}, {human_size(stored)}")
    if checkpoint.payloads:
        held = sum(payload.size for payload in checkpoint.payloads.values())
        print(
            f"payloads  {len(checkpoint.payloads)}, {human_size(held)}: large bytes and strings of the state"
        )
    print(f"state     {'a tree' if checkpoint.tree is not None else 'foreign: a flat dict of arrays'}")
    for name, value in _metadata_json(checkpoint).items():
        if value not in ("", {}, None):
            print_line(f"{name:<9} {value}")
    for warning in checkpoint.warnings:
        print_line(f"warning   {warning}", "yellow")
    for name, value in checkpoint.details.items():
        print_line(f"{name:<9} {value}")
    print()
    print_table(
        ("TENSOR", "DTYPE", "SHAPE", "SIZE"),
        [(t.name, t.dtype, "×".join(map(str, t.shape)) or "scalar", human_size(t.size)) for t in tensors],
    )


def hex_dump(data: bytes) -> list[str]:
    """Sixteen bytes a line: offset, hex, ASCII."""
    lines = []
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{offset:08x}  {row.hex(' '):<47}  |{text}|")
    return lines
