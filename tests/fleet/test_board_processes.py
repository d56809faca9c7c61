"""The board of a fleet, used by several processes and threads at once: nothing is claimed twice, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.fleet.boarding import claim, put, rest

if TYPE_CHECKING:
    from tests.fleet.conftest import Boards

PROCESSES = 3
SESSIONS = 300

# Says when it is ready, and begins when it is told: so that all of them claim at the same time.
CLAIMER = """
import json, sys
import perdure
from perdure.protocols import Rest
url, worker, posts = sys.argv[1], sys.argv[2], sys.argv[3] == "posts"
with perdure.open(url, maintain=False) as db:
    board = db.kernel.store.board()
    print("ready", flush=True)
    sys.stdin.readline()
    claimed = []
    while works := board.claim(worker, ["a"], 3, 5):
        claimed += [work.session for work in works]
        if posts:
            for work in works:
                if work.step == 0:
                    db.post(work.session, "more", key=f"more-{work.session}")
            board.rest(worker, [Rest(work.session, work.step + 1) for work in works], 6)
    print(json.dumps(claimed))
"""


def claimed_by_processes(url: str, *how: str) -> list[list[str]]:
    """What each of several processes claimed, all at the same time."""
    command = [sys.executable, "-c", CLAIMER, url]
    running = [
        subprocess.Popen(
            [*command, f"w{number}", *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=120)[0]) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_no_session_is_claimed_by_two_processes(boards: Boards):
    names = [f"s{number:03}" for number in range(SESSIONS)]
    put(boards.board, *names)
    claimed = claimed_by_processes(boards.url, "claims")
    assert sorted(session for one in claimed for session in one) == names


def test_what_is_posted_to_a_session_at_work_is_worked_on_in_whatever_process(boards: Boards):
    names = [f"s{number:03}" for number in range(100)]
    put(boards.board, *names)
    claimed = claimed_by_processes(boards.url, "posts")
    # Once because they were put there, and once more because of what was posted while they were at work.
    assert sorted(session for one in claimed for session in one) == sorted(names * 2)


def test_no_session_is_claimed_by_two_threads(boards: Boards):
    names = [f"s{number:03}" for number in range(SESSIONS)]
    put(boards.board, *names)
    handles = [boards.board, boards.board, boards.another(), boards.another()]

    def work(number: int) -> list[str]:
        board, worker, mine = handles[number], f"w{number}", []
        while found := claim(board, 5, worker=worker):
            mine += found
            rest(board, *found, worker=worker, step=1)
        return mine

    with ThreadPoolExecutor(len(handles)) as pool:
        claimed = list(pool.map(work, range(len(handles))))
    assert sorted(session for one in claimed for session in one) == names
