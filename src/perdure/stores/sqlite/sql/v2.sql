-- From version 1 of the SQLite store to version 2: a session says who works on it, and what error it stands at;
-- and it is the branch "main" that says where it stands.

alter table sessions add column agent text not null default '';
alter table sessions add column error text not null default '';
-- Where they stand now: at the head of "main" or, where there is none, at the newest of the other heads.
update sessions set status = newest.status, error = newest.error
from (
    select h.no, c.status, c.error, max(c.seq)    -- beside max(), columns are those of the row that has it
    from (
        select no, line, step from sessions where head is not null
        union all
        select b.no, b.line, b.step from branches b join sessions s on s.no = b.no where s.head is null) h
    join commits c on c.no = h.no and c.line = h.line and c.step = h.step
    group by h.no) newest
where newest.no = sessions.no and (newest.error <> '' or newest.status <> sessions.status);

-- A fleet looks for them every few seconds; they are few, whatever the store holds.
create index sessions_running on sessions (no) where status = 'running';

update meta set value = 2 where key = 'schema';
