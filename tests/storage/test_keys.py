"""Keys and prefixes: what is allowed, and that nothing else passes."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import InvalidKeyError
from asyncckpt.storage.keys import MAX_KEY_BYTES, validate_key, validate_prefix


@pytest.mark.parametrize(
    "key", ["a", "a/b", "a.b", "...", "..a", "a..", ".hidden", "~", "a b", "ü/模", "a" * 255]
)
def test_good_keys(key: str) -> None:
    assert validate_key(key) == key


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "non-empty"),
        (None, "non-empty"),
        (b"bytes", "non-empty"),
        ("/a", "absolute"),
        ("a/../b", "'..'"),
        ("..", "'..'"),
        ("./a", "'.'"),
        ("a//b", "''"),
        ("a/", "''"),
        ("a\0", "control"),
        ("a\x7f", "control"),
        ("a\\b", "backslash"),
        ("\ud800", "Unicode"),
        ("a" * 256, "255 bytes"),
        ("ü" * 128, "255 bytes"),
        ("a/" * 512 + "b", "1025 bytes"),
    ],
)
def test_bad_keys(key: Any, problem: str) -> None:
    with pytest.raises(InvalidKeyError, match=problem):
        validate_key(key)


@given(st.text(max_size=30) | st.text(alphabet="./a\\\0", max_size=12))
def test_a_key_that_passes_stays_below_its_root(key: str) -> None:
    try:
        validate_key(key)
    except InvalidKeyError:
        return
    path = PurePosixPath("/root") / key
    assert path.parts[:2] == ("/", "root")
    assert ".." not in path.parts
    assert str(path) == f"/root/{key}"
    assert 0 < len(key.encode()) <= MAX_KEY_BYTES


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a/b/"])
def test_good_prefixes(prefix: str) -> None:
    assert validate_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "//", "../", "a//", "/a", "a/../", "\0"])
def test_bad_prefixes(prefix: str) -> None:
    with pytest.raises(InvalidKeyError):
        validate_prefix(prefix)
