"""Final methods: what a class of this package does itself, around the hooks that others implement."""

from __future__ import annotations


def refuse_overrides(subclass: type, base: type) -> None:
    """For `__init_subclass__`. Raises TypeError when the subclass, or a mixin of it, replaces a `@final` method."""
    for name, method in vars(base).items():
        if getattr(method, "__final__", False) and getattr(subclass, name) is not method:
            hooks = ", ".join(sorted(getattr(base, "__abstractmethods__", ())))
            raise TypeError(
                f"{subclass.__name__} replaces {base.__name__}.{name}, which is final: implement the hooks ({hooks}) "
                "instead"
            )
