"""The figures of the README and of docs/performance.md are those of the last run, and so is the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.picture import PICTURE, draw
from benchmarks.readme import README, STATE, figures
from benchmarks.report import DOCUMENT, Run, with_results


@pytest.fixture(scope="module")
def last_run() -> Run:
    return Run.read()


def test_the_readme(last_run: Run) -> None:
    """`python -m benchmarks.readme` writes it."""
    page = README.read_text()
    assert page == with_results(page, figures(last_run))


def test_the_page_on_performance(last_run: Run) -> None:
    page = DOCUMENT.read_text()
    assert page == with_results(page, last_run.markdown())


def test_the_picture(last_run: Run) -> None:
    assert PICTURE.read_text() == draw(last_run.results, STATE)


def test_what_is_written_is_read_again(last_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "latest.json"
    last_run.write(path)
    assert Run.read(path) == last_run


def test_a_page_without_a_place_for_results_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        with_results("# A page", "figures")
