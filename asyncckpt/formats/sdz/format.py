"""SDZ: one SDNB file, or a set of them, in a ZIP archive. Extension `.sdz`.

=============== ======= ==========================================================================
part            bytes   content
=============== ======= ==========================================================================
local header    30 + n  `50 4B 03 04`; entry `model`, or `model.shard{i}-of-{N}.sdnb` in order; STORED entries have
                        CRC32 and sizes here and are padded to a multiple of 64, DEFLATE ones a descriptor after
data            ...     the SDNB file, whole, or DEFLATE frames that follow its arrays (kit/deflate.py)
descriptor      16      DEFLATE only: `50 4B 07 08`, CRC32, sizes
...                     the next entry
frame record    ...     DEFLATE only: where the frames are (frames.py)
directory       ...     central directory and end records (kit/zip.py); Zip64 from 4 GiB on
=============== ======= ==========================================================================

The `asyncckpt` block is that of the SDNB files inside: positions in it count from the inner file's start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from asyncckpt.arguments import AtLeastOne, Between, checked
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.kit.index import FileInfo, ParseSteps
from asyncckpt.formats.kit.plan import AnyPlan, Content, FilePlan
from asyncckpt.formats.kit.zip import MAGIC, ZipLimits
from asyncckpt.formats.sdnb.format import check_updater_state, name_losses, plan_files
from asyncckpt.formats.sdnb.graph.build import UpdaterState
from asyncckpt.formats.sdnb.graph.read import DTYPE_CODES
from asyncckpt.formats.sdnb.header import VERSION, SdnbOptions
from asyncckpt.formats.sdz.parse import ENTRY, NAME, SdzOptions, parse_archive
from asyncckpt.formats.sdz.write import plan_deflated, plan_stored
from asyncckpt.model.metadata import now

# -- plan ------------------------------------------------------------------------------------------------------


def inner_plans(content: Content, options: SdnbOptions) -> list[FilePlan]:
    """The SDNB files of the archive, named as its entries, shard 0 first."""
    plans = plan_files(content, f"{ENTRY}.sdnb", options)
    if len(plans) == 1:
        return [replace(plans[0], name=ENTRY)]
    return [plans[-1], *plans[:-1]]


# -- the class -------------------------------------------------------------------------------------------------


class SdzFormat(ICheckpointFormat):
    """SameDiff's archive: one file to hand on, compressed or readable by range."""

    name = NAME
    extensions = (".sdz",)
    version = str(VERSION)
    dtypes = frozenset(DTYPE_CODES)

    @checked
    def __init__(
        self,
        *,
        compress: bool = True,
        level: Annotated[int, Between(0, 9)] = 6,
        threads: AtLeastOne | None = None,
        limits: ZipLimits | None = None,
        shards: int | None = None,
        shard_limit_bytes: int = 1 << 30,
        inline_below: int = 1 << 20,
        updater_state: UpdaterState | None = None,
        load_updater_state: bool = True,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self.compress = compress
        self.level = level
        self.threads = threads
        self.options = SdzOptions(
            limits or ZipLimits(),
            SdnbOptions(
                shards=shards,
                shard_limit_bytes=shard_limit_bytes,
                inline_below=inline_below,
                updater_state=updater_state,
                load_updater_state=load_updater_state,
                clock=clock,
            ),
        )

    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        return bytes(head[:4]) == MAGIC

    def losses(self, content: Content) -> list[str]:
        losses = super().losses(content) + name_losses(content.tensors)
        return losses + check_updater_state(self.options.inner.updater_state or {})

    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        self.require_representable(content)
        plans = inner_plans(content, self.options.inner)
        if self.compress:
            return [plan_deflated(plans, name, level=self.level, threads=self.threads, parse=self.parse)]
        return [plan_stored(plans, name)]

    def parse(self, source: FileInfo) -> ParseSteps:
        return parse_archive(source, self.options)
