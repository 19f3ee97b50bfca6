"""File names: the one rule for what names a file of the same folder, and the same for folders below it: nothing that
could lead elsewhere.

Storages hold every segment of a key to it, and formats every name that they find in a file. So whatever a set may be
saved as can be read again, and whatever a hostile index names is refused as a fault of that file.
"""

from __future__ import annotations

from typing import TypeGuard

from asyncckpt.model.metadata import Json

MAX_FILE_NAME_BYTES = 255
"""What file systems allow, in UTF-8."""


def file_name_problem(name: str) -> str | None:
    """What keeps the name from being that of a file of the same folder; None when nothing does."""
    if name in ("", ".", ".."):
        return f"the name {name!r} is not allowed"
    if any(ord(c) < 32 or ord(c) == 127 for c in name) or "\\" in name:
        return "control characters and backslashes are not allowed"
    if "/" in name:
        return "it has folders in it"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_FILE_NAME_BYTES:
        return f"a name has more than {MAX_FILE_NAME_BYTES} bytes"
    return None


def relative_key_problem(key: str) -> str | None:
    """What keeps the key from being that of a file of the same folder, or of a folder below it; None when nothing does.

    Every part between slashes is held to the rule for names, so nothing absolute, empty, `.` or `..` passes.
    """
    return next((problem for part in key.split("/") if (problem := file_name_problem(part))), None)


def is_relative_key(value: Json) -> TypeGuard[str]:
    """Whether the value names a file of the same folder, or of a folder below it."""
    return isinstance(value, str) and relative_key_problem(value) is None


def is_file_name(value: Json) -> TypeGuard[str]:
    """Whether the value names a file of the same folder."""
    return isinstance(value, str) and file_name_problem(value) is None
