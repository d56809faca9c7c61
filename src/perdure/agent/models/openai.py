"""A client for every model behind an API like OpenAI's: Chat Completions and Responses, in one piece or streamed.

The SDK carries bytes; what they say, what is tried again and what is kept is decided here. It is imported with the
first request, and its own retries are off.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from perdure.agent.models import Answer, Delta, Request, chat_completions, responses, text_of
from perdure.agent.models.chat_completions import Unfit, WholeCharacters
from perdure.agent.models.prices import Price, price_of
from perdure.agent.models.providers import PRESETS, key_of, preset
from perdure.agent.models.retry import Failures, Retry, Trouble, Waiting, patiently
from perdure.errors import InvalidInput, MissingExtra, ModelError
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openai import AsyncOpenAI

APIS = ("chat", "responses")
TIMEOUT = 600.0
"""Seconds without a byte after which a request counts as lost: models may think for minutes before the first one."""
CONNECT = 10.0
_OURS = ("model", "messages", "input", "tools", "stream", "stream_options", "store")


class _ListenerError(Exception):
    """Whoever listens has failed; that is nothing the model did."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__()


class _Line:
    """Connections, who is using them, and whether the last one is to close them."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self.client = client
        self.users = 0
        self.over = False

    async def leave(self) -> None:
        """One user less."""
        self.users -= 1
        if self.over and not self.users:
            await self.client.close()


class OpenAIModel:
    """A model of a provider whose API is that of OpenAI.

    ``provider`` is one of the presets, or ``base_url`` names another; the key is ``api_key`` or the provider's
    variable. ``params`` (temperature, top_p, seed, max_tokens, ...) go with every request. ``prices`` are yours, per
    model; ``retry`` says how patient to be; ``timeout`` is how many seconds may pass without a byte.

    >>> OpenAIModel("deepseek-v3.2", provider="holysheep", api_key="...")
    <OpenAIModel deepseek-v3.2 of holysheep at https://api.holysheep.ai/v1>
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        api: str = "chat",
        prices: Mapping[str, Price] | None = None,
        retry: Retry | None = None,
        timeout: float = TIMEOUT,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> None:
        self._preset = preset(provider, base_url)
        name = model or self._preset.model
        if not name:
            raise InvalidInput(f"{self._preset.name} has no default model: say which one to ask")
        if api not in APIS:
            raise InvalidInput(f"there is no api {api!r:.40}: there are {', '.join(APIS)}")
        self.name = name
        self.provider = self._preset.name
        self.strict_output = self._preset.strict
        """Whether the provider holds answers to a JSON schema by strict rules."""
        self.params = params
        self._check(params)
        self._api: Any = chat_completions if api == "chat" else responses
        self._key = api_key
        # Looked up again with each request: it may be changed while we run. That there is one is found out now.
        key_of(self._preset, api_key)
        self._prices = prices
        self._retry = retry or Retry()
        self._timeout = timeout
        self._headers = dict(headers or {})
        self._where = shown(self._preset.base_url)
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        """Connections belong to the event loop they were made in."""
        self._encrypted = True
        """Whether the model can give its reasoning sealed: those that do not reason refuse to be asked for it."""
        self.waiting = Waiting()

    def __repr__(self) -> str:
        return f"<OpenAIModel {self.name} of {self.provider} at {self._where}>"

    def price(self, version: str = "") -> Price | None:
        """What tokens cost: of the version that answered, or of the model that was asked; None when not known."""
        named = price_of(self.provider, version, self._prices) if version else None
        return price_of(self.provider, self.name, self._prices) or named

    async def answer(self, request: Request, on_delta: Callable[[Delta], None] | None = None) -> Answer:
        """Ask, and ask again when that may help; with ``on_delta`` the answer is streamed."""
        self._check(request.params)
        request = request._replace(params={**self.params, **request.params})
        key = key_of(self._preset, self._key)
        failures = Failures(f"{self.provider} ({request.model})", self._where, key)
        told = False

        def tell(delta: Delta) -> None:
            nonlocal told
            told = True
            assert on_delta is not None
            try:
                on_delta(delta)
            except Exception as e:
                raise _ListenerError(e) from e

        def again() -> None:
            nonlocal told
            if told and on_delta is not None:
                on_delta(Delta(restart=True))
            told = False

        async def attempt() -> Answer:
            content = self._content(request, stream=on_delta is not None)
            return await self._attempt(line.client, content, failures, tell if on_delta is not None else None)

        line = await self._connected(key)
        line.users += 1
        try:
            return await patiently(attempt, self._retry, self.waiting, again)
        except _ListenerError as e:
            raise e.error from None
        finally:
            await line.leave()

    async def close(self) -> None:
        """Release connections, once the requests on them are answered; the next request makes new ones."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            line.users += 1
            line.over = True
            await line.leave()

    # -- one attempt ----------------------------------------------------------------------------------------------

    async def _attempt(
        self, client: AsyncOpenAI, content: bytes, failures: Failures, tell: Callable[[Delta], None] | None
    ) -> Answer:
        """Ask once. Whatever goes wrong is ``Trouble``, which holds nothing of the driver's."""
        import openai

        trouble: Trouble
        try:
            if tell is None:
                return self._api.answer_of(await client.post(self._api.PATH, cast_to=object, content=content))
            return await self._stream(client, content, failures, tell)
        except openai.APIStatusError as e:
            trouble = self._refused(e, failures)
        except openai.APITimeoutError:
            trouble = failures.unreachable("nothing came in time")
        except openai.APIConnectionError as e:
            trouble = failures.unreachable(_kind(e))
        except openai.APIError as e:
            trouble = failures.told(e.body)
        except openai.OpenAIError as e:
            trouble = Trouble(ModelError(f"{self.provider}: {failures.words(e)}"))
        except responses.Failed as e:
            trouble = failures.told(e.error)
        except Unfit as e:
            trouble = failures.garbage(str(e))
        except (ValueError, RecursionError) as e:
            # JSON cut in half, bytes that are no text, numbers that no computer holds.
            trouble = failures.garbage(f"something that cannot be read ({type(e).__name__})")
        raise trouble

    def _refused(self, error: Any, failures: Failures) -> Trouble:
        trouble = failures.status(error.status_code, error.body, error.response.headers)
        if self._encrypted and self._api is responses and error.status_code == 400:
            said = str(error.message).lower()
            if "encrypted" in said and "not supported" in said:
                self._encrypted = False
                return Trouble(trouble.error, again=True, after=0.0)
        return trouble

    async def _stream(
        self, client: AsyncOpenAI, content: bytes, failures: Failures, tell: Callable[[Delta], None]
    ) -> Answer:
        from openai import APIConnectionError, AsyncStream

        pieces = self._api.Assembly(WholeCharacters(tell))
        stream = await client.post(
            self._api.PATH, cast_to=object, content=content, stream=True, stream_cls=AsyncStream[object]
        )
        try:
            if "json" in stream.response.headers.get("content-type", ""):
                # A server that cannot stream, or would not, has answered in one piece.
                answer: Answer = self._api.answer_of(json.loads(await stream.response.aread()))
                tell(Delta(text=text_of(answer.message)))
                return answer
            async for chunk in stream:
                pieces.add(chunk)
        except APIConnectionError:
            # Cut after the model's last word: the answer is whole, and asking again would be paid again.
            if not pieces.finished:
                raise
        finally:
            await stream.close()
        if not pieces.finished:
            raise failures.cut()
        return pieces.answer()

    def _content(self, request: Request, *, stream: bool) -> bytes:
        """The bytes that are sent: the same for the same request, whoever makes them."""
        more = {} if self._api is chat_completions else {"encrypted": self._encrypted}
        body = self._api.body(request, stream=stream, **more)
        try:
            return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as e:
            raise InvalidInput(
                f"this request cannot be sent, it is not JSON ({e}): bytes go into parts made by image, audio or file"
            ) from None

    # -- the connection -------------------------------------------------------------------------------------------

    async def _connected(self, key: str) -> _Line:
        """Connections in this event loop."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None or line.client.api_key != key:
            # Importing the SDK and reading certificates take a while: others go on meanwhile.
            made = _Line(await asyncio.to_thread(self._made, key))
            now = self._lines.get(loop)
            line = self._lines[loop] = made if now is None or now is line else now
        return line

    def _made(self, key: str) -> AsyncOpenAI:
        """The SDK's client, without any connection yet."""
        try:
            from openai import AsyncOpenAI, Omit, Timeout
        except ImportError as error:
            raise MissingExtra("openai", "agent", error) from None
        headers: dict[str, Any] = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._preset.base_url != PRESETS["openai"].base_url:
            # The SDK takes these from the environment, where they were meant for OpenAI alone.
            headers |= {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        return AsyncOpenAI(
            api_key=key,
            base_url=self._preset.base_url,
            max_retries=0,
            timeout=Timeout(self._timeout, connect=min(CONNECT, self._timeout)),
            default_headers={**headers, **self._headers},
        )

    def _check(self, params: Mapping[str, Any]) -> None:
        ours = [name for name in params if name in _OURS]
        if ours:
            raise InvalidInput(
                f"{', '.join(ours)} cannot be a parameter of a model: the agent says it with each request"
            )


def _kind(error: BaseException) -> str:
    """What kind of failure of the network it was; never its words, which may hold headers."""
    cause = error.__cause__
    return type(cause if cause is not None else error).__name__
