"""The tool by which an agent says that it has reached its session's objective, or gives it up."""

from __future__ import annotations

from typing import Literal

from perdure.agent.children import here
from perdure.errors import InvalidInput
from perdure.session.tools import NotDone
from perdure.session.tools.declaration import tool


@tool(read=True)
async def end_objective(status: Literal["reached", "given_up"], note: str = "") -> str:
    """Say that the objective in your context is reached, or that you give it up.

    Args:
        status: what became of it
        note: how it was reached, or why it is given up, in a sentence
    """
    try:
        here().s.end_objective(status, note)
    except InvalidInput as e:
        # The model can look at its context and say it better.
        raise NotDone(str(e)) from None
    return f"it is {status.replace('_', ' ')}"
