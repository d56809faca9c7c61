"""Names of options: one that there is not is refused where it is given, with the nearest that there is."""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

P = ParamSpec("P")
R = TypeVar("R")


def check_options(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an option that there is not, and name the nearest one.

    >>> check_options("tool", {"if_unsur": 1}, {"if_unsure": 1, "read": 1})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: tool has no option 'if_unsur': did you mean if_unsure? It has if_unsure, read
    """
    known = list(known)
    for name in given:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            hint = f" did you mean {near[0]}?" if near else ""
            raise InvalidInput(f"{what} has no option {name!r:.40}:{hint} It has {', '.join(known)}")


def check_fits(what: str, option: str, value: object, fits: bool, wanted: str) -> None:
    """Refuse a value of another kind than an option takes, and say what it takes.

    >>> check_fits("agent 'desk'", "max_turns", "5", False, "a whole number")
    Traceback (most recent call last):
    perdure.errors.InvalidInput: agent 'desk': max_turns= is a whole number, not '5'
    """
    if not fits:
        raise InvalidInput(f"{what}: {option}= is {wanted}, not {value!r:.60}")


def is_number(value: object) -> bool:
    """Whether something is a whole number, and not a truth value, which Python counts among them."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """Whether something is a number, whole or not, and neither a truth value nor NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def options_checked(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function refuse options that it does not have by their names, and say which it has."""

    def checking(fn: Callable[P, R]) -> Callable[P, R]:
        known = [name for name in inspect.signature(fn).parameters if name != "self"]

        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check_options(what, kwargs, known)
            refuse_misfit(fn, args, kwargs, what)
            return fn(*args, **kwargs)

        return checked

    return checking


def refuse_misfit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    """Say of arguments that do not fit what a method is made from that they do not, by the name people call it by."""
    signature = inspect.signature(fn)
    try:
        _ = signature.bind(*args, **kwargs)
    except TypeError as e:
        takes = list(signature.parameters.values())[1:]
        named = ", ".join(p.name for p in takes if p.kind is p.KEYWORD_ONLY)
        others = ", ".join(p.name for p in takes if p.kind is not p.KEYWORD_ONLY)
        wanted = f"{others}, and by name {named}" if others and named else f"by name {named}" if named else others
        raise InvalidInput(f"{name}(...): {e}: it takes {wanted or 'nothing'}") from None
