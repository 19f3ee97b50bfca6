"""The fuzzer's own parts: every format has a target, seeds reach its depths, checksums are forgiven."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from asyncckpt.formats.registry import format_names
from fuzz.files import Siblings, join, split
from fuzz.forgiving import Forgive
from fuzz.mutate import changed_json, hostile_number, mutate
from fuzz.seeds import format_seeds, golden_seeds, seeds, side_seeds
from fuzz.targets import TARGETS, run_target

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def test_every_format_has_a_target() -> None:
    merged = {"gptrschk": "gptrs", "gptrsten": "gptrs"}
    names = {merged.get(name, name.replace("-", "_")) for name in format_names()}
    assert names <= TARGETS.keys()


@pytest.mark.blocking_allowed("the seeds of tables are made by an event loop of their own")
@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_read(target: str) -> None:
    found = seeds(target)
    assert found
    for data in found:
        run_target(target, data)


def test_our_own_seeds_are_read_to_the_end() -> None:
    whole = [(target, data) for target, data in side_seeds() if target in ("java_manifest", "flatgraph")]
    for target, data in [*format_seeds(), *whole]:
        TARGETS[target](data)
    assert {target for target, _ in golden_seeds()} <= TARGETS.keys()


def test_forgiving_removes_what_a_fuzzer_never_gets_past() -> None:
    text = (
        "def check(a):\n    if a:\n        raise ChecksumMismatchError('x')\n"
        "    if a:\n        raise ValueError('y')\n"
    )
    scope: dict[str, object] = {"ChecksumMismatchError": RuntimeError}
    exec(compile(ast.fix_missing_locations(Forgive().visit(ast.parse(text))), "text", "exec"), scope)
    check = scope["check"]
    assert callable(check)
    with pytest.raises(ValueError, match="y"):
        check(True)


def test_a_forgiving_process_reads_a_file_with_wrong_checksums() -> None:
    code = (
        "from fuzz import forgiving; forgiving.install()\n"
        "from fuzz.seeds import files_of, states\n"
        "from fuzz.targets import TARGETS\n"
        "from asyncckpt.formats.mlcp.file import MlcpFormat\n"
        "data = bytearray(files_of(MlcpFormat(), states()[0])[0])\n"
        "data[-1] ^= 1\n"
        "TARGETS['mlcp'](bytes(data))\n"
        "print('read')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_several_files_in_one_input() -> None:
    assert split(join([b"a", b"", b"c"])) == [b"a", b"", b"c"]
    siblings = Siblings([b"x", b"y"])
    assert (bytes(siblings["p"]), bytes(siblings["q"]), bytes(siblings["p"])) == (b"x", b"y", b"x")
    assert siblings.get("r") is None


def test_mutations_of_json_keep_it_whole() -> None:
    data = (17).to_bytes(8, "little") + b'{"a":{"b":[1,2]}}' + b"tail"
    rng = random.Random(3)
    changed = [changed_json(data, rng) for _ in range(200)]
    assert len({*changed}) > 50
    corrected = [c for c in changed if c is not None and c.endswith(b"}tail") and c[8:9] == b"{"]
    fitting = [c for c in corrected if int.from_bytes(c[:8], "little") == len(c) - 12]
    assert len(fitting) > len(corrected) // 2


def test_mutations_stay_within_the_size() -> None:
    data = b'{"a":"' + bytes(64) + b'"}'
    for seed in range(300):
        assert len(mutate(data, 80, seed, plain=lambda data, size: data[:size])) <= 80
    assert len(hostile_number(data, random.Random(1))) == len(data)
