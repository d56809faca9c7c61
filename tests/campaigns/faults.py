"""The faults that ``sabotage`` plants, and where the tests of each area are."""

from __future__ import annotations

from typing import NamedTuple

EMBEDDED = ("-k", "not postgres and not redis and not tiered")
AREAS: dict[str, tuple[str, ...]] = {
    "system": ("tests/stores/contract/test_contract.py", "tests/stores/file/test_refusals.py",
               "tests/stores/file/test_handles.py", *EMBEDDED),
    "state": ("tests/state", "tests/session/test_state.py", "tests/campaigns/model/test_model.py", *EMBEDDED),
    "record": ("tests/record", "tests/upkeep/test_verify.py", "tests/campaigns/tamper", *EMBEDDED),
    "stores/memory": ("tests/stores/contract", "-k", "emory"),
    "stores/file": ("tests/stores/contract", "tests/stores/file", "tests/campaigns/crash/test_powerloss.py",
                    "-k", "file or File"),
    "stores/sqlite": ("tests/stores/contract", "tests/stores/sqlite", "-k", "sqlite or Sqlite"),
    "stores/postgres": ("tests/stores/contract", "tests/stores/postgres", "-k", "postgres or Postgres"),
    "stores/redis": ("tests/stores/contract", "tests/stores/redis", "-k", "redis or Redis"),
    "stores/tiered": ("tests/stores/tiered/test_hot.py", "tests/stores/tiered/test_poison.py",
                      "tests/stores/tiered/test_possibly_old.py"),
    "links": ("tests/stores/postgres/test_failing.py", "tests/stores/redis/test_failing.py",
              "tests/campaigns/lost_answers/test_cases.py"),
    "blobs": ("tests/blobs/test_local.py", "tests/blobs/test_contract.py", "tests/blobs/test_local_streams.py",
              *EMBEDDED),
    "session": ("tests/session", "tests/campaigns/crash/test_powerloss.py", *EMBEDDED),
    "history": ("tests/session/test_branches.py", "tests/session/test_branches_status.py",
                "tests/session/test_runs.py", "tests/session/test_calls.py", "tests/session/test_open_effects.py",
                "tests/history", "tests/campaigns/model/test_model.py", *EMBEDDED),
    "upkeep": ("tests/upkeep/test_blob_gc.py", "tests/upkeep/test_retention.py", "tests/upkeep/test_pruning.py",
               "tests/upkeep/test_verify.py", "tests/upkeep/test_witness.py", *EMBEDDED),
    "upkeep/copies": ("tests/upkeep/test_backup.py", "tests/upkeep/test_copy.py", *EMBEDDED),
    "database": ("tests/session/test_state.py", "tests/database", "tests/history", "tests/session/test_writers.py",
                 "tests/state/test_migrations.py", "tests/upkeep/test_sweeping.py", "tests/session/test_bad_input.py",
                 *EMBEDDED),
    "agent": ("tests/agent/test_checkpoints.py", "tests/agent/test_bad_input.py", "tests/agent/test_approvals.py",
              "tests/agent/context/test_window.py", "tests/agent/context/test_compactor.py",
              "tests/agent/models/test_money.py"),
    "agent/models": ("tests/agent/models",),
    "fleet": ("tests/fleet/test_board.py", "tests/fleet/test_board_workers.py", "tests/fleet/test_board_waking.py",
              "tests/fleet/test_worker.py", "-k", "not postgres"),
    "shapes": ("tests/server/test_api_schema.py", "tests/server/test_api_sessions.py",
               "tests/server/test_api_branches.py", "tests/cli/test_program.py", "tests/cli/test_every_command.py"),
    "server": ("tests/server/test_api_guard.py", "tests/server/test_events_along.py", "tests/server/test_events.py",
               "tests/server/test_console_pages.py"),
    "cli": ("tests/cli/test_hostile.py", "tests/cli/test_program.py", "tests/cli/test_which_database.py",
            "tests/cli/test_branches.py", "tests/cli/test_sessions.py"),
    "telemetry": ("tests/telemetry",),
    "doctor": ("tests/doctor",),
}  # fmt: skip
"""What pytest is told to run for each area. When tests move, this is the place to say so."""


