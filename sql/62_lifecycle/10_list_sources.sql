create function knowledge.list_sources(
    source_types text[] default null, k integer default 100, after uuid default null
)
returns table (
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    org_scope text,
    visibility text,
    audience text[],
    title text,
    uri text,
    metadata jsonb,
    language text,
    content_hash text,
    chunks integer,
    created_at timestamptz,
    updated_at timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    if k is null or k not between 1 and 10000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 10000');
    end if;
    return query
    select s.*
    from knowledge_private.readable_sources(asking) as s
    where
        (list_sources.source_types is null or s.source_type = any (list_sources.source_types))
        and (list_sources.after is null or s.document_id > list_sources.after)
    order by s.document_id
    limit list_sources.k;
end
$$;

comment on function knowledge.list_sources(text[], integer, uuid) is
'The documents that the context may read, of any visibility, oldest first, at most k (1 to 10000) of them. source_types:
null is any, {} is none. For the next page give the last document_id as after. KB001, KB002 context, KB005 bad k.';
revoke all on function knowledge.list_sources(text[], integer, uuid) from public;
grant execute on function knowledge.list_sources(text[], integer, uuid) to knowledge_reader;
