"""The quick tests on the oldest versions that pyproject.toml allows: a floor that is not tested is a guess."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.installs.throwaway import PROJECT, throwaway_environment

OLDEST_PYTHON = "3.11"  # newer ones have no wheels of the oldest numpy
LIGHT_EXTRAS = ("s3", "gcs", "samediff", "mldf", "bundle", "gptrs", "cli")
_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)>=(?P<floor>[0-9][0-9A-Za-z.]*)$")


def floors(project: dict[str, Any]) -> list[str]:
    """Return `name==floor` for the dependencies of the core and of the light extras, sorted.

    Raises ValueError for a requirement that is not exactly `name>=floor`: no caps, no exceptions.
    """
    wanted = list(project["dependencies"])
    for extra in LIGHT_EXTRAS:
        wanted += project["optional-dependencies"][extra]
    return sorted({_pin(requirement) for requirement in wanted})


def _pin(requirement: str) -> str:
    match = _REQUIREMENT.match(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is not of the form name>=floor")
    return f"{match['name']}=={match['floor']}"


def main() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    here = "{}.{}".format(*sys.version_info[:2])
    with throwaway_environment(
        python=sys.executable if here == OLDEST_PYTHON else OLDEST_PYTHON
    ) as environment:
        environment.install("-e", ".[all]", "--group", "quick", *floors(project))
        environment.run("-m", "pytest", "-n", "2", "-q", "-m", "not server and not soak and not thorough")


if __name__ == "__main__":
    main()
