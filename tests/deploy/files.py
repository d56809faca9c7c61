"""The files under deploy/, read; and the commands of ours that they run or tell people to run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(p for p in (DEPLOY / "kubernetes").glob("*.yaml") if p.name != "kustomization.yaml")
IMAGE = re.compile(r"(?:[a-z0-9-]+/)?[a-z0-9-]+(?::[\w.-]+)?")
"""An image by its plain name: no registry's host before it."""


def load(path: Path) -> Any:
    """One YAML document."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def manifest(kind: str) -> dict[str, Any]:
    """The one manifest of that kind."""
    (found,) = [m for m in map(load, MANIFESTS) if m["kind"] == kind]
    return found


def compose() -> dict[str, Any]:
    """The compose file."""
    return load(DEPLOY / "docker-compose.yml")


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one instruction after the other."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def run_commands() -> list[list[str]]:
    """Every command of ours that something under deploy/ runs, without the name of the program."""
    worker = manifest("Deployment")["spec"]["template"]["spec"]["containers"][0]
    job = manifest("Job")["spec"]["template"]["spec"]["containers"][0]
    stop = worker["lifecycle"]["preStop"]["exec"]["command"]
    found = [worker["args"], job["args"], stop[1:]]
    found += [s["command"] for s in compose()["services"].values() if "build" in s]
    found += [json.loads(rest) for word, rest in instructions() if word == "CMD"]
    return found


def told_commands(text: str) -> list[list[str]]:
    """Every command of ours that a text tells people to type: in quotes, or on a line of its own."""
    found = re.findall(r"(?:`|^(?:\$ )?|exec worker )perdure ([a-z][^`\n]*?)(?:`|  .*$|$)", text, re.MULTILINE)
    return [shlex.split(command, comments=True) for command in found]


def option(command: list[str], name: str) -> str:
    """The value of an option."""
    return command[command.index(name) + 1]
