-- The board of a fleet, beside the store: its tables, and what a post to an inbox does to it. "$schema" stands for
-- the schema of both. Sessions, agents, owners and workers are kept as the store keeps texts.

create table $schema.perdure_fleet_meta (
    one boolean primary key default true check (one),
    version integer not null
);
insert into $schema.perdure_fleet_meta (version) values (1);

-- Who stands in the queue has a rank. Who is touched has something to do, and stands in the queue as soon as nothing
-- is against it: a worker that has it, a pause, a parking.
create table $schema.perdure_fleet_work (
    rank bigint,
    turn bigint not null default 0,     -- when it was queued, in us: decides among equals
    due bigint,
    since bigint not null default 0,
    claim bigint not null default 0,    -- of the call that claimed it
    step bigint not null default 0,
    priority integer not null default 0,
    tries integer not null default 0,
    touched boolean not null default true,
    paused boolean not null default false,
    session text collate "C" primary key,
    agent text collate "C" not null,
    owner text collate "C" not null default '',
    worker text collate "C" not null default '',
    avoid_version text collate "C" not null default '',
    parked text not null default ''
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- A lane is what the same workers can claim, at a priority. Its queue, and each owner's part in it.
create index perdure_fleet_work_lane on $schema.perdure_fleet_work (agent, avoid_version, priority desc, rank, turn)
    where rank is not null;
create index perdure_fleet_work_owner on $schema.perdure_fleet_work (agent, avoid_version, priority, owner, rank)
    where rank is not null;
create index perdure_fleet_work_avoid on $schema.perdure_fleet_work (agent, avoid_version) where rank is not null and avoid_version <> '';
create index perdure_fleet_work_due on $schema.perdure_fleet_work (due)
    where due is not null and rank is null and worker = '' and parked = '' and not paused;
create index perdure_fleet_work_busy on $schema.perdure_fleet_work (worker, owner) where worker <> '';

-- Of each priority the highest rank that was claimed. A lane that was empty goes on from there.
create table $schema.perdure_fleet_place (
    priority integer primary key,
    reached bigint not null
) with (fillfactor = 10);

create table $schema.perdure_fleet_worker (
    started bigint not null default 0,
    seen bigint not null,               -- server time, in ms
    done bigint not null default 0,
    recovered bigint not null default 0,
    pid bigint not null default 0,
    concurrency integer not null default 0,
    busy integer not null default 0,
    id text collate "C" primary key,
    host text not null default '',
    version text not null default '',
    agents text[] not null default '{}',
    wish text not null default ''
) with (fillfactor = 30);

create table $schema.perdure_fleet_held (agent text collate "C" primary key);

create table $schema.perdure_fleet_slot (
    until bigint not null,              -- server time, in ms
    name text collate "C" not null,
    holder text collate "C" not null,
    primary key (name, holder)
);

-- Sessions that nobody works on although they stand in mid-run are looked for often.
create index perdure_session_running on $schema.perdure_session (id) where status = 'running' and agent <> '';

create function $schema.perdure_fleet_state(w $schema.perdure_fleet_work) returns text language sql immutable
return case when w.parked <> '' then 'parked' when w.paused then 'paused' when w.worker <> '' then 'working'
    when w.rank is not null then 'queued' else 'waiting' end;

create function $schema.perdure_fleet_turn() returns bigint language sql volatile
return (extract(epoch from clock_timestamp()) * 1000000)::bigint;

-- The lowest rank of a lane; where the queue has come to when the lane is empty.
create function $schema.perdure_fleet_front(p_agent text, p_avoid_version text, p_priority integer) returns bigint
language sql volatile
return coalesce(
    (select w.rank from $schema.perdure_fleet_work w
     where w.agent = p_agent and w.avoid_version = p_avoid_version and w.priority = p_priority and w.rank is not null
     order by w.rank limit 1),
    (select p.reached from $schema.perdure_fleet_place p where p.priority = p_priority),
    0);

-- The one place where sessions get into the queue. Owners in turns (start-time fair queueing): a session stands
-- behind the last one of its owner, and an owner who has none there begins right behind the first of the lane. An
-- owner's ranks are two apart, so that right behind the first is before the second.
create function $schema.perdure_fleet_queue() returns trigger language plpgsql volatile as $body$
begin
    new.touched := false;
    new.turn := $schema.perdure_fleet_turn();
    -- What perdure_fleet_front gives, without the cost of a call.
    new.rank := greatest(
        1 + coalesce(
            (select w.rank from $schema.perdure_fleet_work w
             where w.agent = new.agent and w.avoid_version = new.avoid_version and w.priority = new.priority and w.rank is not null
                and w.tries = 0
             order by w.rank limit 1),
            (select p.reached from $schema.perdure_fleet_place p where p.priority = new.priority),
            0),
        (select w.rank + 2 from $schema.perdure_fleet_work w
         where w.agent = new.agent and w.avoid_version = new.avoid_version and w.priority = new.priority and w.owner = new.owner
            and w.rank is not null
         order by w.rank desc limit 1));
    return new;
end
$body$;
create trigger perdure_fleet_queue before insert or update on $schema.perdure_fleet_work for each row
    when (new.touched and new.rank is null and new.worker = '' and new.parked = '' and not new.paused)
    execute function $schema.perdure_fleet_queue();

-- What is posted to a session on the board touches it, in the transaction that posts: at once, or when its time
-- comes. The row is always updated, also when that changes nothing: until the post is committed nobody then claims
-- the session or puts it down, either of whom would not see what was posted. What some version could not go on with,
-- it perhaps can once somebody has decided, or told an outcome: every version may claim it again.
create function $schema.perdure_fleet_posted() returns trigger language plpgsql volatile as $body$
declare
    v_session text;
begin
    select s.id into v_session from $schema.perdure_session s where s.no = new.no;
    if new.kind in ('wake', 'cron') then
        update $schema.perdure_fleet_work w set due = least(w.due, new.at) where w.session = v_session;
    elsif new.kind = 'message' then
        update $schema.perdure_fleet_work w set touched = w.rank is null where w.session = v_session;
    else
        update $schema.perdure_fleet_work w
        set touched = w.rank is null or w.avoid_version <> '', rank = case when w.avoid_version = '' then w.rank end, avoid_version = ''
        where w.session = v_session;
    end if;
    return null;
end
$body$;
create trigger perdure_fleet_posted after insert on $schema.perdure_inbox
    for each row when (new.taken is null) execute function $schema.perdure_fleet_posted();

-- A session that is deleted has nothing to do any more.
create function $schema.perdure_fleet_dropped() returns trigger language plpgsql volatile as $body$
begin
    delete from $schema.perdure_fleet_work w where w.session = new.id;
    return null;
end
$body$;
create trigger perdure_fleet_dropped after update of reason on $schema.perdure_session
    for each row when (new.reason <> '') execute function $schema.perdure_fleet_dropped();
