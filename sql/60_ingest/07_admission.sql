-- The verdict on a new chunk: rules of the org, what a reviewer decided before, and what the writer says itself.

create function knowledge_private.admission_rules(org_id text)
returns setof knowledge.admission_rules
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select r.*
    from knowledge.admission_rules as r
    where
        r.verdict <> 'admitted'
        and (
            r.org_id = admission_rules.org_id
            or r.org_id is null
            and not exists (
                select from knowledge.admission_rules as o
                where o.org_id = admission_rules.org_id and o.rule = r.rule
            )
        )
$$;

comment on function knowledge_private.admission_rules(text) is
'The rules that hold for an org: its own, and those of every org that it has not redefined.';
revoke all on function knowledge_private.admission_rules(text) from public;

create function knowledge_private.suspicion(org_id text, out pattern text, out batchwise boolean, out longest integer)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select r.pattern, r.pattern !~ '\\[AZ]|\(\?[^:]', r.longest
    from (
        select coalesce(string_agg('(?:' || r.pattern || ')', '|'), '(?!)') as pattern, min(r.longest) as longest
        from knowledge_private.admission_rules(suspicion.org_id) as r
    ) as r
$$;

comment on function knowledge_private.suspicion(text) is
'One pattern and one length for all rules of an org: what has neither matches none of them. batchwise: where the pattern,
with ^ and $ at the ends of lines too, is not in texts that are put together line by line, it is in none of them; a pattern
that looks around itself is not like that.';
revoke all on function knowledge_private.suspicion(text) from public;

create function knowledge_private.judge(org_id text, heading text, body text)
returns text[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select array[r.verdict, r.rule || ': ' || r.reason]
    from knowledge_private.admission_rules(judge.org_id) as r
    where (heading || E'\n' || body) ~* r.pattern or length(body) > r.longest
    order by r.verdict desc, r.rule
    limit 1
$$;

comment on function knowledge_private.judge(text, text, text) is
'[verdict, reason]: the severest verdict of the rules of an org on a text; null when none of them matches.';
revoke all on function knowledge_private.judge(text, text, text) from public;

create function knowledge_private.decide(chunk_id uuid, verdict text, reason text)
returns knowledge.quarantine
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    held knowledge.quarantine;
begin
    -- Lock order: org, document.
    perform knowledge_private.use_org(asking.org_id, audits => true);
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id = (
            select q.document_id from knowledge.quarantine as q
            where q.org_id = asking.org_id and q.chunk_id = decide.chunk_id
        )
    for no key update;
    if found then
        delete from knowledge.quarantine as q
        where q.org_id = asking.org_id and q.chunk_id = decide.chunk_id
        returning q.* into held;
    end if;
    if held.chunk_id is null then
        perform knowledge_private.fail('KB004', 'no such chunk is quarantined');
    end if;
    insert into knowledge_private.reviews (org_id, document_id, content_hash, verdict, reason)
    values (
        held.org_id, held.document_id, held.content_hash, decide.verdict,
        coalesce(decide.reason, 'reviewed: ' || decide.verdict)
    )
    on conflict (org_id, document_id, content_hash) do update
    set verdict = excluded.verdict, reason = excluded.reason;
    update knowledge.versions as v
    set report = v.report || jsonb_build_object(
        'quarantined', (v.report ->> 'quarantined')::integer - 1,
        'rejected', (v.report ->> 'rejected')::integer + (decide.verdict = 'rejected')::integer)
    where v.org_id = held.org_id and v.version_id = held.version_id;
    return held;
end
$$;

comment on function knowledge_private.decide(uuid, text, text) is
'Takes a chunk of the context''s org and exact scope out of the quarantine, its document locked, and remembers the verdict
on its text. KB004 when it is not there.';
revoke all on function knowledge_private.decide(uuid, text, text) from public;
