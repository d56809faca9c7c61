-- Version 1 of the SQLite store. Envelopes and payloads are sealed; the other columns of commits are
-- projections of the envelope, for queries only. Newer versions keep the table meta as it is here.

create table meta (
    key text primary key,
    value any not null
) strict, without rowid;

-- A tombstone is a session with a reason: it has no commits and keeps its token.
create table sessions (
    no integer primary key,
    id text not null unique,
    owner text not null,
    agent text not null default '',     -- who works on it
    status text not null,               -- as the branch "main" has it, and so the error and the label
    error text not null default '',
    label text not null default '',     -- where it stands in the program's own words
    created integer not null,
    updated integer not null,
    expires integer,
    holder text not null default '',
    token integer not null default 0,
    until integer not null default 0,   -- on the monotonic clock of the boot, in ms
    span integer not null default 0,
    boot text not null default '',
    reason text not null default '',
    lines integer not null default 0,
    posts integer not null default 0,   -- the newest number of an inbox entry; goes on after a tombstone
    line integer,                       -- the head of the branch "main"; null while there is none
    step integer,
    head blob
) strict;
create index sessions_by_owner on sessions (owner, id);
-- A fleet looks for them every few seconds; they are few, whatever the store holds.
create index sessions_running on sessions (no) where status = 'running';
create index sessions_ended on sessions (id) where reason <> '';

-- The heads of all branches but "main", whose head lies in the session's row: one page less per commit.
create table branches (
    no integer not null,
    name text not null,
    line integer not null,
    step integer not null,
    head blob not null,
    primary key (no, name)
) strict, without rowid;

-- A number (seq) is never given twice, not even after the newest rows were deleted: see meta "trimmed".
create table commits (
    seq integer primary key,
    no integer not null,
    line integer not null,
    step integer not null,
    id blob not null,
    digest blob not null,
    kind text not null,
    branch text not null,
    status text not null,
    at integer not null,
    starts integer not null,
    tool text not null,
    error text not null,
    takes text not null,                -- JSON, '' when there are none
    blobs text not null,                -- JSON, '' when there are none
    envelope blob not null,             -- empty, like the payload, once a pack holds the row
    payload blob not null
) strict;
create unique index commits_by_step on commits (no, line, step);
create index commits_starting on commits (no, branch, line) where starts;
create index commits_with_blobs on commits (seq) where blobs <> '';

create table artifacts (
    no integer not null,
    kind text not null,
    line integer not null,
    lo integer not null,
    hi integer not null,
    refs text not null,                 -- JSON, '' when there are none
    blobs text not null,                -- JSON, '' when there are none
    body blob not null,
    primary key (no, kind, line, lo)
) strict;
create index artifacts_with_blobs on artifacts (no) where blobs <> '';

-- An entry that was taken stays, without its body: its key must go on being known.
create table inbox (
    no integer not null,
    seq integer not null,               -- its number in the session
    key text not null,
    kind text not null,
    at integer not null,
    digest blob not null,
    body blob not null,
    taken blob,
    unique (no, key),
    unique (no, seq)
) strict;
create index inbox_waiting on inbox (no, seq) where taken is null;
