"""A small Java program that reads and writes what Java's own libraries make of our files."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """The compiled program."""

    java: str
    classes: Path

    def run(self, *arguments: str | Path) -> list[list[str]]:
        """Its output, line by line, split at tabs. An error of the program is the test's."""
        command = [self.java, "-Xshare:auto", "-cp", str(self.classes), "SameDiffFiles", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr.decode()
        return [line.split("\t") for line in done.stdout.decode().splitlines()]


def compile_program(folder: Path) -> JavaProgram:
    """Compile it into a folder. Without a JDK the test is skipped, and in CI it fails."""
    java, javac = shutil.which("java"), shutil.which("javac")
    if java is None or javac is None:
        if os.environ.get("CI"):
            pytest.fail("no JDK was found: CI must run the tests against Java")
        pytest.skip("NOT TESTED, no JDK: java and javac are not on the PATH")
    sources = sorted(map(str, SOURCES.rglob("*.java")))
    command = [javac, "-encoding", "UTF-8", "-d", str(folder), *sources]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return JavaProgram(java, folder)
