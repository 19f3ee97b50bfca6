"""A set of files that is named by its base: `model.sdnb` where there are `model.shard0-of-3.sdnb` and its siblings."""

from __future__ import annotations

from asyncckpt.errors import LayoutError
from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.operations.location import Place


async def find_leader(place: Place, format: ICheckpointFormat | None) -> Place | None:
    """The file that leads the set with this base name; None where there is none.

    Raises LayoutError when several sets have the name.
    """
    prefix = format.leader_prefix(place.name) if format is not None else None
    if format is None or prefix is None:
        return None
    keys = [info.key async for info in place.storage.list(place.sibling(prefix).key)]
    names = [name for key in keys if (name := key.rpartition("/")[2]) != place.name]
    leaders = format.leaders(place.name, names)
    if len(leaders) > 1:
        raise LayoutError(
            f"several sets have the name {place.shown}: {', '.join(leaders)}; name the one you mean"
        )
    return place.sibling(leaders[0]) if leaders else None
