"""What a result must fit that somebody reports, and the arguments that somebody agrees to: kept with the session.

Whoever reports a result has no program to ask what the tool returns. Each schema is kept once, by its digest.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput
from perdure.session.calls.records import RECORD
from perdure.session.tools.answer_schema import misfit
from perdure.state.document import plain

if TYPE_CHECKING:
    from perdure.session.tools.declaration import Tool
    from perdure.state.document import TrackedDict

FITS = "fits"
"""In a record: the name of the schema that a result must fit that somebody reports."""
ARGUMENTS_FIT = "arguments_fit"
"""In the record of a call that somebody is asked about: the name of the schema that other arguments must fit."""
SCHEMAS = "result_schemas"
"""Under this the book has these schemas, each once."""
SCHEMAS_KEPT = 100
"""Of those that no call on the books has, the newest."""


def note_result_schema(book: TrackedDict, tool: Tool, record: TrackedDict) -> None:
    """Keep what a result of this tool must fit: whoever reports one has no program to ask."""
    record.pop(FITS, None)
    if tool.read or tool.result_schema is None or returns_nothing(tool):
        return
    _note_schema(book, record, FITS, tool.result_schema)


def note_arguments_schema(book: TrackedDict, tool: Tool, record: TrackedDict) -> None:
    """Keep what other arguments must fit that somebody agrees to: he may have no program to ask, either."""
    record.pop(ARGUMENTS_FIT, None)
    if (schema := tool.types.arguments_schema) is not None:
        _note_schema(book, record, ARGUMENTS_FIT, schema)


def check_result(book: Any, record: Any, result: Any) -> None:
    """Refuse a result that somebody reports, and that is not what the tool of the call returns, as it is recorded."""
    schema = plain(book.get(SCHEMAS, {}).get(record.get(FITS)))
    if schema is not None and (wrong := misfit(result, schema, f"the result of {record['tool']}")):
        raise InvalidInput(f"{wrong}. Nothing was written: effect {record['id']} stands as before")


def check_arguments(book: Any, request: Any, args: Any) -> None:
    """Refuse arguments that somebody agrees to in place of those he was asked about, and that do not fit their tool."""
    records = [r for r in book.get("effects", {}).values() if r["id"] == request["effect"]]
    name = records[-1].get(ARGUMENTS_FIT) if records else None
    schema = plain(book.get(SCHEMAS, {}).get(name))
    if schema is not None and (wrong := misfit(args, schema, f"what {request['tool']} is to be called with")):
        left_out = isinstance(args, dict) and any(name not in args for name in schema.get("required", ()))
        more = ": say all arguments of the call, those that stay as they are too" if left_out else ""
        raise InvalidInput(f"{wrong}. Nothing was decided{more}")


def returns_nothing(tool: Tool) -> bool:
    """Whether a tool declares to return nothing: of such a call any words are taken as its result."""
    return tool.result_schema == {"type": "null"}


def _note_schema(book: TrackedDict, record: TrackedDict, role: str, schema: Any) -> None:
    text = json.dumps(schema, sort_keys=True)
    name = record[role] = hashlib.sha256(text.encode()).hexdigest()[:16]
    kept = book.setdefault(SCHEMAS, {})
    if name not in kept:
        kept[name] = schema
        raised = (one[RECORD] for one in book.get("raised", {}).values() if RECORD in one)
        effects = (*book.get("effects", {}).values(), *raised)
        in_use = {r.get(one) for r in effects for one in (FITS, ARGUMENTS_FIT)}
        for old in [name for name in kept if name not in in_use][:-SCHEMAS_KEPT]:
            del kept[old]
