"""Perdure: durable state for AI agents. A save button that survives kill -9."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure._version import __version__

if TYPE_CHECKING:
    from perdure.agent.agent import Agent as Agent
    from perdure.agent.branching_off import branch_off as branch_off
    from perdure.agent.branching_off import run_on as run_on
    from perdure.agent.checkpoint_policy import Every as Every
    from perdure.agent.children import handoff as handoff
    from perdure.agent.context.compactor import Compactor as Compactor
    from perdure.agent.context.window import Window as Window
    from perdure.agent.live_answers import Event as Event
    from perdure.agent.models import Answer as Answer
    from perdure.agent.models import ChatModel as ChatModel
    from perdure.agent.models import Delta as Delta
    from perdure.agent.models import Request as Request
    from perdure.agent.models import ToolCall as ToolCall
    from perdure.agent.models import Usage as Usage
    from perdure.agent.models.openai import OpenAIModel as OpenAIModel
    from perdure.agent.models.parts import audio as audio
    from perdure.agent.models.parts import file as file
    from perdure.agent.models.parts import image as image
    from perdure.agent.models.parts import text as text
    from perdure.agent.models.prices import Price as Price
    from perdure.agent.models.retry import Retry as Retry
    from perdure.agent.models.scripted import FunctionModel as FunctionModel
    from perdure.agent.models.scripted import ScriptedModel as ScriptedModel
    from perdure.agent.models.scripted import calls as calls
    from perdure.agent.objectives import end_objective as end_objective
    from perdure.agent.replay.recorded_session import RecordedModel as RecordedModel
    from perdure.agent.run_result import Raised as Raised
    from perdure.agent.run_result import RunResult as RunResult
    from perdure.agent.session_stream import follow as follow
    from perdure.agent.tool_schema import wake_me as wake_me
    from perdure.aio import AsyncDatabase as AsyncDatabase
    from perdure.aio import AsyncSession as AsyncSession
    from perdure.database import Database as Database
    from perdure.errors import AccessRefused as AccessRefused
    from perdure.errors import ApprovalError as ApprovalError
    from perdure.errors import ApprovalNeeded as ApprovalNeeded
    from perdure.errors import ApprovalRuleFailed as ApprovalRuleFailed
    from perdure.errors import BehindWitness as BehindWitness
    from perdure.errors import Busy as Busy
    from perdure.errors import CallError as CallError
    from perdure.errors import Conflict as Conflict
    from perdure.errors import ContextTooLong as ContextTooLong
    from perdure.errors import Corrupted as Corrupted
    from perdure.errors import CursorExpired as CursorExpired
    from perdure.errors import Diverged as Diverged
    from perdure.errors import DoneElsewhere as DoneElsewhere
    from perdure.errors import EffectFailed as EffectFailed
    from perdure.errors import EffectRaised as EffectRaised
    from perdure.errors import ForkedProcess as ForkedProcess
    from perdure.errors import Gone as Gone
    from perdure.errors import HandleClosed as HandleClosed
    from perdure.errors import Incompatible as Incompatible
    from perdure.errors import InDoubt as InDoubt
    from perdure.errors import InvalidInput as InvalidInput
    from perdure.errors import InvalidState as InvalidState
    from perdure.errors import KeyMismatch as KeyMismatch
    from perdure.errors import LeaseError as LeaseError
    from perdure.errors import LeaseLost as LeaseLost
    from perdure.errors import LimitExceeded as LimitExceeded
    from perdure.errors import MergeConflict as MergeConflict
    from perdure.errors import MessageTaken as MessageTaken
    from perdure.errors import MissingExtra as MissingExtra
    from perdure.errors import Misuse as Misuse
    from perdure.errors import ModelError as ModelError
    from perdure.errors import ModelUnavailable as ModelUnavailable
    from perdure.errors import NotFound as NotFound
    from perdure.errors import NotJson as NotJson
    from perdure.errors import OutcomeUnknown as OutcomeUnknown
    from perdure.errors import PerdureError as PerdureError
    from perdure.errors import Poisoned as Poisoned
    from perdure.errors import ReadOnly as ReadOnly
    from perdure.errors import RequestDiffers as RequestDiffers
    from perdure.errors import RequestRefused as RequestRefused
    from perdure.errors import ResultPending as ResultPending
    from perdure.errors import SessionClosed as SessionClosed
    from perdure.errors import StateNotKept as StateNotKept
    from perdure.errors import StoreError as StoreError
    from perdure.errors import StoreFull as StoreFull
    from perdure.errors import TailLost as TailLost
    from perdure.errors import Unavailable as Unavailable
    from perdure.errors import UnknownStore as UnknownStore
    from perdure.errors import UnsupportedFormat as UnsupportedFormat
    from perdure.fleet.board import submit as submit
    from perdure.fleet.board import submit_async as submit_async
    from perdure.fleet.why.answer import Why as Why
    from perdure.fleet.why.reading import why as why
    from perdure.fleet.why.reading import why_async as why_async
    from perdure.fleet.worker import start_worker as start_worker
    from perdure.history.checkpoint import Checkpoint as Checkpoint
    from perdure.history.checkpoint import Reading as Reading
    from perdure.history.origin import Origin as Origin
    from perdure.model import Kind as Kind
    from perdure.model import Status as Status
    from perdure.opening import open as open
    from perdure.opening import open_async as open_async
    from perdure.record.keys import Keys as Keys
    from perdure.session.calls.approvals import Approval as Approval
    from perdure.session.handle import Session as Session
    from perdure.session.handle import UncommittedEdits as UncommittedEdits
    from perdure.session.inbox import Message as Message
    from perdure.session.tools import Done as Done
    from perdure.session.tools import Later as Later
    from perdure.session.tools import ModelRetry as ModelRetry
    from perdure.session.tools import NotDone as NotDone
    from perdure.session.tools import ToolError as ToolError
    from perdure.session.tools import UndeclaredTool as UndeclaredTool
    from perdure.session.tools import Unknown as Unknown
    from perdure.session.tools.context import Context as Context
    from perdure.session.tools.declaration import Tool as Tool
    from perdure.session.tools.declaration import tool as tool
    from perdure.session.tools.migrations import tool_migration as tool_migration
    from perdure.state.merge import Clash as Clash
    from perdure.state.merge import Difference as Difference
    from perdure.state.migrations import Migrations as Migrations
    from perdure.state.migrations import migration as migration
    from perdure.state.values import BlobRef as BlobRef

_HOMES = {
    "agent.agent": ("Agent",),
    "agent.checkpoint_policy": ("Every",),
    "agent.children": ("handoff",),
    "agent.context.compactor": ("Compactor",),
    "agent.models": ("Answer", "ChatModel", "Delta", "Request", "ToolCall", "Usage"),
    "agent.models.openai": ("OpenAIModel",),
    "agent.models.parts": ("audio", "file", "image", "text"),
    "agent.models.prices": ("Price",),
    "agent.models.retry": ("Retry",),
    "agent.models.scripted": ("FunctionModel", "ScriptedModel", "calls"),
    "agent.objectives": ("end_objective",),
    "agent.replay.recorded_session": ("RecordedModel",),
    "agent.run_result": ("Raised", "RunResult"),
    "agent.live_answers": ("Event",),
    "agent.session_stream": ("follow",),
    "agent.branching_off": ("branch_off", "run_on"),
    "agent.tool_schema": ("wake_me",),
    "agent.context.window": ("Window",),
    "session.calls.approvals": ("Approval",),
    "session.tools.migrations": ("tool_migration",),
    "aio": ("AsyncDatabase", "AsyncSession"),
    "history.checkpoint": ("Checkpoint", "Reading"),
    "database": ("Database",),
    "errors": (
        "AccessRefused", "ApprovalError", "ApprovalNeeded", "ApprovalRuleFailed", "BehindWitness", "Busy", "CallError",
        "Conflict", "ContextTooLong", "Corrupted", "CursorExpired", "Diverged", "DoneElsewhere", "EffectFailed",
        "EffectRaised", "ForkedProcess", "Gone", "HandleClosed", "InDoubt", "Incompatible", "InvalidInput",
        "InvalidState", "KeyMismatch", "LeaseError", "LeaseLost", "LimitExceeded", "MergeConflict", "MessageTaken",
        "MissingExtra", "Misuse", "ModelError", "ModelUnavailable", "NotFound", "NotJson", "OutcomeUnknown",
        "PerdureError", "Poisoned", "ReadOnly", "RequestDiffers", "RequestRefused", "ResultPending", "SessionClosed",
        "StateNotKept", "StoreError", "StoreFull", "TailLost", "Unavailable", "UnknownStore", "UnsupportedFormat",
    ),
    "fleet.worker": ("start_worker",),
    "fleet.board": ("submit", "submit_async"),
    "fleet.why.answer": ("Why",),
    "fleet.why.reading": ("why", "why_async"),
    "session.inbox": ("Message",),
    "record.keys": ("Keys",),
    "state.merge": ("Clash", "Difference"),
    "state.migrations": ("Migrations", "migration"),
    "model": ("Kind", "Status"),
    "opening": ("open", "open_async"),
    "history.origin": ("Origin",),
    "session.handle": ("Session", "UncommittedEdits"),
    "session.tools": ("Done", "Later", "ModelRetry", "NotDone", "ToolError", "UndeclaredTool", "Unknown"),
    "session.tools.declaration": ("Tool", "tool"),
    "session.tools.context": ("Context",),
    "state.values": ("BlobRef",),
}  # fmt: skip
_WHERE = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_WHERE)]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Each part is imported when first used: a process that only reads does not pay for the rest.
    if name not in _WHERE:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"perdure.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
