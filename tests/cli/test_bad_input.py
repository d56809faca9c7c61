"""The command line in the hands of somebody who gets everything wrong: one line that says so, and the right end."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perdure

if TYPE_CHECKING:
    from tests.cli.conftest import Command

PATIENCE = 120.0
NO, BAD, STORE, TAKEN = 1, 2, 3, 4
WRONG = {
    line.replace("{BIG}", "9" * 40).replace("{HUGE}", "9" * 5000).replace("{LONG}", "n" * 300): code
    for code, lines in {
        NO: r"""
show nobody
show s@99
show s@{BIG}
show s@nowhere
show ''
show @
show s --branch nowhere
log s --branch nowhere
diff s@1 s@99
diff s@1 other@1
why nobody
why s --branch nowhere
fork s@99 c
fork nobody c
rewind s@99
merge s nowhere
tag s@99 x
verify nobody
replay s --branch nowhere
post nobody hi
resolve s ef_no --retry
approve s ap_no
export nobody f
cancel nobody
retry nobody
resume app s --branch nowhere
run app s --branch nowhere
drain 99999
verify --all --witness nofile
prune nobody --keep-last 1
tail nobody
""",
        BAD: r"""
fork s 7
fork s a@b
fork s {LONG}
tag s ''
rewind s
run app '' hi
cancel s --by {LONG}
log s --limit {BIG}
log s --limit 0
ls --limit -1
ls --age soon
ls --sort nothing
ls --status bogus
drain --wait nan
post s ''
prune s --keep-last 0
merge s b --prefer bogus
run app s hi --effects bogus
worker app --lease nan
submit s hi --agent desk --priority 9999
migrate app --schema ''
fork s@1 x --set vars.n={HUGE}
fork s@1 x --set vars.n
fork s@1 x --set =3
fork s@1 x --set messages.99=1
fork s@1 x --set vars.n.m=1
fork s@1 x --set messages=7
fork s@1 x --set vars=7
fork s@1 x --set vars.n=1e999
fork s@1 x --set vars.n=@nofile
fork s@1 x --set said=@folder
fork s@1 x --set system=hello
fork s@1 x --set vars.n=@bad.json
fork s@1 x --set 'vars.n="\ud800"'
approve s ap_no --edit {
approve s ap_no --edit 7
cancel
cancel --owner ''
cancel --status bogus
pause
unpause --agent ''
resolve
resolve --retry
retry --state bogus
prune
verify
verify s --all
stats --store bad.db
stats --store notes.txt
stats --store sqlite://x
stats --store oracle://x
stats --store tiered:
stats --store memory://
stats --blobs nonsense://x
backup agents.db
import nofile
restore nofile
copy agents.db agents.db
query 'select 1'
run nothing s hi
run app.py:nobody s hi
run broken s hi
run broken.py s hi
run typo s hi
run leaves s hi
run app/../x s hi
migrate broken --schema 2
serve broken
""",
        STORE: r"""
stats --store nowhere.db
stats --store empty.db
stats --store folder
stats --store redis://127.0.0.1:9/0
backup none/x
restore bad.db --store n.db
import bad.db --store n.db
verify --all --witness folder
verify --all --witness folder --update-witness
""",
        TAKEN: r"""
fork s b
tag s t
""",
    }.items()
    for line in lines.strip().splitlines()
}
"""What is typed, and how it ends."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a database, a program, and many things that are neither."""
    with perdure.open(f"sqlite:///{tmp_path}/agents.db") as db, db.session("s", owner="ana") as s:
        for i in range(3):
            s.vars["n"] = i
            s.messages.append({"role": "user", "content": "x"})
            s.commit()
        s.fork("b", at=2)
        s.tag("t")
    files = {
        "app.py": "from perdure import Agent, ScriptedModel\nagent = Agent('desk', model=ScriptedModel(['hello']))\n",
        "broken.py": "def f():\n    raise ValueError('of their own')\n\nf()\n",
        "typo.py": "def f(:\n",
        "leaves.py": "import sys\nsys.exit(0)\n",
        "bad.db": "not a database at all" * 100,
        "empty.db": "",
        "notes.txt": "hello",
        "bad.json": "{",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def there(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command in that folder."""
    monkeypatch.setenv("PERDURE_STORE", "agents.db")
    return command


def stored(folder: Path) -> object:
    """All that commands could have changed."""
    with perdure.open(f"sqlite:///{folder}/agents.db") as db:
        return [(row.id, row.heads, row.pending, row.status) for row in db.sessions()]


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_wrong_is_told_in_one_line(there: Command, folder: Path, typed: str):
    before = stored(folder)
    ended = there(*shlex.split(typed))
    assert ended.code == WRONG[typed], ended.err
    assert ended.out == ""
    lines = ended.err.splitlines()
    # What does not fit the command itself is told below a line that says how it is used.
    assert len(lines) == 1 or lines[0].startswith("Usage: "), ended.err
    assert stored(folder) == before, "it has changed something all the same"


def test_a_program_that_is_broken_is_told_with_where(there: Command):
    assert "ValueError: of their own (broken.py, line 2)" in there("run", "broken", "s", "hi").err
    assert "(typo.py, line 1)" in there("run", "typo.py", "s", "hi").err
    assert "SystemExit" in there("run", "leaves", "s", "hi").err


def typed(folder: Path, line: str, **more: object) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")} | {"PERDURE_STORE": "agents.db"}
    line = f"exec {shlex.quote(sys.executable)} -m perdure.cli {line}"
    return subprocess.Popen(["sh", "-c", line], cwd=folder, env=env, stderr=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize("line", ["ls", "show s", "show s --json", "schema"])
def test_output_that_cannot_be_written_is_told(folder: Path, line: str):
    process = typed(folder, f"{line} > /dev/full")
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said.count("\n")) == (1, 1), said
    assert "No space left on device" in said


@pytest.mark.parametrize("line", ["ls >&-", "show s --json >&-", "ls >&- 2>&-"])
def test_a_command_whose_output_nobody_wants_ends_well(folder: Path, line: str):
    process = typed(folder, line)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, "")


SLOW = """
import asyncio
from pathlib import Path
from perdure import Agent

class Model:
    name = "slow"

    async def answer(self, request, on_delta=None):
        Path("asked").touch()
        await asyncio.sleep(600)

    async def close(self):
        pass

agent = Agent("slow", model=Model())
"""
LOADING = "from pathlib import Path\nimport time\nPath('asked').touch()\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    "line",
    ['fork s@1 --set \'vars={"a": 1, "a": 2}\'', 'resolve s ef_1 --done \'{"a": 1, "a": 2}\''],
)
def test_json_with_a_name_given_twice_is_neither_taken_nor_taken_for_a_text(folder: Path, line: str):
    with perdure.open(f"sqlite:///{folder}/twice.db") as db, db.session("s") as s:
        s.commit()
    process = typed(folder, f"{line} --store twice.db", stdout=subprocess.PIPE)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, '"a" was given twice' in err) == (2, True), err
    with perdure.open(f"sqlite:///{folder}/twice.db") as db:
        assert [head.branch for head in db.look("s").heads] == ["main"]


INTERRUPTED = """
import os, signal, sys

def press():
    os.kill(os.getpid(), signal.SIGINT)

class Loading:
    def find_spec(self, name, *_):
        if name == when:
            press()

when = sys.argv.pop(1)
assert when not in sys.modules
sys.meta_path.insert(0, Loading())
if when == "the end":
    import atexit
    atexit.register(press)
from perdure.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("when", ["perdure.cli.program", "typer.core", "perdure.cli.sessions", "the end"])
def test_an_interrupt_at_the_first_and_at_the_last_moment_leaves_no_traceback(tmp_path: Path, when: str):
    argv = [sys.executable, "-c", INTERRUPTED, when, "--version"]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE)
    # A shell calls both 130; at the end there is nothing left to end but the process.
    assert ended.returncode == (-signal.SIGINT if when == "the end" else 130)
    assert ended.stderr == ""


@pytest.mark.parametrize("line", ["run slow x hi", "run slow s --branch b", "migrate loading --schema 2.0.0"])
def test_an_interrupt_in_the_middle_ends_with_130(folder: Path, line: str):
    (folder / "slow.py").write_text(SLOW)
    (folder / "loading.py").write_text(LOADING)
    process = typed(folder, line, stdout=subprocess.PIPE)
    try:
        end = time.monotonic() + PATIENCE
        while not (folder / "asked").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
