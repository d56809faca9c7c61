-- Commits. Every statement of these functions sees what was committed before it began (read committed), so what
-- is asked after a lock was waited for is never older than what the lock protects.

create function $schema.perdure_now() returns bigint language sql volatile
return (extract(epoch from clock_timestamp()) * 1000)::bigint;

-- Whether this server is still the one, on the same timeline, that the caller's epoch was given by.
create function $schema.perdure_is_here(p_timeline bigint) returns boolean language sql volatile
return p_timeline = 0 or ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer = p_timeline;

-- One commit; the code says what became of it: (l)anded, landed (a)gain, another (d)igest, lease lost (f),
-- (b)usy, head (m)oved, place (t)aken, inbox entry not (w)aiting, server was promoted (p).
create function $schema.perdure_append_one(
    p_timeline bigint, p_wall bigint, p_mono bigint, p_dead bigint[],
    p_session text, p_branch text, p_line bigint, p_step bigint, p_id bytea, p_expect bytea, p_digest bytea,
    p_envelope bytea, p_payload bytea, p_token bigint, p_starts boolean, p_owner text, p_status text, p_kind text,
    p_at bigint, p_ttl bigint, p_takes jsonb, p_blobs jsonb, p_tool text, p_error text, p_run text,
    p_effect text, p_approval text, p_agent text, p_label text,
    out code text, out head_line integer, out head_step integer, out head_id bytea,
    out detail text, out number bigint, out until bigint
) language plpgsql volatile as $body$
declare
    v_wall bigint := coalesce(p_wall, $schema.perdure_now());
    v_mono bigint := coalesce(p_mono, v_wall);
    v_xid xid8;
    v_pos xid8;
    v_no bigint;
    v_size bigint := octet_length(p_envelope) + octet_length(p_payload) + 160;
    v_digest bytea;
    v_id bytea;
    s $schema.perdure_session%rowtype;
begin
    if not $schema.perdure_is_here(p_timeline) then
        code := 'p';
        return;
    end if;
    v_xid := pg_current_xact_id();

    -- The usual case in two statements: the next step of "main", by its writer.
    if p_branch = 'main' and not p_starts and p_takes is null and p_expect is not null then
        update $schema.perdure_session t
        set status = p_status, updated = v_wall, expires = v_wall + p_ttl * 1000,
            agent = coalesce(p_agent, t.agent), error = coalesce(p_error, ''),
            label = coalesce(p_label, ''),
            until = case when p_token is null then t.until else v_mono + t.span end,
            step = p_step, head = p_id, pos = greatest(t.pos, v_xid),
            rows = t.rows + 1, bytes = t.bytes + v_size
        where t.id = p_session and t.head = p_expect and t.line = p_line and t.step = p_step - 1
            and t.owner = p_owner
            and case when p_token is null then t.holder = '' or t.until <= v_mono
                else t.token = p_token and t.holder <> '' end
        returning t.no, t.pos into v_no, v_pos;
        if found then
            insert into $schema.perdure_row (
                pos, no, at, line, step, starts, id, digest, kind, branch, status, envelope, payload, xid,
                tool, error, run, effect, approval, blobs)
            values (
                v_pos, v_no, p_at, p_line, p_step, false, p_id, p_digest, p_kind, p_branch, p_status,
                p_envelope, p_payload, nullif(v_xid, v_pos),
                p_tool, p_error, p_run, p_effect, p_approval, p_blobs);
            code := 'l';
            return;
        end if;
    end if;

    loop
        select * into s from $schema.perdure_session t where t.id = p_session for no key update;
        exit when found;
        if p_token is not null then
            code := 'f';
            return;
        elsif p_expect is not null then
            code := 'm';
            return;
        elsif p_takes is not null then
            code := 'w';
            detail := p_takes ->> 0;
            return;
        end if;
        insert into $schema.perdure_session (id, status, created, updated)
        values (p_session, 'idle', v_wall, v_wall) on conflict (id) do nothing;
    end loop;

    if p_branch = 'main' then
        head_line := s.line;
        head_step := s.step;
        head_id := s.head;
    else
        select t.line, t.step, t.head into head_line, head_step, head_id
        from $schema.perdure_branch t where t.no = s.no and t.name = p_branch;
    end if;
    -- Its own id comes before everything else: what has landed has landed.
    select t.id, t.digest into v_id, v_digest
    from $schema.perdure_row t where t.no = s.no and t.line = p_line and t.step = p_step;
    if v_id = p_id then
        code := case when v_digest = p_digest then 'a' else 'd' end;
        return;
    end if;
    if p_token is null then
        if s.holder <> '' and s.until > v_mono and not s.token = any (p_dead) then
            code := 'b';
            detail := s.holder;
            number := s.token;
            until := v_wall + s.until - v_mono;
            return;
        end if;
    elsif s.holder = '' or s.token <> p_token then
        code := 'f';
        return;
    end if;
    if head_id is distinct from p_expect then
        code := 'm';
        return;
    end if;
    if v_id is not null or (p_starts and p_line < s.lines) then
        code := 't';
        return;
    end if;
    if p_takes is not null then
        select k.key into detail
        from (select e.key, e.n, row_number() over (partition by e.key order by e.n) as again
              from jsonb_array_elements_text(p_takes) with ordinality as e (key, n)) k
        where k.again > 1 or not exists (
            select from $schema.perdure_inbox t where t.no = s.no and t.key = k.key and t.taken is null)
        order by k.n limit 1;
        if found then
            code := 'w';
            return;
        end if;
        update $schema.perdure_inbox t set taken = p_id, body = ''
        where t.no = s.no and t.key in (select jsonb_array_elements_text(p_takes));
    end if;
    v_pos := greatest(s.pos, v_xid);
    insert into $schema.perdure_row (
        pos, no, at, line, step, starts, id, digest, kind, branch, status, envelope, payload, xid,
        tool, error, run, effect, approval, takes, blobs)
    values (
        v_pos, s.no, p_at, p_line, p_step, p_starts, p_id, p_digest, p_kind, p_branch, p_status,
        p_envelope, p_payload, nullif(v_xid, v_pos),
        p_tool, p_error, p_run, p_effect, p_approval, p_takes, p_blobs);
    update $schema.perdure_session t
    set owner = p_owner, updated = v_wall, expires = v_wall + p_ttl * 1000,
        -- Where a session stands is what "main" says; only while there is none, any branch does.
        status = case when p_branch = 'main' or t.head is null then p_status else t.status end,
        agent = case when p_branch = 'main' or t.head is null then coalesce(p_agent, t.agent) else t.agent end,
        error = case when p_branch = 'main' or t.head is null then coalesce(p_error, '') else t.error end,
        label = case when p_branch = 'main' or t.head is null then coalesce(p_label, '') else t.label end,
        created = case when s.reason <> '' or s.lines = 0 then v_wall else t.created end, reason = '',
        until = case when p_token is null then t.until else v_mono + t.span end,
        lines = greatest(t.lines, p_line + 1), pos = v_pos, rows = t.rows + 1, bytes = t.bytes + v_size,
        line = case when p_branch = 'main' then p_line else t.line end,
        step = case when p_branch = 'main' then p_step else t.step end,
        head = case when p_branch = 'main' then p_id else t.head end
    where t.id = p_session;
    if p_branch <> 'main' then
        insert into $schema.perdure_branch as t (no, name, line, step, head)
        values (s.no, p_branch, p_line, p_step, p_id)
        on conflict (no, name) do update set line = excluded.line, step = excluded.step, head = excluded.head;
    end if;
    code := 'l';
