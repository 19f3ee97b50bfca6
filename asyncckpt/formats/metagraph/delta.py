"""Deltas: a bundle that stores only the tensors whose bytes differ from those of another bundle, its base."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit.index import Index
from asyncckpt.formats.metagraph.records import checksum_bytes
from asyncckpt.model.file_names import is_file_name
from asyncckpt.model.metadata import Json

MAX_BASES = 64
"""How many bundles a delta may rest on, one on the other."""


class BaseReference(NamedTuple):
    """How a delta names its base: by id and root, and where it is looked for: beside the delta."""

    bundle_id: int
    root: bytes
    file: str

    def encode(self) -> dict[str, Json]:
        return {"bundle_id": f"{self.bundle_id:016x}", "root": self.root.hex(), "file": self.file}

    @classmethod
    def decode(cls, value: Json) -> BaseReference:
        """Raises LayoutError for anything that `encode` would not have written."""
        if not isinstance(value, dict):
            raise LayoutError("the delta_base of METADATA is not an object")
        bundle_id, root, file = value.get("bundle_id"), value.get("root"), value.get("file")
        if not (_is_hex(bundle_id, 16) and _is_hex(root, 64) and is_file_name(file)):
            raise LayoutError("the delta_base of METADATA lacks its bundle_id, root or plain file name")
        return cls(int(bundle_id, 16), bytes.fromhex(root), file)


def _is_hex(value: Json, digits: int) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) == digits and re.fullmatch("[0-9a-f]+", value) is not None


@dataclass(frozen=True, slots=True)
class BaseBundle:
    """All that writing a delta needs to know of its base: no bytes of it are read again."""

    reference: BaseReference
    hashes: Mapping[str, bytes]
    """The BLAKE3 of each tensor's bytes, by the tensor's name."""


def base_bundle(index: Index, file: str) -> BaseBundle:
    """The base that `index` was parsed from; `file` is its name beside the delta to be written.

    Raises LayoutError when it is no METAGRAPH bundle or the name is not plain.
    """
    bundle_id, root = index.details.get("bundleId"), index.details.get("root")
    hashes = {tensor.name: checksum_bytes(tensor.metadata.checksum) for tensor in index.tensors}
    if index.format != "metagraph" or not isinstance(bundle_id, str) or not isinstance(root, str):
        raise LayoutError(f"the base of a delta must be a METAGRAPH bundle, not {index.format}")
    if not is_file_name(file):
        raise LayoutError(f"the base of a delta is named by a file beside it, not by {file[:80]!r}")
    reference = BaseReference(int(bundle_id, 16), bytes.fromhex(root), file)
    return BaseBundle(reference, {name: digest for name, digest in hashes.items() if digest is not None})
