"""JSON in batches: the same text as in one call, and no call that is long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncckpt.errors import LayoutError
from asyncckpt.formats.kit import strict_json
from asyncckpt.formats.kit.strict_json import dump_json, json_pieces, load_json


def values() -> st.SearchStrategy[Any]:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), finite, st.text())
    return st.recursive(
        scalars, lambda nodes: st.one_of(st.lists(nodes), st.dictionaries(st.text(), nodes)), max_leaves=40
    )


@given(values())
@pytest.mark.parametrize("batch", [1, 3, 2_000])
def test_the_text_is_that_of_one_call(batch: int, value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "_BATCH", batch)
        assert dump_json(value) == json.dumps(value, separators=(",", ":"))


LARGE: dict[str, Any] = {
    "numbers": [0.5] * 30_000,
    "nested": {"d": ["a", {"d": ["b", {"d": ["c", {"d": ["d", [{"d": ["k", i]} for i in range(9_000)]]}]}]}]},
    "members": {f"name {i}": {"shape": [2]} for i in range(9_000)},
    "light among heavy": [1, [2] * 5_000, 3, {"x": [4] * 5_000}, (5, 6)],
}


@pytest.mark.parametrize("name", LARGE)
def test_no_piece_is_long(name: str) -> None:
    pieces = list(json_pieces(LARGE[name]))
    assert "".join(pieces) == json.dumps(LARGE[name], separators=(",", ":"))
    assert max(map(len, pieces)) < 100_000


def test_a_deep_value_with_much_at_the_bottom() -> None:
    value: Any = [0] * 9_000
    for _ in range(900):
        value = [value]
    assert dump_json(value) == "[" * 900 + json.dumps([0] * 9_000, separators=(",", ":")) + "]" * 900


@pytest.mark.parametrize("value", [{1: 2}, {"a": [{"b": {None: 1}}]}, {"a": [0] * 9_000, 2: 1}, object()])
def test_what_is_no_json(value: Any) -> None:
    with pytest.raises(TypeError):
        dump_json(value)


@pytest.mark.parametrize("size", [1, 50_000])
def test_long_and_short_texts_are_read_alike(size: int) -> None:
    value = [1, -2.5, 1e300, 2**70, {"a": [None, True, "é"]}] * size
    found = load_json(json.dumps(value), "the text")
    assert found == value
    assert [type(item) for item in found[:4]] == [int, float, float, int]
    for bad in ("NaN", '{"a":1,"a":2}', "-Infinity", "[1", "1" * 5_000):
        with pytest.raises(LayoutError):
            load_json(json.dumps(value)[:-1] + f",{bad}]", "the text")


def test_reading_a_long_list_of_numbers_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder is C and gives the GIL away only where it calls Python: so it has to, for numbers too."""
    called: list[str] = []
    monkeypatch.setattr(strict_json, "_PATIENT", _watched(called))
    load_json(json.dumps([0.5, 3] * 100_000), "the text")
    assert len(called) == 200_000


def _watched(called: list[str]) -> json.JSONDecoder:
    patient = strict_json._PATIENT
    parse_float, parse_int = patient.parse_float, patient.parse_int
    assert (parse_float, parse_int) != (float, int)

    def note(parse: Any) -> Any:
        def noted(text: str) -> Any:
            called.append(text)
            return parse(text)

        return noted

    return json.JSONDecoder(parse_float=note(parse_float), parse_int=note(parse_int))