end
$body$;

-- A batch: the sessions are locked in order of id, so that two batches never wait for each other in a circle.
create function $schema.perdure_append(
    p_timeline bigint, p_wall bigint, p_mono bigint, p_dead bigint[],
    p_session text[], p_branch text[], p_line bigint[], p_step bigint[], p_id bytea[], p_expect bytea[],
    p_digest bytea[], p_envelope bytea[], p_payload bytea[], p_token bigint[], p_starts boolean[], p_owner text[],
    p_status text[], p_kind text[], p_at bigint[], p_ttl bigint[], p_takes text[], p_blobs text[], p_tool text[],
    p_error text[], p_run text[], p_effect text[], p_approval text[],
    p_agent text[], p_label text[]
) returns table (
    code text, head_line integer, head_step integer, head_id bytea, detail text, number bigint, until bigint
) language plpgsql volatile as $body$
declare
    r record;
begin
    -- Those that begin a session, and will, are made first and in order of id, too. Nobody waits for a session to be
    -- made while holding another one.
    insert into $schema.perdure_session (id, status, created, updated)
    select n.session, 'idle', w.wall, w.wall
    from (
        select distinct u.session
        from unnest(p_session, p_expect, p_token, p_takes) as u (session, expect, token, takes)
        where u.expect is null and u.token is null and u.takes is null and not exists (
            select from $schema.perdure_session t where t.id = u.session)) n,
        (select coalesce(p_wall, $schema.perdure_now()) as wall) w
    where $schema.perdure_is_here(p_timeline)
    order by n.session collate "C" on conflict (id) do nothing;
    perform 1 from $schema.perdure_session t where t.id = any (p_session) order by t.id for no key update;
    for r in
        select * from unnest(
            p_session, p_branch, p_line, p_step, p_id, p_expect, p_digest, p_envelope, p_payload, p_token, p_starts,
            p_owner, p_status, p_kind, p_at, p_ttl, p_takes, p_blobs, p_tool, p_error, p_run, p_effect, p_approval,
            p_agent, p_label)
        as u (
            session, branch, line, step, id, expect, digest, envelope, payload, token, starts,
            owner, status, kind, at, ttl, takes, blobs, tool, error, run, effect, approval, agent, label)
    loop
        select o.code, o.head_line, o.head_step, o.head_id, o.detail, o.number, o.until
        into code, head_line, head_step, head_id, detail, number, until
        from $schema.perdure_append_one(
            p_timeline, p_wall, p_mono, p_dead,
            r.session, r.branch, r.line, r.step, r.id, r.expect, r.digest, r.envelope, r.payload, r.token, r.starts,
            r.owner, r.status, r.kind, r.at, r.ttl, r.takes::jsonb, r.blobs::jsonb, r.tool, r.error, r.run,
            r.effect, r.approval, r.agent, r.label) o;
        return next;
    end loop;
end
$body$;
