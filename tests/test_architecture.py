"""Arrows between layers point down, rooms have walls, public names are real, nothing is declared without code."""

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


def test_no_import_is_relative() -> None:
    """The tests here read absolute names only."""
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path.relative_to(PACKAGE)}"


# --- rooms: a package below `formats` or `storage` --------------------------------------------------------------

# What all rooms of a layer share; and, of the modules that lie beside the rooms, those that know the rooms.
SHARED = {"formats": "kit", "storage": "http"}
LOBBIES = {
    "formats": {"__init__", "registry", "shipped"},
    "storage": {"__init__", "factory"},
}
# A set is in the room of its file, so these two are all that cross a wall.
PARENTS = {("sdz", "sdnb"), ("dcp", "torch")}


def rooms_of(layer: str) -> set[str]:
    return {path.name for path in (PACKAGE / layer).iterdir() if (path / "__init__.py").exists()}


def walls_broken(layer: str, path: Path, names: set[str]) -> list[str]:
    """Which of a module's imports go through a wall of its layer."""
    rooms = rooms_of(layer)
    own = path.relative_to(PACKAGE / layer).parts[0].removesuffix(".py")
    broken = []
    for name in names:
        if not name.startswith(f"asyncckpt.{layer}."):
            continue
        other = name.split(".")[2]
        if other in rooms:
            allowed = other in (own, SHARED[layer]) or (own, other) in PARENTS or own in LOBBIES[layer]
        else:
            allowed = other not in LOBBIES[layer] or own not in rooms
        if not allowed:
            broken.append(name)
    return broken


@pytest.mark.parametrize("layer", SHARED)
def test_no_room_looks_into_another(layer: str) -> None:
    assert len(rooms_of(layer)) > 4
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        assert walls_broken(layer, path, imported_names(path)) == [], path.relative_to(PACKAGE)


@pytest.mark.parametrize(
    ("path", "name", "allowed"),
    [
        ("formats/mldf/format.py", "asyncckpt.formats.kit.plan", True),
        ("formats/mldf/format.py", "asyncckpt.formats.base", True),
        ("formats/sdz/format.py", "asyncckpt.formats.sdnb.format", True),
        ("formats/sdnb/graph/read.py", "asyncckpt.formats.sdnb.header", True),
        ("formats/registry.py", "asyncckpt.formats.mlcp.file", True),
        ("formats/sdnb/graph/read.py", "asyncckpt.formats.sdz.format", False),
        ("formats/mldf/format.py", "asyncckpt.formats.mlcp.file", False),
        ("formats/mldf/format.py", "asyncckpt.formats.registry", False),
        ("formats/kit/plan.py", "asyncckpt.formats.mlcp.file", False),
        ("formats/base.py", "asyncckpt.formats.mlcp.file", False),
        ("storage/s3/writer.py", "asyncckpt.storage.http.transfer", True),
        ("storage/s3/writer.py", "asyncckpt.storage.gcs.client", False),
        ("storage/http/transfer.py", "asyncckpt.storage.s3.session", False),
        ("storage/local/files.py", "asyncckpt.storage.factory", False),
    ],
)
def test_what_counts_as_a_wall(path: str, name: str, allowed: bool) -> None:
    layer = path.partition("/")[0]
    assert (walls_broken(layer, PACKAGE / path, {name}) == []) == allowed


MOST_MODULES = 16
MOST_LINES = 420


def test_no_room_is_a_corridor() -> None:
    for folder in sorted({path.parent for path in modules()}):
        found = len(list(folder.glob("*.py")))
        assert found <= MOST_MODULES, f"{folder.relative_to(PACKAGE.parent)} has {found} modules"


def test_no_module_is_long() -> None:
    for path in modules():
        found = path.read_text().count("\n")
        assert found <= MOST_LINES, f"{path.relative_to(PACKAGE)} has {found} lines"


def test_model_does_no_io() -> None:
    for path in (PACKAGE / "model").rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^(import|from) (asyncio|socket|fsspec)", text, re.MULTILINE), path


def test_public_names_are_real_and_sorted() -> None:
    assert sorted(asyncckpt.__all__) == list(asyncckpt.__all__)
    assert all(hasattr(asyncckpt, name) for name in asyncckpt.__all__)
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined <= set(asyncckpt.__all__)


def test_every_error_is_raised_somewhere() -> None:
    used = set()
    for path in modules():
        if path.relative_to(PACKAGE).parts[0] not in ("errors.py", "__init__.py", "testing", "cli"):
            used |= {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined - used - {"AsyncCkptError"} == set()


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


def test_every_extra_has_code() -> None:
    """An extra whose packages nobody imports is a promise that nobody keeps."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    texts = "".join(path.read_text() for path in modules())
    for extra, requirements in project["optional-dependencies"].items():
        names = {re.split(r"[\[>=]", line)[0].replace("-", "_") for line in requirements}
        for name in names - {"asyncckpt"}:
            assert re.search(rf"(import|from) {name}\b|[\"']{name}\b", texts), f"{extra}: nothing uses {name}"


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
