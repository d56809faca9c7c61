"""Declared state types are checked at the commit, and only where something changed."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

import perdure


class Message(msgspec.Struct):
    """One message."""

    role: str
    content: str


class StructState(msgspec.Struct):
    """A state as a msgspec Struct."""

    messages: list[Message]
    vars: dict[str, int]


class ModelMessage(pydantic.BaseModel):
    """One message."""

    role: str
    content: str


class ModelState(pydantic.BaseModel):
    """A state as a pydantic model."""

    messages: list[ModelMessage]
    vars: dict[str, int]


class DictMessage(TypedDict):
    """One message."""

    role: str
    content: str


class DictState(TypedDict):
    """A state as a TypedDict."""

    messages: list[DictMessage]
    vars: dict[str, int]


@pytest.mark.parametrize("kind", [StructState, ModelState, DictState])
def test_a_state_that_does_not_fit_is_refused_with_its_path(open_db: Any, kind: Any) -> None:
    db = open_db(state=kind)
    with db.session("s") as s:
        s.messages.append({"role": "user", "content": "hi"})
        s.vars["n"] = 1
        s.state["more"] = ["anything"]
        s.commit()
        s.messages.append({"role": "user"})
        with pytest.raises(perdure.InvalidState, match=r"state\.messages\[1\]"):
            s.commit()
        s.messages.pop()
        s.vars["n"] = {"not": "an int"}
        with pytest.raises(perdure.InvalidState, match=r"state\.vars"):
            s.commit()
        s.vars["n"] = 2
        s.commit()
    assert db.read("s").step == 2


def test_something_else_is_no_state_type(open_db: Any) -> None:
    with pytest.raises(perdure.InvalidInput, match="msgspec Struct"):
        open_db(state=42).session("s")
