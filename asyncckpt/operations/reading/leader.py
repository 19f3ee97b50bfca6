"""A set of files that is named by its base: `model.sdnb` where there are `model.shard0-of-3.sdnb` and its siblings."""

from __future__ import annotations

from asyncckpt.errors import LayoutError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.operations.location import ObjectLocation


async def find_leader(location: ObjectLocation, format: ICheckpointFormat | None) -> ObjectLocation | None:
    """The file that leads the set with this base name; None where there is none.

    Raises LayoutError when several sets have the name.
    """
    prefix = format.leader_prefix(location.name) if format is not None else None
    if format is None or prefix is None:
        return None
    keys = [info.key async for info in location.storage.list(location.sibling(prefix).key)]
    names = [name for key in keys if (name := key.rpartition("/")[2]) != location.name]
    leaders = format.leaders(location.name, names)
    if len(leaders) > 1:
        raise LayoutError(
            f"several sets have the name {location.display}: {', '.join(leaders)}; name the one you mean"
        )
    return location.sibling(leaders[0]) if leaders else None
