"""A virtual environment that is gone afterwards, filled by uv (which resolves in seconds what takes pip minutes)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


class Environment:
    """A virtual environment in a temporary folder."""

    def __init__(self, folder: Path, *, python: str) -> None:
        self.python = str(folder / "bin" / "python")
        _run([sys.executable, "-m", "uv", "venv", "--quiet", "--python", python, str(folder)])

    def install(self, *arguments: str) -> None:
        """Install into the environment. Raises SystemExit when the versions can't be resolved."""
        _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", self.python, *arguments])
        _run([sys.executable, "-m", "uv", "pip", "check", "--quiet", "--python", self.python])

    def run(self, *arguments: str) -> None:
        """Run its Python. Raises SystemExit when that fails."""
        _run([self.python, *arguments])


def _run(command: Sequence[str]) -> None:
    shown = " ".join(word if "\n" not in word else "..." for word in command)
    print("+", shown, flush=True)
    status = subprocess.run(command, cwd=PROJECT, check=False, stdin=subprocess.DEVNULL).returncode
    if status:
        sys.exit(f"failed with {status}: {shown}")


@contextmanager
def throwaway_environment(*, python: str = sys.executable) -> Iterator[Environment]:
    """Yield a new environment with the given Python and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="asyncckpt-install-") as folder:
        yield Environment(Path(folder) / "venv", python=python)
