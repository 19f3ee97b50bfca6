"""The sdist holds all that a packager needs: `make check` and `make test` work from it."""

from __future__ import annotations

import subprocess

import pytest
from hatchling.builders.sdist import SdistBuilder

from tests.installs.throwaway import PROJECT

# hatchling puts these into every sdist, so it does not list them.
ALWAYS = {"pyproject.toml", ".gitignore"}


@pytest.fixture(scope="module")
def packed() -> set[str]:
    """The paths in the sdist, as hatchling chooses them; nothing is built."""
    return {file.distribution_path for file in SdistBuilder(str(PROJECT)).recurse_included_files()}


def test_every_chore_is_there(packed: set[str]) -> None:
    chores = {"Makefile", "CONTRIBUTING.md", "docker-compose.yml", ".ci/run"}
    assert chores | {"README.md", "CHANGELOG.md", "LICENSE"} <= packed


def test_golden_files_are_there_although_checkpoints_are_ignored(packed: set[str]) -> None:
    golden = {str(path.relative_to(PROJECT)) for path in (PROJECT / "tests" / "golden").rglob("*.*")}
    assert len(golden) > 30
    assert golden <= packed


def test_it_is_what_git_keeps(packed: set[str]) -> None:
    command = ["git", "-C", str(PROJECT), "ls-files"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.splitlines() if (PROJECT / name).exists()}
    assert tracked - packed == ALWAYS
