create function knowledge.stats()
returns table (
    source_type text,
    visibility text,
    documents bigint,
    chunks bigint,
    unembedded bigint,
    updated_at timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    model integer;
begin
    select o.active_model into model from knowledge.orgs as o where o.org_id = asking.org_id;
    return query execute format(
        'select c.source_type, c.visibility, sum(d.documents)::bigint, sum(c.chunks)::bigint, '
        'sum(c.chunks - %s)::bigint, max(d.updated_at) '
        'from knowledge_private.permitted_compartments($1) as c '
        'cross join lateral ('
        'select count(*) as documents, max(n.updated_at) as updated_at '
        'from knowledge.documents as n where n.org_id = c.org_id and n.compartment_id = c.compartment_id) as d '
        'group by c.source_type, c.visibility having sum(d.documents) > 0 order by c.source_type, c.visibility',
        case
            when model is null then '0'
            else format(
                '(select count(*) from %s as v where v.org_id = c.org_id and v.compartment_id = c.compartment_id)',
                knowledge_private.vector_table(model))
        end)
    using asking;
end
$$;

comment on function knowledge.stats() is
'What the context may read, counted by source type and visibility: documents, chunks, chunks without a vector of the
org''s model (all, in an org without one), time of the last publication. KB001, KB002 context.';
revoke all on function knowledge.stats() from public;
grant execute on function knowledge.stats() to knowledge_reader;
