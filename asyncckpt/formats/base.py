"""`ICheckpointFormat`: a format writes `plan` and `parse`, both pure; everything else follows from these two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from asyncckpt._aio import run_in_thread
from asyncckpt.cancellation import CancellationToken, cancel_scope
from asyncckpt.errors import LayoutError, NotRepresentableError
from asyncckpt.formats.kit.decode import check_chunks, gather, to_array
from asyncckpt.formats.kit.encode import render
from asyncckpt.formats.kit.index import Extent, FileInfo, Index, ParseSteps, Seal
from asyncckpt.formats.kit.plan import AnyPlan, Content
from asyncckpt.formats.kit.steps import parse_bytes
from asyncckpt.model.checksums import Buffer
from asyncckpt.model.dtype import as_bytes_view
from asyncckpt.model.metadata import CheckpointMetadata, ShardMetadata
from asyncckpt.model.shard import ShardData
from asyncckpt.model.state.payloads import PAYLOAD_DTYPE


class ICheckpointFormat(ABC):
    """Turns tensor shards into bytes and back.

    Options of a format are arguments of its constructor, so `save(..., format=SdzFormat(compress=False))` works
    as `save(..., format="sdz")` does.
    """

    name: ClassVar[str]
    extensions: ClassVar[tuple[str, ...]]
    version: ClassVar[str] = "1"
    """The version of the format that it writes, as `Index.version` has it."""
    dtypes: ClassVar[frozenset[str] | None] = None
    """The dtypes it can store; None for all."""

    @property
    def extension(self) -> str:
        """The usual ending of a file's name, with the dot."""
        return self.extensions[0]

    @property
    def seals(self) -> frozenset[Seal]:
        """How the files that it writes, with the options it has, are protected."""
        return frozenset()

    @property
    def has_payloads(self) -> bool:
        """Whether large bytes and strings of a state are stored beside its tensors; else they are text in its tree."""
        return self.dtypes is None or PAYLOAD_DTYPE in self.dtypes

    @abstractmethod
    def sniff(self, head: memoryview, source: FileInfo) -> bool:
        """Whether a file that begins with these bytes (at least 64, or all) is of this format."""

    @abstractmethod
    def plan(self, content: Content, *, name: str) -> Sequence[AnyPlan]:
        """The files to write, in the order in which they may become visible: the last one is the commit.

        `name` is the name, without folders, that the caller chose. Pure: reads no tensor's bytes.
        Raises NotRepresentableError when `losses` is not empty, LimitExceededError beyond the format's limits.
        """

    @abstractmethod
    def parse(self, source: FileInfo) -> ParseSteps:
        """A generator that asks for byte ranges and returns the index. Raises FormatError subclasses only."""

    def leader_prefix(self, name: str) -> str | None:
        """What the name of a set's leading file begins with, for a base name that is itself no file; None where
        the format has no such sets."""
        return None

    def leaders(self, name: str, present: Iterable[str]) -> list[str]:
        """The names among `present` that lead a set with the base `name`."""
        return []

    def losses(self, content: Content) -> list[str]:
        """One line for each thing of the content that this format can't hold. Empty when all of it fits."""
        if self.dtypes is None:
            return []
        table = content.table()
        if self.dtypes.issuperset(table.dtypes):
            return []
        return [
            f"tensor {name!r} is {dtype}, which {self.name} can't store"
            for name, dtype in zip(table.names, table.dtypes, strict=True)
            if dtype not in self.dtypes
        ]

    def require_representable(self, content: Content) -> None:
        """Raises NotRepresentableError with everything that does not fit, and LayoutError for duplicate names."""
        names = content.table().names
        if len(set(names)) != len(names):
            seen: set[str] = set()
            twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise LayoutError(f"two tensors have the name {twice!r}")
        refuse_losses(self.losses(content))

    async def serialize(
        self,
        shards: Sequence[ShardData],
        metadata: CheckpointMetadata,
        *,
        cancellation: CancellationToken | None = None,
    ) -> bytes:
        """All shards as one file in memory. Raises as `plan` does, and LayoutError for sets of files."""
        async with cancel_scope(cancellation):
            return await run_in_thread(self.__serialize, shards, metadata)

    async def deserialize(
        self, data: Buffer, *, cancellation: CancellationToken | None = None
    ) -> tuple[list[ShardData], CheckpointMetadata]:
        """The shards of a file in memory, verified, as views of `data` where possible. Raises FormatError."""
        async with cancel_scope(cancellation):
            return await run_in_thread(self.__deserialize, data)

    def __serialize(self, shards: Sequence[ShardData], metadata: CheckpointMetadata) -> bytes:
        content, views = content_of(shards, metadata)
        plans = self.plan(content, name=f"checkpoint{self.extension}")
        if len(plans) != 1:
            raise LayoutError(f"{self.name} would write {len(plans)} files; serialize makes one: use save")
        return render(plans[0], lambda tensor, start, end: views[tensor][start:end])

    def __deserialize(self, data: Buffer) -> tuple[list[ShardData], CheckpointMetadata]:
        view = memoryview(data).toreadonly().cast("B")
        index = parse_bytes(self.parse(FileInfo(f"checkpoint{self.extension}", len(view))), view)
        return read_shards(index, view), index.metadata


def refuse_losses(losses: Sequence[str]) -> None:
    """Raises NotRepresentableError with all of them, unless there are none."""
    if losses:
        more = f" (and {len(losses) - 1} more)" if len(losses) > 1 else ""
        raise NotRepresentableError(losses[0] + more, losses=tuple(losses))


def content_of(shards: Sequence[ShardData], metadata: CheckpointMetadata) -> tuple[Content, list[memoryview]]:
    """Bare shards, without a tree, as a content and the views of its tensors."""
    tensors = tuple(t for shard in shards for t in shard.tensor_info)
    views = [view for shard in shards for view in shard.views]
    return Content(tensors, tuple(len(shard.views) for shard in shards), metadata), views


def read_shards(index: Index, data: memoryview) -> list[ShardData]:
    """Every tensor of a file in memory, verified, grouped by shard. Raises FormatError subclasses."""

    def fetch(extent: Extent) -> memoryview:
        return data[extent.offset : extent.end]

    views = {}
    for stored in index.tensors:
        view = gather(stored, fetch)
        check_chunks(stored, view)
        views[stored.name] = view if stored.order == "C" else as_bytes_view(to_array(stored, view))[1]
    tensors = {stored.name: stored.metadata for stored in index.tensors}
    shards = index.metadata.shards or (ShardMetadata(tensors=tuple(tensors.values())),)
    return [ShardData(shard, tuple(views[t.name] for t in shard.tensors)) for shard in shards]
