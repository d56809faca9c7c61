"""What tokens cost, by provider and model. The table is dated: prices change; pass your own where they matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from perdure.system.options import check_fits, is_amount

if TYPE_CHECKING:
    from perdure.agent.models import Usage

AS_OF = {"holysheep": "2026-04", "openai": "2025-08", "deepseek": "2026-10", "openrouter": "2025-12"}
"""When the prices were looked up. Look at your provider's page, and pass ``prices=`` where the difference matters."""
_MILLION = 1_000_000


class Price(NamedTuple):
    """US dollars for a million tokens: sent, sent and found in the provider's cache, and written."""

    input: float
    output: float
    cached: float | None = None
    """None: as dear as any other input."""

    def of(self, usage: Usage) -> float:
        """What an answer cost.

        >>> from perdure.agent.models import Usage
        >>> round(Price(2.00, 8.00, 0.50).of(Usage(input=10_000, output=1_000, cached=8_000)), 6)
        0.016
        """
        cached = min(usage.cached, usage.input)
        rate = self.input if self.cached is None else self.cached
        return ((usage.input - cached) * self.input + cached * rate + usage.output * self.output) / _MILLION


FREE = Price(0.0, 0.0, 0.0)
"""Of models on machines of your own."""

_FLASH = Price(0.30, 1.20, 0.006)
_OPENAI = {
    "gpt-4.1": Price(2.00, 8.00, 0.50),
    "gpt-4.1-mini": Price(0.40, 1.60, 0.10),
    "gpt-4.1-nano": Price(0.10, 0.40, 0.025),
    "gpt-4o": Price(2.50, 10.00, 1.25),
    "gpt-4o-mini": Price(0.15, 0.60, 0.075),
    "gpt-5": Price(1.25, 10.00, 0.125),
    "gpt-5-mini": Price(0.25, 2.00, 0.025),
    "gpt-5-nano": Price(0.05, 0.40, 0.005),
    "o3": Price(2.00, 8.00, 0.50),
    "o4-mini": Price(1.10, 4.40, 0.275),
}
PRICES: dict[str, dict[str, Price]] = {
    # HolySheep names one price for DeepSeek V3.2, taken for all tokens here, and what the others write; what is sent
    # to those is priced as by their makers.
    "holysheep": {
        "deepseek-v3.2": Price(0.42, 0.42),
        "gpt-4.1": _OPENAI["gpt-4.1"],
        "claude-sonnet-4.5": Price(3.00, 15.00, 0.30),
        "gemini-2.5-flash": Price(0.30, 2.50, 0.03),
    },
    "openai": _OPENAI,
    # At peak hours; half of that at others.
    "deepseek": {
        "deepseek-flash": _FLASH,
        "deepseek-v4-flash": _FLASH,
        "deepseek-v4-pro": Price(1.32, 3.96, 0.044),
    },
    "openrouter": {
        "deepseek/deepseek-v3.2": Price(0.28, 0.42, 0.028),
        "openai/gpt-4.1": _OPENAI["gpt-4.1"],
        "openai/gpt-4.1-mini": _OPENAI["gpt-4.1-mini"],
        "anthropic/claude-sonnet-4.5": Price(3.00, 15.00, 0.30),
        "google/gemini-2.5-flash": Price(0.30, 2.50, 0.03),
    },
    "ollama": {"*": FREE},
    "vllm": {"*": FREE},
}


def price_of(provider: str, model: str, own: Mapping[str, Price] | None = None) -> Price | None:
    """The price of a model at a provider; ``own`` prices come first. None: not known.

    A version with a date is priced as the model it is a version of.

    >>> price_of("openai", "gpt-4.1-2025-04-14") == price_of("openai", "gpt-4.1")
    True
    >>> price_of("openai", "gpt-99") is None
    True
    """
    for table in (own or {}, PRICES.get(provider, {})):
        found = table.get(model) or table.get(_undated(model)) or table.get("*")
        if found is not None:
            return Price(*found)
    return None


def check_prices(what: str, prices: Any) -> None:
    """Refuse prices that nothing could be counted with; None are none.

    >>> check_prices("agent 'desk'", {"m": Price(2.00, 8.00)})
    >>> check_prices("agent 'desk'", {"m": 3})
    Traceback (most recent call last):
    perdure.errors.InvalidInput: agent 'desk': prices['m']= is a perdure.Price(input, output) of numbers, not 3
    """
    if prices is None:
        return
    wanted = "a dict of perdure.Price(...) by the names of models"
    check_fits(what, "prices", prices, isinstance(prices, Mapping), wanted)
    for model, price in cast("Mapping[object, object]", prices).items():
        check_fits(what, "prices", prices, isinstance(model, str), wanted)
        rates = price[:2] + tuple(rate for rate in price[2:] if rate is not None) if isinstance(price, Price) else ()
        fits = bool(rates) and all(is_amount(rate) and rate >= 0 for rate in rates)
        check_fits(what, f"prices[{model!r:.60}]", price, fits, "a perdure.Price(input, output) of numbers")


def _undated(model: str) -> str:
    """``name-2025-04-14`` and ``name-20250414`` without their dates."""
    name, _, last = model.rpartition("-")
    if last.isdigit() and len(last) == 8:
        return name
    head = model[:-11]
    date = model[-11:]
    return head if date[:1] == "-" and date.count("-") == 3 and date.replace("-", "").isdigit() else model
