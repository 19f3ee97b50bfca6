"""A coroutine around a coroutine, for whoever has to do something before or after each of its steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Self, TypeVar, cast

T = TypeVar("T")


class Stepwise(Coroutine[Any, Any, T], Generic[T]):
    """Can be awaited, or run as a task, in place of the coroutine; each step of that goes through `step`."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    @abstractmethod
    def step(self, advance: Callable[..., Any], *args: Any) -> Any:
        """Return `advance(*args)`: it runs the coroutine to its next suspension, or raises at its end."""

    def send(self, value: Any) -> Any:
        return self.step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self.step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        # All of a generator that `await` needs is here.
        return cast("Generator[Any, Any, T]", self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self.send(None)