class Fault(NamedTuple):
    """Something that is done wrong on purpose."""

    name: str
    area: str
    breaks: str
    find: str
    """Stands once, in one file of the source, whatever the file is called."""
    put: str


FAULTS: tuple[Fault, ...] = (
    # -- system ----------------------------------------------------------------------------------------------------
    Fault(
        "short-write", "system",
        "The rest of a write that a disk took only in part is taken for written.",
        "        more = disk.write(fd, data[done:], offset + done)",
        "        more = len(data) - done",
    ),
    # -- state -----------------------------------------------------------------------------------------------------
    Fault(
        "delta-splice", "state",
        "Applying a splice of a list takes one value too many out.",
        "        list.__setitem__(target, slice(start, start + count), values)",
        "        list.__setitem__(target, slice(start, start + count + 1), values)",
    ),
    # -- record ----------------------------------------------------------------------------------------------------
    Fault(
        "chain-digest", "record",
        "The digest of a checkpoint does not cover its parent's, so that history can be rearranged.",
        r'b"checkpoint\0\x20\0\0\0\0\0\0\0", parent, len(envelope)',
        r'b"checkpoint\0\x20\0\0\0\0\0\0\0", ZERO, len(envelope)',
    ),
    Fault(
        "digest-unchecked", "record",
        "A row is read without comparing its digest.",
        "    if not hmac.compare_digest(found, row.digest):",
        "    if not hmac.compare_digest(found, found):",
    ),
    Fault(
        "pack-reading", "record",
        "A list read out of packs gets the first values of a pack where it needs later ones.",
        "out.extend(values[taken : taken + count])",
        "out.extend(values[:count])",
    ),
    # -- stores ----------------------------------------------------------------------------------------------------
    Fault(
        "fencing-token", "stores/memory",
        "Any writer with a token may write while somebody holds the lease, also one that lost it.",
        "    if lease.holder and lease.token == token:",
        "    if lease.holder:",
    ),
    Fault(
        "lease-expiry", "stores/memory",
        "A lease of this boot never runs out.",
        "            left = lease.until - now",
        "            left = lease.span",
    ),
    Fault(
        "compare-and-swap", "stores/file",
        "A commit is refused only if it begins a branch that is there, not if the head has moved.",
        "        if (head.id if head else None) != item.expect:\n            return rules.moved(item, head)\n"
        "        if there is not None or (item.starts and item.line < self._lines):",
        "        if head is not None and item.expect is None:\n            return rules.moved(item, head)\n"
        "        if there is not None or (item.starts and item.line < self._lines):",
    ),
    Fault(
        "tombstone-token", "stores/file",
        "A tombstone forgets the fencing tokens that were given out before.",
        "    index, token = file.index, max(file.index.token, file.lease().token)",
        "    index, token = file.index, 0",
    ),
    Fault(
        "commit-unsynced", "stores/file",
        "A commit is acknowledged before it is synced.",
        "            sync(self._disk, self._fd, self.path)\n        except Poisoned:",
        "            pass\n        except Poisoned:",
    ),
    Fault(
        "commit-again", "stores/sqlite",
        "A commit that has landed, sent again because its answer was lost, is refused.",
        "        if head != item.expect and (landed := _landed(cursor, no, item)):\n            return landed",
        "        landed = None",
    ),
    Fault(
        "cursor-epoch", "stores/sqlite",
        "A cursor of the list of changes is believed after the store's past has changed.",
        "    if cursor.epoch != epoch or cursor.seq > newest:",
        "    if cursor.seq > newest:",
    ),
    Fault(
        "postgres-token", "stores/postgres",
        "The function that gives out leases gives the next holder the fencing token of the one before.",
        "        number := nextval('$schema.perdure_token');",
        "        number := greatest(s.token, 1);",
    ),
    Fault(
        "lua-fencing", "stores/redis",
        "The scripts let any writer with a token write while somebody holds the lease.",
        "    if alive and current == token then return nil end",
        "    if alive then return nil end",
    ),
    Fault(
        "tiered-stale", "stores/tiered",
        "What the hot tier holds counts as the newest without asking the cold store.",
        "        return row is not None and any(head[1:] == tip[:3] for head in row.heads)",
        "        return row is not None",
    ),
    Fault(
        "tiered-dropped", "stores/tiered",
        "What maintenance has dropped stays in the hot tier.",
        "            self._hot.forget([self._key(change.session, line) for line in sorted(lines)])",
        "            self._hot.forget([])",
    ),
    # -- links -----------------------------------------------------------------------------------------------------
    Fault(
        "postgres-lost-answer", "links",
        "When PostgreSQL's answer to a write was lost, callers are told that nothing was written.",
        "                if sent and writes:",
        "                if sent and writes and not what:",
    ),
    # -- blobs -----------------------------------------------------------------------------------------------------
    Fault(
        "blob-unsynced", "blobs",
        "A blob gets its name before its content is synced.",
        "                sync(self._disk, fd, path)\n",
        "                pass\n",
    ),
    # -- session ---------------------------------------------------------------------------------------------------
    Fault(
        "journal-order", "session",
        "A call is made before the journal durably says that it was started.",
        "            yield from self._journal.write(\n                Kind.STARTED, x=about(record), "
        "status=Status.RUNNING, edit=lambda: self._mark_started(record)\n            )",
        "            self._mark_started(record)",
    ),
    Fault(
        "approval-used", "session",
        "An approval is not used up by the call it was given for.",
        'and request["status"] == "approved":\n            request["status"] = "used"',
        'and request["status"] == "approved":\n            request["status"] = "approved"',
    ),
    Fault(
        "approval-facts", "session",
        "An approved call is made although the facts it rested on have changed.",
        "                if not because and not (\n                    yield from self._still_good(",
        "                if not because and facts is None and not (\n                    yield from self._still_good(",
    ),
    Fault(
        "inbox-take", "session",
        "Of several inputs that a commit answers it takes the first only; the others are given again.",
        '            x["takes"] = [e.key for e in self.takes]',
        '            x["takes"] = [self.takes[0].key]',
    ),
    Fault(
        "blob-before-commit", "session",
        "Blobs are put after the commit that names them.",
        "                yield Do(self.kernel.keep, (ref, held))\n"
        '        faults.point("commit.before_write")\n'
        "        began = perf_counter() if telemetry.sinks else 0.0\n"
        "        sent.extend(p.item.id for p in (*ahead, pending))\n"
        "        try:\n"
        "            answer: Landed | PerdureError = yield Write(item, tuple(p.item for p in ahead))\n",
        "                pass\n"
        '        faults.point("commit.before_write")\n'
        "        began = perf_counter() if telemetry.sinks else 0.0\n"
        "        sent.extend(p.item.id for p in (*ahead, pending))\n"
        "        try:\n"
        "            answer: Landed | PerdureError = yield Write(item, tuple(p.item for p in ahead))\n"
        "            for ref, held in blobs.items():\n"
        "                yield Do(self.kernel.keep, (ref, held))\n",
    ),
    Fault(
        "cron-again", "session",
        "A wake that repeats is not put there for its next time.",
        "            yield from posted(self._journal.kernel, again)",
        "            pass",
    ),
    # -- history ---------------------------------------------------------------------------------------------------
    Fault(
        "run-diverged", "history",
        "A resumed run that leaves out calls it had made is not told so.",
        "        if missed:",
        "        if missed and not left:",
    ),
    Fault(
        "effect-elsewhere", "history",
        "A call that another branch has made is made again.",
        "        if other:\n            raise self._done_elsewhere(call.tool, other)",
        "        del other",
    ),
    Fault(
        "merge-base", "history",
        "A merge starts from a checkpoint that only one of the two sides stands on.",
        "        common = {line: min(ours[line], other[line]) for line in ours if line in other}",
        "        common = {line: max(ours[line], other[line]) for line in ours if line in other}",
    ),
    # -- upkeep ----------------------------------------------------------------------------------------------------
    Fault(
        "collection-recheck", "upkeep",
        "References that came while blobs were marked are not looked at before the others are deleted.",
        "        unmarked -= set(kernel.store.blob_refs())",
        "        unmarked -= named",
    ),
    Fault(
        "anchor-blobs", "upkeep",
        "An anchor does not name the blobs of its state, which go with the rows it stands for.",
        'Artifact(ANCHOR, env.line, gap.lo, gap.hi, b"", (), blobs_in(source, skeleton.doc))',
        'Artifact(ANCHOR, env.line, gap.lo, gap.hi, b"", (), ())',
    ),
    Fault(
        "witness", "upkeep",
        "A checkpoint that was put in the place of one the witness saw is not noticed.",
        "    if row is not None and (row.id.hex(), row.digest.hex()) == (one.id, one.digest):",
        "    if row is not None:",
    ),
    Fault(
        "witness-forgets", "upkeep",
        "What a witness saw is replaced by what was noted after the store had been put back.",
        "        elif one[:6] != known[:6]:",
        "        elif one[:6] != known[:6] and one.step == known.step + 1:",
    ),
    Fault(
        "tombstone-unsigned", "upkeep",
        "A tombstone is believed whoever has written it.",
        "    if not hmac.compare_digest(_tag(keys, said.key, store, session, why, stone), said.tag):",
        "    if not hmac.compare_digest(said.tag, said.tag):",
    ),
    Fault(
        "restore-epoch", "upkeep/copies",
        "After a restore, leases and cursors of the past that was replaced still count.",
        "            if whole:\n                kernel.store.renew_epoch()",
        "            if whole and not whole:\n                kernel.store.renew_epoch()",
    ),
    Fault(
        "copy-read-back", "upkeep/copies",
        "A copy is not read back and compared.",
        "        if self._options.verify and not self.dry_run:",
        "        if self._options.verify and not self._options.verify:",
    ),
    # -- database --------------------------------------------------------------------------------------------------
    Fault(
        "owner", "database",
        "A session of one owner is opened for another.",
        "            check_owner(session, env.owner, owner)\n",
        "            pass\n",
    ),
    # -- agent -----------------------------------------------------------------------------------------------------
    Fault(
        "loop-order", "agent",
        "The calls of an answer are made before the answer is committed.",
        "        await self._commit(answer, request, model)",
        "        await self.calls.settle()\n        await self._commit(answer, request, model)",
    ),
    Fault(
        "window-pinned", "agent",
        "Pinned messages are cut from the window with the others.",
        "        if any(window.stays(messages[i]) for i in piece):",
        "        if len(piece) > 1 and any(window.stays(messages[i]) for i in piece):",
    ),
    Fault(
        "limit-money", "agent",
        "A run goes on when it has spent what it may.",
        "        if self.max_cost is not None and spent.cost >= self.max_cost:",
        "        if self.max_cost is not None and spent.cost >= 1000 * self.max_cost:",
    ),
    Fault(
        "limit-tokens", "agent",
        "The tokens that are sent do not count for the budget of a run.",
        "        if self.max_tokens is not None and spent.input + spent.output >= self.max_tokens:",
        "        if self.max_tokens is not None and spent.output >= self.max_tokens:",
    ),
    Fault(
        "retry-after", "agent/models",
        "A provider that asks to wait is not listened to.",
        "        return own if after is None else max(own, after + own * 0.2 * chance)",
        "        return own",
    ),
    Fault(
        "price", "agent/models",
        "Tokens that the provider had in its cache are paid for twice.",
        "        return ((usage.input - cached) * self.input + cached * rate + usage.output * self.output) / _MILLION",
        "        return (usage.input * self.input + cached * rate + usage.output * self.output) / _MILLION",
    ),
    # -- fleet -----------------------------------------------------------------------------------------------------
    Fault(
        "takeover", "fleet",
        "What a dead worker had is not queued for the others.",
        "            return [work for worker in lost for work in self._free(cursor, worker)]",
        "            return []",
    ),
    Fault(
        "board-rest", "fleet",
        "A worker puts down a session that another one has by now.",
        '    " where session = ? and worker = ?"\n',
        "    \" where session = ? and ? <> ''\"\n",
    ),
    Fault(
        "retry-forever", "fleet",
        "A session whose runs keep failing is never parked.",
        "            if work.tries >= most:\n                return rest._replace(failed=True, park=",
        "            if work.tries < 0:\n                return rest._replace(failed=True, park=",
    ),
    # -- shapes ----------------------------------------------------------------------------------------------------
    Fault(
        "shape-schema", "shapes",
        "The schema of a command that prints one of several shapes names the first only.",
        '    whole = {"anyOf": [first, *others]} if others else first',
        "    whole = first",
    ),
    # -- server ----------------------------------------------------------------------------------------------------
    Fault(
        "event-twice", "server",
        "Whoever comes back to a stream of events is told the last commit again.",
        "            at = self.position.step if line == self.position.line else first - 1",
        "            at = max(self.position.step - 1, 0) if line == self.position.line else first - 1",
    ),
    Fault(
        "auth-token", "server",
        "The beginning of the token, be it empty, is as good as the token.",
        '    return hmac.compare_digest(told.encode("utf-8", "replace"), known.encode())',
        "    return known.startswith(told)",
    ),
    Fault(
        "host-check", "server",
        "The server answers by whatever name it is called.",
        "        if self._any or name in self._names or address_of(name) is not None:",
        "        if self._any or name in self._names or name:",
    ),
    Fault(
        "html-escaping", "server",
        "What agents wrote is put into pages as it is.",
        "        autoescape=True,",
        "        autoescape=False,",
    ),
    # -- cli -------------------------------------------------------------------------------------------------------
    Fault(
        "hostile-text", "cli",
        "Characters that turn the direction of text around reach the terminal.",
        '_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"))',
        '_HIDDEN = frozenset(("Cc", "Cs", "Cn", "Co", "Zl", "Zp"))',
    ),
    Fault(
        "exit-codes", "cli",
        "A shell is not told that somebody else was first.",
        "    if isinstance(error, (LeaseError, Conflict)) and not isinstance(error, MergeConflict):",
        "    if isinstance(error, LeaseError) and not isinstance(error, MergeConflict):",
    ),
    # -- telemetry -------------------------------------------------------------------------------------------------
    Fault(
        "counted-twice", "telemetry",
        "A recorded outcome that is used counts twice.",
        "    record(i.REPLAYS, 1, {i.TOOL: tool, i.SOURCE: source})",
        "    record(i.REPLAYS, 2, {i.TOOL: tool, i.SOURCE: source})",
    ),
    Fault(
        "content-told", "telemetry",
        "Spans tell what was said although nobody asked for it.",
        '    shown = os.environ.get(CONTENT, "") == "1" if content is None else content',
        '    shown = os.environ.get(CONTENT, "") != "0" if content is None else content',
    ),
    # -- doctor ----------------------------------------------------------------------------------------------------
    Fault(
        "doctor-saves", "doctor",
        "An app that saves many answers together is called healthy.",
        '    if most.get("answers", 0) > 1:',
        '    if most.get("answers", 0) > 100:',
    ),
)  # fmt: skip
