"""Errors cross processes: every class of them survives pickle and copy, with its text, its fields and its notes."""

from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import pytest

import asyncckpt
from asyncckpt.errors import (
    AsyncCkptError,
    ChecksumMismatchError,
    DeleteFailuresError,
    MissingExtraError,
    NotRepresentableError,
    ObjectNotFoundError,
    OperationCancelledError,
    OutcomeUnknownError,
)

# Classes whose fields a caller gives; all others take a text and nothing else.
WITH_FIELDS: dict[type[AsyncCkptError], Callable[[], AsyncCkptError]] = {
    OutcomeUnknownError: lambda: OutcomeUnknownError("no answer", write_id="a1b2"),
    DeleteFailuresError: lambda: DeleteFailuresError(
        "1 of 2 failed", failures={"a": OutcomeUnknownError("no answer", write_id="d4")}
    ),
    ChecksumMismatchError: lambda: ChecksumMismatchError("tensor 'w' is damaged", tensor="w"),
    NotRepresentableError: lambda: NotRepresentableError("too much", losses=("one", "two")),
    OperationCancelledError: lambda: OperationCancelledError("the job is over"),
}


def pickled(error: Any, *, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(error, protocol))


WAYS: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": partial(pickled, protocol=protocol)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def all_errors() -> list[type[AsyncCkptError]]:
    """Every class there is, also those that only one storage or format raises."""
    for module in pkgutil.walk_packages(asyncckpt.__path__, "asyncckpt."):
        if not module.name.endswith("__main__") and not module.name.startswith("asyncckpt.testing"):
            importlib.import_module(module.name)
    found: set[type[AsyncCkptError]] = {AsyncCkptError, *_below(AsyncCkptError)}
    return sorted((kind for kind in found if kind.__module__.startswith("asyncckpt.")), key=_full_name)


def _below(kind: type[AsyncCkptError]) -> Iterator[type[AsyncCkptError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def described(error: BaseException) -> object:
    """All that can be seen of an error; errors inside it too, for errors are equal only to themselves."""
    fields = {name: _shown(value) for name, value in vars(error).items()}
    return type(error), str(error), repr(error), error.args, fields


def _shown(value: object) -> object:
    if isinstance(value, BaseException):
        return described(value)
    if isinstance(value, dict):
        return {name: _shown(part) for name, part in value.items()}
    return [_shown(part) for part in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("kind", all_errors(), ids=_full_name)
def test_every_error_survives(kind: type[AsyncCkptError], way: str) -> None:
    error = WITH_FIELDS.get(kind, lambda: kind("tensor 'w' is gone"))()
    error.add_note("seen on rank 3")
    again = WAYS[way](error)
    assert again is not error
    assert described(again) == described(error)
    assert again.__notes__ == ["seen on rank 3"]


@pytest.mark.parametrize("way", list(WAYS))
def test_what_the_second_bases_keep_survives(way: str) -> None:
    missing = WAYS[way](MissingExtraError("no zstandard", name="zstandard"))
    assert (missing.msg, missing.name) == ("no zstandard", "zstandard")
    gone = WAYS[way](ObjectNotFoundError(2, "gone", "a.checkpoint"))
    assert (gone.errno, gone.filename) == (2, "a.checkpoint")
    assert str(WAYS[way](OperationCancelledError())) == "cancelled"


def _raise(error: Exception) -> None:
    raise error


def test_an_error_of_another_process_arrives() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(OutcomeUnknownError, match="no answer") as caught:
            pool.submit(_raise, OutcomeUnknownError("no answer", write_id="a1b2")).result()
    assert caught.value.write_id == "a1b2"
