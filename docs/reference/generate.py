"""Writes the generated parts of the reference: `python docs/reference/generate.py`. A test compares them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"

GROUPS = {
    "Opening": ["open", "open_async", "Database", "AsyncDatabase"],
    "Sessions": ["Session", "AsyncSession", "BlobRef", "Origin", "UncommittedEdits"],
    "Looking": ["why", "why_async", "Why", "Reading", "Checkpoint", "Status", "Kind", "Difference", "Clash", "Message"],
    "Tools": [
        "tool",
        "Tool",
        "Context",
        "Done",
        "NotDone",
        "ToolError",
        "ModelRetry",
        "Unknown",
        "Later",
        "Approval",
        "UndeclaredTool",
    ],
    "Agents": [
        "Agent",
        "RunResult",
        "Raised",
        "Event",
        "follow",
        "handoff",
        "wake_me",
        "Window",
        "Compactor",
        "tool_migration",
    ],
    "Branches of agents": ["branch_off", "run_on"],
    "Fleets": ["submit", "submit_async", "start_worker"],
    "Models": [
        "OpenAIModel",
        "FunctionModel",
        "ScriptedModel",
        "calls",
        "RecordedModel",
        "Retry",
        "Price",
        "ChatModel",
        "Request",
        "Answer",
        "ToolCall",
        "Usage",
        "Delta",
    ],
    "Parts of messages": ["text", "image", "audio", "file"],
    "Keys and migrations": ["Keys", "Migrations", "migration"],
}
INSIDE = ("in_schema", "shut", "warn_uncommitted")
"""What handles have for other parts of the library."""
_FLOW = re.compile(r"^(?:Flow|Generator)\[(.*)\]$")


def api() -> str:
    """Every public name with its signature and first words."""
    import perdure

    errors = {n for n in perdure.__all__ if _is_error(getattr(perdure, n))}
    grouped = {n for names in GROUPS.values() for n in names}
    rest = sorted(set(perdure.__all__) - errors - grouped - {"__version__"})
    out: list[str] = []
    for title, names in {**GROUPS, **({"More": rest} if rest else {})}.items():
        out.append(f"## {title}\n")
        out += [_entry(name, getattr(perdure, name)) for name in names if hasattr(perdure, name)]
    return "\n".join(out)


def _is_error(value: Any) -> bool:
    from perdure.errors import PerdureError

    return inspect.isclass(value) and issubclass(value, PerdureError)


def _entry(name: str, value: Any) -> str:
    if not inspect.isclass(value):
        signature = _signature(value).replace(", ", ",\n    ").replace("(", "(\n    ", 1).replace(") ->", ",\n) ->")
        return f"### `{name}`\n\n```\n{name}{signature}\n```\n\n{_doc(value)}\n"
    lines = [f"### `{name}`\n", _doc(value), ""]
    if issubclass(value, str):
        lines.append(", ".join(f"`{member.value}`" for member in value))  # type: ignore[attr-defined]
        return "\n".join(lines) + "\n"
    fields = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", None)
    if fields:
        lines.append("Fields: " + ", ".join(f"`{f}`" for f in fields))
        return "\n".join(lines) + "\n"
    members: list[str] = []
    for owner in reversed(value.__mro__[:-1]):
        if owner.__module__.startswith("perdure"):
            members += [m for m in vars(owner) if not m.startswith("_") and m not in members]
    for member in sorted(m for m in members if m not in INSIDE and not m.endswith("_flow")):
        found = inspect.getattr_static(value, member)
        if isinstance(found, property):
            lines.append(f"- **`{member}`**: {_first(found)}")
        elif callable(getattr(value, member)):
            lines.append(f"- **`{member}{_signature(getattr(value, member))}`**: {_first(getattr(value, member))}")
    return "\n".join(lines) + "\n"


def _signature(value: Any) -> str:
    """The signature with annotations as they were written."""
    signature = inspect.signature(value)
    parts: list[str] = []
    star = False
    for name, p in signature.parameters.items():
        if name == "self":
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        # A sentinel's address differs from run to run and says nothing.
        shown = "..." if type(p.default) is object else repr(p.default)
        default = "" if p.default is p.empty else f" = {shown}"
        parts.append(f"{prefix}{name}{_annotation(': ', p.annotation)}{default}")
    return f"({', '.join(parts)}){_annotation(' -> ', signature.return_annotation)}"


def _annotation(before: str, found: Any) -> str:
    if found is inspect.Signature.empty:
        return ""
    text = found if isinstance(found, str) else inspect.formatannotation(found)
    if match := _FLOW.match(text):
        text = match[1]
    return before + text


def _doc(value: Any) -> str:
    """The docstring without its examples."""
    doc = inspect.getdoc(value) or ""
    return _plain(re.split(r"\n\s*>>> ", doc, maxsplit=1)[0].strip())


def _first(value: Any) -> str:
    return _plain(re.sub(r"\s+", " ", (inspect.getdoc(value) or "").split("\n\n")[0]))


def _plain(text: str) -> str:
    text = re.sub(r":(?:class|func|meth):`(?:~?perdure\.)?(?:\w+\.)*?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def errors() -> str:
    """The tree of errors."""
    import perdure.errors

    tree = (perdure.errors.__doc__ or "").partition("::\n\n")[2]
    return f"```\n{inspect.cleandoc(tree)}\n```\n"


def cli() -> str:
    """What `--help` says of every command, and what it prints for programs."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from perdure.cli.program import app

    out: list[str] = []
    runner = CliRunner(env={"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"})
    for name in ["", *get_command(app).commands]:  # type: ignore[attr-defined]
        text = runner.invoke(app, [*([name] if name else []), "--help"], prog_name="perdure", terminal_width=100).output
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        out.append(f"### perdure {name}".rstrip() + f"\n\n```\n{lines}\n```\n")
        if name:
            out.append(_printed(name))
    return "\n".join(out)


