create function knowledge.begin_version(
    source_type text,
    source_id text,
    content_hash text,
    chunk_count integer,
    audience text[] default null,
    visibility text default null,
    title text default null,
    uri text default null,
    metadata jsonb default null,
    source_version text default null,
    language text default null,
    fingerprint text default null,
    options jsonb default '{}',
    outline bytea default null
)
returns table (
    version_id uuid,
    document_id uuid,
    state text,
    lease bigint,
    lease_expires_at timestamptz,
    staged integer[],
    unembedded integer[],
    live_chunks integer,
    live_outline bytea
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs;
    document knowledge.documents;
    wanted knowledge.versions;
    live knowledge.versions;
    version knowledge.versions;
begin
    perform knowledge_private.check_label(begin_version.source_type, 'source_type');
    perform knowledge_private.check_label(begin_version.source_id, 'source_id', 4000);
    perform knowledge_private.check_label(begin_version.content_hash, 'content_hash');
    if begin_version.chunk_count is null or begin_version.chunk_count < 1 then
        perform knowledge_private.fail('KB005', 'chunk_count must be at least 1: a document without text is not kept');
    end if;
    if begin_version.visibility <> 'org' then
        perform knowledge_private.check_name(begin_version.visibility, 'visibility');
    end if;
    if jsonb_typeof(begin_version.metadata) <> 'object' then
        perform knowledge_private.fail('KB005', 'metadata must be a json object');
    end if;
    perform knowledge_private.check_keys(begin_version.options, array['lease_holder', 'allow_unembedded', 'resume'], 'options');
    perform knowledge_private.check_flags(begin_version.options, array['allow_unembedded', 'resume'], 'options');

    org := knowledge_private.use_org(asking.org_id);
    if begin_version.audience is not null then
        wanted.audience := knowledge_private.check_audience(asking.org_id, begin_version.audience);
    end if;
    wanted.model_id := (knowledge_private.ingest_model(org, begin_version.fingerprint)).model_id;

    -- Again when the document was deleted while it was waited for.
    loop
        insert into knowledge.documents (org_id, document_id, org_scope, source_type, source_id)
        values (asking.org_id, knowledge_private.new_id(), asking.org_scope, begin_version.source_type,
            begin_version.source_id)
        on conflict (knowledge_private.text_key(source_id), source_type, org_scope, org_id) do nothing;
        select d.* into document
        from knowledge.documents as d
        where
            d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
            and d.source_type = begin_version.source_type
            and knowledge_private.text_key(d.source_id) = knowledge_private.text_key(begin_version.source_id)
        for no key update;
        exit when found;
    end loop;
    if document.compartment_id is null and wanted.audience is null then
        perform knowledge_private.fail('KB006', 'declare an audience: with none, nobody could ever find the document',
            null, 'The built-in audience everyone is the whole org.');
    end if;

    wanted.org_id := asking.org_id;
    wanted.version_id := knowledge_private.new_id();
    wanted.document_id := document.document_id;
    wanted.state := 'ingesting';
    wanted.source_version := begin_version.source_version;
    wanted.content_hash := begin_version.content_hash;
    wanted.chunk_count := begin_version.chunk_count;
    wanted.outline := begin_version.outline;
    wanted.visibility := begin_version.visibility;
    wanted.title := begin_version.title;
    wanted.uri := begin_version.uri;
    wanted.metadata := begin_version.metadata;
    wanted.language := case
        when begin_version.language is null then coalesce((
            select c.language from knowledge.compartments as c
            where c.org_id = document.org_id and c.compartment_id = document.compartment_id
        ), org.language)
        else knowledge_private.resolve_language(begin_version.language)
    end;
    wanted.lease := 1;
    wanted.lease_holder := begin_version.options ->> 'lease_holder';
    wanted.lease_expires_at := knowledge_private.clock() + (select s.lease from knowledge_private.settings as s);
    wanted.started_at := now();

    select v.* into version
    from knowledge.versions as v
    where v.org_id = asking.org_id and v.document_id = document.document_id and v.state = 'ingesting'
    for no key update;
    select v.* into live
    from knowledge.versions as v
    where v.org_id = asking.org_id and v.document_id = document.document_id and v.state = 'live';
    if found and knowledge_private.is_unchanged(
        document, live, wanted, coalesce((begin_version.options ->> 'allow_unembedded')::boolean, false))
    then
        if version.version_id is not null then
            perform knowledge_private.end_version(version, 'aborted');
        end if;
        return query
        select
            live.version_id, live.document_id, live.state, null::bigint, null::timestamptz, '{}'::integer[],
            case
                when live.model_id is null then array(select generate_series(0, live.chunk_count - 1))
                else '{}'
            end,
            live.chunk_count, live.outline;
        return;
    end if;

    if live.content_hash = wanted.content_hash then
        wanted.source_version := coalesce(wanted.source_version, live.source_version);
    end if;
    if version.version_id is not null then
        if (version.content_hash, version.chunk_count, version.model_id, version.language)
            is not distinct from (wanted.content_hash, wanted.chunk_count, wanted.model_id, wanted.language)
        then
            if version.lease_expires_at > knowledge_private.clock()
                and coalesce(version.lease_holder <> wanted.lease_holder, true)
            then
                perform knowledge_private.fail('KB010', 'another writer is ingesting the same text',
                    jsonb_build_object('lease_expires_at', version.lease_expires_at), 'Try again when its lease expires.');
            end if;
            if coalesce((begin_version.options ->> 'resume')::boolean, true) then
                wanted.version_id := version.version_id;
                wanted.lease := version.lease + 1;
                wanted.started_at := version.started_at;
            else
                perform knowledge_private.end_version(version, 'aborted');
            end if;
        else
            -- The newest text wins: the older version ends here, and its writer is refused from now on.
            perform knowledge_private.end_version(version, 'aborted');
        end if;
    end if;
    insert into knowledge.versions as v
    select wanted.*
    on conflict (org_id, version_id) do update
    set
        source_version = excluded.source_version, audience = excluded.audience, visibility = excluded.visibility,
        title = excluded.title, uri = excluded.uri, metadata = excluded.metadata, outline = excluded.outline,
        lease = excluded.lease,
        lease_holder = excluded.lease_holder, lease_expires_at = excluded.lease_expires_at
    returning v.* into version;

    return query
    select
        version.version_id, version.document_id, version.state, version.lease, version.lease_expires_at,
        array(select s.ordinal from knowledge_private.staged(version) as s order by s.ordinal),
        knowledge_private.unembedded(version),
        coalesce(live.chunk_count, 0), live.outline;
end
$$;

comment on function knowledge.begin_version(
    text, text, text, integer, text[], text, text, text, jsonb, text, text, text, jsonb, bytea
) is
'Begins or resumes a version of the document (source_type, source_id) of the context''s org and exact scope.
content_hash is the caller''s digest of the chunked text: the same digest resumes an unfinished version and answers which
ordinals are staged and which of them still want a vector; state ''live'' answers that exactly this is published
already and nothing is to be done (unembedded is then every ordinal where the org has no model). chunk_count: the
version has the ordinals 0 to chunk_count - 1. audience: whom the document is for, from the org''s vocabulary or
''everyone''; required for a new document. What is omitted stays as it is (source_version, as long as the text does).
language: text search configuration. fingerprint: of the embedder; omitted, the org''s model. options: lease_holder, a
name by which a writer may resume its own version before the lease expires; allow_unembedded (true), do not call the live
version incomplete for vectors that workers are still to make; resume (false), begin anew instead. outline: what the writer
wants to know of this edition when it makes the next; live_outline and live_chunks are those of the live version, which
stays the same until this one is published or refused.
KB005 malformed argument, KB006 unknown or missing audience, KB007 not the org''s model, KB010 another writer is at it,
KB011 org offboarded.';
revoke all on function knowledge.begin_version(
    text, text, text, integer, text[], text, text, text, jsonb, text, text, text, jsonb, bytea
) from public;
grant execute on function knowledge.begin_version(
    text, text, text, integer, text[], text, text, text, jsonb, text, text, text, jsonb, bytea
) to knowledge_writer;
