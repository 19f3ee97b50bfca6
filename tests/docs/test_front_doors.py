"""Docs and examples import from the front doors and nothing deeper: what is behind them may move."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncckpt
from tests.docs.pages import PAGES, ROOT, blocks_of

DOORS = frozenset(
    {
        "asyncckpt",
        "asyncckpt.blocking",
        "asyncckpt.bundles",
        "asyncckpt.formats",
        "asyncckpt.gptrs",
        "asyncckpt.storage",
        "asyncckpt.tables",
        "asyncckpt.testing",
    }
)
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks_of(page))]


def through_walls(text: str) -> list[str]:
    """What a program imports of asyncckpt that no door offers."""
    tree = compile(text, "text", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    return [name for node in ast.walk(tree) for name in _imported(node) if not _is_offered(*name.split(":"))]


def _imported(node: ast.AST) -> Iterator[str]:
    """`module:name` for every imported name, `module:` for a module as a whole."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "asyncckpt":
        yield from (f"{node.module}:{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Import):
        names = (alias.name for alias in node.names)
        yield from (f"{name}:" for name in names if name.partition(".")[0] == "asyncckpt")


def _is_offered(module: str, name: str) -> bool:
    if module not in DOORS:
        return False
    return not name or f"{module}.{name}" in DOORS or name in importlib.import_module(module).__all__


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_docs_use_the_front_doors(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.language == "python"]
    assert {block.place: found for block in blocks if (found := through_walls(block.text))} == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_use_the_front_doors(path: Path) -> None:
    assert through_walls(path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import asyncckpt\nfrom asyncckpt import save, blocking, formats\nimport asyncckpt.storage", []),
        ("from asyncckpt.storage import LocalStorage\nawait x", []),
        ("import asyncckpt.operations.save", ["asyncckpt.operations.save:"]),
        ("from asyncckpt.formats.kit.plan import FilePlan", ["asyncckpt.formats.kit.plan:FilePlan"]),
        ("def f():\n    from asyncckpt import _aio, errors", ["asyncckpt:_aio", "asyncckpt:errors"]),
        ("from asyncckpt.storage import base", ["asyncckpt.storage:base"]),
    ],
)
def test_what_counts_as_deeper(text: str, found: list[str]) -> None:
    assert through_walls(text) == found


def test_every_door_that_there_is_offers_what_it_lists() -> None:
    package = Path(asyncckpt.__file__).parent
    for door in sorted(DOORS - {"asyncckpt"}):
        name = door.rpartition(".")[2]
        if (package / name).exists() or (package / f"{name}.py").exists():
            module = importlib.import_module(door)
            assert [offered for offered in module.__all__ if not hasattr(module, offered)] == [], door