def _printed(command: str) -> str:
    """What a command prints for programs, and when it ends with 1."""
    from perdure.cli.output import FOR_PEOPLE, OUTPUTS, schema_of

    if command in FOR_PEOPLE:
        return f"No JSON: {FOR_PEOPLE[command]}.\n"
    output = OUTPUTS[command]
    found = [_kind(one) for one in schema_of(command).get("anyOf", [schema_of(command)])]
    links = ["a JSON Schema" if one == "object" else one for one in found]
    if output.when:
        links = [f"{link} {when}" for link, when in zip(links, output.when, strict=True)]
    each = ", one object a line" if output.lines else ""
    ends = f" Ends with 1 when {output.negative}." if output.negative else ""
    return f"`{output.option}`: {', '.join(links)}{each}.{ends}\n"


def shapes() -> str:
    """The shapes of what commands print, and HTTP answers."""
    from perdure.cli.output import components
    from perdure.server.api.openapi import document

    answered = document()["components"]["schemas"]
    told = components() | {name: shape for name, shape in answered.items() if not _is_body(name)}
    return "\n".join(f"### `{name}`\n\n{_shape(shape, told=True)}\n" for name, shape in sorted(told.items()))


def _is_body(name: str) -> bool:
    """Whether a shape is what requests say: those are told of where the requests are."""
    from perdure.server.api import inputs

    return hasattr(inputs, name) and inspect.getmodule(getattr(inputs, name)) is inputs


def http() -> str:
    """Every path of the HTTP API, the bodies of requests, and the types of problems."""
    from perdure.server.api.openapi import document
    from perdure.server.problems import TITLES, catalogue
    from perdure.shapes.basics import ERROR_TYPE

    made = document()
    out: list[str] = []
    for tag in made["tags"]:
        out.append(f"## {tag['name'].capitalize()}\n\n{tag['description']}.\n")
        for path, methods in made["paths"].items():
            out += [_path(m.upper(), path, o) for m, o in methods.items() if tag["name"] in o["tags"]]
    out.append("## Bodies\n")
    bodies = {name: shape for name, shape in made["components"]["schemas"].items() if _is_body(name)}
    out += [f"### `{name}`\n\n{_shape(shape)}\n" for name, shape in sorted(bodies.items())]
    out.append("## Problems\n\n| type | status | title |\n|---|---|---|")
    out += [f"| `{kind}` | {status} | {title} |" for kind, status, title in catalogue()]
    out += [f"| `{ERROR_TYPE}{name}` | | {title} |" for name, title in TITLES.items()]
    return "\n".join(out) + "\n"


