-- Questions that take several statements. These functions are stable: all their statements see the one instant
-- at which the caller's statement began.

-- What rebuilds a line at a step. The first row says how it went: ok (with the line's last step), none, gone (with
-- the reason), no line, no step, or retained (with the anchor's steps); then the base (b), the rows (r), packs (p).
create function $schema.perdure_load(p_session text, p_line bigint, p_step bigint, p_refs boolean)
returns table (
    what text, line integer, lo integer, hi integer, id bytea, digest bytea, envelope bytea, body bytea,
    refs jsonb, blobs jsonb, kind text
) language plpgsql stable as $body$
declare
    s record;
    v_last integer;
    v_at bigint;
    v_from bigint := 0;
    b $schema.perdure_artifact%rowtype;
    v_reached bigint := -1;
    v_thin boolean;
begin
    select t.no, t.reason, t.lines into s from $schema.perdure_session t where t.id = p_session;
    if not found or (s.reason = '' and s.lines = 0) then
        what := 'none';
        return next;
        return;
    elsif s.reason <> '' then
        what := 'gone';
        kind := s.reason;
        return next;
        return;
    end if;
    v_last := $schema.perdure_last(s.no, p_line);
    if v_last is null then
        what := 'no line';
        return next;
        return;
    end if;
    v_at := coalesce(p_step, v_last);
    -- Snapshots lie at one step, so the key finds the newest; anchors are few. On a tie the anchor wins: it is
    -- the one that stands for rows which are no longer there.
    select u.* into b from (
        (select a.* from $schema.perdure_artifact a
         where a.no = s.no and a.kind = 'snapshot' and a.line = p_line and a.lo <= v_at order by a.lo desc limit 1)
        union all
        (select a.* from $schema.perdure_artifact a
         where a.no = s.no and a.kind = 'anchor' and a.line = p_line and a.hi <= v_at order by a.hi desc limit 1)
    ) u order by u.hi desc, u.kind = 'anchor' desc limit 1;
    if found then
        v_from := b.hi + 1;
        v_reached := b.hi;
    end if;
    select coalesce(max(t.step), v_reached), coalesce(bool_or(t.envelope = '' and t.payload = ''), false)
    into v_reached, v_thin
    from $schema.perdure_row t where t.no = s.no and t.line = p_line and t.step between v_from and v_at;
    if v_reached <> v_at then
        select a.lo, a.hi into lo, hi from $schema.perdure_artifact a
        where a.no = s.no and a.kind = 'anchor' and a.line = p_line and a.lo <= v_at and a.hi > v_at limit 1;
        what := case when found then 'retained' else 'no step' end;
        line := v_last;
        return next;
        return;
    end if;
    what := 'ok';
    hi := v_last;
    return next;
    if b.no is not null then
        return query select 'b', b.line, b.lo, b.hi, null::bytea, null::bytea, null::bytea, b.body, b.refs, b.blobs,
            b.kind;
    end if;
    return query select 'r', t.line, t.step, t.step, t.id, t.digest, t.envelope, t.payload, null::jsonb, null::jsonb,
        null::text
        from $schema.perdure_row t where t.no = s.no and t.line = p_line and t.step between v_from and v_at
        order by t.step;
    if v_thin or (p_refs and b.refs is not null) then
        return query select 'p', a.line, a.lo, a.hi, null::bytea, null::bytea, null::bytea, a.body, a.refs, a.blobs,
            a.kind
            from $schema.perdure_artifact a
            where a.no = s.no and a.kind = 'pack' and (
                (v_thin and a.line = p_line and a.hi >= v_from and a.lo <= v_at and exists (
                    select from $schema.perdure_row t
                    where t.no = s.no and t.line = p_line
                        and t.step between greatest(a.lo, v_from) and least(a.hi, v_at)
                        and t.envelope = '' and t.payload = ''))
                or (p_refs and b.refs is not null and exists (
                    select from jsonb_array_elements(b.refs) r
                    where (r ->> 0)::bigint = a.line and a.lo <= (r ->> 2)::bigint and a.hi >= (r ->> 1)::bigint)))
            order by a.line, a.lo;
    end if;
end
$body$;

create function $schema.perdure_last(p_no bigint, p_line bigint) returns integer language sql stable
return coalesce(
    (select max(t.step) from $schema.perdure_row t where t.no = p_no and t.line = p_line),
    (select max(a.hi) from $schema.perdure_artifact a where a.no = p_no and a.kind = 'anchor' and a.line = p_line));

-- Some rows of a line, with the packs and anchors that hold the thin ones; as above, without a base.
create function $schema.perdure_slice(p_session text, p_line bigint, p_lo bigint, p_hi bigint)
returns table (
    what text, line integer, lo integer, hi integer, id bytea, digest bytea, envelope bytea, body bytea,
    refs jsonb, blobs jsonb, kind text
) language plpgsql stable as $body$
declare
    s record;
    v_last integer;
begin
    select t.no, t.reason, t.lines into s from $schema.perdure_session t where t.id = p_session;
    if not found or (s.reason = '' and s.lines = 0) then
        what := 'none';
        return next;
        return;
    elsif s.reason <> '' then
        what := 'gone';
        kind := s.reason;
        return next;
        return;
    end if;
    v_last := $schema.perdure_last(s.no, p_line);
    if v_last is null then
        what := 'no line';
        return next;
        return;
    end if;
    what := 'ok';
    hi := v_last;
    return next;
    return query select 'r', t.line, t.step, t.step, t.id, t.digest, t.envelope, t.payload, null::jsonb, null::jsonb,
        null::text
        from $schema.perdure_row t where t.no = s.no and t.line = p_line and t.step between p_lo and p_hi
        order by t.step;
    return query select 'p', a.line, a.lo, a.hi, null::bytea, null::bytea, null::bytea, a.body, a.refs, a.blobs, a.kind
        from $schema.perdure_artifact a
        where a.no = s.no and a.line = p_line and a.kind in ('pack', 'anchor') and a.hi >= p_lo and a.lo <= p_hi
            and exists (
                select from $schema.perdure_row t
                where t.no = s.no and t.line = p_line
                    and t.step between greatest(case a.kind when 'pack' then a.lo else a.hi end, p_lo)
                        and least(a.hi, p_hi)
                    and t.envelope = '' and t.payload = '')
        order by a.kind desc, a.lo;
end
$body$;

-- Commits that one snapshot sees and another does not, in order within each session. Without p_new the snapshot is
-- this one; p_old null is a scan from the beginning. The first row has the epoch, the snapshot, and in seq whether
-- rows were deleted that the cursor has not read.
create function $schema.perdure_changes(
    p_old pg_snapshot, p_new pg_snapshot, p_pos xid8, p_seq bigint, p_limit bigint
) returns table (
    session text, branch text, line integer, step integer, id bytea, kind text, status text, at bigint,
    pos text, seq bigint
) language plpgsql stable as $body$
declare
    v_new pg_snapshot := coalesce(p_new, pg_current_snapshot());
    v_floor xid8;
    v_known pg_snapshot := coalesce(p_old, v_new);
begin
    select m.epoch, m.trimmed into session, v_floor from $schema.perdure_meta m;
    branch := v_new::text;
    seq := ((p_old is not null or p_new is not null) and (v_floor >= pg_snapshot_xmin(v_known) or exists (
        select from $schema.perdure_trimmed t
        where not pg_visible_in_snapshot(t.xid, v_known)
            and not (p_pos is not null and pg_visible_in_snapshot(t.xid, v_new)
                and (t.pos, t.seq) <= (p_pos, p_seq)))))::integer;
    return next;
    return query
        select s.id, r.branch, r.line, r.step, r.id, r.kind, r.status, r.at, r.pos::text, r.seq
        from $schema.perdure_row r join $schema.perdure_session s on s.no = r.no
        where (r.pos, r.seq) > (
                greatest(coalesce(p_pos, '0'::xid8), coalesce(pg_snapshot_xmin(p_old), '0'::xid8)),
                case when p_pos is not null and (p_old is null or p_pos >= pg_snapshot_xmin(p_old)) then p_seq
                    else -1 end)
            and (p_old is null or not pg_visible_in_snapshot(coalesce(r.xid, r.pos), p_old))
            and pg_visible_in_snapshot(coalesce(r.xid, r.pos), v_new)
        order by r.pos, r.seq limit p_limit;
end
$body$;
