-- Version 1 of the PostgreSQL store: its tables. "$schema" stands for the schema that holds them all.
-- Envelopes and payloads are sealed; the other columns of perdure_row are projections of the envelope, for
-- queries only. Newer versions keep the columns of perdure_meta as they are here.

create table $schema.perdure_meta (
    one boolean primary key default true check (one),
    version integer not null,
    id text not null,
    epoch text not null,
    -- Where the epoch was given: another cluster or timeline means that the past may be another one.
    cluster text not null,
    timeline integer not null,
    -- Of deleted rows that are no longer listed in perdure_trimmed, the newest transaction.
    trimmed xid8 not null default '0'
);

create sequence $schema.perdure_token;
create sequence $schema.perdure_no;
create sequence $schema.perdure_seq;

-- A tombstone is a session with a reason: it has no rows and keeps its token. Every life has a number of its
-- own, so what is left of the last one is out of sight at once and deleted bit by bit.
create table $schema.perdure_session (
    no bigint not null default nextval('$schema.perdure_no'),
    created bigint not null,
    updated bigint not null,
    expires bigint,
    token bigint not null default 0,
    until bigint not null default 0,    -- server time, in ms
    span bigint not null default 0,
    claim bigint not null default 0,    -- of the last call that must not be done twice
    pos xid8 not null default '0',      -- of the newest row
    rows bigint not null default 0,
    bytes bigint not null default 0,
    posts bigint not null default 0,    -- the newest number of an inbox entry of an earlier life
    lines integer not null default 0,
    line integer,                       -- the head of the branch "main"; null while there is none
    step integer,
    head bytea,
    id text collate "C" primary key,
    owner text collate "C" not null default '',
    agent text collate "C" not null default '',    -- who works on it
    status text not null,               -- as the branch "main" has it, and so the error and the label
    error text not null default '',
    label text not null default '',     -- where it stands in the program's own words
    holder text not null default '',
    reason text not null default ''
) with (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
create unique index perdure_session_no on $schema.perdure_session (no);
create index perdure_session_owner on $schema.perdure_session (owner, id);

-- The heads of all branches but "main", whose head lies in the session's row.
create table $schema.perdure_branch (
    no bigint not null,
    line integer not null,
    step integer not null,
    name text collate "C" not null,
    head bytea not null,
    primary key (no, name)
) with (fillfactor = 60);

-- pos orders the rows of each session as they were written: it is the number of the transaction, or that of
-- the row before where this is greater. xid is the transaction's own number where it is another one.
create table $schema.perdure_row (
    seq bigint not null default nextval('$schema.perdure_seq'),
    pos xid8 not null,
    no bigint not null,
    at bigint not null,
    line integer not null,
    step integer not null,
    starts boolean not null,
    id bytea not null,
    digest bytea not null,
    kind text not null,
    branch text not null,
    status text not null,
    envelope bytea not null,            -- empty, like the payload, once a pack holds the row
    payload bytea not null,
    xid xid8,
    tool text,
    error text,
    run text,
    effect text,
    approval text,
    takes jsonb,
    blobs jsonb
) with (
    -- Room for the thin versions of all rows of a page: emptying them then touches no index.
    fillfactor = 88, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.2
);
alter table $schema.perdure_row alter envelope set storage external, alter payload set storage external;
create unique index perdure_row_place on $schema.perdure_row (no, line, step);
create index perdure_row_pos on $schema.perdure_row (pos, seq);
create index perdure_row_starting on $schema.perdure_row (no, line) where starts;
create index perdure_row_blobs on $schema.perdure_row (seq) where blobs is not null;
create index perdure_row_failed on $schema.perdure_row (at) where error is not null;
create index perdure_row_effect on $schema.perdure_row (effect) where effect is not null;

create table $schema.perdure_artifact (
    no bigint not null,
    line integer not null,
    lo integer not null,
    hi integer not null,
    kind text not null,
    body bytea not null,
    refs jsonb,
    blobs jsonb,
    primary key (no, kind, line, lo)
) with (autovacuum_vacuum_scale_factor = 0.05);
alter table $schema.perdure_artifact alter body set storage external;
create index perdure_artifact_blobs on $schema.perdure_artifact (no) where blobs is not null;

-- An entry that was taken stays, without its body: its key must go on being known.
create table $schema.perdure_inbox (
    seq bigint not null,                -- its number in the session
    no bigint not null,
    at bigint not null,
    key text collate "C" not null,
    kind text not null,
    digest bytea not null,
    body bytea not null,
    taken bytea,
    primary key (no, key)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
alter table $schema.perdure_inbox alter body set storage external;
create unique index perdure_inbox_seq on $schema.perdure_inbox (no, seq);
create index perdure_inbox_waiting on $schema.perdure_inbox (no, seq) where taken is null;

-- The newest row of each deletion: whoever has not read it has missed it.
create table $schema.perdure_trimmed (
    xid xid8 not null,
    pos xid8 not null,
    seq bigint not null
);

-- What is out of sight and still to be deleted: a whole life (line is null) or steps of a line.
create table $schema.perdure_garbage (
    no bigint not null,
    line integer,
    lo integer,
    hi integer
);
