"""Plain values as strict JSON, exactly: the type and every bit come back.

None, booleans, strings, finite floats and integers that any JSON reader keeps stand for themselves. The rest
is an object with one tag: `i` a large integer in hex, `f` the bits of a float (NaN with its payload,
infinities, −0.0), `c` the bits of a complex number, `b` bytes and `s` a string with lone surrogates (UTF-8,
surrogates let through) in base64, `ns` and `nb` numpy's str_ and bytes_, which have no fixed width and so are
no tensors. `g` is any other scalar of numpy, its dtype and its bytes, for places without tensors: in a state it
is one.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from asyncckpt.errors import LayoutError, UnsupportedDtypeError
from asyncckpt.model.dtype import array_from, as_bytes_view, dtype_name
from asyncckpt.model.metadata import Json

# Beyond these, readers that hold numbers as doubles would change the value.
_SAFE_INTEGER = 2**53 - 1
_HEX_INTEGER = re.compile(r"-?[0-9a-f]+", re.ASCII)
_HEX_DOUBLE = re.compile(r"[0-9a-f]{16}", re.ASCII)
_SELF_EVIDENT: Final = frozenset({type(None), bool, int, str})


def encode_integer(value: int) -> Json:
    # Hex, because Python limits how long a decimal it converts, and because it takes linear time.
    return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else {"i": format(value, "x")}


def encode_string(value: str) -> Json:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        # A JSON reader would join two neighbouring surrogates into another character.
        return {"s": _base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _base64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


def _double_bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _encode_float(value: float) -> Json:
    if math.isfinite(value) and (value != 0.0 or math.copysign(1.0, value) > 0):
        return value
    return {"f": _double_bits(value)}


def _itself(value: Json) -> Json:
    return value


_ENCODERS: Final[dict[type, Callable[[Any], Json]]] = {
    type(None): _itself,
    bool: _itself,
    int: encode_integer,
    str: encode_string,
    float: _encode_float,
    bytes: lambda value: {"b": _base64(value)},
    complex: lambda value: {"c": _double_bits(value.real) + _double_bits(value.imag)},
    np.str_: lambda value: {"ns": _base64(value.encode("utf-8", "surrogatepass"))},
    np.bytes_: lambda value: {"nb": _base64(bytes(value))},
}
# Exact types only: a subclass such as an IntEnum would come back as something else.
PLAIN_TYPES: Final = frozenset(_ENCODERS)


def encode_plain(value: Any) -> Json:
    """The value, whose type is one of PLAIN_TYPES, as JSON."""
    return _ENCODERS[type(value)](value)


def encode_scalar(value: np.generic) -> Json:
    """A scalar of numpy as JSON. Raises UnsupportedDtypeError for one that no tensor could hold."""
    name = dtype_name(value.dtype)
    _, data = as_bytes_view(np.asarray(value))
    return {"g": f"{name}:{data.hex()}"}


def decode_plain(node: Json) -> Any:
    """The value that `encode_plain` was given. Raises LayoutError for what it never gives."""
    kind = type(node)
    if kind in _SELF_EVIDENT:
        return node
    if kind is float and math.isfinite(node):
        return node
    if kind is dict and len(node) == 1:
        [(tag, text)] = node.items()
        decoder = _DECODERS.get(tag)
        if decoder is not None and type(text) is str:
            return decoder(text)
    raise LayoutError("not a node of a state tree")


def _decode_integer(text: str) -> int:
    if not _HEX_INTEGER.fullmatch(text):
        raise LayoutError("malformed integer")
    return int(text, 16)


def _decode_double(text: str) -> float:
    if not _HEX_DOUBLE.fullmatch(text):
        raise LayoutError("malformed float")
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def _decode_bytes(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LayoutError(f"malformed base64: {error}") from error


def _decode_string(text: str) -> str:
    try:
        return _decode_bytes(text).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise LayoutError("malformed string") from error


def _decode_scalar(text: str) -> Any:
    name, _, digits = text.partition(":")
    try:
        data = bytes.fromhex(digits)
        # Text and bytes have tags of their own; here they could hold code points that there are not.
        if data.hex() != digits or name[:1] in ("S", "U"):
            raise ValueError
        return array_from(data, name, ()).copy()[()]
    except (ValueError, UnsupportedDtypeError) as error:
        raise LayoutError("malformed scalar") from error


NONE_ROOT: Final[Json] = {"n": ""}
"""A state that is None: a tree of null would read as "no tree"."""


def _decode_none(text: str) -> None:
    if text:
        raise LayoutError("malformed null")


_DECODERS: Final[dict[str, Callable[[str], Any]]] = {
    "n": _decode_none,
    "i": _decode_integer,
    "f": _decode_double,
    "c": lambda text: complex(_decode_double(text[:16]), _decode_double(text[16:])),
    "b": _decode_bytes,
    "s": _decode_string,
    "ns": lambda text: np.str_(_decode_string(text)),
    "nb": lambda text: np.bytes_(_decode_bytes(text)),
    "g": _decode_scalar,
}


def decode_key(node: Json) -> str | int:
    """A key of a dict. Raises LayoutError unless it is a string or an integer."""
    key = decode_plain(node)
    if type(key) is str or type(key) is int:
        return key
    raise LayoutError(f"a key is a str or an int, not a {type(key).__name__}")
