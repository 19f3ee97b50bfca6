"""The one rule for names of files, which storages and formats share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import InvalidKeyError
from asyncckpt.model.file_names import is_file_name, is_relative_key, relative_key_problem
from asyncckpt.storage.keys import validate_key
from tests.formats.attacks import HOSTILE_FILE_NAMES


@pytest.mark.parametrize("name", [*HOSTILE_FILE_NAMES, None, 3, b"x", ["x"]])
def test_what_is_no_file_name(name: Any) -> None:
    assert not is_file_name(name)


@pytest.mark.parametrize("name", ["a", ".hidden", "...", "a:b", "ü模", " ", "\x85", "x" * 255])
def test_file_names(name: str) -> None:
    assert is_file_name(name)


@given(st.text(max_size=20) | st.text("./\\a\0\ud800ü", max_size=260))
def test_a_file_name_is_a_key_without_folders(name: str) -> None:
    try:
        is_key = validate_key(name) == name and "/" not in name
    except InvalidKeyError:
        is_key = False
    assert is_file_name(name) == is_key


@pytest.mark.parametrize(
    "key", ["", "/", "/a", "a/", "a//b", "a/./b", "../a", "a/../b", "a/b\0", "a\\b/c", "a/\ud800"]
)
def test_what_is_no_relative_key(key: str) -> None:
    assert relative_key_problem(key)
    assert not is_relative_key(key)


@pytest.mark.parametrize("key", ["a", "data/x", "data/a/b.bin", ".hidden/x", "a:b/ü"])
def test_relative_keys(key: str) -> None:
    assert is_relative_key(key)


@pytest.mark.parametrize("value", [None, 3, b"a/b", ["a"]])
def test_only_text_is_a_relative_key(value: Any) -> None:
    assert not is_relative_key(value)


@given(st.text("./\\a\0\ud800ü", max_size=30) | st.text(max_size=20))
def test_a_relative_key_is_a_key(key: str) -> None:
    try:
        is_key = validate_key(key) == key
    except InvalidKeyError:
        is_key = False
    assert is_relative_key(key) == is_key
