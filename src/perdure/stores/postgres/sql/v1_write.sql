-- Leases, the inbox and maintenance. p_claim names one call: sent again after its answer was lost, it is known.

create function $schema.perdure_lock(p_session text, p_wall bigint) returns $schema.perdure_session
language plpgsql volatile as $body$
declare
    s $schema.perdure_session%rowtype;
begin
    loop
        select * into s from $schema.perdure_session t where t.id = p_session for no key update;
        if found then
            return s;
        end if;
        insert into $schema.perdure_session (id, status, created, updated)
        values (p_session, 'idle', p_wall, p_wall) on conflict (id) do nothing;
    end loop;
end
$body$;

-- Codes: (o)k, (b)usy, lease lost (f), (n)o such session, (p)romoted, does not apply (x).
create function $schema.perdure_acquire(
    p_timeline bigint, p_wall bigint, p_mono bigint, p_dead bigint[], p_claim bigint,
    p_session text, p_holder text, p_span bigint,
    out code text, out detail text, out number bigint, out until bigint
) language plpgsql volatile as $body$
declare
    v_wall bigint;
    v_mono bigint;
    s $schema.perdure_session%rowtype;
begin
    if not $schema.perdure_is_here(p_timeline) then
        code := 'p';
        return;
    end if;
    s := $schema.perdure_lock(p_session, coalesce(p_wall, $schema.perdure_now()));
    v_wall := coalesce(p_wall, $schema.perdure_now());
    v_mono := coalesce(p_mono, v_wall);
    code := 'o';
    if s.holder = p_holder and s.claim = p_claim then
        number := s.token;
        until := v_wall + s.until - v_mono;
    elsif s.holder <> '' and s.until > v_mono and not s.token = any (p_dead) then
        code := 'b';
        detail := s.holder;
        number := s.token;
        until := v_wall + s.until - v_mono;
    else
        number := nextval('$schema.perdure_token');
        until := v_wall + p_span;
        update $schema.perdure_session t
        set holder = p_holder, token = number, until = v_mono + p_span, span = p_span, claim = p_claim
        where t.id = p_session;
    end if;
end
$body$;

create function $schema.perdure_renew(
    p_timeline bigint, p_mono bigint, p_span bigint, p_session text[], p_token bigint[]
) returns table (session text, token bigint) language plpgsql volatile as $body$
declare
    v_mono bigint := coalesce(p_mono, $schema.perdure_now());
begin
    if not $schema.perdure_is_here(p_timeline) then
        session := null;
        return next;
        return;
    end if;
    perform 1 from $schema.perdure_session t where t.id = any (p_session) order by t.id for no key update;
    return query
        update $schema.perdure_session t set until = v_mono + p_span, span = p_span
        from unnest(p_session, p_token) as u (session, token)
        where t.id = u.session and t.token = u.token and t.holder <> ''
        returning t.id, t.token;
end
$body$;

create function $schema.perdure_release(p_session text, p_token bigint) returns void language sql volatile
begin atomic
    update $schema.perdure_session t set holder = '', until = 0, span = 0
    where t.id = p_session and t.token = p_token and t.holder <> '';
end;

-- The newest number of an inbox entry of a session.
create function $schema.perdure_posts(p_no bigint, p_posts bigint) returns bigint language sql stable
return greatest(p_posts, (select i.seq from $schema.perdure_inbox i where i.no = p_no order by i.seq desc limit 1));

-- Whether each is new, was known, is known with another digest, or was outrun: the right number comes with that.
create function $schema.perdure_post(
    p_timeline bigint, p_wall bigint, p_session text[], p_key text[], p_kind text[], p_at bigint[],
    p_digest bytea[], p_body bytea[], p_seq bigint[]
) returns table (code text, number bigint) language plpgsql volatile as $body$
declare
    e record;
    v_no bigint;
    v_posts bigint;
    v_digest bytea;
