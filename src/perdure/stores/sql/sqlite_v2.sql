-- From version 1 of the SQLite store to version 2: a session says who works on it, and what error it stands at.

alter table sessions add column agent text not null default '';
alter table sessions add column error text not null default '';
-- What error they stand at now: that of the newest checkpoint, which is the head of some branch.
update sessions set error = newest.error
from (
    select h.no, c.error, max(c.seq)    -- beside max(), columns are those of the row that has it
    from (
        select no, line, step from sessions where head is not null
        union all
        select no, line, step from branches) h
    join commits c on c.no = h.no and c.line = h.line and c.step = h.step
    group by h.no) newest
where newest.no = sessions.no and newest.error <> '';

update meta set value = 2 where key = 'schema';
