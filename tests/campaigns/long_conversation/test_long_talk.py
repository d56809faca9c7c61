"""A long session against a server that is not ours: the short form of ``make compactor``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.agent.context.compactor import Compactor
from tests.campaigns.long_conversation.long_talk import BUDGET, REFUSED, talk
from tests.servers.llmock import start_llmock
from tests.servers.process import stop

if TYPE_CHECKING:
    from pathlib import Path


def test_a_long_session_is_what_the_server_was_promised(tmp_path: Path):
    server = start_llmock("--context-window", str(REFUSED))
    try:
        talked = asyncio.run(talk(server, tmp_path, 80, "compactor", Compactor(every=25, max_tokens=200)))
    finally:
        stop(server)
    assert talked.ok, talked
    assert talked.steps == 80
    # What is judged can be found wanting.
    assert not talked._replace(largest=BUDGET + 1).ok
    assert not talked._replace(refused=1).ok
    assert not talked._replace(orphans=["one"]).ok
    assert not talked._replace(warm=0.89).ok
    assert not talked._replace(kept=False).ok
    assert not talked._replace(recalled=False).ok


def test_a_session_too_short_to_be_cut_is_told_and_does_not_count_as_what_was_promised(tmp_path: Path):
    server = start_llmock("--context-window", str(REFUSED))
    try:
        talked = asyncio.run(talk(server, tmp_path, 12, "compactor", Compactor(max_tokens=200)))
    finally:
        stop(server)
    assert (talked.steps, talked.summaries, talked.hidden, talked.ok) == (12, 0, 0, False)
