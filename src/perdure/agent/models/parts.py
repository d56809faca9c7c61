"""Images, audio and files as parts of a message: bytes in the session, which keeps them as blobs; text on the wire.

A part holds its bytes as ``data``. They are turned into what a provider takes when a request is sent, and into text
when a message travels through the inbox, which holds no blobs.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# Messages are any JSON: their types are looked at, not declared.
from __future__ import annotations

import base64
import binascii
from typing import Any

from perdure.errors import InvalidInput, LimitExceeded

MAX_PACKED = 700_000
"""The most bytes a message may bring along through the inbox, all parts together."""
_SIGNS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)
_NEEDED = {"image": ("mime",), "audio": ("format",), "file": ("name", "mime")}
_KINDS = tuple(_NEEDED)


def text(said: str) -> dict[str, Any]:
    """A part that is text.

    >>> text("What is this?")
    {'type': 'text', 'text': 'What is this?'}
    """
    return {"type": "text", "text": said}


def image(data: bytes | str, mime: str | None = None, *, detail: str | None = None) -> dict[str, Any]:
    r"""A picture: its bytes, or the address of one that the provider can fetch.

    >>> image(b"\x89PNG\r\n\x1a\n...")["mime"]
    'image/png'
    """
    if isinstance(data, str):
        return {"type": "image_url", "image_url": {"url": data, **({"detail": detail} if detail else {})}}
    found = mime or next((m for sign, m in _SIGNS if data.startswith(sign)), None)
    if found is None:
        raise InvalidInput('what kind of picture this is cannot be told from its bytes: say mime="image/..."')
    return {"type": "image", "mime": found, "data": bytes(data), **({"detail": detail} if detail else {})}


def audio(data: bytes, format: str = "wav") -> dict[str, Any]:
    """A recording; ``format`` is wav, mp3 or what else the provider takes."""
    return {"type": "audio", "format": format, "data": bytes(data)}


def file(data: bytes, name: str, mime: str = "application/pdf") -> dict[str, Any]:
    """A document."""
    return {"type": "file", "name": name, "mime": mime, "data": bytes(data)}


def is_ours(part: Any) -> bool:
    """Whether a part is one of these, with its bytes."""
    return isinstance(part, dict) and part.get("type") in _KINDS and "data" in part


def is_whole(part: Any) -> bool:
    """Whether a value that a tool made is one of these parts with all it needs, or the address of a picture."""
    if isinstance(part, dict) and part.get("type") == "image_url":
        address = part.get("image_url")
        return isinstance(address, dict) and isinstance(address.get("url"), str)
    return (
        is_ours(part)
        and isinstance(part["data"], bytes)
        and all(isinstance(part.get(name), str) for name in _NEEDED[part["type"]])
    )


def for_chat(part: Any) -> Any:
    """A part as Chat Completions takes it; one that is not ours stays as it is."""
    if not is_ours(part):
        return part
    kind, data = part["type"], _bytes(part)
    if kind == "image":
        detail = {"detail": part["detail"]} if "detail" in part else {}
        return {"type": "image_url", "image_url": {"url": _url(part["mime"], data), **detail}}
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": _encoded(data), "format": part["format"]}}
    return {"type": "file", "file": {"filename": part["name"], "file_data": _url(part["mime"], data)}}


def for_responses(part: Any) -> Any:
    """A part of what a user says as Responses takes it."""
    part = for_chat(part)
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind == "text":
        return {**part, "type": "input_text"}
    if kind == "image_url":
        shown = part["image_url"]
        return {"type": "input_image", "image_url": shown["url"], "detail": shown.get("detail", "auto")}
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "input_file", **part["file"]}
    return part


def taken_apart(result: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What a tool returned, in JSON that says where its pictures, recordings and files stood; and these, in order.

    >>> taken_apart({"chart": image(b"GIF8..."), "rows": 3})
    ({'chart': '(image 1)', 'rows': 3}, [{'type': 'image', 'mime': 'image/gif', 'data': b'GIF8...'}])
    """
    found: list[dict[str, Any]] = []
    return _without(result, found), found


def _without(value: Any, found: list[dict[str, Any]]) -> Any:
    if is_whole(value):
        found.append(value)
        return f"({value['type'].removesuffix('_url')} {len(found)})"
    if isinstance(value, dict):
        return {k: _without(v, found) for k, v in value.items()}
    return [_without(v, found) for v in value] if isinstance(value, list) else value


def is_spoken(result: Any) -> bool:
    """Whether what a tool returned is parts of a message already, as they are to be told."""
    return isinstance(result, list) and all(
        is_whole(p) or (isinstance(p, dict) and set(p) == {"type", "text"} and p["type"] == "text") for p in result
    )


def packed(message: Any) -> Any:
    """A message ready for the inbox: bytes become text."""
    if not any(is_ours(p) for p in _parts(message)):
        return message
    size = sum(len(_bytes(p)) for p in _parts(message) if is_ours(p))
    if size > MAX_PACKED:
        raise LimitExceeded(
            f"this message brings {size} bytes, and up to {MAX_PACKED} go through the inbox: append it to the "
            "session's messages and commit, then run the agent without a message"
        )
    return _with_parts(message, _pack)


def unpacked(message: Any) -> Any:
    """What :func:`packed` made, with its bytes again."""
    return _with_parts(message, _unpack) if any(is_ours(p) for p in _parts(message)) else message


def _parts(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else message
    return content if isinstance(content, list) else []


def _with_parts(message: Any, change: Any) -> Any:
    parts = [change(p) for p in _parts(message)]
    return {**message, "content": parts} if isinstance(message, dict) else parts


def _pack(part: Any) -> Any:
    return {**part, "data": {"base64": _encoded(part["data"])}} if is_ours(part) else part


def _unpack(part: Any) -> Any:
    if not is_ours(part) or not isinstance(part["data"], dict):
        return part
    try:
        return {**part, "data": base64.b64decode(part["data"]["base64"], validate=True)}
    except (KeyError, TypeError, binascii.Error):
        # Somebody posted it by hand: the model is told rather than the session stopped.
        return text(f"({part['type']} that cannot be read)")


def _bytes(part: dict[str, Any]) -> bytes:
    data = part["data"]
    if not isinstance(data, bytes):
        raise InvalidInput(f"the data of a part of type {part['type']} must be bytes, not {type(data).__name__}")
    return data


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{_encoded(data)}"
