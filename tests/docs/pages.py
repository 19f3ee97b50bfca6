"""The code blocks of the README and the docs, as a test runs them.

- All ```python blocks of a page run from top to bottom, in one namespace and one empty folder; `await` is allowed.
- A block with `asyncio.run` in it is a program of its own.
- In ```bash blocks the lines that begin with `asyncckpt ` run; `# exit code 1` at the end of a line is what is
  expected.
- `<!-- needs: minio -->` (or gcs, safetensors …) before a block: it runs only where that is at hand; the names of
  the docs' imaginary bucket and server are then replaced by those of the real one.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(
    r"(?:<!-- needs: (?P<needs>[\w, -]+?) -->\n)?^```(?P<language>python|bash)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")


@dataclass(frozen=True)
class Block:
    """One block, and the line of its page where its text begins."""

    page: Path
    line: int
    language: str
    text: str
    needs: frozenset[str]

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            line=text.count("\n", 0, match.start("text")) + 1,
            language=match["language"],
            text=match["text"],
            needs=frozenset((match["needs"] or "").replace(" ", "").split(",")) - {""},
        )
        for match in _BLOCK.finditer(text)
    ]


def links_of(page: Path) -> Iterator[str]:
    """The targets of all links to files of the project, without anchors."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for match in _LINK.finditer(prose):
        target = match["target"].partition("#")[0]
        if target and "://" not in target:
            yield target


async def run_page(page: Path, *, at_hand: frozenset[str], replaced: Mapping[str, str]) -> int:
    """Run the blocks whose needs are met, in the current folder; returns how many."""
    names: dict[str, Any] = {"__name__": "__main__"}
    count = 0
    for block in blocks_of(page):
        if not block.needs <= at_hand:
            continue
        text = block.text
        for placeholder, real in replaced.items():
            text = text.replace(placeholder, real)
        if block.language == "python" and "asyncio.run(" in text:
            await _run_program([sys.executable, "-c", text], block)
        elif block.language == "python":
            await _run_python(text, block, names)
        else:
            await _run_commands(text, block)
        count += 1
    return count


async def _run_python(text: str, block: Block, names: dict[str, Any]) -> None:
    # The page's own lines, so that a traceback points into it.
    padded = "\n" * (block.line - 1) + text
    code = compile(padded, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


async def _run_commands(text: str, block: Block) -> None:
    for line in text.splitlines():
        if not line.startswith("asyncckpt "):
            continue
        found = _EXIT_CODE.search(line)
        expected = int(found[1]) if found else 0
        arguments = shlex.split(line, comments=True)[1:]
        await _run_program([sys.executable, "-m", "asyncckpt.cli", *arguments], block, expected=expected)


async def _run_program(arguments: list[str], block: Block, *, expected: int = 0) -> None:
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == expected, f"{block.place}: {arguments[1:]}: {output.decode()}"
