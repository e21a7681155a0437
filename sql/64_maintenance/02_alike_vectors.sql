-- Some hundred equal vectors fill each other's neighbour lists in an HNSW graph, and no walk leads in or out.

create function knowledge_private.alike_vectors(org_id text, model_id integer)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    most bigint;
begin
    execute format(
        'select max(n.vectors) from ('
        'select count(*) as vectors from %s as v where v.org_id = $1 group by v.embedding) as n',
        knowledge_private.vector_table(model_id))
    into most
    using alike_vectors.org_id;
    return coalesce(most, 0);
end
$$;

comment on function knowledge_private.alike_vectors(text, integer) is
'How often the most frequent of an org''s vectors is there.';
revoke all on function knowledge_private.alike_vectors(text, integer) from public;
