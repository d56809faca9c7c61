"""What waits for a person, as AG-UI 1.0 writes an interrupt: made here for webhooks, HTTP and the command line alike.

The names of the object's own fields are the protocol's; what we add is in ``metadata``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.system.wording import timestamp

if TYPE_CHECKING:
    from perdure.agent.run_result import Doubt
    from perdure.session.approvals import Approval


def approval_interrupt(a: Approval, session: str, branch: str, tool_call_id: str = "") -> dict[str, Any]:
    """A request for agreement or an answer; the call is known by its effect where the model gave it no id."""
    wanted: dict[str, Any] = (
        {"answer": a.schema or {}}
        if a.question
        else {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}}
    )
    return {
        "id": a.id,
        "reason": "input_required" if a.question else "tool_call",
        "message": a.question or f"May {a.tool} be called?{' ' + a.because if a.because else ''}",
        "toolCallId": tool_call_id or a.effect,
        "responseSchema": {"type": "object", "properties": wanted, "required": [next(iter(wanted))]},
        "expiresAt": timestamp(a.expires),
        "metadata": {
            "session": session,
            "branch": branch,
            "effect": a.effect,
            "tool": a.tool,
            "args": a.args,
            "facts": a.facts,
            "because": a.because,
            "asked_at": timestamp(a.asked),
            "truncated": [],
        },
    }


def doubt_interrupt(d: Doubt, session: str, branch: str) -> dict[str, Any]:
    """A call in doubt: somebody has to say what became of it."""
    wanted = {"verdict": {"enum": ["done", "retry", "abort"]}, "result": {}}
    return {
        "id": d.effect,
        "reason": "in_doubt",
        "message": d.question,
        "toolCallId": d.effect,
        "responseSchema": {"type": "object", "properties": wanted, "required": ["verdict"]},
        "expiresAt": None,
        "metadata": {
            "session": session,
            "branch": branch,
            "effect": d.effect,
            "tool": d.tool,
            "args": d.args,
            "facts": None,
            "because": "",
            "attempt": d.attempt,
            "truncated": [],
        },
    }
