"""The arrows between the layers point down, the public names are real, and formats never use native byte order."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import asyncckpt
from asyncckpt import errors

PACKAGE = Path(asyncckpt.__file__).parent
LEVELS = {
    "_lazy": 0,
    "errors": 0,
    "arguments": 1,
    "cancellation": 1,
    "progress": 1,
    "_aio": 1,
    "model": 2,
    "formats": 3,
    "storage": 3,
    "operations": 4,
    "blocking": 5,
    "bundles": 5,
    "gptrs": 5,
    "tables": 5,
    "cli": 5,
    "testing": 6,
}
SIBLINGS = {("formats", "storage"), ("storage", "formats")}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "asyncckpt":
            found |= {f"asyncckpt.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported_layers(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_names(path) if name.startswith("asyncckpt.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_points_up(path: Path) -> None:
    own = layer_of(path)
    if own == "__init__":
        return
    assert own in LEVELS, f"{own} has no level: add it to LEVELS"
    for other in imported_layers(path) & LEVELS.keys():
        assert LEVELS[other] <= LEVELS[own], f"{path.name} imports {other}, which is above {own}"
        assert (own, other) not in SIBLINGS, f"{own} and {other} are siblings"
        if other == "testing":
            assert own == "testing"


# The rooms of `formats` and `storage`: a format or a backend may use what all share, and its declared parent.
SHARED = {"formats": {"kit", "base"}, "storage": {"http"}}
PARENTS = {("sdz", "sdnb")}


@pytest.mark.parametrize("layer", SHARED)
def test_no_room_looks_into_another(layer: str) -> None:
    rooms = {path.name for path in (PACKAGE / layer).iterdir() if (path / "__init__.py").exists()}
    assert len(rooms) > 4
    for path in (PACKAGE / layer).rglob("*/*.py"):
        own = path.relative_to(PACKAGE / layer).parts[0]
        for name in imported_names(path):
            if not name.startswith(f"asyncckpt.{layer}."):
                continue
            other = name.split(".")[2]
            allowed = other == own or other not in rooms or other in SHARED[layer] or (own, other) in PARENTS
            assert allowed, f"{path.relative_to(PACKAGE)} imports {name}: {own} must not know {other}"


def test_no_room_is_a_corridor() -> None:
    for folder in (path.parent for path in PACKAGE.rglob("__init__.py")):
        assert len(list(folder.glob("*.py"))) <= 16, (
            f"{folder.relative_to(PACKAGE.parent)} has too many modules"
        )


def test_model_does_no_io() -> None:
    for path in (PACKAGE / "model").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^(import|from) (asyncio|socket|fsspec)", text, re.MULTILINE), path


def test_public_names_are_real_and_sorted() -> None:
    assert sorted(asyncckpt.__all__) == list(asyncckpt.__all__)
    assert all(hasattr(asyncckpt, name) for name in asyncckpt.__all__)
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(asyncckpt.__all__)


def test_the_error_tree_is_drawn_whole() -> None:
    drawing = errors.__doc__ or ""
    for name, value in vars(errors).items():
        if isinstance(value, type):
            assert name in drawing, f"{name} is missing from the drawing in errors.py"
            assert issubclass(value, errors.AsyncCkptError)


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "formats").rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_formats_never_use_native_byte_order(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and _called(node) in (
            "Struct",
            "pack",
            "unpack",
            "unpack_from",
            "pack_into",
        ):
            for layout in _texts(node.args[:1]):
                assert layout[:1] in "<>", f"{path.name}: struct layout {layout!r} has no byte order"
        if isinstance(node, ast.Call) and _called(node) in ("frombuffer", "fromfile", "astype"):
            for code in _texts(node.args):
                assert code[:1] in "<>|" or code in ("V", "u1", "i1"), (
                    f"{path.name}: dtype code {code!r} has no byte order"
                )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _texts(nodes: list[ast.expr]) -> list[str]:
    texts = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            first = node.values[0]
            texts.append(str(first.value) if isinstance(first, ast.Constant) else "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


# Pinned by aiobotocore and gcsfs, which bring them; and what the contract suites' users have.
_BROUGHT = {"botocore", "google", "requests", "pytest", "pytest_asyncio", "hypothesis", "anyio"}


def test_what_is_imported_directly_is_declared() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.split(r"[\[>=]", line)[0].replace("-", "_") for line in requirements}
    imported = {name.partition(".")[0] for path in modules() for name in imported_names(path)}
    assert imported - {"asyncckpt"} - set(sys.stdlib_module_names) - declared - _BROUGHT == set()


def test_importing_asyncckpt_imports_no_extra() -> None:
    code = (
        "import sys, asyncckpt; "
        "extras = {'urllib3', 'aiohttp', 'fsspec'}; "
        "extras |= {'s3fs', 'gcsfs', 'torch', 'ray', 'blake3', 'zstandard', 'cryptography', 'flatbuffers', 'zlib_ng'}; "
        "extras |= {'rich', 'hypothesis', 'pytest'}; "
        "print(sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
