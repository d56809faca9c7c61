"""Providers by name: where they are, which variable holds the key, which model is asked by default."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from perdure.errors import InvalidInput
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

OPENAI_BASE_URL = "OPENAI_BASE_URL"
NO_KEY = "none"
"""What is sent to servers that ask for no key."""


class Preset(NamedTuple):
    """A provider whose API is that of OpenAI."""

    name: str
    base_url: str
    key: str | None = None
    """The environment variable that holds its key; None: it asks for none."""
    model: str | None = None
    """The model that is asked when none is named."""
    strict: bool = False
    """Whether it holds answers to a JSON schema by strict rules."""


PRESETS: dict[str, Preset] = {
    p.name: p
    for p in (
        Preset("holysheep", "https://api.holysheep.ai/v1", "HOLYSHEEP_API_KEY", "deepseek-v3.2"),
        Preset("openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "gpt-4.1-mini", strict=True),
        Preset("deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", "deepseek-flash"),
        Preset("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "deepseek/deepseek-v3.2"),
        Preset("ollama", "http://127.0.0.1:11434/v1"),
        Preset("vllm", "http://127.0.0.1:8000/v1"),
    )
}


def preset(provider: str | None, base_url: str | None, environ: Mapping[str, str] = os.environ) -> Preset:
    """The provider of that name, at another address when one is given; an address alone is a provider of its own.

    OpenAI is asked at the address in ``OPENAI_BASE_URL``, where that is set.

    >>> preset("ollama", None).base_url
    'http://127.0.0.1:11434/v1'
    >>> preset(None, "http://127.0.0.1:9/v1").key is None
    True
    """
    if provider is None and base_url is not None:
        # A key is meant for one provider: no variable is read for an address that names none.
        return Preset("custom", _checked(base_url))
    provider = provider or "openai"
    if provider == "openai" and base_url is None:
        # Where whoever uses OpenAI's own client has told it to go, with OpenAI's key.
        said = (environ.get(OPENAI_BASE_URL) or "").strip()
        base_url = _checked(said, f"the variable {OPENAI_BASE_URL}") if said else None
    found = PRESETS.get(provider)
    if found is None:
        near = difflib.get_close_matches(provider, PRESETS, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise InvalidInput(
            f"there is no provider {provider!r:.40}: {hint} are {', '.join(PRESETS)}; or make a client with "
            "OpenAIModel(name, base_url=...) for another that speaks as OpenAI does"
        )
    return found if base_url is None else found._replace(base_url=_checked(base_url), strict=False)


def key_of(preset: Preset, given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The key: the given one, or the one in the provider's variable. It is never shown."""
    where = f"the variable {preset.key}" if given is None else "api_key="
    key = (given if given is not None else environ.get(preset.key or "", "")).strip()
    if not key:
        if preset.key is None:
            return NO_KEY
        elsewhere = preset.base_url != PRESETS[preset.name].base_url
        more = f" (any word, if {shown(preset.base_url)} asks for none)" if elsewhere else ""
        raise InvalidInput(f"there is no key for {preset.name}: set the variable {preset.key}, or pass api_key={more}")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidInput(f"the key for {preset.name} in {where} has characters that no key has: copy it again")
    return key


def _checked(base_url: str, where: str = "base_url") -> str:
    try:
        parts = urlsplit(base_url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        fine = False
    if not fine:
        raise InvalidInput(f"{where} must be an address such as https://host/v1, not {shown(base_url)!r:.80}")
    return base_url
