"""Arguments of public calls are checked against the call's own annotations, so that the two can never differ.

`@checked` stands on every public function and constructor that takes options, `check_fields` in the `__post_init__`
of a dataclass of options. Both understand Literal, bool, numbers, unions, classes, and the marks below. A wrong
value is refused with one line before anything is done: `level="ful"` must not mean "check nothing", nor
`overwrite="no"` yes.
What an annotation says of the items of a container is not checked.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache, wraps
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from asyncckpt.errors import InvalidArgumentError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Between:
    """A number's limits, both allowed; None where there is none."""

    least: float | None
    most: float | None = None

    def holds(self, value: Any) -> bool:
        # Written so that NaN, which compares with nothing, is outside.
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"of at least {self.least}"
        return f"from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Called:
    """How to call what is allowed, where the names of its classes would not help."""

    text: str


AtLeastOne = Annotated[int, Between(1)]
NotNegative = Annotated[int, Between(0)]


@dataclass(frozen=True, slots=True)
class Rule:
    """What an annotation allows. `shows` is whether a refusal may quote the value: others may be secrets."""

    allows: Callable[[Any], bool]
    text: str
    shows: bool = False
    choices: tuple[str, ...] = ()

    def refusal(self, name: str, value: object) -> str:
        given = repr(value) if self.shows and isinstance(value, str | int | float) else type(value).__name__
        return f"{name} must be {self.text}, not {given[:60]}{did_you_mean(value, self.choices)}"


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """What to add to a refusal: the choice that was probably meant, or nothing."""
    near = get_close_matches(value, list(choices), n=1) if isinstance(value, str) else []
    return f"; did you mean {near[0]!r}?" if near else ""


def checked(function: F) -> F:
    """The function, whose arguments are checked before its body runs. It raises InvalidArgumentError."""
    positional = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]

    def check(args: tuple[Any, ...], options: dict[str, Any]) -> None:
        _check_all(_rules_of(function), chain(zip(positional, args, strict=False), options.items()))

    @wraps(function)
    async def checked_coroutine(*args: Any, **options: Any) -> Any:
        check(args, options)
        return await function(*args, **options)

    @wraps(function)
    def checked_function(*args: Any, **options: Any) -> Any:
        check(args, options)
        return function(*args, **options)

    return cast(F, checked_coroutine if inspect.iscoroutinefunction(function) else checked_function)


def check_fields(options: Any) -> None:
    """Check the fields of a dataclass that takes options. Raises InvalidArgumentError."""
    kind: Any = type(options)
    rules = _rules_of(kind)
    _check_all(rules, ((name, getattr(options, name)) for name in rules))


def _check_all(rules: dict[str, Rule], arguments: Iterable[tuple[str, Any]]) -> None:
    for name, value in arguments:
        rule = rules.get(name)
        if rule is not None and not rule.allows(value):
            raise InvalidArgumentError(rule.refusal(name, value))


@lru_cache(maxsize=256)
def _rules_of(annotated: Any) -> dict[str, Rule]:
    """The rules by name, made at the first call: then all that the annotations name is imported."""
    hints = get_type_hints(annotated, include_extras=True)
    found = {name: _rule(hint) for name, hint in hints.items() if name != "return"}
    return {name: rule for name, rule in found.items() if rule is not None}


def _rule(annotation: Any) -> Rule | None:
    """None for what allows everything, or can't be checked."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _marked(*get_args(annotation))
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin in (Union, types.UnionType):
        return _union([_rule(part) for part in get_args(annotation)])
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    kind = annotation if origin is None else origin
    if not isinstance(kind, type) or kind in (object, Any) or _is_uncheckable(kind):
        return None
    return Rule(lambda value: isinstance(value, kind), _name_of(kind))


def _is_uncheckable(kind: type) -> bool:
    return getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)


def _name_of(kind: type) -> str:
    return _NAMES.get(kind, kind.__name__)


def _marked(annotation: Any, *marks: Any) -> Rule | None:
    rule = _rule(annotation)
    for mark in marks:
        if rule is not None and isinstance(mark, Between):
            rule = _limited(rule, mark)
        elif rule is not None and isinstance(mark, Called):
            rule = Rule(rule.allows, mark.text, rule.shows, rule.choices)
    return rule


def _limited(rule: Rule, limits: Between) -> Rule:
    return Rule(lambda value: rule.allows(value) and limits.holds(value), f"{rule.text} {limits}", rule.shows)


def _literal(values: tuple[Any, ...]) -> Rule:
    # With the type, because True == 1.
    allowed = [(type(value), value) for value in values]
    texts = tuple(value for value in values if isinstance(value, str))
    return Rule(lambda value: (type(value), value) in allowed, _joined(map(repr, values)), True, texts)


def _union(parts: list[Rule | None]) -> Rule | None:
    rules = [rule for rule in parts if rule is not None]
    if len(rules) != len(parts):
        return None
    return Rule(
        lambda value: any(rule.allows(value) for rule in rules),
        _joined(rule.text for rule in rules),
        any(rule.shows for rule in rules),
        tuple(choice for rule in rules for choice in rule.choices),
    )


def _joined(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} or {last}" if most else last


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float | np.floating)


_NONE: Final = Rule(lambda value: value is None, "None")
_SIMPLE: Final[dict[Any, Rule]] = {
    None: _NONE,
    type(None): _NONE,
    bool: Rule(lambda value: isinstance(value, bool | np.bool_), "True or False", shows=True),
    int: Rule(_is_integer, "an int", shows=True),
    float: Rule(_is_number, "a number", shows=True),
}
_NAMES: Final[dict[Any, str]] = {str: "a str", bytes: "bytes", Callable: "a function", Mapping: "a mapping"}
