"""The manifest of an SDNB file: a Java-serialised `LinkedHashMap<String, Pair<Long, Long>>`, name → (offset, length).

Written byte for byte as `ObjectOutputStream` writes it. Read by a grammar of exactly this one type: no class is
looked up, nothing is instantiated, any other class is an error. Big-endian.

==================== ==============================================================================
part                 bytes
==================== ==============================================================================
stream               AC ED 00 05
map                  73, descriptor of LinkedHashMap (72 …) with its parent HashMap
HashMap's fields     float loadFactor, int threshold
HashMap's own data   77 08, int capacity, int count; count × (key, Pair); 78
LinkedHashMap's      byte accessOrder
key                  74, u16 length, modified UTF-8; or 7C, u64 length
Pair                 73, descriptor (72 …) or 71 and its handle; two Longs
Long                 73, descriptor or 71 and its handle, int64; or 71 and the handle of an earlier Long
==================== ==============================================================================

Handles count from 0x7E0000, one for each descriptor, object and string in the order of the stream. Java keeps one
object for each Long from -128 to 127, so a small value that came before is written as a reference.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from asyncckpt.errors import LayoutError, LimitExceededError
from asyncckpt.formats.kit.binary import Cursor
from asyncckpt.formats.sdnb.modified_utf8 import decode_modified_utf8, encode_modified_utf8

_BE_U8 = struct.Struct(">B")
_BE_U16 = struct.Struct(">H")
_BE_I32 = struct.Struct(">i")
_BE_U64 = struct.Struct(">Q")
_BE_I64 = struct.Struct(">q")
_BE_F32 = struct.Struct(">f")

_NULL, _REFERENCE, _CLASS, _OBJECT, _STRING, _BLOCK, _END, _LONG_STRING = (
    0x70, 0x71, 0x72, 0x73, 0x74, 0x77, 0x78, 0x7C,
)  # fmt: skip
_BASE_HANDLE = 0x7E0000
_STREAM = bytes.fromhex("aced0005")
_OBJECT_TYPE = "Ljava/lang/Object;"
_MIN_ENTRY_BYTES = 3 + 6 + 5 + 5
"""An entry with an empty key, a Pair by reference and two Longs by reference."""


class ArrayRange(NamedTuple):
    """Where an appended array lies in its file."""

    offset: int
    length: int


class _ClassShape(NamedTuple):
    uid: int
    flags: int
    fields: tuple[tuple[str, str], ...]
    parent: str | None = None


_PAIR = "org.nd4j.common.primitives.Pair"
_CLASSES = {
    "java.util.LinkedHashMap": _ClassShape(
        0x34C04E5C106CC0FB, 2, (("Z", "accessOrder"),), parent="java.util.HashMap"
    ),
    "java.util.HashMap": _ClassShape(0x0507DAC1C31660D1, 3, (("F", "loadFactor"), ("I", "threshold"))),
    _PAIR: _ClassShape(0x77, 2, (("L", "key"), ("L", "value"))),
    "java.lang.Long": _ClassShape(0x3B8BE490CC8F23DF, 2, (("J", "value"),), parent="java.lang.Number"),
    "java.lang.Number": _ClassShape(0x86AC951D0B94E08B, 2, ()),
}


# -- encode ----------------------------------------------------------------------------------------------------


def encode_manifest(entries: Mapping[str, ArrayRange]) -> bytes:
    """The bytes that Java's `ObjectOutputStream.writeObject` makes of the same map.

    Raises LayoutError for names that are not Unicode text.
    """
    writer = _Writer()
    writer.map_head(len(entries))
    for name, (offset, length) in entries.items():
        writer.string(name)
        writer.pair(offset, length)
    return b"".join((*writer.parts, _BE_U8.pack(_END), b"\0"))


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = [_STREAM]
        self._handles = 0
        self._classes: dict[str, int] = {}
        self._small_longs: dict[int, int] = {}
        self._object_type: int | None = None

    def _new_handle(self) -> int:
        self._handles += 1
        return _BASE_HANDLE + self._handles - 1

    def _put(self, *parts: bytes) -> None:
        self.parts.extend(parts)

    def _reference(self, handle: int) -> bytes:
        return bytes((_REFERENCE,)) + _BE_I32.pack(handle)

    def map_head(self, count: int) -> None:
        capacity = 16
        while count * 4 > capacity * 3:
            capacity *= 2
        threshold = capacity * 3 // 4 if count else 0
        self._put(bytes((_OBJECT,)))
        self._class("java.util.LinkedHashMap")
        self._new_handle()
        self._put(_BE_F32.pack(0.75), _BE_I32.pack(threshold))
        self._put(bytes((_BLOCK, 8)), _BE_I32.pack(capacity), _BE_I32.pack(count))

    def _class(self, name: str) -> None:
        known = self._classes.get(name)
        if known is not None:
            self._put(self._reference(known))
            return
        shape = _CLASSES[name]
        self._put(bytes((_CLASS,)), _utf(name), _BE_U64.pack(shape.uid), bytes((shape.flags,)))
        self._classes[name] = self._new_handle()
        self._put(_BE_U16.pack(len(shape.fields)))
        for kind, field in shape.fields:
            self._put(kind.encode(), _utf(field))
            if kind == "L":
                self._type_of_field()
        self._put(bytes((_END,)))
        if shape.parent is None:
            self._put(bytes((_NULL,)))
        else:
            self._class(shape.parent)

    def _type_of_field(self) -> None:
        if self._object_type is not None:
            self._put(self._reference(self._object_type))
            return
        self._object_type = self._new_handle()
        self._put(bytes((_STRING,)), _utf(_OBJECT_TYPE))

    def string(self, text: str) -> None:
        data = encode_modified_utf8(text)
        self._new_handle()
        if len(data) <= 0xFFFF:
            self._put(bytes((_STRING,)), _BE_U16.pack(len(data)), data)
        else:
            self._put(bytes((_LONG_STRING,)), _BE_U64.pack(len(data)), data)

    def pair(self, offset: int, length: int) -> None:
        self._put(bytes((_OBJECT,)))
        self._class(_PAIR)
        self._new_handle()
        self._long(offset)
        self._long(length)

    def _long(self, value: int) -> None:
        known = self._small_longs.get(value)
        if known is not None:
            self._put(self._reference(known))
            return
        self._put(bytes((_OBJECT,)))
        self._class("java.lang.Long")
        handle = self._new_handle()
        if -128 <= value <= 127:
            self._small_longs[value] = handle
        self._put(_BE_I64.pack(value))


def _utf(text: str) -> bytes:
    data = text.encode()
    return _BE_U16.pack(len(data)) + data


# -- decode ----------------------------------------------------------------------------------------------------


def decode_manifest(data: memoryview) -> dict[str, ArrayRange]:
    """The map of a stream of exactly this type. Raises FormatError subclasses for everything else."""
    return _Reader(data).manifest()


class _Reader:
    """Follows the grammar; `_handles` has a class's name, a Long or a string (None where it does not matter)."""

    def __init__(self, data: memoryview) -> None:
        self._cursor = Cursor(data, what="the manifest")
        self._handles: list[_ClassName | int | str | None] = []

    def manifest(self) -> dict[str, ArrayRange]:
        if self._cursor.take(4) != _STREAM:
            raise LayoutError("the manifest is not a Java object stream: it does not begin with ac ed 00 05")
        self._expect(_OBJECT, "a map")
        name = self._class()
        if name not in ("java.util.LinkedHashMap", "java.util.HashMap"):
            raise LayoutError(f"the manifest is a {name}, not a LinkedHashMap")
        self._handles.append(None)
        count = self._map_head()
        entries: dict[str, ArrayRange] = {}
        for _ in range(count):
            key = self._key()
            if key in entries:
                raise LayoutError(f"the manifest has the array {key!r} twice")
            entries[key] = self._pair(key)
        self._expect(_END, "the end of the map")
        if name == "java.util.LinkedHashMap":
            self._cursor.take(1, "accessOrder")
        if self._cursor.remaining:
            raise LayoutError(f"{self._cursor.remaining} bytes are left over after the manifest's map")
        return entries

    def _map_head(self) -> int:
        self._cursor.take(8, "the map's fields")
        if self._cursor.take(2) != bytes((_BLOCK, 8)):
            raise LayoutError("the manifest's map has no size")
        self._cursor.take(4, "the map's capacity")
        count = self._cursor.number(_BE_I32, "the map's size")
        if not 0 <= count <= self._cursor.remaining // _MIN_ENTRY_BYTES:
            raise LimitExceededError(
                f"the manifest says {count} arrays, its {self._cursor.remaining} bytes can't hold them"
            )
        return count

    def _byte(self, what: str) -> int:
        return self._cursor.take(1, what)[0]

    def _expect(self, code: int, what: str) -> None:
        found = self._byte(what)
        if found != code:
            raise LayoutError(
                f"the manifest has type code {found:02x} at {self._cursor.position - 1}, {what} needs {code:02x}"
            )

    def _text(self) -> str:
        size = self._cursor.number(_BE_U16, "a name's length")
        return decode_modified_utf8(bytes(self._cursor.take(size, "a name")), "a name in the manifest")

    def _referenced(self) -> _ClassName | int | str | None:
        number = self._cursor.number(_BE_I32, "a reference") - _BASE_HANDLE
        if not 0 <= number < len(self._handles):
            raise LayoutError(f"the manifest refers to the unknown object {number}")
        return self._handles[number]

    def _class(self) -> str:
        code = self._byte("a class")
        if code == _REFERENCE:
            known = self._referenced()
            if not isinstance(known, _ClassName):
                raise LayoutError("the manifest refers to a class that is none")
            return known
        if code != _CLASS:
            raise LayoutError(f"the manifest has type code {code:02x} where a class is due")
        return self._new_class()

    def _new_class(self) -> str:
        name = self._text()
        shape = _CLASSES.get(name)
        if shape is None:
            raise LayoutError(
                f"the manifest holds the class {name[:80]!r}; only a map of Pairs of Longs is read"
            )
        uid = self._cursor.number(_BE_U64, "a class's version")
        self._handles.append(_ClassName(name))
        flags, fields = self._byte("a class's flags"), self._fields()
        if (uid, flags, fields) != (shape.uid, shape.flags, shape.fields):
            raise LayoutError(f"the class {name} of the manifest has another version or other fields")
        self._expect(_END, "the end of a class")
        self._parent(name, shape.parent)
        return name

    def _fields(self) -> tuple[tuple[str, str], ...]:
        fields = []
        for _ in range(self._cursor.number(_BE_U16, "the number of fields")):
            kind = chr(self._byte("a field's type"))
            fields.append((kind, self._text()))
            if kind == "L" and self._field_type() != _OBJECT_TYPE:
                raise LayoutError(f"the field {fields[-1][1][:40]!r} of the manifest is not an object")
        return tuple(fields)

    def _field_type(self) -> str | int | None:
        code = self._byte("a field's type")
        if code == _REFERENCE:
            return self._referenced()
        if code != _STRING:
            raise LayoutError(f"the manifest has type code {code:02x} where a field's type is due")
        text = self._text()
        self._handles.append(text)
        return text

    def _parent(self, name: str, parent: str | None) -> None:
        if parent is None:
            self._expect(_NULL, f"the parent of {name}")
        elif self._class() != parent:
            raise LayoutError(f"the class {name} of the manifest has another parent")

    def _key(self) -> str:
        code = self._byte("a key")
        if code == _REFERENCE:
            known = self._referenced()
            if not isinstance(known, str) or isinstance(known, _ClassName):
                raise LayoutError("a key of the manifest refers to something that is not a string")
            return known
        if code == _STRING:
            key = self._text()
        elif code == _LONG_STRING:
            size = self._cursor.number(_BE_U64, "a key's length")
            key = decode_modified_utf8(bytes(self._cursor.take(size, "a key")), "a key of the manifest")
        else:
            raise LayoutError(f"the manifest has type code {code:02x} where a key is due")
        self._handles.append(key)
        return key

    def _pair(self, key: str) -> ArrayRange:
        self._expect(_OBJECT, f"the place of {key!r}")
        name = self._class()
        if name != _PAIR:
            raise LayoutError(f"the place of {key!r} is a {name}, not a Pair")
        self._handles.append(None)
        return ArrayRange(self._long(key), self._long(key))

    def _long(self, key: str) -> int:
        code = self._byte("a Long")
        if code == _REFERENCE:
            known = self._referenced()
            if not isinstance(known, int):
                raise LayoutError(f"the place of {key!r} refers to something that is no Long")
            return known
        if code != _OBJECT or (name := self._class()) != "java.lang.Long":
            found = name if code == _OBJECT else f"type code {code:02x}"
            raise LayoutError(f"the place of {key!r} holds {found}, not a Long")
        value = self._cursor.number(_BE_I64, "a Long")
        self._handles.append(value)
        return value


class _ClassName(str):
    """A class's name in the table of handles, apart from strings."""

    __slots__ = ()
