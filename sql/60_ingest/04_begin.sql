-- What begin_version decides by.

create function knowledge_private.model_of(fingerprint text)
returns knowledge.models
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    model knowledge.models;
begin
    select m.* into model from knowledge.models as m where m.fingerprint = model_of.fingerprint;
    if not found then
        perform knowledge_private.fail('KB007', 'no model is registered with this fingerprint',
            jsonb_build_object('fingerprint', fingerprint), 'knowledge.register_model registers one.');
    end if;
    return model;
end
$$;

comment on function knowledge_private.model_of(text) is 'The registered model with a fingerprint; KB007 when there is none.';
revoke all on function knowledge_private.model_of(text) from public;

create function knowledge_private.ingest_model(org knowledge.orgs, fingerprint text)
returns knowledge.models
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    model knowledge.models;
begin
    if fingerprint is null then
        select m.* into model from knowledge.models as m where m.model_id = org.active_model;
        return model;
    end if;
    model := knowledge_private.model_of(ingest_model.fingerprint);
    if org.active_model is null then
        -- The first model an org ingests with is its model.
        update knowledge.models as m set state = 'active'
        where m.model_id = model.model_id and m.state = 'building';
        update knowledge.orgs as o set active_model = model.model_id
        where o.org_id = org.org_id and o.active_model is null;
        select o.* into org from knowledge.orgs as o where o.org_id = org.org_id;
    end if;
    if org.active_model <> model.model_id then
        perform knowledge_private.fail('KB007', 'this embedder is not the model of the org: its vectors would not compare',
            jsonb_build_object('fingerprint', fingerprint, 'model', (
                select m.name from knowledge.models as m where m.model_id = org.active_model
            )));
    end if;
    return model;
end
$$;

comment on function knowledge_private.ingest_model(knowledge.orgs, text) is
'The model an ingest with this fingerprint goes to: the org''s, or, for its first, the one registered. Null for an org
without a model when no fingerprint is given. KB007 for any other.';
revoke all on function knowledge_private.ingest_model(knowledge.orgs, text) from public;

create function knowledge_private.is_unchanged(
    document knowledge.documents, live knowledge.versions, wanted knowledge.versions, allow_unembedded boolean
)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if live.content_hash <> wanted.content_hash
        or live.chunk_count <> wanted.chunk_count
        or live.model_id is distinct from wanted.model_id
        or live.language <> wanted.language
        or live.source_version is distinct from coalesce(wanted.source_version, live.source_version)
        or document.title <> coalesce(wanted.title, document.title)
        or document.uri is distinct from coalesce(wanted.uri, document.uri)
        or document.metadata <> coalesce(wanted.metadata, document.metadata)
        or not exists (
            select from knowledge.compartments as c
            where
                c.org_id = document.org_id and c.compartment_id = document.compartment_id
                and c.audience = coalesce(wanted.audience, c.audience)
                and c.visibility = coalesce(wanted.visibility, c.visibility)
        )
    then
        return false;
    end if;
    return live.model_id is null or allow_unembedded or knowledge_private.missing_vectors(live) = 0;
end
$$;

comment on function knowledge_private.is_unchanged(
    knowledge.documents, knowledge.versions, knowledge.versions, boolean
) is
'Whether publishing wanted would change nothing: same text, same description where it gives one, no vector missing unless
that is allowed.';
revoke all on function knowledge_private.is_unchanged(
    knowledge.documents, knowledge.versions, knowledge.versions, boolean
) from public;

create function knowledge_private.end_version(version knowledge.versions, state text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    update knowledge.versions as v
    set
        state = end_version.state, ended_at = now(), lease_expires_at = now(),
        outline = case when end_version.state = 'live' then v.outline end
    where v.org_id = version.org_id and v.version_id = version.version_id;
    delete from knowledge_private.staged_vectors as s
    where s.org_id = version.org_id and s.version_id = version.version_id;
    delete from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id;
    delete from knowledge_private.staged_unchanged as s
    where s.org_id = version.org_id and s.version_id = version.version_id;
end
$$;

comment on function knowledge_private.end_version(knowledge.versions, text) is
'Ends a version as superseded or aborted and forgets what it staged.';
revoke all on function knowledge_private.end_version(knowledge.versions, text) from public;
