-- Jobs that tell workers to look at the board, made by whoever changes it. "$schema" is the store's schema, "$jobs" the
-- one that holds Procrastinate's tables. A job is a hint: without it a worker still looks, only later. So nothing
-- here may fail the transaction that it is part of.

-- Makes the job of a session that is queued, or gets its turn at a time. Times that are far off have no job yet: each
-- worker passes over all jobs of later whenever it looks for one.
create or replace function $jobs.perdure_fleet_defer(p_session text, p_agent text, p_priority integer, p_due bigint)
returns void language plpgsql volatile as $body$
declare
    v_lock constant text := coalesce('due:' || p_due || ':', 'now:') || p_session;
begin
    if p_due > $schema.perdure_now() + $soon then
        return;
    end if;
    -- As long as this transaction lasts nobody takes the job that is there already: who did would not see what it
    -- brings. One that is just being taken does not count.
    perform 1 from procrastinate_jobs j where j.queueing_lock = v_lock and j.status = 'todo' for share skip locked;
    if not found then
        perform procrastinate_defer_jobs_v1(array[row(
            'perdure:' || left(md5('$name/' || p_agent), 16), 'perdure.wake', p_priority, null, v_lock,
            jsonb_build_object('session', p_session), to_timestamp(p_due / 1000.0)
        )]::procrastinate_job_to_defer_v1[]);
    end if;
exception when others then
    -- Mostly somebody else has just made the same job.
    return;
end
$body$;

-- One transaction makes up to $most jobs of what is queued at once: they wake enough workers, and a worker that found
-- something looks again by itself.
create or replace function $jobs.perdure_fleet_hint() returns trigger language plpgsql volatile
set search_path = $jobs as $body$
declare
    v_made integer;
begin
    if new.rank is null then
        perform perdure_fleet_defer(new.session, new.agent, new.priority, new.due);
        return null;
    end if;
    v_made := coalesce(nullif(current_setting('perdure.hints', true), ''), '0');
    if v_made < $most then
        perform set_config('perdure.hints', (v_made + 1)::text, true);
        perform perdure_fleet_defer(new.session, new.agent, new.priority, null);
    end if;
    return null;
end
$body$;

-- Makes the jobs of times that are no longer far off.
create or replace function $jobs.perdure_fleet_soon() returns void language plpgsql volatile
set search_path = $jobs as $body$
begin
    perform perdure_fleet_defer(d.session, d.agent, d.priority, d.due) from (
        select w.* from $schema.perdure_fleet_work w
        where w.due <= $schema.perdure_now() + $soon and w.rank is null and w.worker = '' and w.parked = ''
            and not w.paused and not exists (
                select from procrastinate_jobs j
                where j.queueing_lock = 'due:' || w.due || ':' || w.session and j.status = 'todo')
        order by w.due limit 1000) as d;
end
$body$;

drop trigger if exists perdure_fleet_hint_new on $schema.perdure_fleet_work;
create trigger perdure_fleet_hint_new after insert on $schema.perdure_fleet_work for each row
    when (new.rank is not null) execute function $jobs.perdure_fleet_hint();

-- What is queued, also when it was queued before: that may be what somebody has just passed over because it was
-- locked. Not what a claim queues because it is due: it has had its job. And what gets another time.
drop trigger if exists perdure_fleet_hint on $schema.perdure_fleet_work;
create trigger perdure_fleet_hint after update on $schema.perdure_fleet_work for each row
    when (
        (new.rank is not null and not (old.rank is null and old.due is not null and new.due is null))
        or (new.rank is null and new.due is not null and new.worker = '' and new.parked = '' and not new.paused
            and (new.due is distinct from old.due or old.worker <> '' or old.parked <> '' or old.paused)))
    execute function $jobs.perdure_fleet_hint();
