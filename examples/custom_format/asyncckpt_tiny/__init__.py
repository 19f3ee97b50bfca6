"""TINY, a checkpoint format of one's own. Extension `.tiny`.

============= ===== ====================================================================================
part          bytes content
============= ===== ====================================================================================
magic         8     "TINYCKPT"
header length 8     u64, little-endian
header        n     JSON: `tensors` (name, dtype and shape of each) and `asyncckpt`, the block, which keeps
                    the tree, the metadata and the checksums
padding       0-63  zeros up to a multiple of 64
data          ...   the tensors, each at a multiple of 64
============= ===== ====================================================================================

`plan` says where every byte goes, `parse` finds it again. Both are pure: saving in parts, lazy reads, slices,
verify, convert, progress and cancellation follow from these two.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncckpt import ICheckpointFormat, LayoutError, TensorMetadata, TruncatedError
from asyncckpt import formats as kit

MAGIC = b"TINYCKPT"
START = len(MAGIC) + kit.LE_U64.size


class TinyFormat(ICheckpointFormat):
    """What the entry point names. Options of a format would be arguments of its constructor."""

    name = "tiny"
    extensions = (".tiny",)
    dtypes = frozenset({"float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool"})

    def sniff(self, head: memoryview, source: kit.FileInfo) -> bool:
        return head[: len(MAGIC)] == MAGIC

    def plan(self, content: kit.Content, *, name: str) -> Sequence[kit.FilePlan]:
        self.require_representable(content)
        chunking = content.chunking()
        block = kit.build_block(content, chunking)
        tensors = [{"name": t.name, "dtype": t.dtype, "shape": t.shape} for t in content.tensors]
        before = f'{{"tensors":{kit.dump_json(tensors)},"asyncckpt":'.encode()
        length = kit.LE_U64.pack(len(before) + block.size + len(b"}"))
        header = kit.BlockHeader(MAGIC + length + before, block, b"}")
        payloads, size = kit.lay_out(content.tensors, header.end)
        return [header.plan(name, payloads, size=size, chunking=chunking)]

    def parse(self, source: kit.FileInfo) -> kit.ParseSteps:
        start = yield from kit.need_exactly(0, START, "the header")
        if start[: len(MAGIC)] != MAGIC:
            raise LayoutError(f"not a tiny file: it begins with {bytes(start[:8]).hex(' ')}")
        end = START + kit.LE_U64.unpack(start[len(MAGIC) :])[0]
        if end > source.size:
            raise TruncatedError(f"the header ends at byte {end}, the file has {source.size}")
        header = yield from kit.need_exactly(0, end, "the header")
        match kit.load_json(header[START:], "the header"):
            case {"tensors": [*entries], "asyncckpt": block}:
                tensors = [_tensor(entry) for entry in entries]
            case _:
                raise LayoutError("the header has no tensors, or no block")
        payloads, _ = kit.lay_out(tensors, end)
        extents = [(kit.Extent(payload.offset, payload.size),) for payload in payloads]
        return kit.indexed(
            [kit.StoredTensor(*found) for found in zip(tensors, extents, strict=True)],
            kit.Block.decode(block),
            format=self.name,
            version=self.version,
            regions=[(0, header)],
            size=source.size,
        )


def _tensor(entry: object) -> TensorMetadata:
    match entry:
        case {"name": name, "dtype": str(dtype), "shape": shape} if dtype in TinyFormat.dtypes:
            return kit.checked_tensor(name, dtype, shape)
    raise LayoutError(f"the header lists a malformed tensor: {str(entry)[:80]}")
