create function knowledge.get_source(source_type text, source_id text)
returns table (
    document_id uuid,
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
    return query
    select
        s.document_id, s.source_version, s.org_scope, s.visibility, s.audience, s.title, s.uri, s.metadata, s.language,
        s.content_hash, s.chunks, s.created_at, s.updated_at
    from knowledge_private.readable_sources(asking) as s
    where
        s.source_type = get_source.source_type
        and knowledge_private.text_key(s.source_id) = knowledge_private.text_key(get_source.source_id)
    order by s.org_scope nulls last
    limit 1;
    if not found then
        perform knowledge_private.fail('KB004', 'no such source');
    end if;
end
$$;

comment on function knowledge.get_source(text, text) is
'One row: the document of this identity that the context may read; that of the caller''s own scope goes before the
org-wide one. KB004 when there is none, or none for this caller. KB001, KB002 context.';
revoke all on function knowledge.get_source(text, text) from public;
grant execute on function knowledge.get_source(text, text) to knowledge_reader;
