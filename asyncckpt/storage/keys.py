"""Keys: the names of objects inside a storage's root. Nothing that could leave the root passes."""

from __future__ import annotations

from asyncckpt.errors import InvalidKeyError
from asyncckpt.model.file_names import file_name_problem

MAX_KEY_BYTES = 1024


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
    return next((problem for segment in key.split("/") if (problem := file_name_problem(segment))), None)
