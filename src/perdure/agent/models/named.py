"""What is given as an agent's model: a name, a client, or a list of these, of which the first that can answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.agent.models.retry import Retry
from perdure.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.agent.models import ChatModel

IMPATIENT = Retry(attempts=2, silent=1)
"""How a model is asked that is given by its name and has another one after it in the list."""
_WANTED = 'the name of a model, such as model="gpt-4.1-mini", or a client with an answer() of its own'


def as_models(
    model: ChatModel | str | Sequence[ChatModel | str] | None,
    *,
    provider: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> tuple[ChatModel, ...]:
    """The clients that are meant, in the order in which they are asked.

    ``provider``, ``base_url`` and ``api_key`` are those of all that are given by their names.
    """
    where: dict[str, Any] = {"provider": provider, "base_url": base_url, "api_key": api_key}
    given = {name: value for name, value in where.items() if value is not None}
    if (odd := next((name for name, value in given.items() if not isinstance(value, str)), None)) is not None:
        # A key is not shown, whatever it is.
        raise InvalidInput(f"{odd}= is text, not {type(given[odd]).__name__}")
    if model is None and provider is None:
        more = f": {' and '.join(f'{name}=' for name in given)} alone name none" if given else ""
        raise InvalidInput(f"an agent needs a model: pass model=, or provider= to ask its default one{more}")
    items: list[Any] = list(model) if isinstance(model, list | tuple) else [model]
    if not items:
        raise InvalidInput("model=[] has no model in it: name at least one, then those to fall back to")
    if given and not any(item is None or isinstance(item, str) for item in items):
        raise InvalidInput(
            f"{', '.join(f'{name}=' for name in given)} goes with the name of a model; a client has its own"
        )
    found: list[ChatModel] = []
    for n, item in enumerate(items):
        which = f"model number {n + 1} of {len(items)}: " if isinstance(model, list | tuple) else ""
        if any(item == before for before in items[:n]):
            raise InvalidInput(
                f"{which}{item!r:.60} is in the list already: asking it again is what retry= of a client does"
            )
        try:
            found.append(_client(item, given, last=n == len(items) - 1, alone=not which))
        except InvalidInput as e:
            raise InvalidInput(f"{which}{e}") from None
    return tuple(found)


def _client(item: Any, where: dict[str, Any], *, last: bool, alone: bool) -> ChatModel:
    if isinstance(item, str) and not item.strip():
        raise InvalidInput(f"{item!r} is no name of a model: leave model= out where a provider's default one is meant")
    if isinstance(item, str) or (item is None and alone):
        from perdure.agent.models.openai import OpenAIModel

        return OpenAIModel(item, **where) if last else OpenAIModel(item, **where, retry=IMPATIENT)
    if item is None or isinstance(item, type) or not callable(getattr(item, "answer", None)):
        wanted = f"model= is {_WANTED}, or a list of these" if alone else f"it is {_WANTED}"
        raise InvalidInput(f"{wanted}, not {item!r:.60}")
    if not isinstance(getattr(item, "name", None), str):
        raise InvalidInput(
            f"a client has a name, which checkpoints record, and this {type(item).__name__} has none: set its "
            'name to text, as in self.name = "my-model"'
        )
    return item


def provider_of(model: ChatModel) -> str:
    """Where a client asks, if it says so."""
    provider: Any = getattr(model, "provider", "")
    return provider if isinstance(provider, str) else ""