begin
    if not $schema.perdure_is_here(p_timeline) then
        code := 'p';
        return next;
        return;
    end if;
    for e in
        select * from unnest(p_session, p_key, p_kind, p_at, p_digest, p_body, p_seq)
        as u (session, key, kind, at, digest, body, seq)
    loop
        -- The lock keeps the session from being dropped meanwhile; commits go on.
        loop
            select t.no, t.posts into v_no, v_posts from $schema.perdure_session t where t.id = e.session for key share;
            exit when found;
            insert into $schema.perdure_session (id, status, created, updated)
            select e.session, 'idle', w, w from (select coalesce(p_wall, $schema.perdure_now()) as w) as now
            on conflict (id) do nothing;
        end loop;
        loop
            select t.digest into v_digest from $schema.perdure_inbox t where t.no = v_no and t.key = e.key;
            if found then
                code := case when v_digest = e.digest then 'known' else 'other' end;
                exit;
            end if;
            number := $schema.perdure_posts(v_no, v_posts) + 1;
            if e.seq not in (0, number) then
                code := 'outrun';
                exit;
            end if;
            insert into $schema.perdure_inbox (seq, no, key, kind, at, digest, body)
            values (number, v_no, e.key, e.kind, e.at, e.digest, e.body) on conflict do nothing;
            if found then
                code := 'new';
                exit;
            end if;
            -- Somebody was first, with this key or with this number: look again.
        end loop;
        return next;
    end loop;
end
$body$;

-- Writes down the newest of some rows that are about to be deleted, for cursors that have not read it.
create function $schema.perdure_trim(p_xid xid8, p_pos xid8, p_seq bigint) returns void
language plpgsql volatile as $body$
declare
    v_floor xid8;
begin
    -- One at a time: the list is short, and shortened here.
    perform 1 from $schema.perdure_meta for update;
    insert into $schema.perdure_trimmed values (p_xid, p_pos, p_seq);
    -- Only what every snapshot from now on sees may go: a later cursor is then never mistaken for one that missed it.
    with gone as (
        delete from $schema.perdure_trimmed t
        where t.xid < pg_snapshot_xmin(pg_current_snapshot())
            and t.ctid not in (select n.ctid from $schema.perdure_trimmed n order by n.xid desc limit 500)
        returning t.xid)
    select g.xid into v_floor from gone g order by g.xid desc limit 1;
    if v_floor is not null then
        update $schema.perdure_meta m set trimmed = greatest(m.trimmed, v_floor);
    end if;
end
$body$;

create function $schema.perdure_drop(
    p_timeline bigint, p_wall bigint, p_mono bigint, p_dead bigint[], p_claim bigint,
    p_session text, p_token bigint, p_status text, p_reason text, p_keep_waiting boolean,
    out code text, out detail text, out number bigint, out until bigint
) language plpgsql volatile as $body$
declare
    v_wall bigint;
    v_mono bigint;
    s $schema.perdure_session%rowtype;
    r record;
    v_no bigint;
begin
    if not $schema.perdure_is_here(p_timeline) then
        code := 'p';
        return;
    end if;
    select * into s from $schema.perdure_session t where t.id = p_session for update;
    if not found then
        code := 'n';
        return;
    end if;
    v_wall := coalesce(p_wall, $schema.perdure_now());
    v_mono := coalesce(p_mono, v_wall);
    code := 'o';
    if s.reason <> '' and s.claim = p_claim then
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
    select coalesce(t.xid, t.pos) as xid, t.pos, t.seq into r from $schema.perdure_row t
    where t.no = s.no and t.pos = s.pos order by t.seq desc limit 1;
    if found then
        perform $schema.perdure_trim(r.xid, r.pos, r.seq);
    end if;
    insert into $schema.perdure_garbage (no) values (s.no);
    v_no := nextval('$schema.perdure_no');
    if p_keep_waiting then
        update $schema.perdure_inbox t set no = v_no where t.no = s.no and t.taken is null;
    end if;
    update $schema.perdure_session t
    set no = v_no, owner = '', agent = '', error = '', label = '', status = p_status,
        updated = v_wall, expires = null,
        holder = '', until = 0, span = 0, claim = p_claim, reason = p_reason, lines = 0, rows = 0, bytes = 0,
        line = null, step = null, head = null, posts = $schema.perdure_posts(s.no, s.posts)
    where t.id = p_session;
end
$body$;

-- Deletes up to p_limit rows that nobody needs; gives the number deleted, or -1 when nothing is left. The newest
-- steps of a line go first: what can still be read of it has no holes, at whatever point this is interrupted.
create function $schema.perdure_sweep(p_limit bigint) returns bigint language plpgsql volatile as $body$
declare
    g record;
    v_part bigint;
    v_total bigint := 0;
