"""Java's own UTF-8, in which the manifest of an SDNB file spells names."""

from __future__ import annotations

import struct

from asyncckpt.errors import LayoutError


def encode_modified_utf8(text: str) -> bytes:
    """Java's own UTF-8: NUL takes two bytes, characters beyond U+FFFF are two surrogates of three bytes each.

    Raises LayoutError for lone surrogates, which are no text.
    """
    if text.isascii():
        return text.encode().replace(b"\0", b"\xc0\x80")
    try:
        units = text.encode("utf-16-be")
    except UnicodeEncodeError:
        raise LayoutError(f"the name {text!r} holds a lone surrogate and can't be stored") from None
    lone = "".join(map(chr, struct.unpack(f">{len(units) // 2}H", units)))
    return lone.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_modified_utf8(data: bytes, what: str) -> str:
    """Raises LayoutError for bytes that Java would not have written."""
    try:
        text = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        if text.isascii():
            return text
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError:
        raise LayoutError(f"{what} is not valid modified UTF-8") from None
