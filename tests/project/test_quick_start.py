"""A program that the tests start quickly does what it does when it is started anew."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests import quick_start

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {
    "ends": "import perdure",
    "code": "import perdure, sys; sys.exit(7)",
    "words": "import perdure, sys; sys.exit('perdure: it went wrong')",
    "raises": "import perdure\nraise ValueError(3)",
    "interrupted": "import perdure\nraise KeyboardInterrupt",
    "killed": "import perdure, os; os.kill(os.getpid(), 9)",
    "reads": "import perdure, sys; print(sys.stdin.read().upper())",
    "says at once": "import perdure, os\nprint('first')\nos._exit(3)",
    "at exit": "import perdure, atexit; atexit.register(print, 'last'); print('first')",
    "a thread goes on": (
        "import perdure, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('on'))).start()"
    ),
    "surroundings": (
        "import os, perdure, signal, sys\n"
        "print(sys.argv, sys.orig_argv[1:], sys.path, os.getcwd(), sorted(os.environ.items()))\n"
        "print(__name__, sys.warnoptions)\n"
        "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE), os.getpid() == os.getpgid(0))\n"
        "print([(s.encoding, s.errors, s.line_buffering, s.isatty()) for s in (sys.stdin, sys.stdout, sys.stderr)])"
    ),
}


def both_ways(tmp_path: Path, words: list[str], **options: Any) -> list[tuple[int, str, str]]:
    """How it ends when it is started quickly, and when anew, as it is for whoever gives Python an option."""
    ends = []
    for more in ([], ["-B"]):
        done = subprocess.run(
            [sys.executable, *more, *words],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
            **options,
        )
        *_, last = ["", *done.stderr.splitlines()]
        ends.append((done.returncode, done.stdout.replace("'-B', ", ""), last))
    return ends


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_program_does_what_it_does_when_it_is_started_anew(tmp_path: Path, name: str, unbuffered: str):
    surroundings = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(tmp_path), "OWN": "value"}
    quick, anew = both_ways(
        tmp_path, ["-W", "error", "-c", PROGRAMS[name], "a", "--b"], input="hello", env=surroundings
    )
    assert quick == anew


def test_a_command_does_what_it_does_when_it_is_started_anew(tmp_path: Path):
    for words in (["ls"], ["--version"], ["show", "--nonsense"], ["why", "s", "--store", "sqlite:///none.db"]):
        quick, anew = both_ways(tmp_path, ["-m", "perdure.cli", *words])
        assert quick == anew


def test_it_is_a_child_like_any_other_that_has_read_everything(tmp_path: Path):
    program = "import os, perdure, sys\nprint(os.getpid(), os.getppid(), 'rich.table' in vars(sys)['modules'])"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.read().split() == [str(child.pid), str(os.getpid()), str(quick_start.works())]
        assert child.wait() == 0


def test_it_can_be_killed_and_is_waited_for(tmp_path: Path):
    program = "import perdure, time\nprint('up', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        assert child.wait(10) == -9
    with pytest.raises(ChildProcessError):
        os.waitpid(child.pid, 0)


def test_it_is_given_the_files_that_are_passed_to_it(tmp_path: Path):
    ours, theirs = os.pipe()
    program = (
        "import os, perdure, sys\nos.write(int(sys.argv[1]), b'through')\nprint(sorted(os.listdir('/proc/self/fd')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(theirs)],
        pass_fds=[theirs], cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    os.close(theirs)
    with open(ours, "rb") as told:
        assert told.read() == b"through"
    assert str(theirs) in done.stdout