begin
    select t.ctid as place, t.* into g from $schema.perdure_garbage t limit 1 for update skip locked;
    if not found then
        return -1;
    end if;
    delete from $schema.perdure_row t where t.ctid = any (array(
        select r.ctid from $schema.perdure_row r
        where r.no = g.no and (g.line is null or (r.line = g.line and r.step between g.lo and g.hi))
        order by r.step desc limit p_limit));
    get diagnostics v_total = row_count;
    if g.line is null then
        delete from $schema.perdure_artifact t where t.ctid = any (array(
            select a.ctid from $schema.perdure_artifact a where a.no = g.no limit p_limit - v_total));
        get diagnostics v_part = row_count;
        v_total := v_total + v_part;
        delete from $schema.perdure_inbox t where t.ctid = any (array(
            select i.ctid from $schema.perdure_inbox i where i.no = g.no limit p_limit - v_total));
        get diagnostics v_part = row_count;
        v_total := v_total + v_part;
        delete from $schema.perdure_branch t where t.ctid = any (array(
            select b.ctid from $schema.perdure_branch b where b.no = g.no limit p_limit - v_total));
        get diagnostics v_part = row_count;
        v_total := v_total + v_part;
    end if;
    if v_total < p_limit then
        delete from $schema.perdure_garbage t where t.ctid = g.place;
    end if;
    return v_total;
end
$body$;

-- Maintenance of one session. Spans come flat: line, lo, hi, line, lo, hi, ...
create function $schema.perdure_rewrite(
    p_timeline bigint, p_mono bigint, p_claim bigint, p_session text, p_token bigint,
    p_kind text[], p_line bigint[], p_lo bigint[], p_hi bigint[], p_body bytea[], p_refs text[], p_blobs text[],
    p_thin bigint[], p_drop bigint[], p_needs bigint[],
    p_discard_kind text[], p_discard_line bigint[], p_discard_lo bigint[], p_inline bigint,
    out code text
) language plpgsql volatile as $body$
declare
    s $schema.perdure_session%rowtype;
    r record;
    v_count bigint;
    v_bytes bigint := 0;
    v_rows bigint := 0;
    v_part bigint;
    v_later boolean := false;
