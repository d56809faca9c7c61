-- What is done on the board. Every statement sees what was committed before it began (read committed), so what is
-- asked after a lock was waited for is never older than what the lock protects. Rows are waited for in the order of
-- their sessions, by posts too; claims wait for none. p_mono is a test's clock in the place of the server's own.

-- Puts sessions on the board and queues them; gives how many were new, or null when more than p_most would be queued
-- then: the caller undoes it.
create function $schema.perdure_fleet_put(
    p_session text[], p_agent text[], p_owner text[], p_priority bigint[], p_most bigint
) returns bigint language plpgsql volatile as $body$
declare
    v_new bigint;
begin
    if cardinality(p_session) > 1 or p_most is not null then
        -- One at a time: they may bring the same new sessions, in any order; and two that each see room for one more
        -- must not both take it.
        perform pg_advisory_xact_lock(hashtextextended('$schema.perdure_fleet_put', 0));
        perform 1 from $schema.perdure_fleet_work w where w.session = any (p_session) order by w.session for update;
    end if;
    with done as (
        insert into $schema.perdure_fleet_work as w (session, agent, owner, priority)
        select u.session, u.agent, u.owner, u.priority
        from unnest(p_session, p_agent, p_owner, p_priority) with ordinality
            as u (session, agent, owner, priority, place)
        order by u.place
        -- A session that changes its lane leaves the queue there, and is queued anew.
        on conflict (session) do update
        set agent = excluded.agent, priority = excluded.priority,
            owner = case when excluded.owner = '' then w.owner else excluded.owner end,
            rank = case when w.agent = excluded.agent and w.priority = excluded.priority
                and excluded.owner in ('', w.owner) then w.rank end,
            touched = true
        returning (xmax = 0) as fresh)
    select count(*) filter (where d.fresh) into v_new from done d;
    -- No entry of an index is smaller than this: as long as it is small there is no need to count them.
    if p_most < pg_relation_size('$schema.perdure_fleet_work_lane') / 32 and p_most < (
        select count(*) from (
            select from $schema.perdure_fleet_work w where w.rank is not null limit p_most + 1) as queued)
    then
        return null;
    end if;
    return v_new;
end
$body$;

-- Queues what is due. Whoever claims does this first, so that nobody must keep time.
create function $schema.perdure_fleet_promote(p_now bigint) returns void language plpgsql volatile as $body$
begin
    update $schema.perdure_fleet_work w set touched = true, due = null
    where w.session = any (array(
        select d.session from $schema.perdure_fleet_work d
        where d.due <= p_now and d.rank is null and d.worker = '' and d.parked = '' and not d.paused
        order by d.due limit 1000 for update skip locked));
end
$body$;

-- Notes that the queue of a priority has come to a rank; not when another claim is about to do so, which is as good.
create function $schema.perdure_fleet_reached(p_priority integer, p_rank bigint) returns void
language plpgsql volatile as $body$
begin
    if exists (select from $schema.perdure_fleet_place p where p.priority = p_priority) then
        with place as (
            select p.priority from $schema.perdure_fleet_place p
            where p.priority = p_priority and p.reached < p_rank for update skip locked)
        update $schema.perdure_fleet_place p set reached = p_rank from place where p.priority = place.priority;
    else
        insert into $schema.perdure_fleet_place values (p_priority, p_rank) on conflict (priority) do nothing;
    end if;
end
$body$;

-- Claims up to p_count sessions. p_known are calls whose answer was lost: what they claimed is given before anything
-- is claimed anew.
create function $schema.perdure_fleet_claim(
    p_mono bigint, p_worker text, p_agents text[], p_count bigint, p_now bigint, p_per_owner bigint, p_version text,
    p_claim bigint, p_known bigint[]
) returns setof $schema.perdure_fleet_work language plpgsql volatile
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off as $body$
declare
    v_left bigint := p_count;
    v_reach bigint := p_count * 2 + 50;
    v_seen bigint;
    v_agents text[];
    v_avoided text[];
    v_owners text[] := '{}';
    v_busy bigint[] := '{}';
    v_full text[] := '{}';
    v_next text[];
    v_mine text[];
    v_priority integer[];
    v_rank bigint[];
