"""Keys: the names of objects inside a storage's root. Nothing that could leave the root passes."""

from __future__ import annotations

from asyncckpt.errors import InvalidKeyError

MAX_KEY_BYTES = 1024
_MAX_SEGMENT_BYTES = 255


def validate_key(key: str) -> str:
    """The key itself, if it is a plain relative `/`-separated name. Raises InvalidKeyError."""
    problem = _problem(key)
    if problem:
        raise InvalidKeyError(f"invalid key {key!r}: {problem}")
    return key


def validate_prefix(prefix: str) -> str:
    """A prefix of keys: empty, or a key that may end in `/`. Raises InvalidKeyError."""
    stem = prefix.removesuffix("/")
    return prefix if not prefix else (validate_key(stem) and prefix)


def _problem(key: str) -> str | None:
    if not isinstance(key, str) or not key:
        return "a key is a non-empty string"
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if len(encoded) > MAX_KEY_BYTES:
        return f"it has {len(encoded)} bytes, at most {MAX_KEY_BYTES} are allowed"
    if key.startswith("/"):
        return "absolute keys are not allowed"
    if any(ord(c) < 32 or ord(c) == 127 for c in key) or "\\" in key:
        return "control characters and backslashes are not allowed"
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            return f"the segment {segment!r} is not allowed"
        if len(segment.encode()) > _MAX_SEGMENT_BYTES:
            return f"a segment has more than {_MAX_SEGMENT_BYTES} bytes"
    return None
