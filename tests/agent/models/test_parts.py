"""Images, audio and files: bytes in the session, kept as blobs; on the wire what each API takes."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.agent.agent import Agent
from perdure.agent.models import request_digest
from perdure.agent.models.parts import MAX_PACKED, audio, file, image, packed, text, unpacked
from perdure.agent.replay.replay import replay
from perdure.errors import InvalidInput, LimitExceeded
from perdure.state.document import plain
from tests.agent.models.canned import canned, completion, http
from tests.agent.models.clients import ask, client, request
from tests.agent.models.test_responses import response, said

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 200
ENCODED = base64.b64encode(PNG).decode()
FINE = http(completion({"content": "A cat."}))
PARTS = [text("What is this?"), image(PNG, detail="low"), audio(b"RIFF...", "wav"), file(b"%PDF-1", "a.pdf")]
SENT: list[dict[str, Any]] = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}", "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": "UklGRi4uLg==", "format": "wav"}},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"}},
]


def test_they_are_sent_as_chat_completions_takes_them():
    with canned(FINE) as server:
        ask(client(server.url)[0], request({"role": "user", "content": PARTS}))
        assert server.heard[0].json["messages"] == [{"role": "user", "content": SENT}]


def test_they_are_sent_as_responses_takes_them():
    with canned(http(response(said("A cat.")))) as server:
        ask(client(server.url, api="responses")[0], request({"role": "user", "content": PARTS}))
        sent = server.heard[0].json["input"]
    assert sent[0]["content"] == [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}", "detail": "low"},
        {"type": "input_audio", "input_audio": {"data": "UklGRi4uLg==", "format": "wav"}},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0x"},
    ]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_agent_is_shown_a_picture_and_the_session_keeps_it_as_a_blob(tmp_path: Path, store: str):
    url = "memory://parts" if store == "memory" else f"sqlite:///{tmp_path}/a.db"
    with canned(FINE) as server, perdure.open(url) as db:
        agent = Agent("guide", model=client(server.url)[0])
        for asked in (PARTS, None, "And now?"):
            assert agent.run_sync(url, session="s", message=asked).ok
        assert server.heard[0].json["messages"] == [{"role": "user", "content": SENT}]
        # Read back from the blob, the same bytes go out again.
        assert server.heard[1].json["messages"][0] == {"role": "user", "content": SENT}
        kept = db.read("s")
        assert isinstance(kept.blob("messages", 0, "content", 1, "data"), perdure.BlobRef)
        assert kept.messages[0]["content"][1]["data"] == PNG


def test_a_picture_at_an_address():
    assert image("https://x/cat.png", detail="low") == {
        "type": "image_url",
        "image_url": {"url": "https://x/cat.png", "detail": "low"},
    }


@pytest.mark.parametrize(
    ("data", "mime"), [(b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF89a", "image/gif"), (b"RIFF....WEBP", "image/webp")]
)
def test_the_kind_of_a_picture_is_seen(data: bytes, mime: str):
    assert image(data)["mime"] == mime
    assert image(data, "image/other")["mime"] == "image/other"


def test_bad_input():
    with pytest.raises(InvalidInput, match="say mime="):
        image(b"who knows")
    with canned(FINE) as server, pytest.raises(InvalidInput, match="must be bytes"):
        ask(client(server.url)[0], request({"role": "user", "content": [{"type": "image", "data": 7}]}))


def test_through_the_inbox_and_back():
    for message in (
        PARTS,
        {"role": "user", "content": PARTS, "name": "ana"},
        "hi",
        {"role": "user", "content": "x"},
        7,
    ):
        assert unpacked(packed(message)) == message


def test_what_is_too_large_for_the_inbox_says_where_to_put_it():
    big = [image(PNG + bytes(MAX_PACKED))]
    with canned(FINE) as server:
        agent = Agent("guide", model=client(server.url)[0])
        with pytest.raises(LimitExceeded, match="append it to the session's messages and commit"):
            agent.run_sync("memory://", session="s", message=big)
        with perdure.open("memory://big") as db:
            with db.session("s") as s:
                s.messages.append({"role": "user", "content": big})
                s.commit()
            assert agent.run_sync("memory://big", session="s").text == "A cat."


def test_a_part_that_somebody_broke_is_told_to_the_model():
    broken = {"role": "user", "content": [{"type": "image", "mime": "image/png", "data": {"base64": "*"}}]}
    assert unpacked(broken)["content"] == [text("(image that cannot be read)")]


def test_other_bytes_are_another_request():
    one, two = (request({"role": "user", "content": [image(PNG + end)]}) for end in (b"1", b"2"))
    assert request_digest(one) == request_digest(one)
    assert request_digest(one) != request_digest(two)


def at(picture: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(picture).decode()}"}}


SMALL = b"\x89PNG\r\n\x1a\nsmall"
CALLED = {"type": "text", "text": "Returned by the call call_1:"}
RETURNED: dict[str, tuple[Any, Any, str, list[Any]]] = {
    # What a tool returns, what the session's message has, and what Chat Completions is sent as text and as pictures.
    "a picture": (image(PNG), [image(PNG)], "(1 attached, in the message that follows)", [CALLED, at(PNG)]),
    "parts in their order": (
        [text("Before:"), image(PNG), text("after")],
        [text("Before:"), image(PNG), text("after")],
        "Before:\nafter",
        [CALLED, at(PNG)],
    ),
    "pictures in an object": (
        {"chart": image(PNG), "rows": [1, image(SMALL)]},
        [text('{"chart": "(image 1)", "rows": [1, "(image 2)"]}'), image(PNG), image(SMALL)],
        '{"chart": "(image 1)", "rows": [1, "(image 2)"]}',
        [CALLED, at(PNG), at(SMALL)],
    ),
    "a picture and a long text": (
        {"log": "word " * 10_000, "at": image(SMALL)},
        None,
        '{"large_result": ',
        [CALLED, at(SMALL)],
    ),
    "an address": (
        [image("https://x/cat.png")],
        [image("https://x/cat.png")],
        "(1 attached, in the message that follows)",
        [CALLED, image("https://x/cat.png")],
    ),
    "what only looks like one": (
        {"type": "image", "data": b"ab"},
        '{"type": "image", "data": {"$bytes": "YWI="}}',
        '{"type": "image", "data": {"$bytes": "YWI="}}',
        [],
    ),
}


def looking(result: Any) -> perdure.Tool:
    @perdure.tool(read=True)
    def look(n: int) -> Any:
        "Look at something."
        return result if n == 1 else "nothing there"

    return look


@pytest.mark.parametrize("what", RETURNED)
def test_what_a_tool_returns_is_shown_to_the_model_by_the_user_who_alone_may_show_it(what: str):
    result, held, said, shown = RETURNED[what]
    asked = [{"name": "look", "arguments": json.dumps({"n": n})} for n in (1, 2)]
    two = [{"id": f"call_{n}", "type": "function", "function": f} for n, f in enumerate(asked, 1)]
    called = http(completion({"content": None, "tool_calls": two}, "tool_calls"))

    async def main() -> None:
        async with perdure.open_async("memory://") as db:
            agent = Agent("looker", model=client(server.url)[0], tools=[looking(result)])
            for message in ("Look!", "Again?"):
                assert (await agent.run(db, session="s", message=message)).text == "A cat."
            await agent.close()
            kept = plain((await db.read("s")).messages)
            told = [m["content"] for m in kept if m["role"] == "tool"]
            assert told == [held if held is not None else told[0], "nothing there"]
            for runs in (None, agent):
                assert (await replay(db, "s", agent=runs)).identical

    with canned(called, FINE) as server:
        asyncio.run(main())
        first, second = (h.json["messages"] for h in server.heard[1:])
    assert [m["role"] for m in first] == ["user", "assistant", "tool", "tool", *["user"] * bool(shown)]
    assert first[2]["content"].startswith(said)
    assert len(first[2]["content"]) < 10_000
    assert first[3]["content"] == "nothing there"
    assert [m["content"] for m in first[4:]] == [shown] * bool(shown)
    # Whatever is said afterwards stands behind it, so that the provider's cache stays warm.
    assert second[: len(first)] == first


def test_responses_is_shown_a_returned_picture_in_the_output_of_the_call():
    item = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"n": 1}'}
    with canned(http(response(item)), http(response(said("A cat.")))) as server, perdure.open("memory://shown") as db:
        agent = Agent("looker", model=client(server.url, api="responses")[0], tools=[looking(image(PNG))])
        assert agent.run_sync("memory://shown", session="s", message="Look!").text == "A cat."
        sent = server.heard[1].json["input"][-1]
        # The bytes are in the store once, whether the journal names them or the conversation.
        assert isinstance(db.read("s").blob("messages", 2, "content", 0, "data"), perdure.BlobRef)
    shown = {"type": "input_image", "image_url": f"data:image/png;base64,{ENCODED}", "detail": "auto"}
    assert sent == {"type": "function_call_output", "call_id": "call_1", "output": [shown]}
