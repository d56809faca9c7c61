"""Draws the layers that `pyproject.toml` lists: `python docs/explanation/generate_picture.py`. A test compares."""

from __future__ import annotations

import sys
import tomllib
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
PICTURE = HERE / "layers.svg"
PROJECT = HERE.parents[1] / "pyproject.toml"

# From top to bottom: what a group of layers is for, its hue, and each layer in a few words.
GROUPS = [
    ("For people", 265, {"cli": "the command perdure"}),
    (
        "For trying it",
        330,
        {
            "bench": "measurements",
            "testing": "fixtures, recordings, the stores' contract",
            "doctor": "does this machine, does this app hold?",
            "demo": "a night of 847 conversations",
        },
    ),
    ("For programs", 225, {"server": "HTTP API and web console", "shapes": "one JSON shape per noun"}),
    ("Agents", 175, {"fleet": "workers and their board", "agent": "the loop, models, context, replay"}),
    (
        "Handles",
        140,
        {
            "opening": "by URL: the parts meet",
            "aio": "handles, awaited",
            "database": "handles, blocking",
        },
    ),
    (
        "Sessions",
        100,
        {
            "upkeep": "packing, retention, verify, transfer",
            "session": "journal, calls, effects, approvals, branches",
            "history": "reading any moment of the past",
        },
    ),
    (
        "Where bytes lie",
        45,
        {
            "stores": "sealed commits",
            "blobs": "large values",
            "links": "connections to servers",
            "kernel": "store, blobs, keys and clock as one",
        },
    ),
    (
        "What they mean",
        15,
        {"record": "delta to bytes, digests, packs", "state": "values, tracked document, delta, merge"},
    ),
    (
        "Shared by all",
        0,
        {
            "telemetry": "spans, measurements, logs",
            "system": "flows and their drivers, clock, disk, names",
            "protocols": "what a backend implements",
            "model": "the nouns that travel",
            "errors": "everything that is raised",
        },
    ),
]

WIDTH, LEFT, RIGHT = 900, 176, 836
ROW, GAP, PAD, BETWEEN, TOP = 30, 5, 8, 9, 52
STYLE = """
    .text { fill: #1f2328 } .soft { fill: #59636e } .band { fill: hsl(var(--hue) var(--strength) 95%) }
    .room { fill: hsl(var(--hue) var(--strength) 99%); stroke: hsl(var(--hue) var(--strength) 66%) }
    .line { stroke: #59636e; fill: none } .paper { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      .text { fill: #f0f6fc } .soft { fill: #9198a1 } .band { fill: hsl(var(--hue) calc(var(--strength) * .5) 15%) }
      .room { fill: hsl(var(--hue) calc(var(--strength) * .5) 9%) }
      .room { stroke: hsl(var(--hue) calc(var(--strength) * .5) 38%) }
      .line { stroke: #9198a1 } .paper { fill: #0d1117 }
    }
    text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif }
    .name { font: 600 13px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
    .title { font-weight: 600 } .small { font-size: 12px }
"""


def rows() -> tuple[list[list[str]], dict[str, list[str]]]:
    """The layers of the contract from top to bottom, and what some of them may not import although it lies below."""
    contracts = tomllib.loads(PROJECT.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["type"] == "layers")["layers"]
    never: dict[str, list[str]] = {}
    for contract in contracts:
        if contract["type"] == "forbidden":
            for source in contract["source_modules"]:
                never[source.partition(".")[2]] = [m.partition(".")[2] for m in contract["forbidden_modules"]]
    return [[name.strip() for name in layer.split("|")] for layer in layers], never


def draw() -> str:
    """The picture."""
    order, never = rows()
    known = [name for _, _, layers in GROUPS for name in layers]
    if sorted(known) != sorted(name for row in order for name in row):
        wrong = ", ".join(sorted(set(known) ^ {name for row in order for name in row}))
        raise SystemExit(f"GROUPS in {Path(__file__).name} and the layers in pyproject.toml differ in: {wrong}")
    left = list(order)
    parts: list[str] = []
    y = TOP
    for title, hue, layers in GROUPS:
        mine = [row for row in left if row[0] in layers]
        if mine != left[: len(mine)] or sum(len(row) for row in mine) != len(layers):
            raise SystemExit(f"the layers of the group {title!r} do not lie together in pyproject.toml: regroup them")
        left = left[len(mine) :]
        height = 2 * PAD + len(mine) * ROW + (len(mine) - 1) * GAP
        strength = "0%" if hue == 0 else "50%"
        parts.append(f'<g style="--hue:{hue};--strength:{strength}">')
        parts.append(f'<rect class="band" x="24" y="{y}" width="{RIGHT - 24}" height="{height}" rx="8"/>')
        parts.append(f'<text class="text title" x="40" y="{y + height / 2 + 4.5:g}">{escape(title)}</text>')
        for number, row in enumerate(mine):
            parts += _row(row, y + PAD + number * (ROW + GAP), layers, never)
        parts.append("</g>")
        y += height + BETWEEN
    bottom = y - BETWEEN
    middle = (TOP + bottom) / 2
    x = RIGHT + 28
    arrow = [
        f'<path class="line" stroke-width="1.5" d="M{x} {TOP + 4} V{bottom - 4} m-5 -7 l5 7 l5 -7"/>',
        f'<text class="soft small" text-anchor="middle" transform="translate({x + 17} {middle:g}) rotate(90)">'
        "may import whatever lies below, never above</text>",
    ]
    head = (
        f'<text class="text title" x="24" y="28">src/perdure, from top to bottom</text>'
        f'<text class="soft small" x="{RIGHT}" y="28" text-anchor="end">'
        "side by side: know nothing of each other</text>"
    )
    size = f'width="{WIDTH}" height="{bottom + 20}" viewBox="0 0 {WIDTH} {bottom + 20}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="t">',
        '<title id="t">The layers of Perdure, each importing only those below it</title>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{bottom + 20}" rx="10"/>',
        head,
        *parts,
        *arrow,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _row(row: list[str], y: int, words: dict[str, str], never: dict[str, list[str]]) -> list[str]:
    out: list[str] = []
    barred = next((never[name] for name in row if name in never), [])
    right = RIGHT - PAD - (244 if barred else 0)
    width = (right - LEFT - (len(row) - 1) * GAP) / len(row)
    for number, name in enumerate(row):
        x = LEFT + number * (width + GAP)
        size = f'width="{width:g}" height="{ROW}"'
        out.append(f'<rect class="room" x="{x:g}" y="{y}" {size} rx="5"/>')
        out.append(f'<text class="text name" x="{x + 12:g}" y="{y + 19.5}">{escape(name)}</text>')
        after = x + (108 if len(row) == 1 else 72)
        out.append(f'<text class="soft" x="{after:g}" y="{y + 19.5}">{escape(words[name])}</text>')
    if barred:
        said = f"never import {', '.join(barred[:-1])} or {barred[-1]}"
        out.append(f'<text class="soft small" x="{right + 12}" y="{y + 19.5}">{escape(said)}</text>')
    return out


if __name__ == "__main__":
    picture = draw()
    stale = not PICTURE.exists() or PICTURE.read_text("utf-8") != picture
    if "--check" in sys.argv:
        sys.exit(int(stale))
    if stale:
        PICTURE.write_text(picture, "utf-8")
