-- What the four calls of an ingest share: the version a writer may work on, and the compartment it is published into.

create function knowledge_private.writable_version(version_id uuid, lease bigint)
returns knowledge.versions
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    version knowledge.versions;
    -- Lock order: org, document, version.
    org knowledge.orgs := knowledge_private.use_org(asking.org_id);
begin
    -- By key, one after the other: without statistics a join would read every document of the org.
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id = (
            select v.document_id from knowledge.versions as v
            where v.org_id = asking.org_id and v.version_id = writable_version.version_id
        )
    for no key update;
    select v.* into version
    from knowledge.versions as v
    where
        v.org_id = asking.org_id and v.version_id = writable_version.version_id
        and (
            select d.org_scope is not distinct from asking.org_scope from knowledge.documents as d
            where d.org_id = v.org_id and d.document_id = v.document_id
        )
    for no key update;
    if not found then
        perform knowledge_private.fail('KB004', 'no such version');
    end if;
    if version.state in ('superseded', 'aborted') or version.lease is distinct from writable_version.lease then
        perform knowledge_private.fail('KB009', 'another writer has taken over this document',
            jsonb_build_object('version_id', version_id, 'state', version.state),
            'Call begin_version again: it resumes, or says that the text is live.');
    end if;
    if version.state = 'ingesting' then
        update knowledge.versions as v
        set lease_expires_at = knowledge_private.clock() + s.lease
        from knowledge_private.settings as s
        where v.org_id = version.org_id and v.version_id = version.version_id;
    end if;
    return version;
end
$$;

comment on function knowledge_private.writable_version(uuid, bigint) is
'The version, locked, with its lease renewed. KB004 when it is not of the context''s org and exact scope, KB009 when it
was aborted or superseded or the lease is another''s. It may be live: a call that published it may be repeated.';
revoke all on function knowledge_private.writable_version(uuid, bigint) from public;

create function knowledge_private.ensure_compartment(
    org_id text, org_scope text, source_type text, visibility text, audience text[], language text
)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    found_id integer;
begin
    for attempt in 1..2 loop
        select c.compartment_id into found_id
        from knowledge.compartments as c
        where
            c.org_id = ensure_compartment.org_id
            and c.org_scope is not distinct from ensure_compartment.org_scope
            and c.source_type = ensure_compartment.source_type
            and c.visibility = ensure_compartment.visibility
            and c.language = ensure_compartment.language
            and knowledge_private.audience_key(c.audience) = knowledge_private.audience_key(ensure_compartment.audience);
        if found then
            return found_id;
        end if;
        exit when attempt = 2;
        -- A rule that is being changed is waited for here, and a change waits for this transaction: no stale acl.
        perform from knowledge.audiences as d
        where d.org_id = ensure_compartment.org_id and d.audience = any (ensure_compartment.audience)
        order by d.audience
        for share;
        -- Compartments of an org are made one at a time. One that was made meanwhile is found by the second look, and
        -- not through a conflict, which would lock it before those with lower numbers.
        perform pg_advisory_xact_lock(hashtextextended('pg_knowledge compartments of ' || org_id, 0));
    end loop;
    insert into knowledge.compartments as c (
        org_id, compartment_id, org_scope, source_type, visibility, audience, language, acl, acl_version
    )
    select
        ensure_compartment.org_id,
        1 + coalesce((
            select max(o.compartment_id) from knowledge.compartments as o where o.org_id = ensure_compartment.org_id
        ), 0),
        ensure_compartment.org_scope,
        ensure_compartment.source_type,
        ensure_compartment.visibility,
        ensure_compartment.audience,
        ensure_compartment.language,
        r.acl,
        r.acl_version
    from knowledge_private.derive_acl(ensure_compartment.org_id, ensure_compartment.audience) as r
    returning c.compartment_id into found_id;
    return found_id;
end
$$;

comment on function knowledge_private.ensure_compartment(text, text, text, text, text[], text) is
'The number of the compartment with this identity, made if it is new.';
revoke all on function knowledge_private.ensure_compartment(text, text, text, text, text[], text) from public;

create function knowledge_private.vector_table(model_id integer)
returns text
language sql
immutable
begin atomic
    select 'knowledge.vectors_' || model_id::text;
end;

comment on function knowledge_private.vector_table(integer) is 'The qualified name of a model''s table of vectors.';
revoke all on function knowledge_private.vector_table(integer) from public;

create function knowledge_private.missing_vectors(version knowledge.versions)
returns integer
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    missing integer;
begin
    -- Counted one by one: a chunk has at most one vector, and what the planner would join by it does not know.
    execute format(
        'select (select count(*) from knowledge.places as p where p.org_id = $1 and p.document_id = $2)::integer '
        '- (select count(*) from %s as v where v.org_id = $1 and v.document_id = $2)::integer',
        knowledge_private.vector_table(version.model_id))
    into missing
    using version.org_id, version.document_id;
    return missing;
end
$$;

comment on function knowledge_private.missing_vectors(knowledge.versions) is
'How many live chunks of a version''s document have no vector of the version''s model.';
revoke all on function knowledge_private.missing_vectors(knowledge.versions) from public;

