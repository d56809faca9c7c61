-- What people and programs may ask about with plain SQL. Everything here is told by envelopes, which are clear; what
-- sessions hold is not. A session id with the characters 0 or 1 in it shows them as two.

create view $schema.perdure_sessions as
select
    s.id as session,
    s.owner,
    s.status,
    split_part(s.reason, '; signed ', 1) as gone_because,
    s.step,
    s.rows as checkpoints,
    s.bytes,
    to_timestamp(s.created / 1000.0) as created,
    to_timestamp(s.updated / 1000.0) as updated,
    to_timestamp(s.expires / 1000.0) as expires,
    case when s.until > $schema.perdure_now() then s.holder else '' end as writer,
    (select count(*) from $schema.perdure_inbox i where i.no = s.no and i.taken is null) as waiting,
    s.agent,
    s.error,
    s.label
from $schema.perdure_session s;

create view $schema.perdure_steps as
select
    s.id as session,
    s.owner,
    r.branch,
    r.line,
    r.step,
    r.kind,
    r.status,
    r.tool,
    r.error,
    r.run,
    r.effect,
    r.approval,
    to_timestamp(r.at / 1000.0) as at,
    octet_length(r.envelope) + octet_length(r.payload) as bytes,
    encode(r.id, 'hex') as checkpoint
from $schema.perdure_row r join $schema.perdure_session s on s.no = r.no;

-- One row for each tool call with the outside world: where it stands by its newest checkpoint.
create view $schema.perdure_effects as
select distinct on (r.no, r.effect)
    s.id as session,
    s.owner,
    r.effect,
    r.tool,
    case r.kind when 'approval' then 'planned' else r.kind end as status,
    r.error,
    r.run,
    r.branch,
    r.line,
    r.step,
    to_timestamp(min(r.at) over (partition by r.no, r.effect) / 1000.0) as began,
    to_timestamp(r.at / 1000.0) as at
from $schema.perdure_row r join $schema.perdure_session s on s.no = r.no
where r.effect is not null
order by r.no, r.effect, r.pos desc, r.seq desc;

-- One row for each request for a person's agreement, and what became of it as far as checkpoints tell: pending,
-- decided (not acted upon yet), used, rejected, expired, or stale (asked anew).
create view $schema.perdure_approvals as
select
    s.id as session,
    s.owner,
    r.approval,
    r.effect,
    r.tool,
    case
        when later.kind is null and exists (
            select from $schema.perdure_inbox i
            where i.no = r.no and i.key = 'decision:' || r.approval and i.taken is null) then 'decided'
        when later.kind is null then 'pending'
        when later.kind = 'approval' then 'stale'
        when later.kind = 'failed' and later.error like 'approval %' then
            split_part(substr(later.error, 10), ':', 1)
        else 'used'
    end as status,
    r.branch,
    r.line,
    r.step,
    to_timestamp(r.at / 1000.0) as asked,
    to_timestamp(later.at / 1000.0) as ended
from $schema.perdure_row r
join $schema.perdure_session s on s.no = r.no
left join lateral (
    select n.kind, n.error, n.at from $schema.perdure_row n
    where n.no = r.no and n.effect = r.effect and (n.pos, n.seq) > (r.pos, r.seq)
    order by n.pos, n.seq limit 1) later on true
where r.kind = 'approval' and r.approval is not null;
