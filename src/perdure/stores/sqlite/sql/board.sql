-- The board of a fleet, version 1, beside the tables of the store. It is made when it is first asked for, so a
-- database without a fleet pays nothing for it. See _sqlite_board.py for how it is used.

-- rank: the place in the queue; null when it is not in the queue. touched: there is something to do as soon as
-- nothing stands against it (a worker that has it, a pause, a parking). due: by the wall clock, in ms.
create table if not exists fleet_work (
    no integer primary key,             -- the session's, as in the other tables
    session text not null unique,
    agent text not null,
    owner text not null,
    priority integer not null,
    rank integer,
    due integer,
    worker text not null default '',
    since integer not null default 0,
    tries integer not null default 0,
    step integer not null default 0,
    parked text not null default '',
    paused integer not null default 0,
    avoid_version text not null default '',
    touched integer not null default 0
) strict;
-- A lane is what the same workers can claim, at a priority. Its queue, and each owner's part in it.
create index if not exists fleet_lanes on fleet_work (agent, avoid_version, priority desc, rank) where rank is not null;
create index if not exists fleet_lane_owners on fleet_work (agent, avoid_version, priority, owner, rank)
    where rank is not null;
create index if not exists fleet_due on fleet_work (due)
    where due is not null and rank is null and worker = '' and parked = '' and paused = 0;
create index if not exists fleet_by_worker on fleet_work (worker) where worker <> '';
create index if not exists fleet_by_owner on fleet_work (owner) where worker <> '';

-- One row: the highest rank that was ever claimed. A lane that was empty goes on from there.
create table if not exists fleet_place (
    one integer primary key check (one = 1),
    reached integer not null
) strict;
insert or ignore into fleet_place values (1, 0);

create table if not exists fleet_workers (
    id text primary key,
    host text not null default '',
    pid integer not null default 0,
    version text not null default '',
    agents text not null default '',    -- JSON, '' when there are none
    concurrency integer not null default 0,
    busy integer not null default 0,
    started integer not null default 0,
    done integer not null default 0,
    recovered integer not null default 0,
    wish text not null default '',
    seen integer not null,              -- on the monotonic clock of the boot, in ms
    boot text not null
) strict, without rowid;

create table if not exists fleet_holds (
    agent text primary key
) strict, without rowid;

create table if not exists fleet_slots (
    name text not null,
    holder text not null,
    until integer not null,             -- on the monotonic clock of the boot, in ms
    boot text not null,
    primary key (name, holder)
) strict, without rowid;

-- The one place where sessions get into the queue. Owners in turns (start-time fair queueing): a session stands
-- behind the last one of its owner, and an owner who has none there begins right behind the first of the lane.
-- What stands first in a lane that nobody serves stays first, so new owners of it still begin at its front.
-- What was freed from a dead worker stands before that first one and is not counted: otherwise whoever comes while
-- workers die would overtake those who have waited all the time.
create trigger if not exists fleet_queue_changed after update of touched, worker, paused, parked on fleet_work
when new.touched and new.rank is null and new.worker = '' and new.parked = '' and not new.paused
begin
    update fleet_work set touched = 0, rank = 1 + max(
        coalesce(
            (select rank from fleet_work where agent = new.agent and avoid_version = new.avoid_version and priority = new.priority
                and rank is not null and tries = 0 order by rank limit 1),
            (select reached from fleet_place)
        ),
        coalesce(
            (select rank from fleet_work where agent = new.agent and avoid_version = new.avoid_version and priority = new.priority
                and owner = new.owner and rank is not null order by rank desc limit 1),
            -9223372036854775807
        )
    ) where no = new.no;
end;
-- A new row comes in untouched and is touched at once, so that the rule stands only once.
create trigger if not exists fleet_queue_added after insert on fleet_work
begin
    update fleet_work set touched = 1 where no = new.no;
end;

-- Whoever posts, from whatever process, wakes the session. A timer does when it is due, anything else now. What
-- is in the queue already need not be told: the worker that claims it looks into the inbox. What some version could not
-- go on with, it perhaps can once somebody has decided, or told an outcome: every version may claim it again.
create trigger if not exists fleet_posted after insert on inbox when new.taken is null
begin
    update fleet_work set
        touched = iif(new.kind in ('wake', 'cron') or (new.kind = 'message' and rank is not null), touched, 1),
        due = iif(new.kind in ('wake', 'cron') and rank is null, min(coalesce(due, new.at), new.at), due),
        avoid_version = iif(new.kind in ('message', 'wake', 'cron'), avoid_version, ''),
        rank = iif(new.kind in ('message', 'wake', 'cron'), rank, null)
    where no = new.no and (rank is null or avoid_version <> '');
end;

-- A session that is deleted has nothing to do any more.
create trigger if not exists fleet_dropped after update of reason on sessions when new.reason <> ''
begin
    delete from fleet_work where no = new.no;
end;

insert or ignore into meta values ('board', 1);
