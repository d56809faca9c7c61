"""What ``import perdure`` offers. A name that appears or goes is a decision, and this list is where it shows."""

from __future__ import annotations

import perdure

NAMES = [
    "AccessRefused", "Agent", "Answer", "Approval", "ApprovalError", "ApprovalNeeded", "ApprovalRuleFailed",
    "AsyncDatabase",
    "AsyncSession", "BehindWitness", "BlobRef", "Busy", "CallError", "ChatModel", "Checkpoint", "Clash",
    "Compactor", "Conflict", "Context", "ContextTooLong", "Corrupted", "CursorExpired", "Database", "Delta",
    "Difference", "Diverged", "Done", "DoneElsewhere", "EffectFailed", "EffectRaised", "Event", "Every",
    "ForkedProcess", "FunctionModel", "Gone", "HandleClosed", "InDoubt", "Incompatible", "InvalidInput",
    "InvalidState", "KeyMismatch", "Keys", "Kind", "Later", "LeaseError", "LeaseLost", "LimitExceeded",
    "MergeConflict", "Message", "MessageTaken", "Migrations", "MissingExtra", "Misuse", "ModelError", "ModelRetry",
    "ModelUnavailable", "NotDone", "NotFound", "NotJson", "OpenAIModel", "Origin", "OutcomeUnknown", "PerdureError",
    "Poisoned", "Price", "Raised", "ReadOnly", "Reading", "RecordedModel", "Request", "RequestDiffers",
    "RequestRefused", "ResultPending", "Retry", "RunResult", "ScriptedModel", "Session", "SessionClosed",
    "StateNotKept", "Status", "StoreError", "StoreFull", "TailLost", "Tool", "ToolCall", "ToolError", "Unavailable",
    "UncommittedEdits", "UndeclaredTool", "Unknown", "UnknownStore", "UnsupportedFormat", "Usage", "Why", "Window",
    "__version__", "audio", "branch_off", "calls", "end_objective", "file", "follow", "handoff", "image",
    "migration", "open", "open_async", "run_on", "start_worker", "submit", "submit_async", "text", "tool",
    "tool_migration", "wake_me", "why", "why_async",
]  # fmt: skip


def test_the_public_names_are_these():
    assert sorted(perdure.__all__) == sorted(NAMES)


def test_every_public_name_is_there_and_is_listed():
    for name in NAMES:
        assert getattr(perdure, name) is not None
    assert set(NAMES) <= set(dir(perdure))


def test_every_public_class_and_function_says_what_it_is():
    for name in NAMES:
        if name != "__version__":
            assert getattr(perdure, name).__doc__, name


def test_every_public_error_is_a_perdure_error():
    for name in NAMES:
        thing = getattr(perdure, name)
        if isinstance(thing, type) and issubclass(thing, Exception) and not issubclass(thing, Warning):
            # NotDone and its kinds are not raised by Perdure but by tools.
            assert issubclass(thing, perdure.PerdureError | perdure.NotDone)