create function knowledge_private.reusable(model_id integer)
returns text
language sql
stable
strict
set search_path = pg_catalog, pg_temp
as $$
    -- Each "offset 0" keeps the planner to this order: from the text to its chunks, from a chunk to its vector.
    select format(
        'lateral (select v.embedding from ('
        'select c.org_id, c.chunk_id from knowledge.chunks as c '
        'where c.content_hash = s.content_hash and c.org_id is not distinct from s.org_id offset 0) as c '
        'cross join lateral ('
        'select w.embedding from %s as w where w.org_id = c.org_id and w.chunk_id = c.chunk_id offset 0) as v '
        'limit 1) as r',
        knowledge_private.vector_table(model_id))
$$;

comment on function knowledge_private.reusable(integer) is
'A lateral subquery r (embedding) for a staged chunk s: the vector of a live chunk of the org with the same text, if any.';
revoke all on function knowledge_private.reusable(integer) from public;

create function knowledge_private.unembedded(version knowledge.versions, ordinals integer[] default null)
returns integer[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    found_ordinals integer[];
begin
    execute format(
        'select array_agg(s.ordinal order by s.ordinal) from knowledge_private.staged_chunks as s '
        'left join lateral (select true as stored from knowledge_private.staged_vectors as e '
        'where e.org_id = s.org_id and e.version_id = s.version_id and e.ordinal = s.ordinal offset 0) as e on true '
        'left join %s on e.stored is null '
        'where s.org_id = $1 and s.version_id = $2 and s.verdict <> ''rejected'' '
        'and e.stored is null and r.embedding is null and ($3 is null or s.ordinal = any ($3))',
        coalesce(knowledge_private.reusable(version.model_id), '(select null as embedding) as r'))
    into found_ordinals
    using version.org_id, version.version_id, ordinals;
    return coalesce(found_ordinals, '{}');
end
$$;

comment on function knowledge_private.unembedded(knowledge.versions, integer[]) is
'Which of the ordinals (null: of all that are staged) want a vector: none was stored and none can be reused. Ascending.
What is staged as unchanged has the vector that it has.';
revoke all on function knowledge_private.unembedded(knowledge.versions, integer[]) from public;

create function knowledge_private.staged(version knowledge.versions)
returns table (ordinal integer, verdict text)
language sql
stable
rows 1000
set search_path = pg_catalog, pg_temp
as $$
    select s.ordinal, s.verdict
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id
    union all
    select generate_series(lower(u.ordinals), upper(u.ordinals) - 1), 'admitted'
    from knowledge_private.staged_unchanged as u
    where u.org_id = version.org_id and u.version_id = version.version_id
$$;

comment on function knowledge_private.staged(knowledge.versions) is
'All that a version has staged, with its text or, where that is live already, without.';
revoke all on function knowledge_private.staged(knowledge.versions) from public;

create function knowledge_private.unstage_unchanged(version knowledge.versions, batch int4multirange)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    with old as (
        delete from knowledge_private.staged_unchanged as u
        where u.org_id = version.org_id and u.version_id = version.version_id and u.ordinals && batch
        returning u.*
    )
    insert into knowledge_private.staged_unchanged (org_id, version_id, ordinals, live_ordinal, shift)
    select old.org_id, old.version_id, r.ordinals, old.live_ordinal + (lower(r.ordinals) - lower(old.ordinals)), old.shift
    from old
    cross join unnest(int4multirange(old.ordinals) - batch) as r (ordinals)
$$;

comment on function knowledge_private.unstage_unchanged(knowledge.versions, int4multirange) is
'Forgets that the ordinals of a batch were staged as unchanged.';
revoke all on function knowledge_private.unstage_unchanged(knowledge.versions, int4multirange) from public;

create function knowledge_private.unstage_chunks(version knowledge.versions, batch integer[], chunks jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    with old as (
        delete from knowledge_private.staged_chunks as s
        where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = any (batch)
        returning s.ordinal, s.content_hash
    )
    delete from knowledge_private.staged_vectors as e
    using old
    inner join jsonb_to_recordset(chunks) as c (ordinal integer, heading text, body text) on old.ordinal = c.ordinal
    where
        e.org_id = version.org_id and e.version_id = version.version_id and e.ordinal = old.ordinal
        and old.content_hash <> knowledge_private.content_hash(version.org_id, coalesce(c.heading, ''), c.body);
$$;

comment on function knowledge_private.unstage_chunks(knowledge.versions, integer[], jsonb) is
'Forgets how the ordinals of a batch, in whose place chunks come, were staged with their text, and the vectors of those that
had another text.';
revoke all on function knowledge_private.unstage_chunks(knowledge.versions, integer[], jsonb) from public;

create function knowledge_private.vector_schema()
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select quote_ident(n.nspname)
    from pg_extension as e
    inner join pg_namespace as n on n.oid = e.extnamespace
    where e.extname = 'vector'
$$;

comment on function knowledge_private.vector_schema() is 'The schema that pgvector is installed in, quoted.';
revoke all on function knowledge_private.vector_schema() from public;