begin
    -- Forgotten by a crash of the server it is queued again: nobody need wait for the disk.
    perform set_config('synchronous_commit', 'off', true);
    if cardinality(p_known) > 0 then
        return query select w.* from $schema.perdure_fleet_work w
            where w.worker = p_worker and w.worker <> '' and w.claim = any (p_known);
        if found then
            return;
        end if;
    end if;
    perform $schema.perdure_fleet_promote(p_now);
    if p_per_owner is not null then
        -- One at a time: two that each count one less than the limit must not both claim.
        perform pg_advisory_xact_lock(hashtextextended('$schema.perdure_fleet_claim', 0));
        select coalesce(array_agg(f.owner), '{}'), coalesce(array_agg(f.busy), '{}') into v_owners, v_busy from (
            select w.owner, count(*) as busy from $schema.perdure_fleet_work w where w.worker <> ''
            group by w.owner) as f;
        v_full := array(select f.owner from unnest(v_owners, v_busy) as f (owner, busy) where f.busy >= p_per_owner);
    end if;
    select array_agg(l.agent), array_agg(l.avoid_version) into v_agents, v_avoided
    from (
        select a.agent, '' as avoid_version from unnest(p_agents) as a (agent)
        union all
        select distinct w.agent, w.avoid_version from $schema.perdure_fleet_work w
        where w.agent = any (p_agents) and w.avoid_version <> '' and w.avoid_version <> p_version and w.rank is not null) as l
    where not exists (select from $schema.perdure_fleet_held h where h.agent = l.agent);
    while v_left > 0 loop
        -- The next ones of each lane, looked at without locks and by an index each; then the best of them.
        select count(*), coalesce(array_agg(n.session) filter (
            where p_per_owner is null or n.nth <= p_per_owner - coalesce(b.busy, 0)), '{}')
        into v_seen, v_next
        from (
            select c.session, c.owner,
                row_number() over (partition by c.owner order by c.priority desc, c.rank, c.turn) as nth
            from unnest(v_agents, v_avoided) as lane (agent, avoid_version), lateral (
                select w.session, w.owner, w.priority, w.rank, w.turn from $schema.perdure_fleet_work w
                where w.agent = lane.agent and w.avoid_version = lane.avoid_version and w.rank is not null
                    and not w.owner = any (v_full)
                order by w.priority desc, w.rank, w.turn limit v_reach) as c
            order by c.priority desc, c.rank, c.turn limit v_reach) as n
        left join unnest(v_owners, v_busy) as b (owner, busy) on b.owner = n.owner;
        -- Whoever finds nothing has written nothing, and so nobody else looks because of it (see mark).
        exit when v_next = '{}' and v_seen < v_reach;
        -- Whoever tells this worker dead waits for this lock, and then sees what was claimed here.
        loop
            perform 1 from $schema.perdure_fleet_worker k where k.id = p_worker for key share;
            exit when found;
            insert into $schema.perdure_fleet_worker (id, seen)
            values (p_worker, coalesce(p_mono, $schema.perdure_now())) on conflict (id) do nothing;
        end loop;
        -- What others have locked they are about to claim themselves.
        select coalesce(array_agg(m.session), '{}'), coalesce(array_agg(m.priority), '{}'),
            coalesce(array_agg(m.rank), '{}')
        into v_mine, v_priority, v_rank
        from (
            select w.session, w.priority, w.rank from $schema.perdure_fleet_work w
            where w.session = any (v_next) and w.rank is not null
            order by w.priority desc, w.rank, w.turn limit v_left for update skip locked) as m;
        update $schema.perdure_fleet_work w
        set worker = p_worker, since = p_now, claim = p_claim, tries = w.tries + 1, rank = null, due = null,
            avoid_version = '', touched = false
        where w.session = any (v_mine);
        perform $schema.perdure_fleet_reached(r.priority, max(r.rank))
        from unnest(v_priority, v_rank) as r (priority, rank) group by r.priority;
        return query select w.* from unnest(v_mine) with ordinality as m (session, nth)
            join $schema.perdure_fleet_work w on w.session = m.session order by m.nth;
        -- An owner's limit is counted once, so what it left out is left out in this call.
        exit when v_seen < v_reach or p_per_owner is not null and v_mine <> '{}';
        v_left := v_left - cardinality(v_mine);
        v_reach := v_reach * 4;
    end loop;
end
$body$;

