"""A client for every model behind an API like OpenAI's: Chat Completions and Responses.

Answers are always streamed, whether anybody listens or not: a server that is at work says something now and then, so
that one that is silent can be given up. The SDK carries bytes; what they say, what is tried again and what is kept is
decided here. It is imported with the first request, and its own retries are off.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from perdure.agent.models import Answer, Delta, Request, chat_completions, responses, text_of
from perdure.agent.models.chat_completions import Unfit, WholeCharacters
from perdure.agent.models.prices import Price, check_prices, price_of
from perdure.agent.models.providers import PRESETS, key_of, preset
from perdure.agent.models.retry import Failures, Retry, Trouble, Waiting, patiently
from perdure.errors import InvalidInput, MissingExtra, ModelError
from perdure.system.flow_async import in_thread
from perdure.system.options import check_fits, is_amount
from perdure.system.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from openai import AsyncOpenAI

APIS = ("chat", "responses")
TIMEOUT = 60.0
"""Seconds without a byte after which a request counts as lost, while an answer is streamed, too."""
CONNECT_TIMEOUT = 10.0
"""Seconds until a server must have taken the connection."""
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
    model; ``retry`` says how patient to be; ``timeout`` is how many seconds may pass without a byte,
    ``connect_timeout`` how many until there is a connection.

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
        connect_timeout: float = CONNECT_TIMEOUT,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> None:
        _check_kinds(model=model, provider=provider, base_url=base_url, api_key=api_key, retry=retry, headers=headers)
        check_prices("an OpenAIModel", prices)
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
        if not all(is_amount(seconds) and seconds > 0 for seconds in (timeout, connect_timeout)):
            raise InvalidInput(
                f"timeout and connect_timeout are seconds, above 0, not {timeout!r:.40} and {connect_timeout!r:.40}"
            )
        self._timeout, self._connect_timeout = timeout, connect_timeout
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
        """Ask, and ask again when that may help; ``on_delta`` is told pieces as they arrive."""
        self._check(request.params)
        request = request._replace(params={**self.params, **request.params})
        key = key_of(self._preset, self._key)
        failures = Failures(f"{self.provider} ({request.model})", self._where, key)
        told = False

        def tell(delta: Delta) -> None:
            nonlocal told
            if on_delta is None:
                return
            told = True
            try:
                on_delta(delta)
            except Exception as e:
                raise _ListenerError(e) from e

        def again() -> None:
            nonlocal told
            if told and on_delta is not None:
                on_delta(Delta(restart=True))
            told = False

        async def attempt(answers: Callable[[], None]) -> Answer:
            return await self._attempt(line.client, self._content(request), failures, tell, answers)

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
        self, client: AsyncOpenAI, content: bytes, failures: Failures, tell: Callable[[Delta], None],
        answers: Callable[[], None],
    ) -> Answer:  # fmt: skip
        """Ask once. Whatever goes wrong is ``Trouble``, which holds nothing of the driver's."""
        import openai

        trouble: Trouble
        try:
            return await self._stream(client, content, failures, tell, answers)
        except openai.APIStatusError as e:
            trouble = self._refused(e, failures)
        except openai.APITimeoutError as e:
            if _kind(e) == "ConnectTimeout":
                trouble = failures.unreachable(f"no connection within {self._connect_timeout:g} seconds")
            else:
                trouble = failures.silent(self._timeout)
        except openai.APIConnectionError as e:
            trouble = failures.unreachable(_why_unreachable(e))
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
        self, client: AsyncOpenAI, content: bytes, failures: Failures, tell: Callable[[Delta], None],
        answers: Callable[[], None],
    ) -> Answer:  # fmt: skip
        from openai import APIConnectionError, AsyncStream

        pieces = self._api.Assembly(WholeCharacters(tell))
        heard = False
        stream = await client.post(
            self._api.PATH, cast_to=object, content=content, stream=True, stream_cls=AsyncStream[object]
        )
        kind: str = stream.response.headers.get("content-type", "")
        try:
            if "json" in kind:
                # A server that cannot stream, or would not, has answered in one piece.
                answer: Answer = self._api.answer_of(json.loads(await _whole(stream.response)))
                tell(Delta(text=text_of(answer.message)))
                return answer
            async for chunk in stream:
                heard = True
                answers()
                pieces.add(chunk)
        except APIConnectionError:
            # Cut after the model's last word: the answer is whole, and asking again would be paid again.
            if not pieces.finished:
                raise
        finally:
            await stream.close()
        if not pieces.begun:
            # A stream that ended as it should with nothing in it, or a page that calls itself one.
            raise failures.garbage("nothing" if heard else "something that is no answer")
        if not pieces.finished:
            raise failures.cut()
        return pieces.answer()

    def _content(self, request: Request) -> bytes:
        """The bytes that are sent: the same for the same request, whoever makes them."""
        more = {} if self._api is chat_completions else {"encrypted": self._encrypted}
        body = self._api.body(request, **more)
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
            made = _Line(await in_thread(self._made, key))
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
            timeout=Timeout(self._timeout, connect=self._connect_timeout),
            default_headers={**headers, **self._headers},
        )

    def _check(self, params: Mapping[str, Any]) -> None:
        ours = [name for name in params if name in _OURS]
        if ours:
            raise InvalidInput(
                f"{', '.join(ours)} cannot be a parameter of a model: the agent says it with each request"
            )


def _check_kinds(**given: Any) -> None:
    """Refuse options of another kind than they are, before a request fails over them."""
    if isinstance(given["model"], list | tuple):
        raise InvalidInput(
            "an OpenAIModel is one model: give the agent the list, as in Agent(..., model=[OpenAIModel(...), ...])"
        )
    for name in ("model", "provider", "base_url", "api_key"):
        value = given[name]
        if value is not None and not isinstance(value, str):
            # A key is not shown, whatever it is.
            raise InvalidInput(f"an OpenAIModel: {name}= is text, not {type(value).__name__}")
    retry, headers = given["retry"], given["headers"]
    wanted = "a perdure.Retry(...), such as perdure.Retry(attempts=3)"
    check_fits("an OpenAIModel", "retry", retry, retry is None or isinstance(retry, Retry), wanted)
    if headers is not None:
        pairs = cast("Mapping[object, object]", headers).items() if isinstance(headers, Mapping) else [(0, 0)]
        if not all(isinstance(one, str) for pair in pairs for one in pair):
            # One of them may be a secret.
            raise InvalidInput("an OpenAIModel: headers= is a dict of text by the names of headers")


async def _whole(response: Any) -> bytes:
    """The body of an answer that is not streamed, with the SDK's errors, as for one that is."""
    from openai import APIConnectionError, APITimeoutError

    try:
        return await response.aread()
    except Exception as e:
        lost = APITimeoutError if "Timeout" in type(e).__name__ else APIConnectionError
        raise lost(request=response.request) from e


def _why_unreachable(error: BaseException) -> str:
    """Why there is no connection: what the system said, where it said something that a person can act on."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, socket.gaierror):
            return "there is no host of that name (look at base_url)"
        if isinstance(seen, ConnectionRefusedError):
            return "nothing listens there (is it running, and is base_url right?)"
        seen = seen.__cause__ or seen.__context__
    return _kind(error)


def _kind(error: BaseException) -> str:
    """What kind of failure of the network it was; never its words, which may hold headers."""
    cause = error.__cause__
    return type(cause if cause is not None else error).__name__
