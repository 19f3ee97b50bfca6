"""Reading numbers and strings from bytes that can't be trusted. Byte order is always spelled out."""

from __future__ import annotations

import struct
from typing import Any

from asyncckpt.errors import LayoutError, TruncatedError


class Cursor:
    """A position in a buffer; every read is checked against the bytes that remain. Raises TruncatedError."""

    __slots__ = ("data", "position", "what")

    def __init__(self, data: memoryview, position: int = 0, *, what: str = "the header") -> None:
        self.data = data
        self.position = position
        self.what = what

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def take(self, size: int, what: str = "") -> memoryview:
        if size < 0:
            raise LayoutError(f"{what or self.what} has the negative length {size}")
        if size > self.remaining:
            raise TruncatedError(
                f"{what or self.what} needs {size} bytes at {self.position}, {self.remaining} are left"
            )
        view = self.data[self.position : self.position + size]
        self.position += size
        return view

    def unpack(self, layout: struct.Struct, what: str = "") -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size, what))

    def number(self, layout: struct.Struct, what: str = "") -> int:
        value: int = layout.unpack(self.take(layout.size, what))[0]
        return value

    def text(self, size: int, what: str = "") -> str:
        """UTF-8 text of so many bytes. Raises LayoutError when it is not UTF-8."""
        return decode_utf8(self.take(size, what), what or self.what)


LE_U8 = struct.Struct("<B")
LE_U16 = struct.Struct("<H")
LE_U32 = struct.Struct("<I")
LE_U64 = struct.Struct("<Q")
LE_I32 = struct.Struct("<i")
LE_I64 = struct.Struct("<q")


def decode_utf8(data: memoryview | bytes, what: str) -> str:
    """Raises LayoutError when the bytes are not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise LayoutError(f"{what} is not valid UTF-8 at byte {error.start}") from None


def encode_utf8(text: str, what: str) -> bytes:
    """Raises LayoutError for lone surrogates, which UTF-8 has no bytes for."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LayoutError(f"{what} is not valid Unicode: {text[:80]!a}") from None


def is_unicode(text: str) -> bool:
    """Whether the text has a UTF-8 form: half a surrogate pair has none."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