def _path(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"### `{method} {path}`\n", operation["summary"]]
    if "description" in operation:
        lines.append(_plain(operation["description"]))
    shown = [p for p in operation["parameters"] if p["in"] != "path"]
    lines += [""] if shown else []
    for p in shown:
        must = ", required" if p["required"] else ""
        lines.append(f"- `{p['name']}` ({_kind(p['schema'])}{must}){_about(p)}")
    if "requestBody" in operation:
        lines.append("\nBody: " + _kind(operation["requestBody"]["content"]["application/json"]["schema"]))
    for status, answer in operation["responses"].items():
        ((media, content),) = answer["content"].items()
        if media != "application/problem+json":
            lines.append(f"\nAnswer {status}: {_kind(content['schema']) if 'json' in media else media}")
    failing = [s for s, a in operation["responses"].items() if "application/problem+json" in a["content"]]
    lines.append(f"\nProblems: {', '.join(failing)}\n")
    return "\n".join(lines)


def _shape(shape: dict[str, Any], *, told: bool = False) -> str:
    """A shape as a list of its fields; of what is told, those are named that may be missing."""
    about = _plain(" ".join(shape.get("description", "").split()))
    if "enum" in shape:
        return f"{about}\n\n{_kind(shape)}"
    required = shape.get("required", ())
    rows: list[str] = []
    for name, one in shape.get("properties", {}).items():
        word = ", may be missing" if told and name not in required else ""
        word = word or (", required" if not told and name in required else "")
        rows.append(f"- `{name}` ({_kind(one)}{word}){_about(one)}")
    return "\n".join([about, "", *rows])


def _about(schema: dict[str, Any]) -> str:
    return f": {schema['description']}" if "description" in schema else ""


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`]({'' if _is_body(name) else 'json.md'}#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join("null" if v is None else f"`{v}`" if v else "empty" for v in schema["enum"])
    kind = "time" if schema.get("format") == "date-time" else schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    bounds = [schema.get(name) for name in ("minimum", "maximum")]
    limits = f" {bounds[0]} to {bounds[1]}" if None not in bounds and bounds[1] != 1 << 53 else ""
    default = f", default `{schema['default']}`" if schema.get("default") not in (None, "") else ""
    return f"{kind}{limits}{default}"


def columns() -> str:
    """What is stored where, and how far it can be believed."""
    return runpy.run_path(str(HERE / "columns.py"))["table"]()


@dataclasses.dataclass
class Part:
    """A generated part of one file."""

    file: str
    name: str

    def renewed(self) -> str:
        """The file with this part written anew."""
        text = (HERE / self.file).read_text(encoding="utf-8")
        begin = BEGIN.format(self.name)
        before, found, rest = text.partition(begin)
        if not found or END not in rest:
            raise SystemExit(f"{self.file} has no part {begin} ... {END}")
        return f"{before}{begin}\n\n{globals()[self.name]()}\n{END}{rest.partition(END)[2]}"


PARTS = [
    Part("api.md", "api"),
    Part("errors.md", "errors"),
    Part("cli.md", "cli"),
    Part("json.md", "shapes"),
    Part("http.md", "http"),
    Part("columns.md", "columns"),
]


def stale() -> list[str]:
    """The files whose generated part is not what the code says."""
    return [f"{p.file}: {p.name}" for p in PARTS if p.renewed() != (HERE / p.file).read_text(encoding="utf-8")]


if __name__ == "__main__":
    for part in PARTS:
        (HERE / part.file).write_text(part.renewed(), encoding="utf-8")
    sys.exit(0)
