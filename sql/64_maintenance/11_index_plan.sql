create function knowledge.index_plan()
returns table (statement text, reason text)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    with size as (
        select
            o.org_id,
            o.active_model,
            knowledge_private.index_name(o.org_id, o.active_model) as name,
            sum(c.chunks) as chunks,
            row_number() over (order by sum(c.chunks) desc, o.org_id) as place
        from knowledge.orgs as o
        inner join knowledge.compartments as c on c.org_id = o.org_id
        where o.active_model is not null
        group by o.org_id
    ),
    there as (
        select c.relname::text as name, i.indisvalid as valid
        from pg_class as c
        inner join pg_index as i on i.indexrelid = c.oid
        inner join pg_am as m on m.oid = c.relam
        where c.relnamespace = 'knowledge'::regnamespace and m.amname = 'hnsw'
            and c.relname ~ '^vectors_[0-9]+_of_[0-9a-f]{24}$'
    )
    select * from (
        -- One that is there stays until its org has shrunk to half of what earns one.
        select
            format('drop index concurrently knowledge.%I', t.name),
            case
                when not t.valid then 'its build was interrupted'
                when z.chunks * 2 >= s.promoted_chunks and z.place <= s.promoted_orgs
                    then 'its org has too many equal vectors'
                else 'its org is too small for it, or gone'
            end
        from there as t
        cross join knowledge_private.settings as s
        left join size as z on z.name = t.name
        where not t.valid or z.name is null or z.chunks * 2 < s.promoted_chunks or z.place > s.promoted_orgs
            or knowledge_private.alike_vectors(z.org_id, z.active_model) > s.alike_vectors
        order by t.name
    ) as dropped
    union all
    select * from (
        select
            format('create index concurrently %I on %s using hnsw (embedding %s.halfvec_cosine_ops) '
                'with (ef_construction = 128) where org_id = %L',
                z.name, knowledge_private.vector_table(z.active_model), knowledge_private.vector_schema(), z.org_id),
            format('its org has %s chunks', z.chunks)
        from size as z
        cross join knowledge_private.settings as s
        where
            z.chunks >= s.promoted_chunks and z.place <= s.promoted_orgs
            and not exists (select from there as t where t.name = z.name and t.valid)
            and knowledge_private.alike_vectors(z.org_id, z.active_model) <= s.alike_vectors
        order by z.place
    ) as created;
end
$$;

comment on function knowledge.index_plan() is
'The statements, in order, that give each org with at least promoted_chunks chunks (and no more than promoted_orgs of them,
the largest first) a partial HNSW index of its own, and take it from those that have shrunk to half of that or left, or have
more than alike_vectors equal vectors; indexes that an interrupted build left invalid are dropped first. Run each outside a transaction as knowledge_owner: pg-knowledge
maintain, or \gexec in psql. Answers are right without any of it.';
revoke all on function knowledge.index_plan() from public;
grant execute on function knowledge.index_plan() to knowledge_owner;
