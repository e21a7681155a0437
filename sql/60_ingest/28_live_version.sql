create function knowledge.live_version(source_type text, source_id text)
returns table (
    version_id uuid,
    document_id uuid,
    source_version text,
    content_hash text,
    visibility text,
    audience text[],
    language text,
    chunks integer,
    outline bytea
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
        v.version_id, d.document_id, v.source_version, v.content_hash, c.visibility, c.audience, c.language, v.chunk_count,
        v.outline
    from knowledge.documents as d
    inner join knowledge.versions as v on v.org_id = d.org_id and v.version_id = d.live_version
    inner join knowledge.compartments as c on c.org_id = d.org_id and c.compartment_id = d.compartment_id
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.source_type = live_version.source_type
        and knowledge_private.text_key(d.source_id) = knowledge_private.text_key(live_version.source_id);
end
$$;

comment on function knowledge.live_version(text, text) is
'What a writer published last as this document of the context''s org and exact scope, whether or not the context may read it:
no row when nothing is live. For a writer that can tell by source_version or content_hash that there is nothing to do before
it makes chunks. outline: what begin_version was given. KB001, KB002 context.';
revoke all on function knowledge.live_version(text, text) from public;
grant execute on function knowledge.live_version(text, text) to knowledge_writer;
