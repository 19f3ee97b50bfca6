"""The formats that are measured, each with the options that matter, and a folder to write them to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncckpt.formats.base import ICheckpointFormat
from asyncckpt.formats.registry import format_names, get_format
from asyncckpt.formats.sdz.format import SdzFormat

REFERENCE = "mlcp"
_MEMORY_FOLDER = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Subject:
    """A format as the tables call it.

    `limited` is whether it has to be as fast as MLCP: others spend their time on a hash or a compression that their
    files must have, so their ratio is only reported.
    """

    name: str
    make: Callable[[], ICheckpointFormat]
    limited: bool = True
    compressed: bool = False

    @property
    def key(self) -> str:
        return f"model{self.make().extension}"


def subjects(wanted: Sequence[str] = ()) -> list[Subject]:
    """MLCP first, then all others, or those of the formats that are wanted."""
    special = {
        "metagraph": Subject("metagraph", lambda: get_format("metagraph"), limited=False),
        "mlcp-set": Subject("mlcp-set", lambda: get_format("mlcp-set"), limited=False),
        "sdz": Subject("sdz", SdzFormat, limited=False, compressed=True),
    }
    found = []
    for name in format_names():
        if name == REFERENCE or not wanted or name in wanted:
            found.append(special.get(name) or Subject(name, lambda name=name: get_format(name)))  # type: ignore[misc]
        if name == "sdz" and found[-1].name == "sdz":
            found.append(Subject("sdz, stored", lambda: SdzFormat(compress=False)))
    return found


@contextmanager
def ranking_folder(bytes_needed: int) -> Iterator[Path]:
    """A folder in memory where the system has one with enough room, else on the disk.

    From one minute to the next a disk differs more from itself than the formats differ from each other.
    """
    roomy = _MEMORY_FOLDER.is_dir() and os.access(_MEMORY_FOLDER, os.W_OK)
    roomy = roomy and shutil.disk_usage(_MEMORY_FOLDER).free > 2 * bytes_needed
    with tempfile.TemporaryDirectory(
        prefix="asyncckpt-bench-", dir=_MEMORY_FOLDER if roomy else None
    ) as folder:
        yield Path(folder)