begin
    if not $schema.perdure_is_here(p_timeline) then
        code := 'p';
        return;
    end if;
    select * into s from $schema.perdure_session t where t.id = p_session for no key update;
    if not found or (s.reason <> '' and p_token is null) then
        code := 'x';
        return;
    end if;
    code := 'o';
    if s.claim = p_claim then
        return;
    end if;
    if p_token is not null and (s.holder = '' or s.token <> p_token) then
        code := 'f';
        return;
    end if;
    for i in 1 .. cardinality(p_thin) by 3 loop
        select count(*) into v_count from $schema.perdure_row t
        where t.no = s.no and t.line = p_thin[i] and t.step between p_thin[i + 1] and p_thin[i + 2]
            and (t.envelope <> '' or t.payload <> '');
        if v_count <> p_thin[i + 2] - p_thin[i + 1] + 1 then
            code := 'x';
            return;
        end if;
    end loop;
    for i in 1 .. cardinality(p_needs) by 3 loop
        select count(*) into v_count from $schema.perdure_row t
        where t.no = s.no and t.line = p_needs[i] and t.step between p_needs[i + 1] and p_needs[i + 2];
        if v_count <> p_needs[i + 2] - p_needs[i + 1] + 1 then
            code := 'x';
            return;
        end if;
    end loop;

    with gone as (
        delete from $schema.perdure_artifact a
        using (select * from unnest(p_discard_kind, p_discard_line, p_discard_lo) as u (kind, line, lo)
               union select * from unnest(p_kind, p_line, p_lo) as v (kind, line, lo)) k
        where a.no = s.no and a.kind = k.kind and a.line = k.line and a.lo = k.lo
        returning octet_length(a.body) as size)
    select coalesce(sum(g.size), 0) into v_part from gone g;
    v_bytes := v_bytes - v_part;
    insert into $schema.perdure_artifact (no, kind, line, lo, hi, body, refs, blobs)
    select s.no, u.kind, u.line, u.lo, u.hi, u.body, u.refs::jsonb, u.blobs::jsonb
    from unnest(p_kind, p_line, p_lo, p_hi, p_body, p_refs, p_blobs)
        with ordinality as u (kind, line, lo, hi, body, refs, blobs, n)
    where not exists (
        select from unnest(p_kind, p_line, p_lo) with ordinality as v (kind, line, lo, n)
        where v.kind = u.kind and v.line = u.line and v.lo = u.lo and v.n > u.n);
    select v_bytes + coalesce(sum(octet_length(b)), 0) into v_bytes from unnest(p_body) b;

    for i in 1 .. cardinality(p_thin) by 3 loop
        select v_bytes - coalesce(sum(octet_length(t.envelope) + octet_length(t.payload)), 0) into v_bytes
        from $schema.perdure_row t
        where t.no = s.no and t.line = p_thin[i] and t.step between p_thin[i + 1] and p_thin[i + 2];
        update $schema.perdure_row t set envelope = '', payload = ''
        where t.no = s.no and t.line = p_thin[i] and t.step between p_thin[i + 1] and p_thin[i + 2];
    end loop;

    for i in 1 .. cardinality(p_drop) by 3 loop
        -- The newest stands for all: whoever has seen it has seen those before it.
        select coalesce(t.xid, t.pos) as xid, t.pos, t.seq into r from $schema.perdure_row t
        where t.no = s.no and t.line = p_drop[i] and t.step between p_drop[i + 1] and p_drop[i + 2]
        order by t.step desc limit 1;
        continue when not found;
        perform $schema.perdure_trim(r.xid, r.pos, r.seq);
        select count(*), sum(octet_length(t.envelope) + octet_length(t.payload) + 160) into v_count, v_part
        from $schema.perdure_row t
        where t.no = s.no and t.line = p_drop[i] and t.step between p_drop[i + 1] and p_drop[i + 2];
        v_rows := v_rows + v_count;
        v_bytes := v_bytes - v_part;
        if v_count > p_inline then
            insert into $schema.perdure_garbage values (s.no, p_drop[i], p_drop[i + 1], p_drop[i + 2]);
            v_later := true;
        else
            delete from $schema.perdure_row t
            where t.no = s.no and t.line = p_drop[i] and t.step between p_drop[i + 1] and p_drop[i + 2];
        end if;
    end loop;
    if cardinality(p_drop) > 0 then
        with gone as (
            delete from $schema.perdure_artifact a
            where a.no = s.no and a.kind = 'snapshot' and exists (
                select from generate_series(1, cardinality(p_drop), 3) as d (i),
                    lateral (
                        select a.line::bigint, a.lo::bigint, a.lo::bigint
                        union all
                        select (f ->> 0)::bigint, (f ->> 1)::bigint, (f ->> 2)::bigint
                        from jsonb_array_elements(coalesce(a.refs, '[]')) f) as span (line, lo, hi)
                where span.line = p_drop[d.i] and span.lo <= p_drop[d.i + 2] and p_drop[d.i + 1] <= span.hi)
            returning octet_length(a.body) as size)
        select v_bytes - coalesce(sum(g.size), 0) into v_bytes from gone g;
    end if;
    update $schema.perdure_session t
    set claim = p_claim, rows = t.rows - v_rows, bytes = greatest(t.bytes + v_bytes, 0)
    where t.no = s.no;
    if v_later then
        code := 'l';
    end if;
end
$body$;

-- Gives the store a new epoch here: every lease ends, tokens jump past any that a lost past may have given out. A
-- new cluster numbers its transactions anew, so old rows then count as written before all of them.
create function $schema.perdure_renew_epoch(p_epoch text, p_cluster text, p_timeline bigint, p_jump bigint)
returns void language plpgsql volatile as $body$
declare
    m $schema.perdure_meta%rowtype;
begin
    select * into m from $schema.perdure_meta for update;
    perform setval('$schema.perdure_token', (select t.last_value from $schema.perdure_token t) + p_jump);
    update $schema.perdure_session t set holder = '', until = 0, span = 0 where t.holder <> '';
    if m.cluster <> p_cluster and p_cluster <> '' then
        update $schema.perdure_row t set pos = '3', xid = null;
        update $schema.perdure_session t set pos = '3' where t.pos <> '0';
    end if;
    delete from $schema.perdure_trimmed;
    update $schema.perdure_meta t
    set epoch = p_epoch, cluster = coalesce(nullif(p_cluster, ''), t.cluster),
        timeline = coalesce(nullif(p_timeline, 0), t.timeline), trimmed = '0';
end
$body$;

-- Tokens go on behind one that another store gave out.
create function $schema.perdure_pass_token(p_token bigint) returns void language plpgsql volatile as $body$
begin
    perform 1 from $schema.perdure_meta for update;
    if p_token >= (select t.last_value from $schema.perdure_token t) then
        -- Far enough that nobody can have taken a greater one in this very moment.
        perform setval('$schema.perdure_token', p_token + 1048576);
    end if;
end
$body$;
