"""METAGRAPH, a bundle of sections that vouch for themselves. Extension `.mgb`. Needs the extra `bundle`.

Little-endian. Sections begin at multiples of 64 (STORE: 4096), with zeros in between.

============= ======== ================================================================================
part          bytes    content
============= ======== ================================================================================
header        104      magic, versions, flags, sizes, ids and checksums: header.py
section index 40 each  type, flags, offset, size, checksum, item count
NODES         72 each  one record for each tensor, then names, dtypes and shapes: records.py
EDGES         16 each  which tensors belong to which shard
INDEX         48 each  where each tensor's bytes lie, and the frames they were cut into
METADATA      n        JSON, with the hashes of the other sections and the block: metadata.py
STORE         n        the tensors, at multiples of 64; or frames, compressed, encrypted: store.py
SIGNATURE     80       who vouches for all this: signature.py
============= ======== ================================================================================

A plain bundle has this order. One that is compressed, encrypted or a delta is made while it is written, and so
its STORE comes first.
Every byte is under a BLAKE3: sections under their own, those under the root, the root under the header.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from asyncckpt.arguments import checked
from asyncckpt.errors import LayoutError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import FileInfo, ParseSteps, Seal
from asyncckpt.formats.kit.plan import AnyPlan, Content
from asyncckpt.formats.metagraph.bundle import Keys
from asyncckpt.formats.metagraph.codec import Codec, RandomBytes, require_key
from asyncckpt.formats.metagraph.delta import BaseBundle
from asyncckpt.formats.metagraph.header import FORMAT_VERSION, MAGIC, OLD_MAGIC
from asyncckpt.formats.metagraph.index import NAME, parse_file, seals_of
from asyncckpt.formats.metagraph.signature import require_keys
from asyncckpt.formats.metagraph.write import Writing, plan_plain, plan_stream
from asyncckpt.model.metadata import CheckpointMetadata

_MAX_TIME = 2**64 - 1


class MetagraphFormat(ICheckpointFormat):
    """Bundles: plain by default; compressed, encrypted, signed, or a delta on request.

    `key` (32 bytes) encrypts and decrypts; with it a bundle that is not encrypted is refused, unless `allow_plain`.
    `signing_key` (32 raw bytes, Ed25519) signs what is written; with `verify_key` only bundles signed with its private
    key are read, and each tensor is compared with its signed hash.
    `base` makes a delta: see `asyncckpt.bundles.base_bundle`. The same content gives the same bytes
    unless it is encrypted, because by default the creation time is the metadata's timestamp, and the bundle's id
    comes from its root.
    """

    name = NAME
    extensions = (".mgb",)
    version = str(FORMAT_VERSION)

    @checked
    def __init__(
        self,
        *,
        compress: bool = False,
        key: bytes | None = None,
        signing_key: bytes | None = None,
        verify_key: bytes | None = None,
        allow_plain: bool = False,
        base: BaseBundle | None = None,
        creator: str = "asyncckpt",
        description: str = "",
        clock: Callable[[], datetime] | None = None,
        new_id: Callable[[], int] | None = None,
        random: RandomBytes = os.urandom,
    ) -> None:
        """Raises DecryptionError, SignatureError for keys of the wrong length."""
        require_key(key)
        require_keys(signing_key, verify_key)
        self._compress = compress
        self._keys = Keys(key, verify_key, signing_key, allow_plain)
        self._base = base
        self._creator = creator
        self._description = description
        self._clock = clock
        self._new_id = new_id
        self._random = random

    @property
    def seals(self) -> frozenset[Seal]:
        return seals_of(encrypted=self._keys.key is not None, signed=self._keys.signing_key is not None)

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:8]) in (MAGIC, OLD_MAGIC)

    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        self.require_representable(content)
        if self._base is not None and self._base.reference.file == name:
            raise LayoutError(f"a delta can't replace its own base {name!r}: choose another name")
        writing = self._writing(content.metadata)
        if writing.codec.flags or self._base is not None:
            # What was just made need not be vouched for.
            keys = replace(self._keys, verify_key=None, allow_plain=True)
            return [plan_stream(content, name, writing, partial(parse_file, keys=keys))]
        return [plan_plain(content, name, writing)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_file(source, self._keys)

    def _writing(self, metadata: CheckpointMetadata) -> Writing:
        bundle_id = self._new_id() if self._new_id is not None else None
        if bundle_id is None and self._keys.key is not None:
            # Every encrypted run is bound to the id, so it has to be there before the first of them.
            bundle_id = int.from_bytes(self._random(8), "little")
        return Writing(
            codec=Codec(compress=self._compress, key=self._keys.key, bundle_id=bundle_id or 0),
            creator=self._creator,
            description=self._description,
            creation_time=_seconds(self._clock() if self._clock is not None else metadata.timestamp),
            bundle_id=bundle_id,
            signing_key=self._keys.signing_key,
            base=self._base,
            random=self._random,
        )


def _seconds(moment: datetime | None) -> int:
    """Whole seconds since 1970; a naive moment counts as UTC, as everywhere."""
    if moment is None:
        return 0
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return min(max(0, int(aware.timestamp())), _MAX_TIME)
