create function knowledge.embedding_queue()
returns table (
    model text, state text, chunks bigint, oldest interval, due_at timestamptz, attempts integer, reason text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    clock timestamptz := knowledge_private.clock();
begin
    return query
    select
        m.name, s.state, count(*), max(clock - j.queued_at), min(j.due_at), max(j.attempts), min(j.reason)
    from knowledge_private.embedding_jobs as j
    inner join knowledge.models as m on m.model_id = j.model_id
    inner join knowledge.documents as d on d.org_id = j.org_id and d.document_id = j.document_id
    cross join lateral (
        select case
            when j.dead then 'dead'
            when j.claim is not null and j.due_at > clock then 'claimed'
            when j.reason is not null then 'retrying'
            else 'waiting'
        end as state
    ) as s
    where j.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
    group by m.name, s.state, case when s.state in ('dead', 'retrying') then j.reason end
    order by m.name, s.state, min(j.reason);
end
$$;

comment on function knowledge.embedding_queue() is
'The live chunks of the context''s org and exact scope that have no vector yet, counted by model, state and reason. state:
waiting; claimed by a worker; retrying after a failure; dead, set aside after too many until retry_embeddings. oldest: since
when the oldest waits; due_at: when the first is due.';
revoke all on function knowledge.embedding_queue() from public;
grant execute on function knowledge.embedding_queue() to knowledge_writer;