-- Puts down what a worker had. What another worker has by now is left alone. Of the timers that still wait only those
-- count that came after it was claimed: the others it has seen.
create function $schema.perdure_fleet_rest(
    p_worker text, p_session text[], p_step bigint[], p_again boolean[], p_due bigint[], p_failed boolean[],
    p_avoid_version text[], p_park text[]
) returns void language plpgsql volatile as $body$
begin
    perform 1 from $schema.perdure_fleet_work w
    where w.session = any (p_session) and w.worker = p_worker order by w.session for update;
    update $schema.perdure_fleet_work w
    set worker = '', since = 0, step = greatest(w.step, r.step), avoid_version = r.avoid_version, parked = r.park,
        tries = case when r.failed is null then greatest(w.tries - 1, 0) when r.failed then w.tries else 0 end, touched = w.touched or r.again,
        due = least(r.due, w.due, (
            select min(i.at) from $schema.perdure_session s join $schema.perdure_inbox i on i.no = s.no
            where s.id = w.session and i.taken is null and i.kind in ('wake', 'cron') and i.at > w.since))
    from unnest(p_session, p_step, p_again, p_due, p_failed, p_avoid_version, p_park)
        as r (session, step, again, due, failed, avoid_version, park)
    where w.session = r.session and w.worker = p_worker;
end
$body$;

-- Queues what some workers had, before everything else in its lane: it has had its turn. They must be gone by now.
-- Gives it as it was.
create function $schema.perdure_fleet_free(p_workers text[]) returns setof $schema.perdure_fleet_work
language plpgsql volatile as $body$
begin
    return query select w.* from $schema.perdure_fleet_work w
        where w.worker = any (p_workers) and w.worker <> '' order by w.session for update;
    update $schema.perdure_fleet_work w
    set worker = '', since = 0, touched = w.paused, turn = $schema.perdure_fleet_turn(),
        rank = case when not w.paused then $schema.perdure_fleet_front(w.agent, w.avoid_version, w.priority) - 1 end
    where w.worker = any (p_workers) and w.worker <> '';
end
$body$;

-- Moves the lanes of an agent that was not served for a while to where the others are by now. Otherwise all that had
-- gathered there would go before everybody else, whoever owns it. A few places are not worth the moving.
create function $schema.perdure_fleet_catch_up(p_agent text) returns void language plpgsql volatile as $body$
declare
    lane record;
begin
    for lane in
        select w.avoid_version, w.priority, p.reached - min(w.rank) as behind
        from $schema.perdure_fleet_work w join $schema.perdure_fleet_place p on p.priority = w.priority
        where w.agent = p_agent and w.rank is not null
        group by w.avoid_version, w.priority, p.reached having p.reached - min(w.rank) > 100
    loop
        perform 1 from $schema.perdure_fleet_work w
        where w.agent = p_agent and w.avoid_version = lane.avoid_version and w.priority = lane.priority and w.rank is not null
        order by w.session for update;
        update $schema.perdure_fleet_work w set rank = w.rank + lane.behind
        where w.agent = p_agent and w.avoid_version = lane.avoid_version and w.priority = lane.priority and w.rank is not null;
    end loop;
end
$body$;

create function $schema.perdure_fleet_beat(
    p_mono bigint, p_id text, p_host text, p_pid bigint, p_version text, p_agents text[], p_concurrency bigint,
    p_busy bigint, p_started bigint, p_done bigint, p_recovered bigint
) returns text language plpgsql volatile as $body$
declare
    v_known text[];
    v_agent text;
    v_wish text;
begin
    perform set_config('synchronous_commit', 'off', true);
    select k.agents into v_known from $schema.perdure_fleet_worker k where k.id = p_id;
    if v_known is distinct from p_agents then
        for v_agent in
            select a from unnest(p_agents) as a
            except select unnest(k.agents) from $schema.perdure_fleet_worker k
        loop
            perform $schema.perdure_fleet_catch_up(v_agent);
        end loop;
    end if;
    insert into $schema.perdure_fleet_worker as k (
        id, seen, host, pid, version, agents, concurrency, busy, started, done, recovered)
    values (
        p_id, coalesce(p_mono, $schema.perdure_now()), p_host, p_pid, p_version, p_agents, p_concurrency, p_busy,
        p_started, p_done, p_recovered)
    on conflict (id) do update
    set seen = excluded.seen, host = excluded.host, pid = excluded.pid, version = excluded.version,
        agents = excluded.agents, concurrency = excluded.concurrency, busy = excluded.busy,
        started = excluded.started, done = excluded.done, recovered = excluded.recovered
    returning k.wish into v_wish;
    return v_wish;
