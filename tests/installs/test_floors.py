"""The floors are read from pyproject.toml, and every light extra is among them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.installs.floors import LIGHT_EXTRAS, floors
from tests.installs.throwaway import PROJECT


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return table


def test_every_floor_is_pinned_once() -> None:
    pins = floors(project())
    names = [pin.partition("==")[0] for pin in pins]
    assert names == sorted(set(names))
    assert {"numpy", "ml_dtypes", "fsspec", "crc32c", "s3fs", "gcsfs"} <= set(names)


def test_all_is_the_light_extras() -> None:
    assert project()["optional-dependencies"]["all"] == [f"asyncckpt[{','.join(LIGHT_EXTRAS)}]"]


@pytest.mark.parametrize("requirement", ["numpy<3", "numpy", "numpy>=1.26,<3", "numpy==1.26"])
def test_a_cap_or_a_missing_floor_is_refused(requirement: str) -> None:
    table = project()
    table["dependencies"] = [requirement]
    with pytest.raises(ValueError, match="is not of the form name>=floor"):
        floors(table)