end
$body$;

create function $schema.perdure_fleet_hold(p_agent text, p_on boolean) returns void
language plpgsql volatile as $body$
begin
    if p_on then
        insert into $schema.perdure_fleet_held values (p_agent) on conflict do nothing;
    else
        delete from $schema.perdure_fleet_held h where h.agent = p_agent;
        perform $schema.perdure_fleet_catch_up(p_agent);
    end if;
end
$body$;

create function $schema.perdure_fleet_leave(p_worker text) returns void language plpgsql volatile as $body$
begin
    delete from $schema.perdure_fleet_worker k where k.id = p_worker;
    perform $schema.perdure_fleet_free(array[p_worker]);
end
$body$;

create function $schema.perdure_fleet_reap(p_mono bigint, p_dead_after bigint)
returns setof $schema.perdure_fleet_work language plpgsql volatile as $body$
declare
    v_dead text[];
begin
    -- Not one whose row is locked: it is claiming, and so it lives, or somebody else is at it already.
    select coalesce(array_agg(d.id), '{}') into v_dead from (
        select k.id from $schema.perdure_fleet_worker k
        where k.seen < coalesce(p_mono, $schema.perdure_now()) - p_dead_after order by k.id for update skip locked
    ) as d;
    if v_dead <> '{}' then
        delete from $schema.perdure_fleet_worker k where k.id = any (v_dead);
        return query select f.* from $schema.perdure_fleet_free(v_dead) f;
    end if;
end
$body$;

create function $schema.perdure_fleet_adopt(p_wall bigint, p_mono bigint, p_limit bigint) returns bigint
language plpgsql volatile as $body$
declare
    v_wall bigint := coalesce(p_wall, $schema.perdure_now());
    v_mono bigint := coalesce(p_mono, v_wall);
    v_session text[];
    v_agent text[];
    v_owner text[];
    v_priority bigint[];
begin
    select array_agg(f.id), array_agg(f.agent), array_agg(f.owner), array_agg(f.priority)
    into v_session, v_agent, v_owner, v_priority
    from (
        select s.id, s.agent, s.owner, coalesce(w.priority, 0) as priority
        from (
            select r.no from $schema.perdure_session r
            where r.status = 'running' and r.agent <> '' and r.reason = '' and (r.holder = '' or r.until <= v_mono)
            union
            select i.no from $schema.perdure_inbox i
            where i.taken is null and (i.kind not in ('wake', 'cron') or i.at <= v_wall)
        ) as found
        join $schema.perdure_session s on s.no = found.no and s.agent <> '' and s.reason = ''
        left join $schema.perdure_fleet_work w on w.session = s.id
        where w.session is null or (
            w.rank is null and w.worker = '' and w.parked = '' and not w.paused
            -- One that waits for its next try is known.
            and (w.due is null or w.due > v_wall + 600000)
            and s.status = 'running' and (s.holder = '' or s.until <= v_mono))
        order by s.id limit p_limit) as f;
    if v_session is null then
        return 0;
    end if;
    perform $schema.perdure_fleet_put(v_session, v_agent, v_owner, v_priority, null);
    return cardinality(v_session);
end
$body$;

-- Takes or renews one of p_most places.
create function $schema.perdure_fleet_take_slot(
    p_mono bigint, p_name text, p_holder text, p_most bigint, p_span bigint
) returns boolean language plpgsql volatile as $body$
declare
    v_now bigint;
begin
    perform pg_advisory_xact_lock(hashtextextended('$schema.perdure_fleet_slot:' || p_name, 0));
    v_now := coalesce(p_mono, $schema.perdure_now());
    delete from $schema.perdure_fleet_slot t where t.name = p_name and t.until <= v_now and t.holder <> p_holder;
    if (select count(*) from $schema.perdure_fleet_slot t where t.name = p_name and t.holder <> p_holder) >= p_most then
        delete from $schema.perdure_fleet_slot t where t.name = p_name and t.holder = p_holder;
        return false;
    end if;
    insert into $schema.perdure_fleet_slot (name, holder, until) values (p_name, p_holder, v_now + p_span)
    on conflict (name, holder) do update set until = excluded.until;
    return true;
end
$body$;
