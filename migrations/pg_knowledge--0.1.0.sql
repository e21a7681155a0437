-- ---- sql/00_preamble/guard.sql
-- pg_knowledge: a permission-aware knowledge base inside PostgreSQL.
--
-- This file is one transaction of plain SQL. Apply it as a role with CREATEROLE and CREATE on the database, where
-- pgvector is installed in whatever schema you keep extensions in:
--
--     psql -X -1 -v ON_ERROR_STOP=1 -f pg_knowledge--0.1.0.sql
--
-- What follows, in order: group roles, two schemas, tables, the signed context, row-level security, ingest, search,
-- the life cycle of documents, embedding models, and the ledger row that says what was applied.
--
-- Lock order, everywhere: org, document, version, compartment. Nothing here holds a lock across a network call.

do $mark$
begin
    perform set_config('pg_knowledge.installing', pg_current_xact_id()::text, true);
end
$mark$;

do $guard$
declare
    vector_schema text;
begin
    if current_setting('pg_knowledge.installing', true) is distinct from pg_current_xact_id()::text then
        raise exception using errcode = 'KB013',
            message = 'the migration must run inside one transaction',
            hint = 'psql -X -1 -v ON_ERROR_STOP=1 -f <file>';
    end if;
    if current_setting('server_version_num')::int < 160000 then
        raise exception using errcode = 'KB013',
            message = 'pg_knowledge needs PostgreSQL 16 or newer';
    end if;
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception using errcode = 'KB013',
            message = 'pg_knowledge needs a database with encoding UTF8';
    end if;
    if exists (select from pg_class where relname = 'migrations' and relnamespace = to_regnamespace('knowledge')) then
        raise exception using errcode = 'KB013',
            message = 'pg_knowledge is already installed in this database',
            hint = 'select * from knowledge.migrations tells the version; uninstall.sql removes it.';
    end if;
    select n.nspname
    into vector_schema
    from pg_extension as e
    inner join pg_namespace as n on n.oid = e.extnamespace
    where e.extname = 'vector' and string_to_array(e.extversion, '.')::int[] >= '{0,8}';
    if vector_schema is null then
        raise exception using errcode = 'KB013',
            message = 'pg_knowledge needs the extension vector, version 0.8 or newer',
            hint = 'create extension vector;';
    end if;
    -- Only so that the type names in the signatures below resolve; no function relies on the caller's search_path.
    perform set_config('search_path', format('pg_catalog, %I, pg_temp', vector_schema), true);
end
$guard$;

-- ---- sql/10_roles/roles.sql
-- The group roles. None can log in; a DBA grants them to login roles. A role that exists already is used as it is.
-- The comment marks a role as made by this file: uninstall.sql drops marked roles only.

do $roles$
declare
    role record;
begin
    if current_setting('pg_knowledge.installing', true) is distinct from pg_current_xact_id()::text then
        raise exception using errcode = 'KB013', message = 'the migration must run inside one transaction';
    end if;
    for role in
        select *
        from (
            values
            ('knowledge_owner', 'owns every object of pg_knowledge'),
            ('knowledge_reader', 'may search and read under a context'),
            ('knowledge_writer', 'may ingest and delete documents; implies knowledge_reader'),
            ('knowledge_admin', 'may define vocabulary and models, erase and audit; implies knowledge_writer'),
            ('knowledge_trusted', 'may say who is asking: set_context and issue_token')
        ) as r (name, purpose)
    loop
        if to_regrole(role.name) is null then
            execute format('create role %I nologin', role.name);
            execute format('comment on role %I is %L', role.name, 'pg_knowledge: ' || role.purpose);
        end if;
    end loop;

    if not pg_has_role('knowledge_writer', 'knowledge_reader', 'usage') then
        grant knowledge_reader to knowledge_writer;
    end if;
    if not pg_has_role('knowledge_admin', 'knowledge_writer', 'usage') then
        grant knowledge_writer to knowledge_admin;
    end if;
    -- The applying role must be able to become the owner, now and at the next upgrade, but inherits nothing from it.
    if not pg_has_role(current_user, 'knowledge_owner', 'set') then
        execute format('grant knowledge_owner to %I with inherit false, set true', current_user);
    end if;
end
$roles$;

-- ---- sql/20_schemas/schemas.sql
-- Two schemas: knowledge is the API and the tables behind row-level security, knowledge_private is nobody else's.

do $schemas$
declare
    vector_schema text;
    reader text;
    granted text[] := '{}';
begin
    if current_setting('pg_knowledge.installing', true) is distinct from pg_current_xact_id()::text then
        raise exception using errcode = 'KB013', message = 'the migration must run inside one transaction';
    end if;
    create schema knowledge authorization knowledge_owner;
    create schema knowledge_private authorization knowledge_owner;

    select n.nspname
    into vector_schema
    from pg_extension as e
    inner join pg_namespace as n on n.oid = e.extnamespace
    where e.extname = 'vector';
    foreach reader in array array['knowledge_owner', 'knowledge_reader'] loop
        if not has_schema_privilege(reader, vector_schema, 'usage') then
            begin
                execute format('grant usage on schema %I to %I', vector_schema, reader);
                granted := granted || reader;
            exception when insufficient_privilege then
                raise exception using errcode = 'KB013',
                    message = format('%s cannot use the schema %I, where pgvector is installed', reader, vector_schema),
                    hint = format('grant usage on schema %I to public;', vector_schema);
            end;
        end if;
    end loop;
    perform set_config('pg_knowledge.granted_usage', granted::text, true);
end
$schemas$;

-- From here on everything belongs to the owner.
set local role knowledge_owner;

comment on schema knowledge is
'pg_knowledge: documents, permission-aware search, erasure. Every function and table carries a comment.';
comment on schema knowledge_private is
'pg_knowledge: helpers, signing keys and staging. No role but knowledge_owner has USAGE.';

grant usage on schema knowledge to knowledge_reader, knowledge_trusted;

-- A function that a later DROP + CREATE brings back starts closed.
do $defaults$
begin
    if current_setting('pg_knowledge.installing', true) is distinct from pg_current_xact_id()::text then
        raise exception using errcode = 'KB013', message = 'the migration must run inside one transaction';
    end if;
    alter default privileges for role knowledge_owner revoke execute on functions from public;
end
$defaults$;

-- ---- sql/30_tables/01_errors.sql
-- One way to fail: SQLSTATE class KB, a message for people, DETAIL as json for programs, HINT with what to do.
--
--   KB001 no context                KB006 unknown tag or audience     KB011 org offboarded
--   KB002 context refused           KB007 model mismatch              KB012 quota
--   KB003 not permitted             KB008 version not complete        KB013 installation refused
--   KB004 not found, or not yours   KB009 lease lost
--   KB005 invalid argument          KB010 conflict, retry

create function knowledge_private.fail(code text, message text, detail jsonb default null, hint text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = fail.code,
        message = fail.message,
        detail = coalesce(fail.detail::text, ''),
        hint = coalesce(fail.hint, '');
end
$$;

comment on function knowledge_private.fail(text, text, jsonb, text) is
'Raises SQLSTATE code (class KB) with message, DETAIL as json and HINT. Never returns.';
revoke all on function knowledge_private.fail(text, text, jsonb, text) from public;

create function knowledge_private.check_keys(object jsonb, allowed text[], argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text[];
begin
    if object is null or jsonb_typeof(object) <> 'object' then
        perform knowledge_private.fail('KB005', format('%s must be a json object', argument));
    end if;
    unknown := array(select k from jsonb_object_keys(object) as k where k <> all (allowed) order by k);
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB005', format('unknown key in %s: %s', argument, unknown[1]),
            jsonb_build_object('unknown', unknown, 'allowed', allowed));
    end if;
end
$$;

comment on function knowledge_private.check_keys(jsonb, text[], text) is
'Raises KB005 unless object is a json object whose keys are all allowed; argument names it in the message.';
revoke all on function knowledge_private.check_keys(jsonb, text[], text) from public;

create function knowledge_private.check_flags(object jsonb, flags text[], argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    flag text;
begin
    foreach flag in array flags loop
        if jsonb_typeof(object -> flag) <> 'boolean' then
            perform knowledge_private.fail('KB005', format('%s in %s must be true or false', flag, argument));
        end if;
    end loop;
end
$$;

comment on function knowledge_private.check_flags(jsonb, text[], text) is
'Raises KB005 unless each of flags that object has is true or false.';
revoke all on function knowledge_private.check_flags(jsonb, text[], text) from public;

create function knowledge_private.is_blank(value text)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Written out, because what [:space:] holds beyond ASCII depends on the locale of the database.
    return value !~ '[^[:space:]\u0085\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]';
end
$$;

comment on function knowledge_private.is_blank(text) is
'Whether a text has nothing but spaces of any width, none included, and other signs that nobody can see.';
revoke all on function knowledge_private.is_blank(text) from public;

create function knowledge_private.check_label(label text, argument text, longest integer default 500)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if label is null or knowledge_private.is_blank(label) or octet_length(label) > longest or label ~ '[\u0001-\u001f\u007f]' then
        perform knowledge_private.fail('KB005',
            format('%s must be 1 to %s bytes, not blank, without control characters', argument, longest));
    end if;
    return label;
end
$$;

comment on function knowledge_private.check_label(text, text, integer) is
'Returns label, or raises KB005 when it is null, blank, longer than longest bytes or has control characters.';
revoke all on function knowledge_private.check_label(text, text, integer) from public;

create function knowledge_private.text_key(value text)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(convert_to(value, 'UTF8'))
$$;

comment on function knowledge_private.text_key(text) is 'A digest to index by: of long texts an index holds this.';
revoke all on function knowledge_private.text_key(text) from public;

-- ---- sql/30_tables/02_settings.sql
-- Thresholds and intervals of this database, in one row that knowledge_owner may update, and the clock that reads it.

create table knowledge_private.settings (
    only_row boolean primary key default true check (only_row),
    exact_rows integer not null default 12000 check (exact_rows >= 0),
    index_share real not null default 0.1 check (index_share between 0 and 1),
    promoted_chunks integer not null default 20000 check (promoted_chunks >= 1),
    promoted_orgs integer not null default 100 check (promoted_orgs >= 0),
    alike_vectors integer not null default 300 check (alike_vectors >= 1),
    scanned_chunks integer not null default 20000 check (scanned_chunks >= 0),
    candidates integer not null default 2000 check (candidates >= 1),
    paired_candidates integer not null default 5000 check (paired_candidates >= 0),
    enough_weight real not null default 0.65 check (enough_weight between 0 and 1),
    long_list integer not null default 5000 check (long_list >= 0),
    lease interval not null default interval '2 minutes' check (lease > interval '0'),
    abandoned interval not null default interval '1 day' check (abandoned >= interval '0'),
    claim interval not null default interval '5 minutes' check (claim > interval '0'),
    attempts integer not null default 8 check (attempts >= 1),
    first_retry interval not null default interval '10 seconds' check (first_retry > interval '0'),
    longest_retry interval not null default interval '1 hour' check (longest_retry > interval '0'),
    longest_token interval not null default interval '24 hours' check (longest_token > interval '0'),
    clock_offset interval not null default interval '0'
);

comment on table knowledge_private.settings is 'One row of settings of this database.';
comment on column knowledge_private.settings.only_row is 'Keeps the table at one row.';
comment on column knowledge_private.settings.exact_rows is
'Up to this many permitted vectors a search is exact, also in an org that has an index of its own.';
comment on column knowledge_private.settings.index_share is
'The index of an org is used only when the permitted vectors are at least this share of it.';
comment on column knowledge_private.settings.promoted_chunks is
'An org with this many chunks earns a vector index of its own (index_plan), and loses it below half of that.';
comment on column knowledge_private.settings.promoted_orgs is
'At most so many orgs have an index of their own: each costs every ingest and every plan a little.';
comment on column knowledge_private.settings.alike_vectors is
'An org with more equal vectors than this has no index: in its graph they would be an island that hides others.';
comment on column knowledge_private.settings.scanned_chunks is
'Up to this many permitted chunks are read one by one for words; of more, those that the index of lexemes gives. In a database
of n times 100,000 chunks it is the root of n times as many, because that index is shared by all orgs.';
comment on column knowledge_private.settings.candidates is
'About how many chunks the keyword leg scores, where common lexemes are counted (lexeme_counts), because a rare lexeme is in
them: the rarest first.';
comment on column knowledge_private.settings.paired_candidates is
'Of about how many more, by the next rarest lexemes, it scores those that have another lexeme that is not in every tenth chunk.';
comment on column knowledge_private.settings.enough_weight is
'The keyword leg takes no more candidates by common lexemes when those it has taken some by are this share of the idf.';
comment on column knowledge_private.settings.long_list is
'More compartments than this are looked up row by row where an org''s vector index is walked, and not written as a list.';
comment on column knowledge_private.settings.lease is 'How long a writer holds a version without renewing it.';
comment on column knowledge_private.settings.abandoned is
'maintain() ends a version that is being ingested when its lease ran out this long ago.';
comment on column knowledge_private.settings.claim is 'How long a worker holds the chunks that it claimed for embedding.';
comment on column knowledge_private.settings.attempts is
'A chunk that could not be embedded so many times is set aside as a dead letter.';
comment on column knowledge_private.settings.first_retry is
'How long after its first failure a chunk is claimed again; twice as long after each further one.';
comment on column knowledge_private.settings.longest_retry is 'But never longer than this.';
comment on column knowledge_private.settings.longest_token is 'The longest time a token may live.';
comment on column knowledge_private.settings.clock_offset is
'Added to clock_timestamp() for leases and tokens; tests move it instead of waiting.';

insert into knowledge_private.settings default values;

create function knowledge_private.clock()
returns timestamptz
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select clock_timestamp() + s.clock_offset from knowledge_private.settings as s
$$;

comment on function knowledge_private.clock() is 'The time that leases and tokens are measured by.';
revoke all on function knowledge_private.clock() from public;

create function knowledge_private.new_id()
returns uuid
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    bytes bytea := uuid_send(gen_random_uuid());
begin
    -- Version 7 of RFC 9562: 48 bits of milliseconds, then random bits; PostgreSQL has uuidv7() only from 18 on.
    return encode(
        set_byte(
            overlay(bytes placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                from 1 for 6),
            6, (get_byte(bytes, 6) & 15) | 112),
        'hex')::uuid;
end
$$;

comment on function knowledge_private.new_id() is
'A new uuid of version 7: ordered by time of creation, counting nothing.';
revoke all on function knowledge_private.new_id() from public;

-- ---- sql/30_tables/03_orgs.sql
-- The tenants, and the chained log of what was done to each.

create table knowledge.models (
    model_id integer generated always as identity primary key,
    name text not null unique,
    fingerprint text not null unique,
    dimensions integer not null check (dimensions between 1 and 4000),
    state text not null default 'building' check (state in ('building', 'active', 'retired')),
    created_at timestamptz not null default now()
);

comment on table knowledge.models is 'The registered embedding models; each has a table vectors_<model_id>.';
comment on column knowledge.models.model_id is 'Number of the model and of its vector table.';
comment on column knowledge.models.name is 'Name for people.';
comment on column knowledge.models.fingerprint is
'What an embedder presents to prove that it is this model: same fingerprint, same vectors for the same text.';
comment on column knowledge.models.dimensions is 'Length of every vector of the model.';
comment on column knowledge.models.state is 'building: no org searches with it yet; active; retired.';
comment on column knowledge.models.created_at is 'When it was registered.';

create table knowledge.orgs (
    org_id text collate "C" primary key,
    status text not null default 'active' check (status in ('active', 'offboarded')),
    language text not null default 'pg_catalog.english',
    active_model integer references knowledge.models (model_id),
    created_at timestamptz not null default now(),
    offboarded_at timestamptz,
    audit_entries bigint not null default 0,
    audit_head bytea not null default '\x'
);

comment on table knowledge.orgs is 'The tenants. An org exists from its first use on; an erased one stays as offboarded.';
comment on column knowledge.orgs.org_id is 'The name that the application gives its tenant.';
comment on column knowledge.orgs.status is 'active, or offboarded: erased, and never to be used again.';
comment on column knowledge.orgs.language is
'Text search configuration of documents and questions that name none. Text, because pg_upgrade refuses regconfig.';
comment on column knowledge.orgs.active_model is 'The model this org ingests and searches with.';
comment on column knowledge.orgs.created_at is 'When it was first used.';
comment on column knowledge.orgs.offboarded_at is 'When it was erased.';
comment on column knowledge.orgs.audit_entries is 'Number of entries in audit_log.';
comment on column knowledge.orgs.audit_head is 'Digest of the newest entry in audit_log.';

create table knowledge.audit_log (
    org_id text collate "C" not null,
    entry bigint not null,
    at timestamptz not null,
    actor text not null,
    action text not null,
    details jsonb not null,
    previous bytea not null,
    digest bytea not null,
    primary key (org_id, entry)
);

comment on table knowledge.audit_log is
'What was erased or redefined, by whom: append-only, each entry chained to the one before by its digest.';
comment on column knowledge.audit_log.org_id is 'The tenant; the log outlives it.';
comment on column knowledge.audit_log.entry is '1, 2, 3 … within the org, without gaps.';
comment on column knowledge.audit_log.at is 'When.';
comment on column knowledge.audit_log.actor is 'The login role.';
comment on column knowledge.audit_log.action is 'The function that did it.';
comment on column knowledge.audit_log.details is 'Counts and digests; never text of a document.';
comment on column knowledge.audit_log.previous is 'Digest of the entry before; empty for the first.';
comment on column knowledge.audit_log.digest is
'sha256(previous || utf8 of the json array [org_id, entry, microseconds, actor, action, details]).';

-- ---- sql/30_tables/04_vocabulary.sql
-- The closed vocabulary of an org. Authors declare audiences; the org's rules turn audiences into tags; a caller holds
-- tags. The audience and the tag 'everyone' are built in and stand in no table.

create table knowledge.tags (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    tag text collate "C" not null,
    description text not null default '',
    created_at timestamptz not null default now(),
    primary key (org_id, tag)
);

comment on table knowledge.tags is 'The tags a caller of the org can hold.';
comment on column knowledge.tags.org_id is 'The tenant.';
comment on column knowledge.tags.tag is 'The tag.';
comment on column knowledge.tags.description is 'Who holds it.';
comment on column knowledge.tags.created_at is 'When it was defined.';

create table knowledge.audiences (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    audience text collate "C" not null,
    tags text[] collate "C" not null check (cardinality(tags) > 0),
    version integer not null default 1,
    changed_at timestamptz not null default now(),
    primary key (org_id, audience)
);

comment on table knowledge.audiences is 'The derivation rules: a caller holding any of the tags belongs to the audience.';
comment on column knowledge.audiences.org_id is 'The tenant.';
comment on column knowledge.audiences.audience is 'What an author declares a document for.';
comment on column knowledge.audiences.tags is 'The tags that open it.';
comment on column knowledge.audiences.version is 'Counts the changes of this rule.';
comment on column knowledge.audiences.changed_at is 'When it was last changed.';

-- ---- sql/30_tables/05_compartments.sql
-- The heart: every chunk is in one compartment, and permission is decided on this table alone.
--
-- Here and below: keys lead with org_id, the other indexes with what is selective. To the planner an org that is newer
-- than its statistics has no rows, and then any index that leads with org_id looks as good as the right one.

create table knowledge.compartments (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    compartment_id integer not null,
    org_scope text collate "C",
    source_type text collate "C" not null,
    visibility text collate "C" not null,
    audience text[] collate "C" not null check (cardinality(audience) > 0),
    language text not null,
    acl text[] collate "C" not null check (cardinality(acl) > 0),
    acl_version bigint not null,
    chunks bigint not null default 0 check (chunks >= 0),
    words bigint not null default 0 check (words >= 0),
    counted_chunks bigint not null default 0,
    primary key (org_id, compartment_id)
) with (fillfactor = 80);

-- As in chunks: whatever the statistics say, an org is estimated as a two-hundredth of the table.
alter table knowledge.compartments alter column org_id set statistics 0;

create function knowledge_private.audience_key(audience text[])
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select knowledge_private.text_key(array_to_string(audience, E'\x1f'))
$$;

comment on function knowledge_private.audience_key(text[]) is
'A digest that differs for different audiences (no name has a control character): many names do not fit into an index.';
revoke all on function knowledge_private.audience_key(text[]) from public;

create unique index compartments_identity on knowledge.compartments
(knowledge_private.audience_key(audience), source_type, visibility, language, org_scope, org_id) nulls not distinct;
create index compartments_acl on knowledge.compartments using gin (acl);

comment on table knowledge.compartments is
'All chunks with the same org, scope, source type, visibility, audience and language. A change of permission changes rows
here.';
comment on column knowledge.compartments.org_id is 'The tenant.';
comment on column knowledge.compartments.compartment_id is 'Number within the org.';
comment on column knowledge.compartments.org_scope is 'The part of the org; null is org-wide.';
comment on column knowledge.compartments.source_type is 'Kind of source, as the application names it.';
comment on column knowledge.compartments.visibility is 'Label; a search sees ''org'' unless it asks for more.';
comment on column knowledge.compartments.audience is 'Whom the author declared the documents for, sorted.';
comment on column knowledge.compartments.language is 'Text search configuration its chunks are indexed by.';
comment on column knowledge.compartments.acl is 'The tags derived from the audience: a caller with any of them may read.';
comment on column knowledge.compartments.acl_version is 'Sum of the versions of the rules that acl was derived by.';
comment on column knowledge.compartments.chunks is 'Live chunks in it: the N of BM25.';
comment on column knowledge.compartments.words is 'Sum of chunks.words in it: BM25''s average length is words / chunks.';
comment on column knowledge.compartments.counted_chunks is 'Chunks that it had when lexeme_counts was counted; 0: never.';

-- ---- sql/30_tables/06_documents.sql
-- Documents and their versions. A document has a compartment exactly while it has a live version.

create type knowledge_private.piece as (
    ordinal integer,
    place integer,
    many integer,
    shift integer
);

comment on type knowledge_private.piece is
'A stretch of a document: the chunks ordinal to ordinal + many - 1 are stored at place to place + many - 1, with characters
that count shift less than they stand at.';

create table knowledge.documents (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    document_id uuid not null,
    org_scope text collate "C",
    source_type text collate "C" not null,
    source_id text collate "C" not null,
    compartment_id integer,
    live_version uuid,
    layout knowledge_private.piece[],
    title text not null default '',
    uri text,
    metadata jsonb not null default '{}' check (jsonb_typeof(metadata) = 'object'),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (org_id, document_id),
    foreign key (org_id, compartment_id) references knowledge.compartments (org_id, compartment_id),
    check ((compartment_id is null) = (live_version is null))
);

create unique index documents_identity on knowledge.documents
(knowledge_private.text_key(source_id), source_type, org_scope, org_id) nulls not distinct;
create index documents_compartment on knowledge.documents (compartment_id, org_id);
create index documents_metadata on knowledge.documents using gin (metadata jsonb_path_ops);

comment on table knowledge.documents is
'One row a document, described by its live version. Readers see those in compartments that they may open.';
comment on column knowledge.documents.org_id is 'The tenant.';
comment on column knowledge.documents.document_id is 'The document.';
comment on column knowledge.documents.org_scope is 'The part of the org it belongs to; null is org-wide.';
comment on column knowledge.documents.source_type is 'Kind of source.';
comment on column knowledge.documents.source_id is 'Its name there: a path, a key, an address.';
comment on column knowledge.documents.compartment_id is 'Where its chunks are; null until something is live.';
comment on column knowledge.documents.live_version is 'The version that is searched; null until something is live.';
comment on column knowledge.documents.layout is
'Its pieces in order, so that what an edit only moves is not written again; null: each chunk''s place is its ordinal.';
comment on column knowledge.documents.title is 'Title for citations.';
comment on column knowledge.documents.uri is 'Where a person can open it.';
comment on column knowledge.documents.metadata is 'A json object to filter by.';
comment on column knowledge.documents.created_at is 'When it was first begun.';
comment on column knowledge.documents.updated_at is 'When its live version was published.';

create table knowledge.versions (
    org_id text collate "C" not null,
    version_id uuid not null,
    document_id uuid not null,
    state text not null default 'ingesting' check (state in ('ingesting', 'live', 'superseded', 'aborted')),
    source_version text,
    content_hash text not null,
    chunk_count integer not null check (chunk_count > 0),
    outline bytea,
    model_id integer references knowledge.models (model_id),
    audience text[] collate "C",
    visibility text collate "C",
    title text,
    uri text,
    metadata jsonb,
    language text not null,
    lease bigint not null default 1,
    lease_holder text,
    lease_expires_at timestamptz not null,
    report jsonb,
    last_error text,
    failed_at timestamptz,
    started_at timestamptz not null default now(),
    ended_at timestamptz,
    primary key (org_id, version_id),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id) on delete cascade
);

create unique index versions_ingesting on knowledge.versions (document_id, org_id) where state = 'ingesting';
create unique index versions_live on knowledge.versions (document_id, org_id) where state = 'live';
create index versions_document on knowledge.versions (document_id, org_id);

comment on table knowledge.versions is
'One row a state of a document: ingesting -> live -> superseded, or ingesting -> aborted. At most one is ingesting.';
comment on column knowledge.versions.org_id is 'The tenant.';
comment on column knowledge.versions.version_id is 'The version.';
comment on column knowledge.versions.document_id is 'Of which document.';
comment on column knowledge.versions.state is 'ingesting, live, superseded or aborted.';
comment on column knowledge.versions.source_version is 'What the source calls this state of the document.';
comment on column knowledge.versions.content_hash is 'The writer''s digest of the chunked text: the same digest resumes.';
comment on column knowledge.versions.chunk_count is 'How many chunks it must have: ordinals 0 to chunk_count - 1.';
comment on column knowledge.versions.outline is
'What its writer wants to know of it when the next edition comes; null where it is neither live nor being ingested.';
comment on column knowledge.versions.model_id is 'The model its vectors are of; null: for words only.';
comment on column knowledge.versions.audience is 'Declared audience, sorted; null keeps the document''s.';
comment on column knowledge.versions.visibility is 'Declared visibility; null keeps the document''s.';
comment on column knowledge.versions.title is 'Title to publish; null keeps the document''s.';
comment on column knowledge.versions.uri is 'Address to publish; null keeps the document''s.';
comment on column knowledge.versions.metadata is 'Metadata to publish; null keeps the document''s.';
comment on column knowledge.versions.language is 'Text search configuration its chunks are indexed by.';
comment on column knowledge.versions.lease is 'Fencing number: a call with an older one is refused (KB009).';
comment on column knowledge.versions.lease_holder is 'The writer that holds the lease, as it names itself.';
comment on column knowledge.versions.lease_expires_at is 'Until then no other writer may resume it.';
comment on column knowledge.versions.report is
'What finalize_version reported; release_chunk and reject_chunk keep its counts true.';
comment on column knowledge.versions.last_error is 'What its writer last failed of, as it told release_version.';
comment on column knowledge.versions.failed_at is 'When it told so.';
comment on column knowledge.versions.started_at is 'When it was begun.';
comment on column knowledge.versions.ended_at is 'When it was published, superseded or aborted.';

-- ---- sql/30_tables/07_chunks.sql
-- What is searched: live chunks only. Their text, their place and (made by register_model) their vectors are three
-- tables, so that what moves a chunk within its document rewrites one narrow row at most and no index of text or vectors.

create table knowledge.chunks (
    org_id text collate "C" not null,
    chunk_id uuid not null,
    document_id uuid not null,
    compartment_id integer not null,
    heading text not null,
    body text not null check (body ~ '\S'),
    tsv tsvector not null,
    words integer not null,
    tokens integer,
    content_hash bytea not null,
    primary key (org_id, chunk_id)
);

-- A chunk of the usual size stays in one piece: to compress it or to cut it up takes longer than to read it. What is
-- ranked by words stays in the row as it is; a body that makes the row too long goes out of it first.
alter table knowledge.chunks alter column tsv set storage main, set (toast_tuple_target = 4080);

create index chunks_compartment on knowledge.chunks (compartment_id, org_id);
create index chunks_content on knowledge.chunks (content_hash);
create index chunks_tsv on knowledge.chunks using gin (tsv);

comment on table knowledge.chunks is
'The live chunks. Readers see those in compartments that they may open: exactly what search could show.';
comment on column knowledge.chunks.org_id is 'The tenant.';
comment on column knowledge.chunks.chunk_id is 'The chunk; it keeps its id as long as its text stays.';
comment on column knowledge.chunks.document_id is 'Of which document.';
comment on column knowledge.chunks.compartment_id is 'The compartment of the document.';
comment on column knowledge.chunks.heading is 'Heading trail, outermost first; may be empty.';
comment on column knowledge.chunks.body is 'The text, as it stands in the source.';
comment on column knowledge.chunks.tsv is 'Heading with weight A and body with weight B, in the document''s language.';
comment on column knowledge.chunks.words is 'Number of positions in tsv: the length that BM25 uses.';
comment on column knowledge.chunks.tokens is 'Length in tokens as the writer counted it.';
comment on column knowledge.chunks.content_hash is
'sha256 of org, heading and body: the key for reuse, which never meets another org''s.';

create table knowledge.places (
    org_id text collate "C" not null,
    document_id uuid not null,
    place integer not null check (place >= 0),
    chunk_id uuid not null,
    compartment_id integer not null,
    content_hash bytea not null,
    words integer not null,
    char_start integer,
    char_end integer,
    locator text,
    primary key (org_id, document_id, place),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id),
    foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade
) with (fillfactor = 80);

create unique index places_chunk on knowledge.places (chunk_id, org_id);

comment on table knowledge.places is
'Where each live chunk stands, as it was written; documents.layout says where that is in the document now: see positions.';
comment on column knowledge.places.org_id is 'The tenant.';
comment on column knowledge.places.document_id is 'The document.';
comment on column knowledge.places.place is 'Its ordinal, where documents.layout says nothing else.';
comment on column knowledge.places.chunk_id is 'The chunk.';
comment on column knowledge.places.compartment_id is 'The compartment of the document.';
comment on column knowledge.places.content_hash is 'As in chunks, so that comparing a document reads no text.';
comment on column knowledge.places.words is 'As in chunks, so that counting a document reads no text.';
comment on column knowledge.places.char_start is 'First character in the source, from 0, less the shift of its piece.';
comment on column knowledge.places.char_end is 'One after the last character in the source, less the same.';
comment on column knowledge.places.locator is 'Where it is in the original, for a citation: "page 3".';

create view knowledge.positions with (security_invoker = true) as
select
    p.org_id,
    p.document_id,
    s.ordinal + (p.place - s.place) as ordinal,
    p.chunk_id,
    p.compartment_id,
    p.char_start + s.shift as char_start,
    p.char_end + s.shift as char_end,
    p.locator
from knowledge.documents as d
cross join lateral unnest(coalesce(d.layout, '{"(0,0,2147483647,0)"}')) as s
inner join knowledge.places as p
    on p.org_id = d.org_id and p.document_id = d.document_id and p.place between s.place and s.place + (s.many - 1);

comment on view knowledge.positions is
'Where each live chunk stands in its document. Readers see those in compartments that they may open.';
comment on column knowledge.positions.org_id is 'The tenant.';
comment on column knowledge.positions.document_id is 'The document.';
comment on column knowledge.positions.ordinal is
'0, 1, 2 … within the document; what was quarantined or rejected leaves a gap.';
comment on column knowledge.positions.chunk_id is 'The chunk.';
comment on column knowledge.positions.compartment_id is 'The compartment of the document.';
comment on column knowledge.positions.char_start is 'First character in the source, from 0.';
comment on column knowledge.positions.char_end is 'One after the last character in the source.';
comment on column knowledge.positions.locator is 'Where it is in the original, for a citation: "page 3".';

create table knowledge_private.staged_chunks (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinal integer not null,
    verdict text not null default 'admitted' check (verdict in ('admitted', 'quarantined', 'rejected')),
    reason text,
    heading text not null,
    body text not null,
    tsv tsvector not null,
    words integer not null,
    tokens integer,
    content_hash bytea not null,
    char_start integer,
    char_end integer,
    locator text,
    primary key (org_id, version_id, ordinal),
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
) with (toast_tuple_target = 8160);

comment on table knowledge_private.staged_chunks is 'The chunks of versions that are being ingested.';
comment on column knowledge_private.staged_chunks.org_id is 'The tenant.';
comment on column knowledge_private.staged_chunks.version_id is 'The version.';
comment on column knowledge_private.staged_chunks.ordinal is 'Position in the document.';
comment on column knowledge_private.staged_chunks.verdict is 'admitted, quarantined or rejected.';
comment on column knowledge_private.staged_chunks.reason is 'Why it was not admitted.';
comment on column knowledge_private.staged_chunks.heading is 'As in chunks.';
comment on column knowledge_private.staged_chunks.body is 'As in chunks; empty where rejected.';
comment on column knowledge_private.staged_chunks.tsv is 'As in chunks.';
comment on column knowledge_private.staged_chunks.words is 'As in chunks.';
comment on column knowledge_private.staged_chunks.tokens is 'As in chunks.';
comment on column knowledge_private.staged_chunks.content_hash is 'As in chunks.';
comment on column knowledge_private.staged_chunks.char_start is 'As in positions.';
comment on column knowledge_private.staged_chunks.char_end is 'As in positions.';
comment on column knowledge_private.staged_chunks.locator is 'As in positions.';

-- What is unchanged is staged without its text, a run of chunks in a row.
create table knowledge_private.staged_unchanged (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinals int4range not null,
    live_ordinal integer not null,
    shift integer not null,
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
);

create index staged_unchanged_version on knowledge_private.staged_unchanged (version_id, org_id);

comment on table knowledge_private.staged_unchanged is
'The chunks of versions that are being ingested which are live in the document already.';
comment on column knowledge_private.staged_unchanged.org_id is 'The tenant.';
comment on column knowledge_private.staged_unchanged.version_id is 'The version.';
comment on column knowledge_private.staged_unchanged.ordinals is 'Which chunks of the version.';
comment on column knowledge_private.staged_unchanged.live_ordinal is 'Which chunk of the live version the first of them is.';
comment on column knowledge_private.staged_unchanged.shift is 'By how many characters they have moved back in the source.';

-- A table of its own: storing a vector writes no text again. They are of the version's model, so of no fixed length.
create table knowledge_private.staged_vectors (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinal integer not null,
    embedding halfvec not null,
    primary key (org_id, version_id, ordinal),
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
);

alter table knowledge_private.staged_vectors alter column embedding set storage plain;

comment on table knowledge_private.staged_vectors is 'The vectors of staged chunks.';
comment on column knowledge_private.staged_vectors.org_id is 'The tenant.';
comment on column knowledge_private.staged_vectors.version_id is 'The version.';
comment on column knowledge_private.staged_vectors.ordinal is 'Of the chunk.';
comment on column knowledge_private.staged_vectors.embedding is 'Unit vector of the version''s model.';

create type knowledge_private.measured as (
    chunk_id uuid,
    measure double precision
);

comment on type knowledge_private.measured is 'A chunk and how well it fits a question, by one leg of a search.';

-- Whatever the statistics say, no org is taken for empty: its rows are estimated as a two-hundredth of the table.
alter table knowledge.documents alter column org_id set statistics 0;
alter table knowledge.versions alter column org_id set statistics 0;
alter table knowledge.chunks alter column org_id set statistics 0;
alter table knowledge.places alter column org_id set statistics 0;
alter table knowledge_private.staged_chunks alter column org_id set statistics 0;
alter table knowledge_private.staged_unchanged alter column org_id set statistics 0;
alter table knowledge_private.staged_vectors alter column org_id set statistics 0;

-- ---- sql/30_tables/08_keys.sql
-- The keys that contexts and tokens are signed with: HMAC-SHA256 (RFC 2104) with the two padded keys kept ready, from
-- core sha256() and 244 random bits of gen_random_uuid().

create table knowledge_private.signing_keys (
    key_id integer generated always as identity primary key,
    inner_pad bytea not null check (length(inner_pad) = 64),
    outer_pad bytea not null check (length(outer_pad) = 64),
    created_at timestamptz not null default now(),
    valid_until timestamptz
);

comment on table knowledge_private.signing_keys is 'HMAC keys. The newest signs; the others verify until they expire.';
comment on column knowledge_private.signing_keys.key_id is 'Named in every signed text.';
comment on column knowledge_private.signing_keys.inner_pad is 'Key xor 0x36, 64 bytes.';
comment on column knowledge_private.signing_keys.outer_pad is 'Key xor 0x5c, 64 bytes.';
comment on column knowledge_private.signing_keys.created_at is 'When it was made.';
comment on column knowledge_private.signing_keys.valid_until is 'Null for the key that signs.';

create function knowledge_private.add_signing_key()
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
    new_key integer;
begin
    for i in 0..31 loop
        inner_pad := set_byte(inner_pad, i, get_byte(key, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(key, i) # 92);
    end loop;
    insert into knowledge_private.signing_keys (inner_pad, outer_pad)
    values (inner_pad, outer_pad)
    returning key_id into new_key;
    return new_key;
end
$$;

comment on function knowledge_private.add_signing_key() is 'Makes a key that signs from now on; returns its key_id.';
revoke all on function knowledge_private.add_signing_key() from public;

do $key$
begin
    perform knowledge_private.add_signing_key();
end
$key$;

-- ---- sql/30_tables/09_ledger.sql
-- What was applied to this database.

create table knowledge.migrations (
    version text primary key,
    checksum text not null,
    applied_at timestamptz not null default now(),
    applied_by text not null default session_user,
    granted_usage text[] not null default '{}'
);

comment on table knowledge.migrations is 'One row a migration that was applied, in order of applied_at.';
comment on column knowledge.migrations.version is 'Version of pg_knowledge that it brought.';
comment on column knowledge.migrations.checksum is 'sha256 of the built sources, as hex.';
comment on column knowledge.migrations.applied_at is 'When.';
comment on column knowledge.migrations.applied_by is 'The login role that applied it.';
comment on column knowledge.migrations.granted_usage is
'The roles that it had to grant USAGE on the schema of pgvector; uninstall.sql takes that back.';

grant select on knowledge.migrations to knowledge_reader, knowledge_trusted;

-- ---- sql/30_tables/10_admission.sql
-- What may be found without somebody having looked at it: rules, what they held back, and what was decided about that.

create table knowledge.admission_rules (
    org_id text collate "C" references knowledge.orgs (org_id),
    rule text not null,
    pattern text,
    longest integer check (longest >= 1),
    verdict text not null check (verdict in ('admitted', 'quarantined', 'rejected')),
    reason text not null,
    changed_at timestamptz not null default now(),
    unique nulls not distinct (org_id, rule),
    check (num_nonnulls(pattern, longest) = 1)
);

comment on table knowledge.admission_rules is
'A new chunk that matches a rule gets its verdict; of several, the severest. Those without an org hold for every org that has
none of the same name.';
comment on column knowledge.admission_rules.org_id is 'The tenant; null for every tenant.';
comment on column knowledge.admission_rules.rule is 'Name of the rule.';
comment on column knowledge.admission_rules.pattern is
'Regular expression of PostgreSQL, case-insensitive, looked for in heading, line break, body.';
comment on column knowledge.admission_rules.longest is 'Or a number of characters that a body must not exceed.';
comment on column knowledge.admission_rules.verdict is 'quarantined or rejected; admitted switches a rule of every org off.';
comment on column knowledge.admission_rules.reason is 'What the report says of such a chunk.';
comment on column knowledge.admission_rules.changed_at is 'When it was defined.';

insert into knowledge.admission_rules (rule, pattern, longest, verdict, reason)
values
(
    'prompt_injection',
    '\y(?:ignore|disregard|forget|override|bypass)\y[^.!?\n]{0,40}\y(?:previous|prior|above|earlier|preceding|foregoing|system)'
    '\y[^.!?\n]{0,30}\y(?:instructions?|prompts?|rules|directions|messages|guidelines)\y'
    '|\y(?:reveal|print|show|repeat|output|leak|disclose)\y[^.!?\n]{0,30}\y(?:system|hidden|initial|secret)\W{1,3}'
    '(?:prompt|instructions?|message)\y'
    '|\y(?:do not|don.t|never)\W{1,3}(?:tell|inform|alert|warn)\W{1,3}the\W{1,3}user\y'
    '|\yyou\W{1,3}are\W{1,3}(?:now|no longer)\y[^.!?\n]{0,40}\y(?:mode|jailbr\w*|unrestricted|dan|assistant|persona)\y'
    '|\ynew\W{1,3}(?:system\W{1,3})?instructions?\s*:',
    null, 'quarantined', 'it speaks to a language model like an order'
),
(
    'chat_markup',
    '<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>|\[/?inst\]|<</?sys>>'
    '|<(?:start|end)_of_turn>',
    null, 'quarantined', 'it has the marks that separate the turns of a conversation with a language model'
),
(
    'invisible',
    '[\u0001-\u0008\u000b\u000e-\u001f\u007f\u202d\u202e\u2061-\u2064]'
    '|[a-z][\u200b-\u200d\u2060\ufeff\u00ad\u180e]{2,}[a-z]|[\u200b-\u200f\u2060\ufeff]{8,}'
    '|(?:^|[^\U0001f3f4\U000e0020-\U000e007f])[\U000e0001-\U000e007f]',
    null, 'quarantined', 'it has control characters or signs that nobody can see'
),
('too_long', null, 20000, 'quarantined', 'no embedder reads this much of a text');

create table knowledge.quarantine (
    org_id text collate "C" not null,
    chunk_id uuid not null,
    document_id uuid not null,
    version_id uuid not null,
    ordinal integer not null,
    reason text not null,
    heading text not null,
    body text not null,
    tokens integer,
    content_hash bytea not null,
    char_start integer,
    char_end integer,
    locator text,
    model_id integer references knowledge.models (model_id),
    embedding halfvec,
    held_at timestamptz not null default now(),
    primary key (org_id, chunk_id),
    unique (document_id, ordinal, org_id),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id) on delete cascade
);

comment on table knowledge.quarantine is 'The chunks of live versions that are held back until somebody has looked at them.';
comment on column knowledge.quarantine.org_id is 'The tenant.';
comment on column knowledge.quarantine.chunk_id is 'The chunk; it keeps this id when it is released.';
comment on column knowledge.quarantine.document_id is 'Of which document.';
comment on column knowledge.quarantine.version_id is 'The live version that it belongs to.';
comment on column knowledge.quarantine.ordinal is 'The place in the document that is kept for it.';
comment on column knowledge.quarantine.reason is 'Why it is held back.';
comment on column knowledge.quarantine.heading is 'As in chunks.';
comment on column knowledge.quarantine.body is 'As in chunks.';
comment on column knowledge.quarantine.tokens is 'As in chunks.';
comment on column knowledge.quarantine.content_hash is 'As in chunks.';
comment on column knowledge.quarantine.char_start is 'As in positions.';
comment on column knowledge.quarantine.char_end is 'As in positions.';
comment on column knowledge.quarantine.locator is 'As in positions.';
comment on column knowledge.quarantine.model_id is 'The model of embedding.';
comment on column knowledge.quarantine.embedding is 'Its vector, where its writer brought one.';
comment on column knowledge.quarantine.held_at is 'Since when.';

create table knowledge_private.reviews (
    org_id text collate "C" not null,
    document_id uuid not null,
    content_hash bytea not null,
    verdict text not null check (verdict in ('admitted', 'rejected')),
    reason text not null,
    primary key (org_id, document_id, content_hash),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id) on delete cascade
);

comment on table knowledge_private.reviews is
'What was decided about quarantined texts, so that nobody is asked again when the document is ingested again.';
comment on column knowledge_private.reviews.org_id is 'The tenant.';
comment on column knowledge_private.reviews.document_id is 'Of which document.';
comment on column knowledge_private.reviews.content_hash is 'As in chunks.';
comment on column knowledge_private.reviews.verdict is 'admitted or rejected.';
comment on column knowledge_private.reviews.reason is 'What the reviewer said.';

-- ---- sql/30_tables/11_embedding_jobs.sql
-- The queue of chunks that were published without a vector. A job is gone when its chunk has its vector, or is gone.

create table knowledge_private.embedding_jobs (
    org_id text collate "C" not null,
    model_id integer not null references knowledge.models (model_id),
    chunk_id uuid not null,
    document_id uuid not null,
    due_at timestamptz not null,
    attempts integer not null default 0,
    claim uuid,
    reason text,
    dead boolean not null default false,
    queued_at timestamptz not null,
    primary key (org_id, model_id, chunk_id),
    foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade
) with (fillfactor = 80);

create index embedding_jobs_chunk on knowledge_private.embedding_jobs (chunk_id, org_id);
create index embedding_jobs_document on knowledge_private.embedding_jobs (document_id, org_id);
create index embedding_jobs_claim on knowledge_private.embedding_jobs (claim);
create index embedding_jobs_due on knowledge_private.embedding_jobs (model_id, org_id, due_at) where not dead;

comment on table knowledge_private.embedding_jobs is 'Chunks that are live without a vector of a model.';
comment on column knowledge_private.embedding_jobs.org_id is 'The tenant.';
comment on column knowledge_private.embedding_jobs.model_id is 'The model that is to embed it.';
comment on column knowledge_private.embedding_jobs.chunk_id is 'The chunk.';
comment on column knowledge_private.embedding_jobs.document_id is 'Of which document.';
comment on column knowledge_private.embedding_jobs.due_at is
'From when on it may be claimed: at once, after a failure later, and while it is claimed when the claim runs out.';
comment on column knowledge_private.embedding_jobs.attempts is 'How often embedding it has failed, or a worker vanished.';
comment on column knowledge_private.embedding_jobs.claim is 'The claim it was last part of; null after a failure.';
comment on column knowledge_private.embedding_jobs.reason is 'Of the last failure.';
comment on column knowledge_private.embedding_jobs.dead is 'Set aside after too many failures, until retry_embeddings.';
comment on column knowledge_private.embedding_jobs.queued_at is 'Since when it waits.';

create table knowledge_private.embedding_turns (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    model_id integer not null references knowledge.models (model_id),
    served_at timestamptz not null default '-infinity',
    primary key (org_id, model_id)
) with (fillfactor = 50);

comment on table knowledge_private.embedding_turns is
'Whose turn it is: a claim begins with the org that was served longest ago. An org with nothing queued has no row here, or
one that the next claim takes away.';
comment on column knowledge_private.embedding_turns.org_id is 'The tenant.';
comment on column knowledge_private.embedding_turns.model_id is 'The model.';
comment on column knowledge_private.embedding_turns.served_at is 'When chunks of it were last claimed.';

alter table knowledge_private.embedding_jobs alter column org_id set statistics 0;

-- ---- sql/40_context/01_sign.sql
-- Signed texts: <purpose>.<key>.<payload in hex>.<hmac in hex>. The purpose is signed too, so a token is no context.

create function knowledge_private.mac(message text, inner_pad bytea, outer_pad bytea)
returns text
language sql
stable
begin atomic
    select encode(sha256(outer_pad || sha256(inner_pad || convert_to(message, 'UTF8'))), 'hex');
end;

comment on function knowledge_private.mac(text, bytea, bytea) is 'HMAC-SHA256 of message as hex (RFC 2104).';
revoke all on function knowledge_private.mac(text, bytea, bytea) from public;

create function knowledge_private.sign(purpose text, payload jsonb)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key record;
    message text;
begin
    select k.* into strict key
    from knowledge_private.signing_keys as k
    where k.valid_until is null
    order by k.key_id desc
    limit 1;
    message := concat_ws('.', purpose, key.key_id, encode(convert_to(payload::text, 'UTF8'), 'hex'));
    return message || '.' || knowledge_private.mac(message, key.inner_pad, key.outer_pad);
end
$$;

comment on function knowledge_private.sign(text, jsonb) is 'payload as a text signed for purpose with the newest key.';
revoke all on function knowledge_private.sign(text, jsonb) from public;

create function knowledge_private.verify(purpose text, signed text)
returns jsonb
language plpgsql
stable
parallel restricted
set search_path = pg_catalog, pg_temp
as $$
declare
    part text[] := string_to_array(signed, '.');
    key record;
begin
    -- No more of its form is checked: what has the right hmac was written by sign, and nothing else is decoded.
    if cardinality(part) is distinct from 4 or part[2] !~ '^[0-9]{1,9}$' then
        return null;
    end if;
    select k.* into key
    from knowledge_private.signing_keys as k
    where k.key_id = part[2]::integer and (k.valid_until is null or k.valid_until > knowledge_private.clock());
    if not found
        or part[1] <> purpose
        or part[4] <> knowledge_private.mac(concat_ws('.', part[1], part[2], part[3]), key.inner_pad, key.outer_pad)
    then
        return null;
    end if;
    return convert_from(decode(part[3], 'hex'), 'UTF8')::jsonb;
end
$$;

comment on function knowledge_private.verify(text, text) is
'The payload of a text that sign made for the same purpose with a key that is still valid, else null.';
revoke all on function knowledge_private.verify(text, text) from public;

-- ---- sql/40_context/02_claim.sql
-- The claim in force: a signed text in the transaction-local setting knowledge.context. It names the backend and the
-- transaction it was made in, so its text is worth nothing anywhere else.

create type knowledge_private.claim as (
    org_id text,
    org_scope text,
    grants text[],
    expires_at timestamptz
);

comment on type knowledge_private.claim is 'Who is asking.';

create function knowledge_private.transaction_mark()
returns text
language sql
stable
parallel restricted
begin atomic
    select concat_ws('/', pg_backend_pid(), (extract(epoch from transaction_timestamp()) * 1000000)::bigint, session_user);
end;

comment on function knowledge_private.transaction_mark() is
'Names this transaction of this backend: process, start in microseconds, login role.';
revoke all on function knowledge_private.transaction_mark() from public;

create function knowledge_private.put_claim(org_id text, grants text[], org_scope text, expires_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config('knowledge.context', knowledge_private.sign('context', jsonb_build_object(
        'org_id', org_id, 'org_scope', org_scope, 'grants', to_jsonb(grants), 'expires_at', expires_at,
        'mark', knowledge_private.transaction_mark())), true);
end
$$;

comment on function knowledge_private.put_claim(text, text[], text, timestamptz) is
'Stores a signed claim in knowledge.context until the end of the transaction.';
revoke all on function knowledge_private.put_claim(text, text[], text, timestamptz) from public;

create function knowledge_private.context()
returns knowledge_private.claim
language plpgsql
stable
parallel restricted
set search_path = pg_catalog, pg_temp
as $$
declare
    signed text := nullif(current_setting('knowledge.context', true), '');
    payload jsonb;
    claim knowledge_private.claim;
begin
    if signed is null then
        perform knowledge_private.fail('KB001', 'no context: who is asking?', null,
            'Call knowledge.set_context or knowledge.use_token in this transaction.');
    end if;
    payload := knowledge_private.verify('context', signed);
    if payload is null or payload ->> 'mark' is distinct from knowledge_private.transaction_mark() then
        perform knowledge_private.fail('KB002', 'context refused: not made in this transaction', null,
            'Call knowledge.set_context or knowledge.use_token in this transaction.');
    end if;
    claim := jsonb_populate_record(claim, payload);
    if claim.expires_at is not null and claim.expires_at <= knowledge_private.clock() then
        perform knowledge_private.fail('KB002', 'context refused: the token has expired');
    end if;
    return claim;
end
$$;

comment on function knowledge_private.context() is
'The verified claim in force. KB001 without one, KB002 when it is forged, copied, replayed or expired.';
revoke all on function knowledge_private.context() from public;

create function knowledge_private.check_claim(org_id text, grants text[], org_scope text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_label(org_id, 'org_id');
    if org_scope is not null then
        perform knowledge_private.check_label(org_scope, 'org_scope');
    end if;
    if grants is null or coalesce(array_ndims(grants), 1) <> 1 or array_position(grants, null) is not null then
        perform knowledge_private.fail('KB005', 'grants must be a list of tags without nulls; an empty list grants nothing');
    end if;
end
$$;

comment on function knowledge_private.check_claim(text, text[], text) is
'KB005 unless the parts of a claim are well-formed.';
revoke all on function knowledge_private.check_claim(text, text[], text) from public;

-- ---- sql/40_context/10_set_context.sql
create function knowledge.set_context(org_id text, grants text[], org_scope text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_claim(set_context.org_id, set_context.grants, set_context.org_scope);
    perform knowledge_private.put_claim(set_context.org_id, set_context.grants, set_context.org_scope, null);
end
$$;

comment on function knowledge.set_context(text, text[], text) is
'Says who is asking, until the end of this transaction: tenant, tags held ({} holds only the built-in everyone) and
optionally the part of the tenant. For back ends that have authenticated the caller; a role that can run SQL of its own
should get a token instead. KB005 for a blank or malformed argument.';
revoke all on function knowledge.set_context(text, text[], text) from public;
grant execute on function knowledge.set_context(text, text[], text) to knowledge_trusted;

-- ---- sql/40_context/11_issue_token.sql
create function knowledge.issue_token(
    org_id text, grants text[], org_scope text default null, ttl interval default interval '5 minutes'
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    longest interval;
begin
    perform knowledge_private.check_claim(issue_token.org_id, issue_token.grants, issue_token.org_scope);
    select s.longest_token into longest from knowledge_private.settings as s;
    if ttl is null or ttl <= interval '0' or ttl > longest then
        perform knowledge_private.fail('KB005', format('ttl must be more than 0 and at most %s', longest));
    end if;
    return knowledge_private.sign('token', jsonb_build_object(
        'org_id', issue_token.org_id, 'org_scope', issue_token.org_scope, 'grants', to_jsonb(issue_token.grants),
        'expires_at', knowledge_private.clock() + ttl));
end
$$;

comment on function knowledge.issue_token(text, text[], text, interval) is
'A signed text that lets whoever holds it call use_token until ttl has passed. Arguments as for set_context. KB005 for a
malformed argument or a ttl beyond the setting longest_token.';
revoke all on function knowledge.issue_token(text, text[], text, interval) from public;
grant execute on function knowledge.issue_token(text, text[], text, interval) to knowledge_trusted;

-- ---- sql/40_context/12_use_token.sql
create function knowledge.use_token(token text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    payload jsonb := knowledge_private.verify('token', token);
    claim knowledge_private.claim;
begin
    if payload is null then
        perform knowledge_private.fail('KB002', 'token refused', null, 'Ask the back end for a token of issue_token.');
    end if;
    claim := jsonb_populate_record(claim, payload);
    if claim.expires_at <= knowledge_private.clock() then
        perform knowledge_private.fail('KB002', 'token refused: it has expired', null, 'Ask the back end for a new one.');
    end if;
    perform knowledge_private.put_claim(claim.org_id, claim.grants, claim.org_scope, claim.expires_at);
end
$$;

comment on function knowledge.use_token(text) is
'Takes on the context that a token of issue_token carries, until the end of this transaction or the token''s expiry.
KB002 when the token is forged or has expired.';
revoke all on function knowledge.use_token(text) from public;
grant execute on function knowledge.use_token(text) to knowledge_reader;

-- ---- sql/40_context/13_current_context.sql
create function knowledge.current_context()
returns table (org_id text, org_scope text, grants text[], expires_at timestamptz)
language sql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
    select c.org_id, c.org_scope, c.grants, c.expires_at from knowledge_private.context() as c
$$;

comment on function knowledge.current_context() is
'One row: who is asking in this transaction; expires_at is null unless it came from a token. KB001 without a context,
KB002 when it is refused.';
revoke all on function knowledge.current_context() from public;
grant execute on function knowledge.current_context() to knowledge_reader, knowledge_trusted;

-- ---- sql/40_context/14_rotate_signing_key.sql
create function knowledge.rotate_signing_key(revoke_tokens boolean default false)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    lock table knowledge_private.signing_keys in share row exclusive mode;
    delete from knowledge_private.signing_keys as k where k.valid_until <= knowledge_private.clock();
    update knowledge_private.signing_keys as k
    set valid_until = case when revoke_tokens then '-infinity' else knowledge_private.clock() + s.longest_token end
    from knowledge_private.settings as s
    where k.valid_until is null or revoke_tokens;
    perform knowledge_private.add_signing_key();
end
$$;

comment on function knowledge.rotate_signing_key(boolean) is
'Signs with a new key from now on. Tokens of the old key stay good until they expire, unless revoke_tokens. Concerns the
whole database, so only a role that can become knowledge_owner may call it.';
revoke all on function knowledge.rotate_signing_key(boolean) from public;
grant execute on function knowledge.rotate_signing_key(boolean) to knowledge_owner;

-- ---- sql/50_policies/01_permission.sql
-- The rule of who may read what, written once. search_scoped calls permitted_compartments; the policies of every
-- table with an org_id call it through current_org and readable_compartments, as initplans: once a statement.

create function knowledge_private.permitted_compartments(
    asking knowledge_private.claim, source_types text[] default null, visibility text[] default null
)
returns setof knowledge.compartments
language sql
stable
parallel restricted
begin atomic
    -- One rule, twice, for two ways to find rows: those of the org, which suits an org of few compartments whatever the
    -- caller holds; or those with a tag, which in the index are of every org. "is true" and "|| ''" keep each to its way.
    select c.*
    from knowledge.compartments as c
    where
        c.org_id = asking.org_id
        and (c.acl && (select asking.grants || array['everyone'])) is true
        and (c.org_scope is null or c.org_scope = asking.org_scope)
        and (source_types is null or c.source_type = any(source_types))
        and (permitted_compartments.visibility is null or c.visibility = any(permitted_compartments.visibility))
        and (select max(m.compartment_id) <= 1000 from knowledge.compartments as m where m.org_id = asking.org_id)
    union all
    select c.*
    from knowledge.compartments as c
    where
        c.org_id || '' = asking.org_id
        and c.acl && (select asking.grants || array['everyone'])
        and (c.org_scope is null or c.org_scope = asking.org_scope)
        and (source_types is null or c.source_type = any(source_types))
        and (permitted_compartments.visibility is null or c.visibility = any(permitted_compartments.visibility))
        and (select max(m.compartment_id) > 1000 from knowledge.compartments as m where m.org_id = asking.org_id);
end;

comment on function knowledge_private.permitted_compartments(knowledge_private.claim, text[], text[]) is
'The compartments that a claim opens: of its org, org-wide or of exactly its scope, with a tag it holds; narrowed to
source types and visibility labels unless these are null. An empty list is nothing.';
revoke all on function knowledge_private.permitted_compartments(knowledge_private.claim, text[], text[]) from public;

create function knowledge_private.current_org()
returns text
language sql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
    select c.org_id from knowledge_private.context() as c
$$;

comment on function knowledge_private.current_org() is 'The tenant of the context, for policies. KB001, KB002.';
revoke all on function knowledge_private.current_org() from public;
grant execute on function knowledge_private.current_org() to knowledge_reader;

create function knowledge_private.readable_compartments()
returns integer[]
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Verified here, once: inside the query below it would be for every compartment.
    asking knowledge_private.claim := knowledge_private.context();
begin
    return array(select p.compartment_id from knowledge_private.permitted_compartments(asking) as p);
end
$$;

comment on function knowledge_private.readable_compartments() is
'The compartments that the context opens, for policies. KB001, KB002.';
revoke all on function knowledge_private.readable_compartments() from public;
grant execute on function knowledge_private.readable_compartments() to knowledge_reader;

-- ---- sql/50_policies/02_protect.sql
-- Row-level security is put on a table by these two, and by nothing else.

create function knowledge_private.protect_org(target regclass, readers text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table %s enable row level security', target);
    execute format('create policy own_org on %s for select using (org_id = (select knowledge_private.current_org()))',
        target);
    execute format('grant select on %s to %I', target, readers);
end
$$;

comment on function knowledge_private.protect_org(regclass, text) is
'Lets readers see the rows of the context''s org in target, and nobody anything else.';
revoke all on function knowledge_private.protect_org(regclass, text) from public;

create function knowledge_private.protect_compartment(target regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table %s enable row level security', target);
    execute format(
        'create policy own_compartments on %s for select using ('
        'org_id = (select knowledge_private.current_org()) '
        'and compartment_id = any ((select knowledge_private.readable_compartments())::integer[]))',
        target);
    execute format('grant select on %s to knowledge_reader', target);
end
$$;

comment on function knowledge_private.protect_compartment(regclass) is
'Lets readers see the rows of target in compartments that the context opens, and nobody anything else.';
revoke all on function knowledge_private.protect_compartment(regclass) from public;

do $protect$
begin
    perform knowledge_private.protect_org('knowledge.orgs', 'knowledge_admin');
    perform knowledge_private.protect_org('knowledge.tags', 'knowledge_writer');
    perform knowledge_private.protect_org('knowledge.audiences', 'knowledge_writer');
    perform knowledge_private.protect_org('knowledge.audit_log', 'knowledge_admin');
    perform knowledge_private.protect_compartment('knowledge.compartments');
    perform knowledge_private.protect_compartment('knowledge.documents');
    perform knowledge_private.protect_compartment('knowledge.chunks');
    perform knowledge_private.protect_compartment('knowledge.places');
end
$protect$;

-- Nobody reads these directly: enabled without a policy, row-level security shows nothing.
alter table knowledge.versions enable row level security;
alter table knowledge.admission_rules enable row level security;
alter table knowledge.quarantine enable row level security;
alter table knowledge_private.staged_chunks enable row level security;
alter table knowledge_private.staged_unchanged enable row level security;
alter table knowledge_private.staged_vectors enable row level security;
alter table knowledge_private.reviews enable row level security;
alter table knowledge_private.embedding_jobs enable row level security;
alter table knowledge_private.embedding_turns enable row level security;

-- As its reader sees the tables.
grant select on knowledge.positions to knowledge_reader;

-- Of their org readers see what a search needs, and not how often its log was written.
grant select (org_id, status, language, active_model) on knowledge.orgs to knowledge_reader;

-- Models belong to the database, not to an org.
grant select on knowledge.models to knowledge_reader;

-- ---- sql/60_ingest/01_text.sql
-- Text becomes lexemes here, for chunks and for questions alike.

create function knowledge_private.resolve_language(language text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    found_name text;
begin
    select format('%I.%I', n.nspname, c.cfgname)
    into found_name
    from pg_ts_config as c
    inner join pg_namespace as n on n.oid = c.cfgnamespace
    where
        resolve_language.language in (c.cfgname, n.nspname || '.' || c.cfgname)
        -- One of a session is gone tomorrow, and the org's searches with it.
        and not starts_with(n.nspname, 'pg_temp_')
    order by n.nspname <> 'pg_catalog', n.nspname
    limit 1;
    if found_name is null then
        perform knowledge_private.fail('KB005', 'unknown language: no such text search configuration',
            jsonb_build_object('language', language), 'select cfgname from pg_ts_config lists them.');
    end if;
    return found_name;
end
$$;

comment on function knowledge_private.resolve_language(text) is
'The qualified name of a text search configuration, from its name with or without schema. KB005 when there is none.';
revoke all on function knowledge_private.resolve_language(text) from public;

create function knowledge_private.cjk()
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Iteration marks, Hiragana to Katakana (half-width, too), Han with extensions and compatibility forms, Hangul.
    select '\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003134f'
$$;

comment on function knowledge_private.cjk() is
'The Chinese, Japanese and Korean letters, as ranges for a bracket expression.';
revoke all on function knowledge_private.cjk() from public;

create function knowledge_private.plain_text(value text)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    cjk constant text := knowledge_private.cjk();
    folded text;
    part text;
    plain text := '';
begin
    if value !~ '[^\u0001-\u007f]' then
        return value;
    end if;
    folded := normalize(regexp_replace(normalize(value, nfd), '([A-Za-z])[\u0300-\u036f]+', '\1', 'g'), nfc);
    if folded !~ ('[' || cjk || ']') then
        return folded;
    end if;
    for part in select m[1] from regexp_matches(folded, '([' || cjk || ']+|[^' || cjk || ']+)', 'g') as m loop
        if part ~ ('^[' || cjk || ']') then
            -- substr would count letters from the start each time.
            part := coalesce((
                select string_agg(p.pair, ' ' order by p.place)
                from (
                    select l.letter || lead(l.letter) over (order by l.place) as pair, l.place
                    from string_to_table(part, null) with ordinality as l (letter, place)
                ) as p
            ), part);
        end if;
        plain := concat_ws(' ', plain, part);
    end loop;
    return plain;
end
$$;

comment on function knowledge_private.plain_text(text) is
'The text as the parser of PostgreSQL should see it: Latin letters without accents, and each run of Chinese, Japanese or
Korean letters as its overlapping pairs, since such text has no spaces.';
revoke all on function knowledge_private.plain_text(text) from public;

create function knowledge_private.lexemes(language text, value text)
returns tsvector
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    gap constant text := 'qgapq qgapq ';
    plain text := knowledge_private.plain_text(value);
    whole tsvector := to_tsvector(language::regconfig, plain);
    parts text;
begin
    if plain ~ '[[:alnum:]][/\\.@:_=&?#+~-]+[[:alnum:]]' then
        -- One letter, or a number of two digits, says too little to be found by: "i.e.", "3-5".
        select string_agg(regexp_replace(regexp_replace(m[1], '[^[:alnum:]]+', ' ', 'g'), '\m([[:alnum:]]|[0-9]{2})\M', '', 'g'), ' ')
        into parts
        from regexp_matches(plain, '([[:alnum:]]+(?:[/\\.@:_=&?#+~-]+[[:alnum:]]+)+)', 'g') as m
        where m[1] ~ '[[:alpha:]]';
    end if;
    if parts is null then
        return whole;
    end if;
    -- What the parser has found by itself counts as often as it found it; only missing parts are added, with a gap before
    -- them, so that no phrase leads from the text into its parts.
    return whole || ts_delete(
        to_tsvector(language::regconfig, gap || parts),
        tsvector_to_array(whole || to_tsvector(language::regconfig, gap)));
end
$$;

comment on function knowledge_private.lexemes(text, text) is
'The lexemes of a text in a language (a text search configuration). Paths, identifiers, addresses and other words with
inner punctuation are in it whole and by their parts.';
revoke all on function knowledge_private.lexemes(text, text) from public;

create function knowledge_private.lexeme_query(lexeme text, prefix boolean)
returns tsquery
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return ('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || case when prefix then ''':*' else '''' end)::tsquery;
end
$$;

comment on function knowledge_private.lexeme_query(text, boolean) is
'The query for exactly this lexeme, or for all that begin so.';
revoke all on function knowledge_private.lexeme_query(text, boolean) from public;

create function knowledge_private.phrase_query(phrase text, languages text[])
returns tsquery
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    plain constant text := btrim(knowledge_private.plain_text(phrase));
    language text;
    one tsquery;
    any_language tsquery;
begin
    if plain ~ ('^[' || knowledge_private.cjk() || ']$') then
        return knowledge_private.lexeme_query(plain, true);
    end if;
    foreach language in array languages loop
        one := phraseto_tsquery(language::regconfig, plain);
        if numnode(one) > 0 then
            any_language := coalesce(any_language || one, one);
        end if;
    end loop;
    return any_language;
end
$$;

comment on function knowledge_private.phrase_query(text, text[]) is
'The query for the words of phrase in their order, in any of the languages; null when they are all stop words. A Chinese,
Japanese or Korean letter alone is looked for as the first of a pair.';
revoke all on function knowledge_private.phrase_query(text, text[]) from public;

create function knowledge_private.last_letters(value text)
returns tsvector
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when value !~ '[^\u0001-\u007f]' then ''
        else (
            select to_tsvector('pg_catalog.simple'::regconfig, coalesce(string_agg(m[1], ' '), ''))
            from regexp_matches(
                normalize(value, nfc), format('[%1$s]([%1$s])(?![%1$s])', knowledge_private.cjk()), 'g') as m
        )
    end
$$;

comment on function knowledge_private.last_letters(text) is
'The last letter of each run of Chinese, Japanese or Korean letters in a text: a question for one letter looks for lexemes
that begin with it, and no pair begins with these.';
revoke all on function knowledge_private.last_letters(text) from public;

create function knowledge_private.chunk_tsv(language text, heading text, body text)
returns tsvector
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(heading) + octet_length(body) = length(heading) + length(body) then
        return setweight(knowledge_private.lexemes(language, heading), 'A')
            || setweight(knowledge_private.lexemes(language, body), 'B');
    end if;
    return setweight(knowledge_private.lexemes(language, heading) || knowledge_private.last_letters(heading), 'A')
        || setweight(knowledge_private.lexemes(language, body) || knowledge_private.last_letters(body), 'B');
end
$$;

comment on function knowledge_private.chunk_tsv(text, text, text) is
'The lexemes of a chunk: heading with weight A, body with weight B.';
revoke all on function knowledge_private.chunk_tsv(text, text, text) from public;

create function knowledge_private.count_words(tsv tsvector)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    any_lexeme tsquery := knowledge_private.lexeme_query((tsvector_to_array(tsv))[1], false);
begin
    -- Normalization 2 divides a rank by the number of positions: a third of the time that counting them takes.
    return coalesce(round(ts_rank(tsv, any_lexeme) / ts_rank(tsv, any_lexeme, 2)), 0);
end
$$;

comment on function knowledge_private.count_words(tsvector) is 'Number of positions in tsv: the length that BM25 uses.';
revoke all on function knowledge_private.count_words(tsvector) from public;

create function knowledge_private.content_hash(org_id text, heading text, body text)
returns bytea
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The inner one is what stage_unchanged is given.
    return sha256(
        convert_to(length(org_id) || ':' || org_id, 'UTF8')
        || sha256(convert_to(octet_length(heading) || ':' || heading || body, 'UTF8')));
end
$$;

comment on function knowledge_private.content_hash(text, text, text) is
'sha256 over org, heading and body: equal exactly when an embedder would be given the same text for the same org.';
revoke all on function knowledge_private.content_hash(text, text, text) from public;

-- ---- sql/60_ingest/02_vocabulary.sql
-- What tags and audiences may be called, and which tags an audience turns into.

create function knowledge_private.check_name(label text, argument text)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_label(label, argument);
    if label = 'everyone' or label like '\_%' then
        perform knowledge_private.fail('KB005', format('%s is reserved: everyone, and names that begin with _', argument));
    end if;
    return label;
end
$$;

comment on function knowledge_private.check_name(text, text) is
'Returns label, or raises KB005 when it is malformed or reserved for the system.';
revoke all on function knowledge_private.check_name(text, text) from public;

create function knowledge_private.check_audience(org_id text, audience text[])
returns text[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    normal text[] := array(select distinct a collate "C" from unnest(audience) as a order by 1);
    unknown text[];
begin
    if cardinality(normal) = 0 or array_position(normal, null) is not null then
        perform knowledge_private.fail('KB006', 'declare an audience: with none, nobody could ever find the document',
            null, 'The built-in audience everyone is the whole org.');
    end if;
    unknown := array(
        select a from unnest(normal) as a
        where
            a <> 'everyone'
            and not exists (
                select from knowledge.audiences as d
                where d.org_id = check_audience.org_id and d.audience = a
            )
    );
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB006', format('unknown audience: %s', unknown[1]),
            jsonb_build_object('unknown', unknown), 'knowledge.define_audience adds one to the vocabulary.');
    end if;
    return normal;
end
$$;

comment on function knowledge_private.check_audience(text, text[]) is
'The audience sorted and without doubles. KB006 when it is empty or not in the vocabulary.';
revoke all on function knowledge_private.check_audience(text, text[]) from public;

create function knowledge_private.derive_acl(org_id text, audience text[], out acl text[], out acl_version bigint)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        array(
            select distinct t.tag from (
                select unnest(d.tags) as tag
                from knowledge.audiences as d
                where d.org_id = derive_acl.org_id and d.audience = any (derive_acl.audience)
                union all
                select 'everyone' where 'everyone' = any (derive_acl.audience)
            ) as t
            order by t.tag
        ),
        (
            select coalesce(sum(d.version), 0)
            from knowledge.audiences as d
            where d.org_id = derive_acl.org_id and d.audience = any (derive_acl.audience)
        )
$$;

comment on function knowledge_private.derive_acl(text, text[]) is
'The tags that open a declared audience, sorted, and the version of the rules they were derived by.';
revoke all on function knowledge_private.derive_acl(text, text[]) from public;

create function knowledge_private.use_org(org_id text, audits boolean default false)
returns knowledge.orgs
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    org knowledge.orgs;
begin
    select o.* into org from knowledge.orgs as o where o.org_id = use_org.org_id for key share;
    if not found then
        -- Not before looking: this waits for whoever is writing an entry of the audit log.
        insert into knowledge.orgs (org_id) values (use_org.org_id) on conflict do nothing;
        select o.* into org from knowledge.orgs as o where o.org_id = use_org.org_id for key share;
    end if;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded; its name is not used again');
    end if;
    if audits then
        -- The log is written last, but who waits for the org while holding a document could wait for ever.
        perform from knowledge.orgs as o where o.org_id = use_org.org_id for no key update;
    end if;
    return org;
end
$$;

comment on function knowledge_private.use_org(text, boolean) is
'The row of an org, made if it is new, locked against offboarding; audits: also against other entries in its
log, which every caller of audit says before it locks anything else. KB011 when it was offboarded.';
revoke all on function knowledge_private.use_org(text, boolean) from public;

create function knowledge_private.audit(org_id text, action text, details jsonb)
returns knowledge.audit_log
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    entry knowledge.audit_log;
begin
    select o.org_id, o.audit_entries + 1, o.audit_head
    into strict entry.org_id, entry.entry, entry.previous
    from knowledge.orgs as o
    where o.org_id = audit.org_id
    for no key update;
    entry.at := clock_timestamp();
    entry.actor := session_user;
    entry.action := audit.action;
    entry.details := audit.details;
    entry.digest := knowledge_private.audit_digest(entry);
    insert into knowledge.audit_log select entry.*;
    update knowledge.orgs as o
    set audit_entries = entry.entry, audit_head = entry.digest
    where o.org_id = audit.org_id;
    return entry;
end
$$;

comment on function knowledge_private.audit(text, text, jsonb) is 'Appends an entry to the org''s audit_log.';
revoke all on function knowledge_private.audit(text, text, jsonb) from public;

create function knowledge_private.audit_digest(entry knowledge.audit_log)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(entry.previous || convert_to(jsonb_build_array(
        entry.org_id, entry.entry, (extract(epoch from entry.at) * 1000000)::bigint, entry.actor, entry.action,
        entry.details)::text, 'UTF8'))
$$;

comment on function knowledge_private.audit_digest(knowledge.audit_log) is 'What digest must be for an entry of audit_log.';
revoke all on function knowledge_private.audit_digest(knowledge.audit_log) from public;

-- ---- sql/60_ingest/03_version.sql
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

-- ---- sql/60_ingest/04_begin.sql
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

-- ---- sql/60_ingest/05_check.sql
-- What a batch must look like before any of it is kept.

create function knowledge_private.chunks_problem(chunks jsonb, chunk_count integer)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    problem text;
begin
    if chunks is null or jsonb_typeof(chunks) <> 'array' then
        return 'chunks must be a json array';
    end if;
    select format('chunk %s of the batch: %s', e.place, p.problem)
    into problem
    from jsonb_array_elements(chunks) with ordinality as e (chunk, place)
    cross join lateral (
        select case
            when jsonb_typeof(e.chunk) <> 'object' then 'not a json object'
            when
                (e.chunk - array[
                    'ordinal', 'heading', 'body', 'char_start', 'char_end', 'tokens', 'locator', 'verdict', 'reason'
                ]) <> '{}'
                then 'unknown key'
            when
                (e.chunk -> 'ordinal') is null
                or concat_ws(',', e.chunk -> 'ordinal', e.chunk -> 'char_start', e.chunk -> 'char_end', e.chunk -> 'tokens')
                !~ '^[0-9]{1,9}(,([0-9]{1,9}|null))*$'
                then 'ordinal, char_start, char_end and tokens must be integers from 0, and ordinal must be there'
            when
                (e.chunk ->> 'ordinal')::integer >= chunk_count
                then format('ordinal %s is beyond chunk_count %s', e.chunk ->> 'ordinal', chunk_count)
            when coalesce(jsonb_typeof(e.chunk -> 'body'), '') <> 'string' then 'body must be a string'
            when length(e.chunk ->> 'body') > 100000 then 'body is longer than 100000 characters'
            when
                concat_ws(
                    ',', jsonb_typeof(e.chunk -> 'heading'), jsonb_typeof(e.chunk -> 'locator'),
                    jsonb_typeof(e.chunk -> 'reason'))
                !~ '^((string|null),?)*$'
                then 'heading, locator and reason must be strings'
            when length(e.chunk ->> 'heading') > 10000 then 'heading is longer than 10000 characters'
            when length(e.chunk ->> 'locator') > 500 or length(e.chunk ->> 'reason') > 500
                then 'locator and reason must be strings of at most 500 characters'
            when coalesce(e.chunk -> 'verdict', 'null') not in ('null', '"admitted"', '"quarantined"', '"rejected"')
                then 'verdict must be admitted, quarantined or rejected'
            when (e.chunk ->> 'char_end')::integer < (e.chunk ->> 'char_start')::integer
                then 'char_end is before char_start'
        end as problem
    ) as p
    where p.problem is not null
    order by e.place
    limit 1;
    if problem is null then
        select format('ordinal %s stands twice in the batch', e.chunk ->> 'ordinal')
        into problem
        from jsonb_array_elements(chunks) as e (chunk)
        group by e.chunk ->> 'ordinal'
        having count(*) > 1
        limit 1;
    end if;
    return problem;
end
$$;

comment on function knowledge_private.chunks_problem(jsonb, integer) is
'What is wrong with a batch for stage_chunks, in words; null when nothing is.';
revoke all on function knowledge_private.chunks_problem(jsonb, integer) from public;

create function knowledge_private.is_count(value jsonb)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_typeof(value) is not distinct from 'number' and value::text ~ '^[0-9]{1,9}$'
$$;

comment on function knowledge_private.is_count(jsonb) is 'Whether value is a json integer from 0 to 999999999.';
revoke all on function knowledge_private.is_count(jsonb) from public;

-- Bound to pgvector's functions when the migration runs, wherever they are: to call these needs no dynamic SQL.

create function knowledge_private.dimensions(embedding vector)
returns integer
language sql
immutable
begin atomic
    select vector_dims(embedding);
end;

comment on function knowledge_private.dimensions(vector) is 'The number of dimensions of a vector.';
revoke all on function knowledge_private.dimensions(vector) from public;

create function knowledge_private.norm(embedding vector)
returns double precision
language sql
immutable
begin atomic
    select vector_norm(embedding);
end;

comment on function knowledge_private.norm(vector) is 'The length of a vector.';
revoke all on function knowledge_private.norm(vector) from public;

create function knowledge_private.check_vectors(model knowledge.models, embeddings vector[])
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    dimensions integer;
    pointless boolean;
begin
    select
        max(coalesce(knowledge_private.dimensions(e), 0)) filter (
            where model.dimensions is not null and knowledge_private.dimensions(e) is distinct from model.dimensions
        ),
        bool_or(coalesce(knowledge_private.norm(e), 0) in (0, 'NaN', 'Infinity'))
    into dimensions, pointless
    from unnest(embeddings) as e;
    if dimensions is not null then
        perform knowledge_private.fail('KB007',
            format('a vector of %s dimensions for a model of %s', dimensions, model.dimensions),
            jsonb_build_object('model', model.name, 'dimensions', model.dimensions));
    end if;
    if pointless then
        perform knowledge_private.fail('KB005', 'a vector of length zero has no direction');
    end if;
end
$$;

comment on function knowledge_private.check_vectors(knowledge.models, vector[]) is
'KB007 when one is not of the model''s dimensions (a null model has any), KB005 when one is zero, null or not finite.';
revoke all on function knowledge_private.check_vectors(knowledge.models, vector[]) from public;

-- ---- sql/60_ingest/05_layout.sql
-- A document is laid out in pieces: stretches of chunks that were written together. An edit writes the chunks it brings and
-- a layout of a few pieces; what stands behind it moves with its piece, and no row of it is written.

create function knowledge_private.pieces(layout knowledge_private.piece[], low integer, high integer)
returns setof knowledge_private.piece
language sql
immutable
begin atomic
    select
        greatest(s.ordinal, low) as ordinal,
        s.place + (greatest(s.ordinal, low) - s.ordinal) as place,
        least(s.ordinal + (s.many - 1), high) - greatest(s.ordinal, low) + 1 as many,
        s.shift
    from unnest(coalesce(layout, '{"(0,0,2147483647,0)"}')) as s
    where s.ordinal <= high and s.ordinal + (s.many - 1) >= low;
end;

comment on function knowledge_private.pieces(knowledge_private.piece[], integer, integer) is
'What a layout has from ordinal low to high: whole pieces, or parts of them.';
revoke all on function knowledge_private.pieces(knowledge_private.piece[], integer, integer) from public;

create function knowledge_private.piece_at(layout knowledge_private.piece[], place integer)
returns knowledge_private.piece
language sql
immutable
begin atomic
    select case
        when layout is null then row(0, 0, 2147483647, 0)::knowledge_private.piece
        else (select s from unnest(layout) as s where piece_at.place between s.place and s.place + (s.many - 1))
    end;
end;

comment on function knowledge_private.piece_at(knowledge_private.piece[], integer) is 'The piece that has a stored place.';
revoke all on function knowledge_private.piece_at(knowledge_private.piece[], integer) from public;

create function knowledge_private.places_among(org_id text, document_id uuid, among int4multirange)
returns setof knowledge.places
language sql
stable
begin atomic
    select p.*
    from unnest(places_among.among) as r
    cross join lateral (
        select t.* from knowledge.places as t
        where
            t.org_id = places_among.org_id and t.document_id = places_among.document_id
            and t.place between lower(r) and coalesce(upper(r) - 1, 2147483647)
        offset 0
    ) as p;
end;

comment on function knowledge_private.places_among(text, uuid, int4multirange) is
'What a document has at some places; a range without an end goes to the last.';
revoke all on function knowledge_private.places_among(text, uuid, int4multirange) from public;

create function knowledge_private.lay_out(
    version knowledge.versions,
    old knowledge_private.piece[],
    out layout knowledge_private.piece[],
    out kept knowledge_private.piece[],
    out loose int4multirange,
    out base integer,
    out written_out boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- So many are looked through for each chunk that is found.
    most constant integer := 64;
    -- Places are integers, and each edit takes new ones.
    last_place constant integer := 1000000000;
    live_count constant integer := (
        select v.chunk_count from knowledge.versions as v
        where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live'
    );
begin
    select
        coalesce(array_agg(
            row(lower(u.ordinals) + (s.ordinal - u.live_ordinal), s.place, s.many, s.shift + u.shift)::knowledge_private.piece
            order by lower(u.ordinals) + (s.ordinal - u.live_ordinal)), '{}'),
        '{[0,)}' - coalesce(range_agg(int4range(s.place, s.place + s.many)), '{}')
    into kept, loose
    from knowledge_private.staged_unchanged as u
    cross join knowledge_private.pieces(
        old, u.live_ordinal, u.live_ordinal + (upper(u.ordinals) - lower(u.ordinals)) - 1) as s
    where u.org_id = version.org_id and u.version_id = version.version_id;
    if exists (select from unnest(kept) as k where abs(k.shift) >= 1000000000) then
        perform knowledge_private.fail('KB005', 'chunks were moved further than any text is long');
    end if;
    base := 0;
    written_out := cardinality(kept) > 0;
    if not written_out then
        return;
    end if;
    select coalesce(max(s.place + s.many), live_count) into base from unnest(old) as s;
    select array_agg(p.piece order by (p.piece).ordinal) into layout
    from (
        select row(lower(r), base + lower(r), upper(r) - lower(r), 0)::knowledge_private.piece as piece
        from unnest(int4multirange(int4range(0, version.chunk_count)) - (
            select range_agg(int4range(k.ordinal, k.ordinal + k.many)) from unnest(kept) as k
        )) as r
        union all
        select k from unnest(kept) as k
    ) as p;
    written_out := cardinality(layout) > most or base > last_place;
    if written_out then
        if (select min(s.place) >= version.chunk_count from unnest(old) as s) then
            base := 0;
            layout := null;
        else
            layout := array[row(0, base, version.chunk_count, 0)::knowledge_private.piece];
        end if;
    elsif layout = array[row(0, 0, version.chunk_count, 0)::knowledge_private.piece] then
        layout := null;
    end if;
end
$$;

comment on function knowledge_private.lay_out(knowledge.versions, knowledge_private.piece[]) is
'How a version is to be laid out, whose document is laid out as old. kept: what it staged as unchanged, at the ordinals of the
version and the places it has. loose: the other places. base: a chunk that is staged with its text is to be at base + its
ordinal. written_out: the pieces would be too many, or the places too high, and what is kept is to be written at base + its
ordinal as well.';
revoke all on function knowledge_private.lay_out(knowledge.versions, knowledge_private.piece[]) from public;

-- ---- sql/60_ingest/06_publish.sql
-- Publishing the difference: what stays keeps its row, its id and its vector; what is new comes in; what is gone goes.

create function knowledge_private.pair_chunks(
    version knowledge.versions,
    loose int4multirange,
    base integer,
    out first_ordinal integer,
    out chunk_ids uuid[],
    out kept boolean[],
    out placed boolean[],
    out gone uuid[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The same text may stand in a document several times: the first pairs with the first, the second with the second.
    with staged as (
        select
            c.*,
            case when c.verdict = 'admitted' then c.content_hash end as key,
            row_number() over (partition by c.verdict = 'admitted', c.content_hash order by c.ordinal) as turn
        from (
            -- Not the whole row, which holds the text.
            select s.ordinal, s.verdict, s.content_hash, s.words, s.char_start, s.char_end, s.locator
            from knowledge_private.staged_chunks as s
            where s.org_id = version.org_id and s.version_id = version.version_id
        ) as c
    ),
    live as (
        select p.*, row_number() over (partition by p.content_hash order by p.place) as turn
        from knowledge_private.places_among(version.org_id, version.document_id, loose) as p
    ),
    pair as materialized (
        select
            s.ordinal,
            l.chunk_id as live_id,
            case when s.verdict <> 'rejected' then coalesce(l.chunk_id, knowledge_private.new_id()) end as chunk_id,
            l.place is not null
            and (l.place, l.words, l.char_start, l.char_end, l.locator)
            is not distinct from (base + s.ordinal, s.words, s.char_start, s.char_end, s.locator) as placed
        from staged as s
        full join live as l on l.content_hash = s.key and l.turn = s.turn
    ),
    span as (
        select min(p.ordinal) as low, max(p.ordinal) as high from pair as p
    )
    select
        coalesce(min(o.ordinal), 0),
        coalesce(array_agg(p.chunk_id order by o.ordinal), '{}'),
        coalesce(array_agg(p.live_id is not null order by o.ordinal), '{}'),
        coalesce(array_agg(coalesce(p.placed, false) order by o.ordinal), '{}'),
        array(select g.live_id from pair as g where g.ordinal is null)
    into first_ordinal, chunk_ids, kept, placed, gone
    from span
    cross join generate_series(span.low, span.high) as o (ordinal)
    left join pair as p on p.ordinal = o.ordinal;
end
$$;

comment on function knowledge_private.pair_chunks(knowledge.versions, int4multirange, integer) is
'Pairs the chunks that a version staged with their text with the loose live ones of its document that have the same text. By
ordinal - first_ordinal + 1: chunk_ids, the chunk it becomes (null: rejected, or staged as unchanged); kept, whether that one
is live; placed, whether its place, which is to be base + its ordinal, is right already. gone: the loose ones that pair with
none.';
revoke all on function knowledge_private.pair_chunks(knowledge.versions, int4multirange, integer) from public;

create function knowledge_private.count_chunks(
    org_id text, document_id uuid, compartment_id integer, sign integer, among int4multirange default '{[0,)}'
)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    update knowledge.compartments as c
    set chunks = c.chunks + sign * n.chunks, words = c.words + sign * n.words
    from (
        select count(*) as chunks, coalesce(sum(p.words), 0) as words
        from knowledge_private.places_among(count_chunks.org_id, count_chunks.document_id, count_chunks.among) as p
    ) as n
    where c.org_id = count_chunks.org_id and c.compartment_id = count_chunks.compartment_id
$$;

comment on function knowledge_private.count_chunks(text, uuid, integer, integer, int4multirange) is
'Adds (sign 1) or takes away (sign -1) the chunks of a document, or those at some places, in the counters of a compartment.';
revoke all on function knowledge_private.count_chunks(text, uuid, integer, integer, int4multirange) from public;

create function knowledge_private.publish_vectors(
    version knowledge.versions, compartment_id integer, first_ordinal integer, chunk_ids uuid[], kept boolean[],
    out embedded integer, out reused integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    insertion constant text :=
        'insert into %1$s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select s.org_id, $4[s.ordinal - $7 + 1], $3, $5, r.embedding from (%2$s) as s cross join %3$s order by s.ordinal';
    admitted constant text :=
        'select c.org_id, c.ordinal, c.content_hash from knowledge_private.staged_chunks as c '
        'where c.org_id = $1 and c.version_id = $2 and c.verdict = ''admitted'' '
        'and (not $6[c.ordinal - $7 + 1] or not exists ('
        'select from %s as v where v.org_id = $1 and v.chunk_id = $4[c.ordinal - $7 + 1] offset 0))';
    stored constant text :=
        'lateral (select e.embedding from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = s.ordinal offset 0) as r';
    others constant text :=
        ' and not exists (select from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = c.ordinal offset 0)';
    vectors text := knowledge_private.vector_table(version.model_id);
begin
    execute format(insertion, vectors, format(admitted, vectors), stored)
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept, first_ordinal;
    get diagnostics embedded = row_count;
    execute format(insertion, vectors, format(admitted || others, vectors), knowledge_private.reusable(version.model_id))
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept, first_ordinal;
    get diagnostics reused = row_count;
end
$$;

comment on function knowledge_private.publish_vectors(knowledge.versions, integer, integer, uuid[], boolean[]) is
'Gives the chunks of a version, which are in chunks already, the vectors that were staged for them, and the others that
have none those of chunks with the same text; what pair_chunks returned. Returns how many of each; a chunk that has a vector
keeps it.';
revoke all on function knowledge_private.publish_vectors(knowledge.versions, integer, integer, uuid[], boolean[]) from public;

create function knowledge_private.queue_embeddings(version knowledge.versions)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    without_vector constant text := 'not exists ('
        'select from %s as v where v.org_id = $1 and v.chunk_id = j.chunk_id offset 0)';
    missing constant integer := knowledge_private.missing_vectors(version);
begin
    execute format(
        'delete from knowledge_private.embedding_jobs as j '
        'where j.org_id = $1 and j.document_id = $2 and j.model_id = $3 and not ' || without_vector,
        knowledge_private.vector_table(version.model_id))
    using version.org_id, version.document_id, version.model_id;
    if missing > 0 then
        execute format(
            'insert into knowledge_private.embedding_jobs (org_id, model_id, chunk_id, document_id, due_at, queued_at) '
            'select $1, $3, j.chunk_id, $2, $4, $4 from knowledge.places as j '
            'where j.org_id = $1 and j.document_id = $2 and ' || without_vector
            || ' order by j.place on conflict do nothing',
            knowledge_private.vector_table(version.model_id))
        using version.org_id, version.document_id, version.model_id, knowledge_private.clock();
        perform knowledge_private.take_turn(version.org_id, version.model_id);
        perform pg_notify('knowledge_embeddings', '');
    end if;
    return missing;
end
$$;

comment on function knowledge_private.queue_embeddings(knowledge.versions) is
'Queues the live chunks of a version''s document that have no vector of its model, and takes those that have one from the
queue. Returns how many have none. Workers that LISTEN to knowledge_embeddings are woken; the message says nothing.';
revoke all on function knowledge_private.queue_embeddings(knowledge.versions) from public;

create function knowledge_private.hold_chunks(version knowledge.versions, first_ordinal integer, chunk_ids uuid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from knowledge.quarantine as q
    where q.org_id = version.org_id and q.document_id = version.document_id;
    insert into knowledge.quarantine (
        org_id, chunk_id, document_id, version_id, ordinal, reason, heading, body, tokens, content_hash, char_start,
        char_end, locator, model_id, embedding
    )
    select
        s.org_id, chunk_ids[s.ordinal - first_ordinal + 1], version.document_id, s.version_id, s.ordinal, s.reason,
        s.heading, s.body, s.tokens, s.content_hash, s.char_start, s.char_end, s.locator, version.model_id, e.embedding
    from knowledge_private.staged_chunks as s
    left join knowledge_private.staged_vectors as e
        on e.org_id = s.org_id and e.version_id = s.version_id and e.ordinal = s.ordinal
    where s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'quarantined'
    order by s.ordinal;
end
$$;

comment on function knowledge_private.hold_chunks(knowledge.versions, integer, uuid[]) is
'Puts the quarantined chunks of a version, as pair_chunks returned them, in the place of those of its document''s live one.';
revoke all on function knowledge_private.hold_chunks(knowledge.versions, integer, uuid[]) from public;

create function knowledge_private.move_chunks(document knowledge.documents, compartment_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    model record;
    moved uuid;
begin
    for moved in
        select p.chunk_id from knowledge.places as p
        where p.org_id = document.org_id and p.document_id = document.document_id
    loop
        update knowledge.chunks as c set compartment_id = move_chunks.compartment_id
        where c.org_id = document.org_id and c.chunk_id = moved;
    end loop;
    for model in select m.model_id from knowledge.models as m where m.state <> 'retired' loop
        execute format('update %s set compartment_id = $3 where org_id = $1 and document_id = $2',
            knowledge_private.vector_table(model.model_id))
        using document.org_id, document.document_id, move_chunks.compartment_id;
    end loop;
    update knowledge.places as p set compartment_id = move_chunks.compartment_id
    where p.org_id = document.org_id and p.document_id = document.document_id;
end
$$;

comment on function knowledge_private.move_chunks(knowledge.documents, integer) is
'Moves the live chunks of a document, their places and vectors into another compartment.';
revoke all on function knowledge_private.move_chunks(knowledge.documents, integer) from public;

create function knowledge_private.index_anew(version knowledge.versions)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    stored record;
    new_tsv tsvector;
    new_words integer;
begin
    for stored in
        select p.place, c.chunk_id, c.heading, c.body
        from knowledge.places as p
        inner join knowledge.chunks as c on c.org_id = p.org_id and c.chunk_id = p.chunk_id
        where p.org_id = version.org_id and p.document_id = version.document_id
    loop
        new_tsv := knowledge_private.chunk_tsv(version.language, stored.heading, stored.body);
        new_words := knowledge_private.count_words(new_tsv);
        update knowledge.chunks as c set tsv = new_tsv, words = new_words
        where c.org_id = version.org_id and c.chunk_id = stored.chunk_id;
        update knowledge.places as p set words = new_words
        where p.org_id = version.org_id and p.document_id = version.document_id and p.place = stored.place;
    end loop;
end
$$;

comment on function knowledge_private.index_anew(knowledge.versions) is
'Indexes the live chunks of a version''s document in the version''s language.';
revoke all on function knowledge_private.index_anew(knowledge.versions) from public;

create function knowledge_private.unplace_chunks(
    version knowledge.versions, loose int4multirange, base integer, first_ordinal integer, placed boolean[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    stretch int4range;
begin
    for stretch in select r from unnest(loose) as r loop
        delete from knowledge.places as p
        where
            p.org_id = version.org_id and p.document_id = version.document_id
            and p.place between lower(stretch) and coalesce(upper(stretch) - 1, 2147483647)
            and placed[p.place - base - first_ordinal + 1] is not true;
    end loop;
end
$$;

comment on function knowledge_private.unplace_chunks(knowledge.versions, int4multirange, integer, integer, boolean[]) is
'Forgets the loose places that are not right already; arguments as lay_out and pair_chunks return them.';
revoke all on function knowledge_private.unplace_chunks(
    knowledge.versions, int4multirange, integer, integer, boolean[]
) from public;

create function knowledge_private.write_out(version knowledge.versions, kept knowledge_private.piece[], base integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    piece knowledge_private.piece;
begin
    foreach piece in array kept loop
        if exists (
            select from knowledge.places as p
            where
                p.org_id = version.org_id and p.document_id = version.document_id
                and p.place between piece.place and piece.place + (piece.many - 1)
                and (p.char_start + piece.shift < 0 or p.char_end + piece.shift >= 1000000000)
        ) then
            perform knowledge_private.fail('KB005', 'chunks were moved further than any text is long');
        end if;
        update knowledge.places as p
        set
            place = write_out.base + piece.ordinal + (p.place - piece.place), char_start = p.char_start + piece.shift,
            char_end = p.char_end + piece.shift
        where
            p.org_id = version.org_id and p.document_id = version.document_id
            and p.place between piece.place and piece.place + (piece.many - 1);
    end loop;
end
$$;

comment on function knowledge_private.write_out(knowledge.versions, knowledge_private.piece[], integer) is
'Writes what a version keeps at base + its ordinal; arguments as lay_out returns them.';
revoke all on function knowledge_private.write_out(knowledge.versions, knowledge_private.piece[], integer) from public;

create function knowledge_private.place_chunks(
    version knowledge.versions, compartment_id integer, base integer, first_ordinal integer, chunk_ids uuid[], placed boolean[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into knowledge.places (
        org_id, document_id, place, chunk_id, compartment_id, content_hash, words, char_start, char_end, locator
    )
    select
        s.org_id, version.document_id, base + s.ordinal, chunk_ids[s.ordinal - first_ordinal + 1],
        place_chunks.compartment_id, s.content_hash, s.words, s.char_start, s.char_end, s.locator
    from knowledge_private.staged_chunks as s
    where
        s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'admitted'
        and not placed[s.ordinal - first_ordinal + 1]
    order by s.ordinal;
end
$$;

comment on function knowledge_private.place_chunks(knowledge.versions, integer, integer, integer, uuid[], boolean[]) is
'Writes where the chunks are that a version staged with their text; arguments as lay_out and pair_chunks return them.';
revoke all on function knowledge_private.place_chunks(
    knowledge.versions, integer, integer, integer, uuid[], boolean[]
) from public;

create function knowledge_private.publish(
    version knowledge.versions, document knowledge.documents, compartment_id integer, new_language boolean,
    out layout knowledge_private.piece[], out kept integer, out embedded integer, out reused integer,
    out without_vector integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    laid record;
    pair record;
    chunk_ids uuid[];
    is_kept boolean[];
    chunk uuid;
    counted int4multirange := '{[0,)}';
    unchanged integer;
begin
    laid := knowledge_private.lay_out(version, document.layout);
    if document.compartment_id = publish.compartment_id and not new_language and not laid.written_out then
        counted := laid.loose;
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, document.compartment_id, -1, counted);
    if document.compartment_id <> publish.compartment_id then
        perform knowledge_private.move_chunks(document, publish.compartment_id);
    end if;
    if new_language then
        perform knowledge_private.index_anew(version);
    end if;
    pair := knowledge_private.pair_chunks(version, laid.loose, laid.base);
    chunk_ids := pair.chunk_ids;
    is_kept := pair.kept;

    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    select
        s.org_id, chunk_ids[s.ordinal - pair.first_ordinal + 1], version.document_id, publish.compartment_id, s.heading,
        s.body, s.tsv, s.words, s.tokens, s.content_hash
    from knowledge_private.staged_chunks as s
    where
        s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'admitted'
        and not is_kept[s.ordinal - pair.first_ordinal + 1]
    order by s.ordinal;

    layout := laid.layout;
    unchanged := (select coalesce(sum(k.many), 0) from unnest(laid.kept) as k);
    kept := unchanged + cardinality(array_positions(is_kept, true));
    embedded := 0;
    reused := 0;
    without_vector := unchanged + cardinality(array_remove(chunk_ids, null));
    if version.model_id is not null then
        -- Before the chunks that are gone go: one of them may have the vector.
        select v.embedded, v.reused into embedded, reused
        from knowledge_private.publish_vectors(
            version, publish.compartment_id, pair.first_ordinal, chunk_ids, is_kept) as v;
    end if;

    foreach chunk in array pair.gone loop
        delete from knowledge.chunks as c where c.org_id = version.org_id and c.chunk_id = chunk;
    end loop;
    perform knowledge_private.hold_chunks(version, pair.first_ordinal, chunk_ids);
    perform knowledge_private.unplace_chunks(version, laid.loose, laid.base, pair.first_ordinal, pair.placed);
    if laid.written_out then
        perform knowledge_private.write_out(version, laid.kept, laid.base);
    end if;
    perform knowledge_private.place_chunks(
        version, publish.compartment_id, laid.base, pair.first_ordinal, chunk_ids, pair.placed);
    if version.model_id is not null then
        without_vector := knowledge_private.queue_embeddings(version);
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, publish.compartment_id, 1, counted);
end
$$;

comment on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) is
'Makes the live chunks of a document those that its version staged, indexed anew where new_language; the caller has locked
the compartment that it is in and the one that it goes into. Returns how the document is laid out now, how many chunks were
kept, how many got a new vector, how many the vector of another chunk with the same text, and how many have none.
Each statement reads one table by its key: the planner knows too little of what was just staged to join well.';
revoke all on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) from public;

-- ---- sql/60_ingest/07_admission.sql
-- The verdict on a new chunk: rules of the org, what a reviewer decided before, and what the writer says itself.

create function knowledge_private.admission_rules(org_id text)
returns setof knowledge.admission_rules
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select r.*
    from knowledge.admission_rules as r
    where
        r.verdict <> 'admitted'
        and (
            r.org_id = admission_rules.org_id
            or r.org_id is null
            and not exists (
                select from knowledge.admission_rules as o
                where o.org_id = admission_rules.org_id and o.rule = r.rule
            )
        )
$$;

comment on function knowledge_private.admission_rules(text) is
'The rules that hold for an org: its own, and those of every org that it has not redefined.';
revoke all on function knowledge_private.admission_rules(text) from public;

create function knowledge_private.suspicion(org_id text, out pattern text, out batchwise boolean, out longest integer)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select r.pattern, r.pattern !~ '\\[AZ]|\(\?[^:]', r.longest
    from (
        select coalesce(string_agg('(?:' || r.pattern || ')', '|'), '(?!)') as pattern, min(r.longest) as longest
        from knowledge_private.admission_rules(suspicion.org_id) as r
    ) as r
$$;

comment on function knowledge_private.suspicion(text) is
'One pattern and one length for all rules of an org: what has neither matches none of them. batchwise: where the pattern,
with ^ and $ at the ends of lines too, is not in texts that are put together line by line, it is in none of them; a pattern
that looks around itself is not like that.';
revoke all on function knowledge_private.suspicion(text) from public;

create function knowledge_private.judge(org_id text, heading text, body text)
returns text[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select array[r.verdict, r.rule || ': ' || r.reason]
    from knowledge_private.admission_rules(judge.org_id) as r
    where (heading || E'\n' || body) ~* r.pattern or length(body) > r.longest
    order by r.verdict desc, r.rule
    limit 1
$$;

comment on function knowledge_private.judge(text, text, text) is
'[verdict, reason]: the severest verdict of the rules of an org on a text; null when none of them matches.';
revoke all on function knowledge_private.judge(text, text, text) from public;

create function knowledge_private.decide(chunk_id uuid, verdict text, reason text)
returns knowledge.quarantine
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    held knowledge.quarantine;
begin
    -- Lock order: org, document.
    perform knowledge_private.use_org(asking.org_id, audits => true);
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id = (
            select q.document_id from knowledge.quarantine as q
            where q.org_id = asking.org_id and q.chunk_id = decide.chunk_id
        )
    for no key update;
    if found then
        delete from knowledge.quarantine as q
        where q.org_id = asking.org_id and q.chunk_id = decide.chunk_id
        returning q.* into held;
    end if;
    if held.chunk_id is null then
        perform knowledge_private.fail('KB004', 'no such chunk is quarantined');
    end if;
    insert into knowledge_private.reviews (org_id, document_id, content_hash, verdict, reason)
    values (
        held.org_id, held.document_id, held.content_hash, decide.verdict,
        coalesce(decide.reason, 'reviewed: ' || decide.verdict)
    )
    on conflict (org_id, document_id, content_hash) do update
    set verdict = excluded.verdict, reason = excluded.reason;
    update knowledge.versions as v
    set report = v.report || jsonb_build_object(
        'quarantined', (v.report ->> 'quarantined')::integer - 1,
        'rejected', (v.report ->> 'rejected')::integer + (decide.verdict = 'rejected')::integer)
    where v.org_id = held.org_id and v.version_id = held.version_id;
    return held;
end
$$;

comment on function knowledge_private.decide(uuid, text, text) is
'Takes a chunk of the context''s org and exact scope out of the quarantine, its document locked, and remembers the verdict
on its text. KB004 when it is not there.';
revoke all on function knowledge_private.decide(uuid, text, text) from public;

-- ---- sql/60_ingest/08_turns.sql
-- Which orgs claim_embeddings looks at: those that have a turn. One that has jobs which are not dead has one.

create function knowledge_private.take_turn(org_id text, model_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Held until the jobs are there for all to see: a claim that finds none does not take away a turn that is held.
    loop
        perform from knowledge_private.embedding_turns as t
        where t.org_id = take_turn.org_id and t.model_id = take_turn.model_id
        for key share;
        exit when found;
        insert into knowledge_private.embedding_turns (org_id, model_id)
        values (take_turn.org_id, take_turn.model_id)
        on conflict do nothing;
    end loop;
end
$$;

comment on function knowledge_private.take_turn(text, integer) is
'Lets claim_embeddings look at an org: for whoever queues jobs of it, in the same transaction and before it ends.';
revoke all on function knowledge_private.take_turn(text, integer) from public;

create function knowledge_private.end_turn(org_id text, model_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Each statement must see what was committed before it: jobs that were queued until a moment ago.
    if current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    perform from knowledge_private.embedding_turns as t
    where t.org_id = end_turn.org_id and t.model_id = end_turn.model_id
    for update skip locked;
    if found then
        delete from knowledge_private.embedding_turns as t
        where
            t.org_id = end_turn.org_id and t.model_id = end_turn.model_id
            and not exists (
                select from knowledge_private.embedding_jobs as j
                where j.model_id = t.model_id and j.org_id = t.org_id and not j.dead
            );
    end if;
end
$$;

comment on function knowledge_private.end_turn(text, integer) is
'Lets claim_embeddings pass an org over, unless something of it is queued or just being queued.';
revoke all on function knowledge_private.end_turn(text, integer) from public;

-- ---- sql/60_ingest/10_define_tag.sql
create function knowledge.define_tag(tag text, description text default '')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    perform knowledge_private.check_name(tag, 'tag');
    perform knowledge_private.use_org(asking.org_id);
    insert into knowledge.tags as t (org_id, tag, description)
    values (asking.org_id, define_tag.tag, coalesce(define_tag.description, ''))
    on conflict (org_id, tag) do update set description = excluded.description;
end
$$;

comment on function knowledge.define_tag(text, text) is
'Adds a tag to the closed vocabulary of the context''s org, or describes it anew. KB005 for a reserved or malformed name.';
revoke all on function knowledge.define_tag(text, text) from public;
grant execute on function knowledge.define_tag(text, text) to knowledge_admin;

-- ---- sql/60_ingest/11_define_audience.sql
create function knowledge.define_audience(audience text, tags text[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    normal text[] := array(select distinct t collate "C" from unnest(tags) as t order by 1);
    unknown text[];
    changed bigint;
begin
    perform knowledge_private.check_name(audience, 'audience');
    if cardinality(normal) = 0 or array_position(normal, null) is not null then
        perform knowledge_private.fail('KB006', 'an audience needs at least one tag');
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    unknown := array(
        select n from unnest(normal) as n
        where
            n <> 'everyone'
            and not exists (select from knowledge.tags as t where t.org_id = asking.org_id and t.tag = n)
    );
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB006', format('unknown tag: %s', unknown[1]),
            jsonb_build_object('unknown', unknown), 'knowledge.define_tag adds one to the vocabulary.');
    end if;

    insert into knowledge.audiences as d (org_id, audience, tags)
    values (asking.org_id, define_audience.audience, normal)
    on conflict (org_id, audience) do update
    set tags = excluded.tags, version = d.version + 1, changed_at = now()
    where d.tags is distinct from excluded.tags;
    if not found then
        return 0;
    end if;

    perform from knowledge.compartments as c
    where c.org_id = asking.org_id and define_audience.audience = any (c.audience)
    order by c.compartment_id
    for no key update;
    update knowledge.compartments as c
    set acl = r.acl, acl_version = r.acl_version
    from knowledge.compartments as o
    cross join lateral knowledge_private.derive_acl(o.org_id, o.audience) as r
    where
        o.org_id = asking.org_id and define_audience.audience = any (o.audience)
        and c.org_id = o.org_id and c.compartment_id = o.compartment_id;
    get diagnostics changed = row_count;
    perform knowledge_private.audit(asking.org_id, 'define_audience',
        jsonb_build_object('audience_digest', encode(knowledge_private.text_key(audience), 'hex'), 'tags', cardinality(normal),
            'compartments', changed));
    return changed;
end
$$;

comment on function knowledge.define_audience(text, text[]) is
'Says which tags open an audience, and derives the permission of every compartment with it anew: the documents follow at
once, without a chunk being written. Returns the number of compartments that changed. KB006 for an unknown tag or no tag,
KB005 for a reserved or malformed name.';
revoke all on function knowledge.define_audience(text, text[]) from public;
grant execute on function knowledge.define_audience(text, text[]) to knowledge_admin;

-- ---- sql/60_ingest/12_set_language.sql
create function knowledge.set_language(language text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    perform knowledge_private.use_org(asking.org_id);
    update knowledge.orgs as o
    set language = knowledge_private.resolve_language(set_language.language)
    where o.org_id = asking.org_id;
end
$$;

comment on function knowledge.set_language(text) is
'The text search configuration (''german'', ''simple'' …) of documents and questions of the org that name none. Documents
that are there keep theirs until they are ingested again. KB005 when there is no such configuration.';
revoke all on function knowledge.set_language(text) from public;
grant execute on function knowledge.set_language(text) to knowledge_admin;

-- ---- sql/60_ingest/13_define_admission_rule.sql
create function knowledge.define_admission_rule(
    rule text, verdict text, reason text default null, pattern text default null, longest integer default null
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    shared knowledge.admission_rules;
begin
    perform knowledge_private.check_label(define_admission_rule.rule, 'rule');
    if define_admission_rule.verdict is null
        or define_admission_rule.verdict not in ('admitted', 'quarantined', 'rejected')
    then
        perform knowledge_private.fail('KB005', 'verdict must be admitted, quarantined or rejected');
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    if num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 0 then
        -- The rule of every org by this name, with another verdict.
        select r.* into shared
        from knowledge.admission_rules as r
        where r.org_id is null and r.rule = define_admission_rule.rule;
    end if;
    if num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 2
        or (num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 0 and shared.rule is null)
        or define_admission_rule.longest < 1
    then
        perform knowledge_private.fail('KB005', 'a rule has a pattern, or a longest of at least 1 character');
    end if;
    if define_admission_rule.pattern ~ '\\[1-9]' or define_admission_rule.pattern ~ '^(\*\*\*|\(\?[a-z])' then
        perform knowledge_private.fail('KB005', 'a pattern has no back references and no embedded options');
    end if;
    begin
        perform '' ~* ('(?:' || define_admission_rule.pattern || ')');
    exception when invalid_regular_expression then
        perform knowledge_private.fail('KB005', 'the pattern is no regular expression: ' || sqlerrm);
    end;
    insert into knowledge.admission_rules (org_id, rule, pattern, longest, verdict, reason)
    values (
        asking.org_id, define_admission_rule.rule, coalesce(define_admission_rule.pattern, shared.pattern),
        coalesce(define_admission_rule.longest, shared.longest), define_admission_rule.verdict,
        coalesce(define_admission_rule.reason, shared.reason, 'the rules of the org')
    )
    on conflict (org_id, rule) do update
    set
        pattern = excluded.pattern, longest = excluded.longest, verdict = excluded.verdict,
        reason = excluded.reason, changed_at = now();
    perform knowledge_private.audit(asking.org_id, 'define_admission_rule', jsonb_build_object(
        'rule', define_admission_rule.rule, 'verdict', define_admission_rule.verdict));
end
$$;

comment on function knowledge.define_admission_rule(text, text, text, text, integer) is
'Defines or replaces a rule of the context''s org for new chunks. pattern: a regular expression of PostgreSQL,
case-insensitive, looked for in heading, line break, body; or longest: a number of characters that a body must not exceed;
neither: those of the rule that every org has by this name. verdict: quarantined holds such a chunk for review, rejected
leaves it out, admitted switches the rule off. reason: for the report. What is live already is not looked at again. It goes
into audit_log. KB005 malformed argument, KB011 org offboarded.';
revoke all on function knowledge.define_admission_rule(text, text, text, text, integer) from public;
grant execute on function knowledge.define_admission_rule(text, text, text, text, integer) to knowledge_admin;

-- ---- sql/60_ingest/14_list_admission_rules.sql
create function knowledge.list_admission_rules()
returns table (rule text, pattern text, longest integer, verdict text, reason text, own boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    return query
    select r.rule, r.pattern, r.longest, r.verdict, r.reason, r.org_id is not null
    from knowledge_private.admission_rules(asking.org_id) as r
    order by r.rule;
end
$$;

comment on function knowledge.list_admission_rules() is
'The rules by which new chunks of the context''s org are admitted, quarantined or rejected, those that are switched off left
out; own: the org''s, and not every org''s. define_admission_rule changes them. KB001, KB002 context.';
revoke all on function knowledge.list_admission_rules() from public;
grant execute on function knowledge.list_admission_rules() to knowledge_admin;

-- ---- sql/60_ingest/20_begin_version.sql
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

-- ---- sql/60_ingest/21_stage_chunks.sql
create function knowledge.stage_chunks(version_id uuid, lease bigint, chunks jsonb)
returns table (ordinal integer, needs_embedding boolean, verdict text, reason text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions := knowledge_private.writable_version(stage_chunks.version_id, stage_chunks.lease);
    suspicion record := knowledge_private.suspicion(version.org_id);
    problem text;
    batch integer[];
    missing integer[];
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    problem := knowledge_private.chunks_problem(chunks, version.chunk_count);
    if problem is not null then
        perform knowledge_private.fail('KB005', problem);
    end if;
    batch := array(select (e ->> 'ordinal')::integer from jsonb_array_elements(chunks) as e order by 1);
    perform knowledge_private.unstage_unchanged(version, (
        select coalesce(range_agg(int4range(b, b, '[]')), '{}') from unnest(batch) as b
    ));
    perform knowledge_private.unstage_chunks(version, batch, chunks);

    insert into knowledge_private.staged_chunks (
        org_id, version_id, ordinal, verdict, reason, heading, body, tsv, words, tokens, content_hash, char_start, char_end,
        locator
    )
    with given as materialized (
        select
            c.ordinal,
            coalesce(c.heading, '') as heading,
            c.body,
            c.char_start,
            c.char_end,
            c.tokens,
            c.locator,
            c.verdict,
            c.reason,
            knowledge_private.is_blank(c.body) as blank
        from jsonb_to_recordset(chunks) as c (
            ordinal integer, heading text, body text, char_start integer, char_end integer, tokens integer, locator text,
            verdict text, reason text
        )
    ),
    batch as materialized (
        -- One look at all of them costs a tenth of one look at each.
        select
            not suspicion.batchwise
            or string_agg(g.heading || E'\n' || g.body, E'\n') ~* ('(?w)' || suspicion.pattern) as suspicious
        from given as g
    )
    select
        version.org_id, version.version_id, c.ordinal, v.verdict,
        case
            when c.blank then 'it is blank'
            when r.verdict is not null then r.reason
            when v.verdict = 'admitted' then null
            when v.verdict = c.verdict then coalesce(c.reason, 'its writer says so')
            else j.ruling[2]
        end,
        c.heading, t.body, t.tsv, knowledge_private.count_words(t.tsv), c.tokens, h.content_hash, c.char_start, c.char_end,
        c.locator
    from given as c
    cross join batch as b
    cross join lateral (
        select knowledge_private.content_hash(version.org_id, c.heading, c.body) as content_hash
        offset 0
    ) as h
    left join knowledge_private.reviews as r
        on r.org_id = version.org_id and r.document_id = version.document_id and r.content_hash = h.content_hash
    cross join lateral (
        select case
            when
                r.verdict is null
                and (
                    b.suspicious and (c.heading || E'\n' || c.body) ~* suspicion.pattern
                    or length(c.body) > suspicion.longest
                )
                then knowledge_private.judge(version.org_id, c.heading, c.body)
        end as ruling
        offset 0
    ) as j
    cross join lateral (
        -- A reviewer's word settles it; else the severer of the writer's and the rules', which is the greater word.
        select case
            when c.blank then 'rejected'
            else coalesce(r.verdict, greatest(c.verdict, j.ruling[1], 'admitted'))
        end as verdict
        offset 0
    ) as v
    cross join lateral (
        select
            case when v.verdict = 'rejected' then '' else c.body end as body,
            case
                when v.verdict = 'admitted' then knowledge_private.chunk_tsv(version.language, c.heading, c.body)
                else ''
            end as tsv
        offset 0
    ) as t;

    missing := knowledge_private.unembedded(version, batch);
    return query
    select s.ordinal, s.ordinal = any (missing), s.verdict, s.reason
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = any (batch)
    order by s.ordinal;
end
$$;

comment on function knowledge.stage_chunks(uuid, bigint, jsonb) is
'Stages a batch of chunks of a version that begin_version gave, in any order and as often as you like. chunks: a json
array of {"ordinal": 0, "body": "text", "heading": "A > B", "char_start": 0, "char_end": 4, "tokens": 1, "locator": "page 3",
"verdict": "quarantined", "reason": "…"}; ordinal and body are required; char_end is one past the last character; locator is
for citations; verdict is what the writer thinks of it, and the rules of the org (admission_rules) may be severer, but not
a reviewer of the same text (release_chunk, reject_chunk). A blank body is rejected. Returns per ordinal, ascending, the
verdict and its reason, and whether it needs a vector: not when it is rejected, or a live chunk of the org with the same
heading and body has one, which is reused. All of the batch is staged, or none of it.
KB004 no such version, KB005 malformed chunk, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_chunks(uuid, bigint, jsonb) from public;
grant execute on function knowledge.stage_chunks(uuid, bigint, jsonb) to knowledge_writer;

-- ---- sql/60_ingest/21_stage_unchanged.sql
create function knowledge.stage_unchanged(
    version_id uuid,
    lease bigint,
    ordinals integer[],
    live_ordinals integer[],
    counts integer[],
    shifts integer[] default null
)
returns integer[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(stage_unchanged.version_id, stage_unchanged.lease);
    live knowledge.versions;
    many constant integer := cardinality(ordinals);
    batch int4multirange;
    held int4multirange := '{}';
    texts int4multirange;
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    select v.* into live
    from knowledge.versions as v
    where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live';
    if ordinals is null or live_ordinals is null or counts is null
        or (cardinality(live_ordinals), cardinality(counts), cardinality(coalesce(shifts, counts))) <> (many, many, many)
        or exists (
            select from unnest(ordinals, live_ordinals, counts, coalesce(shifts, counts)) as r (ordinal, live, many, shift)
            where
                (r.ordinal >= 0 and r.live >= 0 and r.many > 0 and r.shift is not null and r.ordinal < version.chunk_count
                and r.many <= version.chunk_count - r.ordinal and r.live < live.chunk_count
                and r.many <= live.chunk_count - r.live and abs(r.shift) < 1000000000) is not true
        )
    then
        perform knowledge_private.fail('KB005',
            'give lists of one length; each run must be within the version and within the live one');
    end if;
    select coalesce(range_agg(int4range(r.ordinal, r.ordinal + r.many)), '{}') into batch
    from unnest(ordinals, counts) as r (ordinal, many);
    if (select sum(c) from unnest(counts) as c) <> (select sum(upper(b) - lower(b)) from unnest(batch) as b) then
        perform knowledge_private.fail('KB005', 'an ordinal is in two runs');
    end if;
    perform knowledge_private.unstage_unchanged(version, batch);
    -- A live ordinal without a place: its chunk was held back or left out.
    if (live.report ->> 'quarantined')::integer + (live.report ->> 'rejected')::integer > 0 then
        select coalesce(range_agg(int4range(r.ordinal + n, r.ordinal + n, '[]')), '{}') into held
        from unnest(ordinals, live_ordinals, counts) as r (ordinal, live, many)
        cross join generate_series(0, r.many - 1) as n
        where r.live + n not in (
            select p.ordinal from knowledge.positions as p
            where p.org_id = version.org_id and p.document_id = version.document_id
        );
    end if;
    select coalesce(range_agg(int4range(s.ordinal, s.ordinal, '[]')), '{}') into texts
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal <@ batch;
    insert into knowledge_private.staged_unchanged (org_id, version_id, ordinals, live_ordinal, shift)
    select version.org_id, version.version_id, u.ordinals, r.live + (lower(u.ordinals) - r.ordinal), coalesce(r.shift, 0)
    from unnest(ordinals, live_ordinals, counts, shifts) as r (ordinal, live, many, shift)
    cross join unnest(int4multirange(int4range(r.ordinal, r.ordinal + r.many)) - texts - held) as u (ordinals);
    if (
        select sum(upper(u.ordinals) - lower(u.ordinals)) from knowledge_private.staged_unchanged as u
        where u.org_id = version.org_id and u.version_id = version.version_id
    ) <> (
        select sum(upper(o) - lower(o))
        from (
            select unnest(range_agg(int4range(u.live_ordinal, u.live_ordinal + upper(u.ordinals) - lower(u.ordinals)))) as o
            from knowledge_private.staged_unchanged as u
            where u.org_id = version.org_id and u.version_id = version.version_id
        ) as u
    ) then
        perform knowledge_private.fail('KB005', 'a live chunk can be staged once only');
    end if;
    return array(
        select generate_series(lower(h), upper(h) - 1) as ordinal
        from unnest(held - texts) as h
        order by ordinal
    );
end
$$;

comment on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[]) is
'Stages chunks without sending them: the live ones of the document live_ordinals[i] to live_ordinals[i] + counts[i] - 1 come
again, heading, body and locator unchanged, as ordinals[i] and following, shifts[i] (omitted: 0) characters further back in
the source. A chunk that is staged with its text stays so. Returns the ordinals that are to be staged with their text, because
what stood there was quarantined or rejected, ascending.
KB004 no such version, KB005 lists of different length, a run that is not within the version or within the live one, an
ordinal or a live chunk twice, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[]) from public;
grant execute on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[])
to knowledge_writer;

-- ---- sql/60_ingest/22_store_embeddings.sql
create function knowledge.store_embeddings(
    version_id uuid, lease bigint, fingerprint text, ordinals integer[], embeddings vector[]
)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(store_embeddings.version_id, store_embeddings.lease);
    model knowledge.models;
    stored integer;
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    select m.* into model from knowledge.models as m where m.model_id = version.model_id;
    if store_embeddings.fingerprint is distinct from model.fingerprint or model.fingerprint is null then
        perform knowledge_private.fail('KB007', 'these vectors are not of the version''s model',
            jsonb_build_object('fingerprint', store_embeddings.fingerprint, 'model', model.name));
    end if;
    if ordinals is null or embeddings is null or cardinality(ordinals) <> cardinality(embeddings)
        or coalesce(array_ndims(ordinals), 1) <> 1 or array_position(ordinals, null) is not null
        or cardinality(ordinals) <> (select count(distinct o) from unnest(ordinals) as o)
    then
        perform knowledge_private.fail('KB005', 'give one vector for each ordinal, each ordinal once',
            jsonb_build_object('ordinals', cardinality(ordinals), 'embeddings', cardinality(embeddings)));
    end if;
    perform knowledge_private.check_vectors(model, embeddings);

    delete from knowledge_private.staged_vectors as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = any (ordinals);
    execute format(
        'insert into knowledge_private.staged_vectors (org_id, version_id, ordinal, embedding) '
        'select $1, $2, e.ordinal, %1$s.l2_normalize(e.embedding)::%1$s.halfvec '
        'from unnest($3, $4) as e (ordinal, embedding) '
        'where exists (select from knowledge_private.staged_chunks as c '
        'where c.org_id = $1 and c.version_id = $2 and c.ordinal = e.ordinal offset 0)',
        knowledge_private.vector_schema())
    using version.org_id, version.version_id, ordinals, embeddings;
    get diagnostics stored = row_count;
    if stored <> cardinality(ordinals) then
        perform knowledge_private.fail('KB005', 'stage the chunks before their vectors: an ordinal is not staged');
    end if;
    return stored;
end
$$;

comment on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) is
'Stores the vectors of staged chunks: embeddings[i] belongs to ordinals[i]. fingerprint is the embedder''s and must be
that of the version''s model. Vectors are normalised to length 1. Returns how many were stored: all, or none.
KB004 no such version, KB005 lists of different length, an ordinal that is not staged, a zero vector, KB007 another model
or length, KB008 published already, KB009 lease lost.';
revoke all on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) from public;
grant execute on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) to knowledge_writer;

-- ---- sql/60_ingest/23_finalize_version.sql
create function knowledge.finalize_version(version_id uuid, lease bigint, allow_unembedded boolean default false)
returns table (
    chunks integer,
    embedded integer,
    reused integer,
    skipped integer,
    quarantined integer,
    rejected integer,
    complete boolean,
    live boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions := knowledge_private.writable_version(finalize_version.version_id, finalize_version.lease);
    document knowledge.documents;
    old knowledge.compartments;
    target integer;
    staged integer;
    held integer;
    refused integer;
    missing integer[];
    done record;
begin
    if version.state = 'ingesting' then
        select
            count(*), count(*) filter (where s.verdict = 'quarantined'), count(*) filter (where s.verdict = 'rejected')
        into staged, held, refused
        from knowledge_private.staged(version) as s;
        missing := knowledge_private.unembedded(version);
        if staged <> version.chunk_count or (cardinality(missing) > 0 and not coalesce(allow_unembedded, false)) then
            perform knowledge_private.fail('KB008',
                format('%s of %s chunks are staged, %s of them without a vector', staged, version.chunk_count,
                    cardinality(missing)),
                jsonb_build_object('chunk_count', version.chunk_count, 'staged', staged, 'unembedded', cardinality(missing)),
                'Stage what is missing; stage_chunks tells which ordinals need a vector.');
        end if;
        if refused = version.chunk_count then
            perform knowledge_private.fail('KB005', 'every chunk of this version was rejected',
                jsonb_build_object('reason', (
                    select min(s.reason) from knowledge_private.staged_chunks as s
                    where s.org_id = version.org_id and s.version_id = version.version_id
                )),
                'What was live stays live; abort_version forgets this version.');
        end if;

        select d.* into strict document
        from knowledge.documents as d
        where d.org_id = version.org_id and d.document_id = version.document_id;
        select c.* into old
        from knowledge.compartments as c
        where c.org_id = document.org_id and c.compartment_id = document.compartment_id;
        -- Again when it was erased while it was waited for; the failed look gives its locks back, so their order holds.
        loop
            begin
                target := knowledge_private.ensure_compartment(document.org_id, document.org_scope, document.source_type,
                    coalesce(version.visibility, old.visibility, 'org'), coalesce(version.audience, old.audience),
                    version.language);
                perform from knowledge.compartments as c
                where c.org_id = version.org_id and c.compartment_id in (old.compartment_id, target)
                order by c.compartment_id
                for no key update;
                exit when exists (
                    select from knowledge.compartments as c
                    where c.org_id = version.org_id and c.compartment_id = target
                );
                raise exception using errcode = 'KB000', message = 'the compartment was erased';
            exception when sqlstate 'KB000' then
                null;
            end;
        end loop;

        done := knowledge_private.publish(version, document, target, old.language <> version.language);
        if done.without_vector > 0 and not coalesce(allow_unembedded, false) then
            perform knowledge_private.fail('KB008', 'a vector that was to be reused is gone',
                jsonb_build_object('chunk_count', version.chunk_count, 'unembedded', done.without_vector),
                'Stage what is missing; stage_chunks tells which ordinals need a vector.');
        end if;

        update knowledge.versions as v set state = 'superseded', ended_at = now(), outline = null
        where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live';
        perform knowledge_private.end_version(version, 'live');
        update knowledge.versions as v
        set report = jsonb_build_object('chunks', version.chunk_count, 'embedded', done.embedded, 'reused', done.reused,
            'skipped', done.kept, 'quarantined', held, 'rejected', refused, 'complete', done.without_vector = 0, 'live', true)
        where v.org_id = version.org_id and v.version_id = version.version_id
        returning v.* into version;
        update knowledge.documents as d
        set
            compartment_id = target, live_version = version.version_id, layout = done.layout,
            title = coalesce(version.title, d.title), uri = coalesce(version.uri, d.uri),
            metadata = coalesce(version.metadata, d.metadata), updated_at = now()
        where d.org_id = version.org_id and d.document_id = version.document_id;
    end if;

    return query
    select r.chunks, r.embedded, r.reused, r.skipped, r.quarantined, r.rejected, r.complete, r.live
    from jsonb_to_record(version.report) as r (
        chunks integer, embedded integer, reused integer, skipped integer, quarantined integer, rejected integer,
        complete boolean, live boolean
    );
end
$$;

comment on function knowledge.finalize_version(uuid, bigint, boolean) is
'Publishes a version in one step: until it commits the old one is served, from then on the new one. Only the difference is
written; a chunk whose heading and body are unchanged keeps its row, id and vector. Counts: chunks in the version;
embedded, those that brought a vector of their own; reused, those that took the vector of another chunk with the same
text; skipped, those that were kept as they were; complete, whether every chunk has a vector. Repeating the call repeats
the report. quarantined, those held back until release_chunk or reject_chunk; rejected, those left out. allow_unembedded
publishes chunks without a vector for words; claim_embeddings gives them to a worker.
KB004 no such version, KB005 every chunk was rejected, KB008 a chunk or vector is missing, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.finalize_version(uuid, bigint, boolean) from public;
grant execute on function knowledge.finalize_version(uuid, bigint, boolean) to knowledge_writer;

-- ---- sql/60_ingest/24_abort_version.sql
create function knowledge.abort_version(version_id uuid)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs := knowledge_private.use_org(asking.org_id);
    version knowledge.versions;
begin
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id in (
            select v.document_id from knowledge.versions as v
            where v.org_id = asking.org_id and v.version_id = abort_version.version_id
        )
    for update;
    if found then
        select v.* into version
        from knowledge.versions as v
        where v.org_id = asking.org_id and v.version_id = abort_version.version_id;
    end if;
    if version.version_id is null then
        perform knowledge_private.fail('KB004', 'no such version');
    end if;
    if version.state <> 'ingesting' then
        return false;
    end if;
    perform knowledge_private.end_version(version, 'aborted');
    -- A document that never had a live version leaves nothing behind.
    delete from knowledge.documents as d
    where d.org_id = version.org_id and d.document_id = version.document_id and d.live_version is null;
    return true;
end
$$;

comment on function knowledge.abort_version(uuid) is
'Ends a version that is being ingested, whoever holds its lease, and forgets what it staged; what is live stays live.
Returns false when it was not being ingested any more. KB004 when there is no such version in the org and exact scope.';
revoke all on function knowledge.abort_version(uuid) from public;
grant execute on function knowledge.abort_version(uuid) to knowledge_writer;

-- ---- sql/60_ingest/25_renew_lease.sql
create function knowledge.renew_lease(version_id uuid, lease bigint)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(renew_lease.version_id, renew_lease.lease);
begin
    return (
        select v.lease_expires_at from knowledge.versions as v
        where v.org_id = version.org_id and v.version_id = version.version_id
    );
end
$$;

comment on function knowledge.renew_lease(uuid, bigint) is
'Says that the writer of a version is still at it, as each of its other calls does; for one whose embedder takes longer than
a lease. Returns when the lease expires now. KB004 no such version, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.renew_lease(uuid, bigint) from public;
grant execute on function knowledge.renew_lease(uuid, bigint) to knowledge_writer;

-- ---- sql/60_ingest/26_release_version.sql
create function knowledge.release_version(version_id uuid, lease bigint, error text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(release_version.version_id, release_version.lease);
begin
    update knowledge.versions as v
    set
        lease_expires_at = knowledge_private.clock(),
        last_error = coalesce(left(error, 2000), v.last_error),
        failed_at = case when error is null then v.failed_at else now() end
    where v.org_id = version.org_id and v.version_id = version.version_id and v.state = 'ingesting';
end
$$;

comment on function knowledge.release_version(uuid, bigint, text) is
'Gives up the lease of a version that is being ingested: what is staged stays, and any writer may resume it at once.
error: why, for ingest_status; at most 2000 characters are kept. KB004 no such version, KB009 lease lost.';
revoke all on function knowledge.release_version(uuid, bigint, text) from public;
grant execute on function knowledge.release_version(uuid, bigint, text) to knowledge_writer;

-- ---- sql/60_ingest/27_ingest_status.sql
create function knowledge.ingest_status()
returns table (
    version_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    chunks integer,
    staged bigint,
    unembedded bigint,
    quarantined bigint,
    rejected bigint,
    age interval,
    lease_holder text,
    lease_expires_at timestamptz,
    leased boolean,
    last_error text,
    failed_at timestamptz
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
        v.version_id, d.document_id, d.source_type, d.source_id, v.source_version, v.chunk_count, s.staged,
        cardinality(knowledge_private.unembedded(v))::bigint, s.quarantined, s.rejected, clock - v.started_at, v.lease_holder,
        v.lease_expires_at, v.lease_expires_at > clock, v.last_error, v.failed_at
    from knowledge.versions as v
    inner join knowledge.documents as d on d.org_id = v.org_id and d.document_id = v.document_id
    cross join lateral (
        select
            count(*) as staged,
            count(*) filter (where c.verdict = 'quarantined') as quarantined,
            count(*) filter (where c.verdict = 'rejected') as rejected
        from knowledge_private.staged(v) as c
    ) as s
    where v.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope and v.state = 'ingesting'
    order by v.started_at, v.version_id;
end
$$;

comment on function knowledge.ingest_status() is
'The versions that are being ingested in the context''s org and exact scope, the oldest first: chunks it must have; staged;
unembedded, the staged ones that still want a vector; quarantined and rejected among them; age since it was begun; who
holds the lease and until when; leased, whether it holds; what its writer last failed of (release_version).';
revoke all on function knowledge.ingest_status() from public;
grant execute on function knowledge.ingest_status() to knowledge_writer;

-- ---- sql/60_ingest/28_live_version.sql
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

-- ---- sql/60_ingest/30_claim_embeddings.sql
create function knowledge.claim_embeddings(fingerprint text, k integer default 64)
returns table (claim uuid, org_id text, chunk_id uuid, heading text, body text, attempts integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    clock timestamptz := knowledge_private.clock();
    settings knowledge_private.settings;
    model integer;
    new_claim uuid := gen_random_uuid();
    turn record;
    lost uuid[];
    taken integer;
    missing integer := k;
begin
    if k is null or k not between 1 and 10000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 10000');
    end if;
    model := (knowledge_private.model_of(claim_embeddings.fingerprint)).model_id;
    select s.* into settings from knowledge_private.settings as s;
    for turn in
        select t.org_id from knowledge_private.embedding_turns as t
        where t.model_id = model
        order by t.served_at, t.org_id
    loop
        -- Each job by itself, so that one that another worker holds is passed over.
        with due as (
            select j.chunk_id
            from knowledge_private.embedding_jobs as j
            where j.model_id = model and j.org_id = turn.org_id and not j.dead and j.due_at <= clock
            order by j.due_at, j.chunk_id
            limit missing
            for no key update skip locked
        )
        update knowledge_private.embedding_jobs as j
        set
            -- A claim that ran out counts as a failure: a text that kills its worker must not do so for ever.
            attempts = j.attempts + (j.claim is not null)::integer,
            dead = j.attempts + (j.claim is not null)::integer >= settings.attempts,
            reason = case when j.claim is null then j.reason else 'its worker did not come back' end,
            claim = new_claim,
            due_at = clock + settings.claim
        from due
        where j.org_id = turn.org_id and j.model_id = model and j.chunk_id = due.chunk_id;
        get diagnostics taken = row_count;
        if taken > 0 then
            -- Passed over where another claim notes the same: no worker waits for another.
            update knowledge_private.embedding_turns as t
            set served_at = clock
            from (
                select o.org_id from knowledge_private.embedding_turns as o
                where o.org_id = turn.org_id and o.model_id = model
                for no key update skip locked
            ) as free
            where t.org_id = free.org_id and t.model_id = model;
        elsif not exists (
            select from knowledge_private.embedding_jobs as j
            where j.model_id = model and j.org_id = turn.org_id and not j.dead
        ) then
            perform knowledge_private.end_turn(turn.org_id, model);
        end if;
        missing := missing - taken;
        exit when missing <= 0;
    end loop;
    return query
    select new_claim, j.org_id, j.chunk_id, c.heading, c.body, j.attempts
    from knowledge_private.embedding_jobs as j
    inner join knowledge.chunks as c on c.org_id = j.org_id and c.chunk_id = j.chunk_id
    where j.claim = new_claim and not j.dead
    order by j.org_id, j.due_at, j.chunk_id;
end
$$;

comment on function knowledge.claim_embeddings(text, integer) is
'Gives a worker up to k (1 to 10000) chunks of any org that are live without a vector of the model with this fingerprint, the
org first that was served longest ago, those due longest first. No context is asked for: workers serve the whole database,
with a role in knowledge_trusted. Embed heading, line break, body (the body alone where the heading is empty), then call
complete_embeddings or fail_embeddings with the claim; after the setting claim (5 minutes) others may claim them, and that
counts as a failure. No rows: nothing is due; LISTEN knowledge_embeddings wakes. Commit before embedding.
KB005 bad k, KB007 unknown fingerprint.';
revoke all on function knowledge.claim_embeddings(text, integer) from public;
grant execute on function knowledge.claim_embeddings(text, integer) to knowledge_trusted;

-- ---- sql/60_ingest/31_complete_embeddings.sql
create function knowledge.complete_embeddings(claim uuid, chunk_ids uuid[], embeddings vector[])
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    model knowledge.models;
    stored integer;
begin
    if claim is null or chunk_ids is null or embeddings is null or cardinality(chunk_ids) <> cardinality(embeddings)
        or cardinality(chunk_ids) <> (select count(distinct c) from unnest(chunk_ids) as c)
    then
        perform knowledge_private.fail('KB005', 'give one vector for each chunk, each chunk once',
            jsonb_build_object('chunk_ids', cardinality(chunk_ids), 'embeddings', cardinality(embeddings)));
    end if;
    select m.* into model
    from knowledge.models as m
    where m.model_id = (
        select j.model_id from knowledge_private.embedding_jobs as j where j.claim = complete_embeddings.claim limit 1
    );
    if not found then
        return 0;
    end if;
    perform knowledge_private.check_vectors(model, embeddings);
    -- The documents first, as whoever publishes, moves or deletes their chunks does.
    perform from knowledge.documents as d
    where (d.org_id, d.document_id) in (
        select j.org_id, j.document_id from knowledge_private.embedding_jobs as j
        where j.claim = complete_embeddings.claim and j.chunk_id = any (complete_embeddings.chunk_ids)
    )
    order by d.org_id, d.document_id
    for share;
    execute format(
        'with done as ('
        'delete from knowledge_private.embedding_jobs as j '
        'where j.claim = $1 and j.chunk_id = any ($2) returning j.org_id, j.chunk_id) '
        'insert into %1$s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select c.org_id, c.chunk_id, c.document_id, c.compartment_id, %2$s.l2_normalize(e.embedding)::%2$s.halfvec '
        'from done inner join unnest($2, $3) as e (chunk_id, embedding) on e.chunk_id = done.chunk_id '
        'inner join knowledge.chunks as c on c.org_id = done.org_id and c.chunk_id = done.chunk_id '
        'order by c.org_id, c.chunk_id on conflict (org_id, chunk_id) do nothing',
        knowledge_private.vector_table(model.model_id), knowledge_private.vector_schema())
    using claim, chunk_ids, embeddings;
    get diagnostics stored = row_count;
    return stored;
end
$$;

comment on function knowledge.complete_embeddings(uuid, uuid[], vector[]) is
'Stores the vectors of claimed chunks: embeddings[i] belongs to chunk_ids[i]. From then on they are found by meaning. Returns
how many were stored; the others were deleted or claimed by another worker meanwhile. All, or none when one is refused.
KB005 lists of different length, a zero vector, KB007 another length than the model''s.';
revoke all on function knowledge.complete_embeddings(uuid, uuid[], vector[]) from public;
grant execute on function knowledge.complete_embeddings(uuid, uuid[], vector[]) to knowledge_trusted;

-- ---- sql/60_ingest/32_fail_embeddings.sql
create function knowledge.fail_embeddings(claim uuid, chunk_ids uuid[], reason text, retry_after interval default null)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    failed integer;
begin
    if claim is null or chunk_ids is null or reason is null or retry_after < interval '0' then
        perform knowledge_private.fail('KB005', 'give the claim, its chunks and a reason; retry_after is not negative');
    end if;
    update knowledge_private.embedding_jobs as j
    set
        claim = null,
        reason = left(fail_embeddings.reason, 2000),
        attempts = j.attempts + (retry_after is null)::integer,
        dead = retry_after is null and j.attempts + 1 >= s.attempts,
        due_at = knowledge_private.clock() + coalesce(
            retry_after, least(s.longest_retry, s.first_retry * power(2, least(j.attempts, 30))))
    from knowledge_private.settings as s
    where j.claim = fail_embeddings.claim and j.chunk_id = any (fail_embeddings.chunk_ids);
    get diagnostics failed = row_count;
    return failed;
end
$$;

comment on function knowledge.fail_embeddings(uuid, uuid[], text, interval) is
'Gives claimed chunks back, with the reason. Without retry_after the text is to blame: it is due again after 10 seconds, 20,
40 … at most an hour, and is set aside as a dead letter after 8 failures (settings). With retry_after the provider is to
blame (rate limit, outage): due then, and not counted. Returns how many were still claimed. KB005 malformed argument.';
revoke all on function knowledge.fail_embeddings(uuid, uuid[], text, interval) from public;
grant execute on function knowledge.fail_embeddings(uuid, uuid[], text, interval) to knowledge_trusted;

-- ---- sql/60_ingest/33_embedding_queue.sql
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

-- ---- sql/60_ingest/34_retry_embeddings.sql
create function knowledge.retry_embeddings()
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    revived bigint;
begin
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id in (
            select j.document_id from knowledge_private.embedding_jobs as j where j.org_id = asking.org_id and j.dead
        )
    order by d.document_id
    for share;
    update knowledge_private.embedding_jobs as j
    set dead = false, attempts = 0, claim = null, due_at = knowledge_private.clock()
    from knowledge.documents as d
    where
        j.org_id = asking.org_id and j.dead
        and d.org_id = j.org_id and d.document_id = j.document_id
        and d.org_scope is not distinct from asking.org_scope;
    get diagnostics revived = row_count;
    if revived > 0 then
        perform knowledge_private.take_turn(j.org_id, j.model_id)
        from (
            select distinct q.org_id, q.model_id
            from knowledge_private.embedding_jobs as q
            where q.org_id = asking.org_id and not q.dead
        ) as j;
        perform pg_notify('knowledge_embeddings', '');
    end if;
    return revived;
end
$$;

comment on function knowledge.retry_embeddings() is
'Puts the dead letters of the context''s org and exact scope back into the queue, due at once and with no failures counted;
returns how many.';
revoke all on function knowledge.retry_embeddings() from public;
grant execute on function knowledge.retry_embeddings() to knowledge_writer;

-- ---- sql/60_ingest/40_list_quarantine.sql
create function knowledge.list_quarantine(k integer default 100, after uuid default null)
returns table (
    chunk_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    title text,
    ordinal integer,
    reason text,
    heading text,
    body text,
    char_start integer,
    char_end integer,
    locator text,
    held_at timestamptz
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
    select
        q.chunk_id, q.document_id, d.source_type, d.source_id, d.title, q.ordinal, q.reason, q.heading, q.body,
        q.char_start, q.char_end, q.locator, q.held_at
    from knowledge.quarantine as q
    inner join knowledge.documents as d on d.org_id = q.org_id and d.document_id = q.document_id
    where
        q.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and (list_quarantine.after is null or q.chunk_id > list_quarantine.after)
    order by q.chunk_id
    limit list_quarantine.k;
end
$$;

comment on function knowledge.list_quarantine(integer, uuid) is
'The chunks of the context''s org and exact scope, for whatever audience, that are held back until release_chunk or
reject_chunk: at most k (1 to 10000), those held longest first; for the next page give the last chunk_id as after. The text
is suspicious: show it to people, not to a model. KB001, KB002 context, KB005 bad k.';
revoke all on function knowledge.list_quarantine(integer, uuid) from public;
grant execute on function knowledge.list_quarantine(integer, uuid) to knowledge_admin;

-- ---- sql/60_ingest/41_release_chunk.sql
create function knowledge.release_chunk(chunk_id uuid, reason text default null)
returns table (document_id uuid, ordinal integer, embedded boolean, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held knowledge.quarantine := knowledge_private.decide(release_chunk.chunk_id, 'admitted', release_chunk.reason);
    compartment knowledge.compartments;
    version knowledge.versions;
    tsv tsvector;
    entry knowledge.audit_log;
begin
    select v.* into version
    from knowledge.versions as v
    where v.org_id = held.org_id and v.version_id = held.version_id;
    select c.* into compartment
    from knowledge.compartments as c
    where
        c.org_id = held.org_id
        and c.compartment_id = (
            select d.compartment_id from knowledge.documents as d
            where d.org_id = held.org_id and d.document_id = held.document_id
        )
    for no key update;
    tsv := knowledge_private.chunk_tsv(compartment.language, held.heading, held.body);
    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    values (
        held.org_id, held.chunk_id, held.document_id, compartment.compartment_id, held.heading, held.body, tsv,
        knowledge_private.count_words(tsv), held.tokens, held.content_hash
    );
    insert into knowledge.places (
        org_id, document_id, place, chunk_id, compartment_id, content_hash, words, char_start, char_end, locator
    )
    select
        held.org_id, held.document_id, s.place, held.chunk_id, compartment.compartment_id, held.content_hash,
        knowledge_private.count_words(tsv), held.char_start - s.shift, held.char_end - s.shift, held.locator
    from knowledge.documents as d
    cross join knowledge_private.pieces(d.layout, held.ordinal, held.ordinal) as s
    where d.org_id = held.org_id and d.document_id = held.document_id;
    update knowledge.compartments as c
    set chunks = c.chunks + 1, words = c.words + knowledge_private.count_words(tsv)
    where c.org_id = held.org_id and c.compartment_id = compartment.compartment_id;
    embedded := held.embedding is not null and version.model_id = held.model_id;
    if embedded then
        execute format(
            'insert into %s (org_id, chunk_id, document_id, compartment_id, embedding) values ($1, $2, $3, $4, $5)',
            knowledge_private.vector_table(held.model_id))
        using held.org_id, held.chunk_id, held.document_id, compartment.compartment_id, held.embedding;
    end if;
    if version.model_id is not null then
        perform knowledge_private.queue_embeddings(version);
    end if;
    entry := knowledge_private.audit(held.org_id, 'release_chunk', jsonb_build_object(
        'content_hash', encode(held.content_hash, 'hex'), 'reason', release_chunk.reason));
    return query
    select held.document_id, held.ordinal, release_chunk.embedded, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.release_chunk(uuid, text) is
'Publishes a quarantined chunk into the live version of its document: from the commit on it is found. The same text is
admitted when the document is ingested again. Returns its place; embedded, whether it has its vector (else a worker is to
make it); and the receipt: number and digest (hex) of its entry in audit_log. KB004 when it is not in the quarantine of the
context''s org and exact scope.';
revoke all on function knowledge.release_chunk(uuid, text) from public;
grant execute on function knowledge.release_chunk(uuid, text) to knowledge_admin;

-- ---- sql/60_ingest/42_reject_chunk.sql
create function knowledge.reject_chunk(chunk_id uuid, reason text default null)
returns table (document_id uuid, ordinal integer, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held knowledge.quarantine := knowledge_private.decide(reject_chunk.chunk_id, 'rejected', reject_chunk.reason);
    entry knowledge.audit_log := knowledge_private.audit(held.org_id, 'reject_chunk', jsonb_build_object(
        'content_hash', encode(held.content_hash, 'hex'), 'reason', reject_chunk.reason));
begin
    return query select held.document_id, held.ordinal, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.reject_chunk(uuid, text) is
'Forgets a quarantined chunk; the same text is rejected when the document is ingested again. Returns its place and the
receipt: number and digest (hex) of its entry in audit_log. KB004 when it is not in the quarantine of the context''s org and
exact scope.';
revoke all on function knowledge.reject_chunk(uuid, text) from public;
grant execute on function knowledge.reject_chunk(uuid, text) to knowledge_admin;

-- ---- sql/61_search/00_request.sql
-- What one step of a search hands to the next.

create type knowledge_private.search_request as (
    asking knowledge_private.claim,
    model_id integer,
    chunks bigint,
    words bigint,
    vector_filter text,
    index_filter text,
    permitted_vectors bigint,
    keyword_predicate text,
    keyword_filter text,
    scanned boolean,
    lexemes text[],
    repeats integer[],
    prefixes boolean[],
    known double precision[],
    legs text[],
    rrf_k double precision,
    vector_weight double precision,
    keyword_weight double precision,
    boost jsonb
);

comment on type knowledge_private.search_request is
'What a search runs on: its permission and filters as SQL conditions, its words, and the legs that take part. index_filter:
null where the vector leg compares all. scanned: whether the keyword leg reads all that is permitted. permitted_vectors: null where it is not known. boost: null where nothing is boosted.';

create type knowledge_private.ranked as (
    chunk_id uuid,
    place integer,
    score double precision,
    boost double precision,
    vector_place integer,
    distance double precision,
    keyword_place integer,
    keyword_score double precision
);

comment on type knowledge_private.ranked is
'A chunk that was found, its place after fusion and in each leg. score: with its boost, which is 1 where there is none.';

-- ---- sql/61_search/01_predicate.sql
-- Every ranking query gets its permission from here, as literals: an integer comparison on the row that it ranks.

create function knowledge_private.compartment_predicate(
    org_id text, compartments integer[], long_list integer, indexable boolean
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    all_of_org boolean;
    org_part text := format(case when indexable then 't.org_id = %L' else 't.org_id || '''' = %L' end,
        compartment_predicate.org_id);
begin
    if cardinality(compartments) > long_list then
        -- They are numbered from 1.
        select max(c.compartment_id) = cardinality(compartments)
        into all_of_org
        from knowledge.compartments as c
        where c.org_id = compartment_predicate.org_id;
        if all_of_org then
            return org_part;
        end if;
    end if;
    return format('%s and %s = any (%L::integer[])',
        org_part, case when indexable then 't.compartment_id' else 't.compartment_id + 0' end, compartments);
end
$$;

comment on function knowledge_private.compartment_predicate(text, integer[], integer, boolean) is
'The condition on a table t with org_id and compartment_id that holds for rows in compartments of an org: a literal list,
which hashes; or for one longer than long_list that is all there is, nothing but the org. indexable false keeps the planner from finding
these rows by an index on them, where another index is the better way.';
revoke all on function knowledge_private.compartment_predicate(text, integer[], integer, boolean) from public;

create function knowledge_private.compartment_look_up(
    asking knowledge_private.claim, source_types text[], visibility text[]
)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- "offset 0": never joined, always by key.
    select format(
        't.org_id = %L and exists (select from knowledge_private.permitted_compartments(%L::knowledge_private.claim, '
        '%L::text[], %L::text[]) as p where p.org_id = t.org_id and p.compartment_id = t.compartment_id offset 0)',
        asking.org_id, asking, source_types, visibility)
$$;

comment on function knowledge_private.compartment_look_up(knowledge_private.claim, text[], text[]) is
'The condition on a table t that holds for rows in compartments that permitted_compartments gives for these arguments,
looked up for each row: for the few rows that a vector index gives, where a list would be long.';
revoke all on function knowledge_private.compartment_look_up(knowledge_private.claim, text[], text[]) from public;

create function knowledge_private.metadata_condition(filter jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    comparison constant jsonb := '{"$eq": "=", "$ne": "<>", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}';
    conditions text[] := '{}';
    field record;
    test record;
begin
    if jsonb_typeof(filter) is distinct from 'object' then
        perform knowledge_private.fail('KB005', 'a metadata filter must be a json object');
    end if;
    for field in select f.key, f.value from jsonb_each(filter) as f loop
        if field.key in ('$and', '$or') then
            if jsonb_typeof(field.value) <> 'array' then
                perform knowledge_private.fail('KB005', format('%s takes a list of filters', field.key));
            end if;
            conditions := conditions || coalesce('(' || (
                select string_agg(knowledge_private.metadata_condition(e), case field.key when '$and' then ' and ' else ' or ' end)
                from jsonb_array_elements(field.value) as e
            ) || ')', case field.key when '$and' then 'true' else 'false' end);
        elsif field.key = '$not' then
            conditions := conditions || format('not %s', knowledge_private.metadata_condition(field.value));
        elsif field.key like '$%' then
            perform knowledge_private.fail('KB005', format('unknown operator in metadata: %s', field.key));
        elsif jsonb_typeof(field.value) <> 'object' or not exists (
            select from jsonb_object_keys(field.value) as k where k like '$%'
        ) then
            conditions := conditions || format('d.metadata @> %L', jsonb_build_object(field.key, field.value));
        else
            for test in select t.key, t.value from jsonb_each(field.value) as t loop
                if comparison ? test.key
                    and (test.key in ('$eq', '$ne') or jsonb_typeof(test.value) in ('number', 'string'))
                then
                    -- Numbers compare with numbers and strings with strings; nothing else is greater or less.
                    conditions := conditions || format(
                        '(jsonb_typeof(d.metadata -> %1$L) %3$s and d.metadata -> %1$L %2$s %4$L::jsonb)',
                        field.key, comparison ->> test.key,
                        case
                            when test.key in ('$eq', '$ne') then 'is not null'
                            else format('is not distinct from %L', jsonb_typeof(test.value))
                        end, test.value);
                elsif test.key in ('$in', '$nin') and jsonb_typeof(test.value) = 'array' then
                    conditions := conditions || format('(d.metadata ? %1$L and %2$s d.metadata -> %1$L = any (%3$L::jsonb[]))',
                        field.key, case test.key when '$nin' then 'not' else '' end,
                        array(select e from jsonb_array_elements(test.value) as e));
                elsif test.key = '$exists' and jsonb_typeof(test.value) = 'boolean' then
                    conditions := conditions || format('(d.metadata ? %L) = %L::boolean', field.key, test.value);
                else
                    perform knowledge_private.fail('KB005', format('unknown operator in metadata, or a wrong value: %s', test.key),
                        field.value);
                end if;
            end loop;
        end if;
    end loop;
    return coalesce('(' || array_to_string(nullif(conditions, '{}'), ' and ') || ')', 'true');
end
$$;

comment on function knowledge_private.metadata_condition(jsonb) is
'The condition on a row d with metadata that a filter (see metadata_matches) stands for. KB005 for a malformed filter.';
revoke all on function knowledge_private.metadata_condition(jsonb) from public;

create function knowledge_private.metadata_predicate(org_id text, filter jsonb)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when filter is null then 'true'
        else format(
            't.document_id in (select d.document_id from knowledge.documents as d where d.org_id = %L and %s)',
            metadata_predicate.org_id, knowledge_private.metadata_condition(filter))
    end
$$;

comment on function knowledge_private.metadata_predicate(text, jsonb) is
'The condition on a table t with document_id that holds for chunks of documents whose metadata a filter matches.';
revoke all on function knowledge_private.metadata_predicate(text, jsonb) from public;

create function knowledge_private.match_condition(query text, scanned boolean)
returns text
language sql
immutable
begin atomic
    select format(case when scanned then 'ts_match_vq(t.tsv, %L)' else 't.tsv @@ %L' end, query);
end;

comment on function knowledge_private.match_condition(text, boolean) is
'The condition on a table t that its tsv matches a tsquery. scanned: as a call, which no index serves; that of lexemes is
everybody''s, and for a small org most of what it gives is of others.';
revoke all on function knowledge_private.match_condition(text, boolean) from public;

-- ---- sql/61_search/02_vector_leg.sql
-- The vector leg. No index is shared between orgs: permitted vectors are compared one by one, or, in an org that has
-- earned a partial HNSW index of its own, found through that and checked for completeness.

create function knowledge_private.unit(embedding vector)
returns halfvec
language sql
immutable
begin atomic
    -- A halfvec holds neither very short nor very long vectors, so it is normalised before.
    select l2_normalize(embedding)::halfvec;
end;

comment on function knowledge_private.unit(vector) is 'A vector as vectors are stored: of length 1, in half precision.';
revoke all on function knowledge_private.unit(vector) from public;

create function knowledge_private.distance(one halfvec, other halfvec)
returns double precision
language sql
immutable
parallel safe
begin atomic
    select one <=> other;
end;

comment on function knowledge_private.distance(halfvec, halfvec) is 'The cosine distance of two vectors, 0 to 2.';
revoke all on function knowledge_private.distance(halfvec, halfvec) from public;

create function knowledge_private.index_name(org_id text, model_id integer)
returns text
language sql
immutable
begin atomic
    select 'vectors_' || model_id::text || '_of_' || left(encode(knowledge_private.text_key(org_id), 'hex'), 24);
end;

comment on function knowledge_private.index_name(text, integer) is
'The name, in schema knowledge, of the index that an org has on a model''s vectors if it has one.';
revoke all on function knowledge_private.index_name(text, integer) from public;

create function knowledge_private.index_worth(org_id text, model_id integer)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select greatest(s.exact_rows, s.index_share * c.reltuples)::bigint
    from pg_class as c
    inner join pg_index as i on i.indexrelid = c.oid
    cross join knowledge_private.settings as s
    where
        c.relname = knowledge_private.index_name(index_worth.org_id, index_worth.model_id)
        and c.relnamespace = 'knowledge'::regnamespace and i.indisvalid
$$;

comment on function knowledge_private.index_worth(text, integer) is
'The number of permitted vectors above which the org''s index is the better way than to compare all; null without an index.';
revoke all on function knowledge_private.index_worth(text, integer) from public;

create function knowledge_private.more_vectors(model_id integer, filter text, than bigint)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    counted bigint;
begin
    execute format('select count(*) from (select from %s as t where %s limit %s) as n',
        knowledge_private.vector_table(model_id), filter, than + 1)
    into counted;
    return counted > than;
end
$$;

comment on function knowledge_private.more_vectors(integer, text, bigint) is
'Whether filter holds for more than so many vectors of a model, counting no further than that.';
revoke all on function knowledge_private.more_vectors(integer, text, bigint) from public;

create function knowledge_private.index_leg(model_id integer, predicate text, embedding vector, depth integer)
returns table (chunk_id uuid, distance double precision)
language plpgsql
stable
rows 200
set enable_sort = off
set enable_seqscan = off
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted text[] := array[
        ['hnsw.iterative_scan', 'relaxed_order'],
        ['hnsw.ef_search', least(1000, greatest(100, 2 * depth))::text],
        ['hnsw.max_scan_tuples', '2000000'],
        ['hnsw.scan_mem_multiplier', '16']
    ];
    before text[] := array(
        select current_setting(w.name) from unnest(wanted[:][1:1]) with ordinality as w (name, place) order by w.place
    );
begin
    perform set_config(wanted[i][1], wanted[i][2], true) from generate_subscripts(wanted, 1) as i;
    return query execute format(
        'select n.chunk_id, n.distance from ('
        'select t.chunk_id, t.embedding operator(%1$s.<=>) %1$s.l2_normalize($1)::%1$s.halfvec as distance '
        'from %2$s as t where %3$s order by t.embedding operator(%1$s.<=>) %1$s.l2_normalize($1)::%1$s.halfvec limit %4$s'
        ') as n order by n.distance + 0, n.chunk_id',
        knowledge_private.vector_schema(), knowledge_private.vector_table(model_id), predicate, depth)
    using embedding;
    perform set_config(wanted[i][1], before[i], true) from generate_subscripts(wanted, 1) as i;
end
$$;

comment on function knowledge_private.index_leg(integer, text, vector, integer) is
'The nearest depth vectors that predicate permits, through the org''s partial HNSW index, which predicate must imply; cosine
distance, ascending; may miss some.';
revoke all on function knowledge_private.index_leg(integer, text, vector, integer) from public;

create function knowledge_private.vector_leg(
    request knowledge_private.search_request, embedding vector, depth integer
)
returns table (chunk_id uuid, distance double precision)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever is asked for, the index is walked as far, so that a smaller k finds the same.
    wanted integer := greatest(200, depth);
    nearest knowledge_private.measured[];
begin
    if not 'vector' = any (request.legs) then
        return;
    end if;
    if request.index_filter is not null then
        nearest := array(
            select (l.chunk_id, l.distance)::knowledge_private.measured
            from knowledge_private.index_leg(request.model_id, request.index_filter, embedding, wanted) as l
        );
        if cardinality(nearest) >= least(wanted, request.permitted_vectors) then
            return query
            select n.chunk_id, n.measure from unnest(nearest[:depth]) as n;
            return;
        end if;
    end if;
    -- "+ 0": no index can serve this order, whatever the planner thinks.
    return query execute format(
        'select t.chunk_id, knowledge_private.distance(t.embedding, $1) + 0 as distance '
        'from %s as t where %s order by distance, t.chunk_id limit %s',
        knowledge_private.vector_table(request.model_id), request.vector_filter, depth)
    using knowledge_private.unit(embedding);
end
$$;

comment on function knowledge_private.vector_leg(knowledge_private.search_request, vector, integer) is
'The nearest depth permitted vectors by cosine distance, ascending: through the org''s index if the request has an
index_filter; else, and when that answer is short, by comparing all of them.';
revoke all on function knowledge_private.vector_leg(knowledge_private.search_request, vector, integer) from public;

-- ---- sql/61_search/03_keyword_leg.sql
-- The keyword leg: BM25 (Robertson and Zaragoza 2009; k1 1.2, b 0.75, the idf of Lucene), from core PostgreSQL.
--
-- ts_rank of a query of one lexeme with all weights 1 is H2(tf) / 1.64493406685, where H2(n) is the sum of 1 / i^2
-- for i from 1 to n, so the term frequency is read back from it exactly. to_tsvector keeps at most 255 positions of a
-- lexeme, and two of them put together at most 256.

create function knowledge_private.tf_thresholds()
returns real[]
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select array_agg(h.half::real order by h.n)
    from (
        select
            i as n,
            (sum(1.0::double precision / (i * i)) over (order by i) - 0.5::double precision / (i * i)) / 1.64493406685
                as half
        from generate_series(1, 256) as i
    ) as h
$$;

comment on function knowledge_private.tf_thresholds() is
'256 numbers between the values of ts_rank for tf - 1 and tf: width_bucket(ts_rank, these) is tf.';
revoke all on function knowledge_private.tf_thresholds() from public;

create table knowledge_private.lexeme_counts (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    compartment_id integer not null,
    lexeme text collate "C" not null,
    chunks bigint not null,
    primary key (org_id, compartment_id, lexeme)
);

comment on table knowledge_private.lexeme_counts is
'The common lexemes of large compartments: counted by maintain(), summed over permitted compartments only.';
comment on column knowledge_private.lexeme_counts.org_id is 'The tenant.';
comment on column knowledge_private.lexeme_counts.compartment_id is 'The compartment.';
comment on column knowledge_private.lexeme_counts.lexeme is 'A lexeme of at least a hundredth of its chunks.';
comment on column knowledge_private.lexeme_counts.chunks is 'How many of its chunks had the lexeme.';

alter table knowledge_private.lexeme_counts enable row level security;

create function knowledge_private.common_lexemes(
    org_id text, compartments integer[], lexemes text[], prefixes boolean[]
)
returns table (term integer, chunks double precision)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- Where a tenth of the chunks or more is uncounted, nothing is known well enough.
    select q.term::integer, sum(l.chunks) * max(t.chunks) / max(t.counted)
    from (
        select sum(c.chunks)::double precision as chunks, sum(c.counted_chunks)::double precision as counted
        from knowledge.compartments as c
        where c.org_id = common_lexemes.org_id and c.compartment_id = any (compartments)
        having sum(c.counted_chunks) > 0.9 * sum(c.chunks)
    ) as t
    cross join unnest(lexemes, prefixes) with ordinality as q (lexeme, prefix, term)
    inner join knowledge_private.lexeme_counts as l
        on
            l.org_id = common_lexemes.org_id and l.compartment_id = any (compartments)
            and l.lexeme = q.lexeme collate "C" and not q.prefix
    group by q.term
$$;

comment on function knowledge_private.common_lexemes(text, integer[], text[], boolean[]) is
'Those of the lexemes (by place, from 1) that are known to be common in the compartments, and in about how many chunks.';
revoke all on function knowledge_private.common_lexemes(text, integer[], text[], boolean[]) from public;

create function knowledge_private.score_chunks(
    predicate text, filter text, terms tsquery[], repeats integer[], prefixes boolean[],
    known double precision[], picked boolean[], chunks bigint, words bigint, depth integer
)
returns knowledge_private.measured[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    statement text;
    best knowledge_private.measured[];
begin
    -- One pass reads the term frequencies of each row; what is counted and scored after that is numbers. Frequencies are
    -- counted over every permitted chunk; only then does the caller's filter narrow what is ranked. All is double precision:
    -- with an integer, 0.75 is numeric, which takes as long as reading the row.
    select format(
        'with hit as materialized (select t.chunk_id, 1.2 * (0.25 + 0.75 * t.words::double precision / $3) as longer, '
        '%s as wanted%s from knowledge.chunks as t where %s'
        '), found as materialized (select %s from hit as h'
        '), idf as materialized (select %s from found as f'
        '), scored as (select h.chunk_id, %s as score from hit as h cross join idf as i where h.wanted) '
        'select array_agg((b.chunk_id, b.score)::knowledge_private.measured order by b.score desc, b.chunk_id) '
        'from (select s.chunk_id, s.score from scored as s order by s.score desc, s.chunk_id limit %s) as b',
        filter,
        string_agg(format(
            case
                when q.prefix then ', (t.tsv @@ %L)::integer::double precision as tf%s'
                else ', width_bucket(ts_rank(''{1,1,1,1}'', t.tsv, %L), $1)::double precision as tf%s'
            end, q.term, q.place), '' order by q.place),
        predicate,
        string_agg(
            case
                when q.picked then format('count(*) filter (where h.tf%1$s > 0)::double precision as n%1$s', q.place)
                else format('%L::double precision as n%s', q.known, q.place)
            end, ', ' order by q.place),
        string_agg(format('ln(1 + ($2 - f.n%1$s + 0.5) / (f.n%1$s + 0.5)) as w%1$s', q.place), ', ' order by q.place),
        string_agg(format('%s * i.w%2$s * h.tf%2$s * 2.2 / (h.tf%2$s + h.longer)', q.repeats, q.place), ' + ' order by q.place),
        depth)
    into statement
    from unnest(terms, repeats, prefixes, known, picked)
        with ordinality as q (term, repeats, prefix, known, picked, place);
    execute statement
    into best
    using knowledge_private.tf_thresholds(), chunks::double precision, words::double precision / greatest(chunks, 1);
    return coalesce(best, '{}');
end
$$;

comment on function knowledge_private.score_chunks(
    text, text, tsquery[], integer[], boolean[], double precision[], boolean[], bigint, bigint, integer
) is
'The best depth chunks by BM25 over all terms, of those for which predicate holds, as it must for every permitted chunk with a
picked term, and that filter wants. Of a term that is not picked, known is the number of chunks with it. A prefix counts once in a chunk, however often it is there.';
revoke all on function knowledge_private.score_chunks(
    text, text, tsquery[], integer[], boolean[], double precision[], boolean[], bigint, bigint, integer
) from public;

create function knowledge_private.keyword_leg(request knowledge_private.search_request, depth integer)
returns table (chunk_id uuid, score double precision, place integer)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    terms tsquery[] := array(
        select knowledge_private.lexeme_query(u.lexeme, u.prefix)
        from unnest(request.lexemes, request.prefixes) with ordinality as u (lexeme, prefix, place)
        order by u.place
    );
    picked boolean[] := array(
        select u.known is null from unnest(request.known) with ordinality as u (known, place) order by u.place
    );
    left_over integer[] := array(
        select u.place::integer from unnest(request.known) with ordinality as u (known, place)
        where u.known is not null
        order by u.known, u.place
    );
    setting knowledge_private.settings;
    budget double precision;
    -- Lexemes that make a pair with another of them; and those taken only in pairs.
    partners integer[] := array(
        select u.place::integer from unnest(request.known) with ordinality as u (known, place)
        where u.known * 10 <= request.chunks
    );
    paired integer[] := '{}';
    term integer;
    chosen text;
    -- Lexemes that nobody counted are in less than a hundredth of the chunks; repeats times idf, each at least.
    weights double precision[] := array(
        select u.repeats * ln(1 + (request.chunks - u.n + 0.5) / (u.n + 0.5))
        from (
            select r.repeats, coalesce(r.known, request.chunks / 100.0) as n, r.place
            from unnest(request.repeats, request.known) with ordinality as r (repeats, known, place)
        ) as u
        order by u.place
    );
    -- What a chunk may weigh that has none of the lexemes that choose candidates.
    missed double precision := (select coalesce(sum(weights[i]), 0) from unnest(left_over) as i);
    bearable double precision;
    best knowledge_private.measured[];
begin
    if not 'keyword' = any (request.legs) then
        return;
    end if;
    select s.* into setting from knowledge_private.settings as s;
    budget := setting.candidates;
    bearable := (1 - setting.enough_weight) * (select sum(w) from unnest(weights) as w);
    -- The common words come in from the rarest on, as far as the budget goes and until the rest cannot weigh much; then, on
    -- another budget, where they stand together; and further, while too little was found.
    while cardinality(left_over) > 0
        and (not true = any (picked) or (request.known[left_over[1]] <= budget and missed > bearable))
    loop
        picked[left_over[1]] := true;
        budget := budget - request.known[left_over[1]];
        missed := missed - weights[left_over[1]];
        left_over := left_over[2:];
    end loop;
    budget := greatest(budget, 0) + setting.paired_candidates;
    foreach term in array left_over loop
        exit when request.known[term] > budget or missed <= bearable;
        paired := paired || term;
        budget := budget - request.known[term];
        missed := missed - weights[term];
    end loop;
    loop
        chosen := (select string_agg(terms[i]::text, ' | ') from generate_subscripts(terms, 1) as i where picked[i]);
        foreach term in array paired loop
            chosen := concat_ws(' | ', chosen, (
                select format('%s & (%s)', terms[term], string_agg(terms[i]::text, ' | '))
                from unnest(partners) as i where i <> term
                having count(*) > 0
            ));
        end loop;
        best := knowledge_private.score_chunks(
            request.keyword_predicate || ' and ' || knowledge_private.match_condition(chosen, request.scanned),
            request.keyword_filter, terms, request.repeats, request.prefixes, request.known, picked, request.chunks,
            request.words, depth);
        exit when cardinality(best) >= depth or cardinality(left_over) = 0;
        picked[left_over[1]] := true;
        left_over := left_over[2:];
    end loop;
    return query
    select b.chunk_id, b.measure, b.place::integer
    from unnest(best) with ordinality as b (chunk_id, measure, place);
end
$$;

comment on function knowledge_private.keyword_leg(knowledge_private.search_request, integer) is
'The best depth chunks by BM25 among those that the request permits and its filter wants, numbered from 1.';
revoke all on function knowledge_private.keyword_leg(knowledge_private.search_request, integer) from public;

-- ---- sql/61_search/04_request.sql
-- What a search may ask for.

create function knowledge_private.check_factor(value jsonb, highest numeric, argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(value) is distinct from 'number' or value::numeric not between 0.001 and highest then
        perform knowledge_private.fail('KB005', format('%s must be a number from 0.001 to %s', argument, highest));
    end if;
end
$$;

comment on function knowledge_private.check_factor(jsonb, numeric, text) is
'KB005 unless value is a number from 0.001 to highest; argument names it in the message.';
revoke all on function knowledge_private.check_factor(jsonb, numeric, text) from public;

create function knowledge_private.check_boost(boost jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    recency jsonb := boost -> 'recency';
    part record;
begin
    perform knowledge_private.check_keys(boost, array['recency', 'metadata'], 'boost');
    if boost ? 'recency' then
        perform knowledge_private.check_keys(recency, array['half_life_days', 'weight', 'key'], 'boost.recency');
        if coalesce(jsonb_typeof(recency -> 'key'), 'string') <> 'string' then
            perform knowledge_private.fail('KB005', 'boost.recency.key must be a string');
        end if;
        perform knowledge_private.check_factor(recency -> 'half_life_days', 1000000, 'boost.recency.half_life_days');
        perform knowledge_private.check_factor(recency -> 'weight', 1000, 'boost.recency.weight');
    end if;
    if boost ? 'metadata' then
        if jsonb_typeof(boost -> 'metadata') <> 'object' then
            perform knowledge_private.fail('KB005', 'boost.metadata must be a json object');
        end if;
        for part in select m.key, m.value from jsonb_each(boost -> 'metadata') as m loop
            if jsonb_typeof(part.value) <> 'object' then
                perform knowledge_private.fail('KB005', format('boost.metadata.%s must be a json object', part.key));
            end if;
            perform knowledge_private.check_factor(v.value, 1000, format('boost.metadata.%s.%s', part.key, v.key))
            from jsonb_each(part.value) as v;
        end loop;
    end if;
end
$$;

comment on function knowledge_private.check_boost(jsonb) is 'KB005 unless boost is one that boost_factor takes.';
revoke all on function knowledge_private.check_boost(jsonb) from public;

create function knowledge_private.check_search(query text, embedding vector, k integer, mode text, options jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    option record;
begin
    if k is null or k not between 1 and 1000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 1000');
    end if;
    if mode is null or mode not in ('hybrid', 'vector', 'keyword') then
        perform knowledge_private.fail('KB005', 'mode must be hybrid, vector or keyword');
    end if;
    if length(query) > 10000 then
        perform knowledge_private.fail('KB005', 'query is longer than 10000 characters');
    end if;
    if mode = 'vector' and embedding is null then
        perform knowledge_private.fail('KB005', 'mode vector needs an embedding');
    end if;
    if (mode = 'keyword' or embedding is null) and knowledge_private.is_blank(coalesce(query, '')) then
        perform knowledge_private.fail('KB005', 'query is blank');
    end if;
    if options = '{}' then
        return;
    end if;
    perform knowledge_private.check_keys(options,
        array['rrf_k', 'vector_weight', 'keyword_weight', 'min_score', 'per_document', 'language', 'plan', 'syntax', 'boost'],
        'options');
    for option in select o.key, o.value from jsonb_each(options) as o loop
        if option.key in ('rrf_k', 'vector_weight', 'keyword_weight', 'min_score') then
            if jsonb_typeof(option.value) <> 'number' or option.value < '0' or option.value > '1000000'
                or (option.value > '0' and option.value < '0.000001')
            then
                perform knowledge_private.fail('KB005', format('%s must be 0 or a number from 0.000001 to 1000000', option.key));
            end if;
        elsif option.key = 'per_document' then
            if not knowledge_private.is_count(option.value) or option.value = '0' then
                perform knowledge_private.fail('KB005', 'per_document must be an integer from 1');
            end if;
        elsif option.key = 'boost' then
            perform knowledge_private.check_boost(option.value);
        elsif jsonb_typeof(option.value) <> 'string' then
            perform knowledge_private.fail('KB005', format('%s must be a string', option.key));
        end if;
    end loop;
    if options ->> 'syntax' not in ('web', 'plain') then
        perform knowledge_private.fail('KB005', 'syntax must be web or plain');
    end if;
    if options ->> 'plan' not in ('auto', 'exact') then
        perform knowledge_private.fail('KB005', 'plan must be auto or exact');
    end if;
end
$$;

comment on function knowledge_private.check_search(text, vector, integer, text, jsonb) is
'KB005 unless the arguments of a search make sense together.';
revoke all on function knowledge_private.check_search(text, vector, integer, text, jsonb) from public;

create function knowledge_private.asked_words(query text, mode text, options jsonb)
returns text
language sql
immutable
begin atomic
    select case
        when mode = 'vector' or query is null then ''
        -- Without these signs nothing is a phrase, excluded or the beginning of a word.
        when options ->> 'syntax' = 'plain' then regexp_replace(query, '"|\*|(^|\s)-', ' ', 'g')
        else query
    end;
end;

comment on function knowledge_private.asked_words(text, text, jsonb) is
'The words that a search asks for, as parse_query reads them: those of query, none in mode vector; in syntax plain without
operators.';
revoke all on function knowledge_private.asked_words(text, text, jsonb) from public;

create function knowledge_private.stems_begun(language text, beginning text)
returns setof text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- The beginning of a word with each way it might go on: "organi", "organiz" and "organizati" all lead to organization.
    select l.lexeme
    from unnest(tsvector_to_array(to_tsvector(language::regconfig, (
        select string_agg(beginning || substr(e.ending, i.typed + 1), ' ')
        from unnest(string_to_array(
            ',e,s,ed,en,er,ing,ion,ation,al,ly,y,ies,ic,ism,ful,ous,ment,ness,ent,ant,ence,ance,ability,ung,heit,keit,lich', ','
        )) as e (ending)
        cross join lateral generate_series(0, length(e.ending)) as i (typed)
        where right(beginning, i.typed) = left(e.ending, i.typed)
    )))) as l (lexeme)
    where not starts_with(l.lexeme, beginning)
$$;

comment on function knowledge_private.stems_begun(text, text) is
'The stems that words with this beginning may have in a language and that do not begin so themselves: runni, run.';
revoke all on function knowledge_private.stems_begun(text, text) from public;

create function knowledge_private.check_embedding(model knowledge.models, embedding vector, fingerprint text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if fingerprint is null or (model.model_id is not null and fingerprint <> model.fingerprint) then
        perform knowledge_private.fail('KB007', 'this embedding is not of the org''s model',
            jsonb_build_object('fingerprint', fingerprint, 'model', model.name),
            'Embed the question with the org''s model and name its fingerprint.');
    end if;
    if knowledge_private.dimensions(embedding) is distinct from model.dimensions
        or knowledge_private.norm(embedding) in (0, 'NaN', 'Infinity')
    then
        perform knowledge_private.check_vectors(model, array[embedding]);
    end if;
end
$$;

comment on function knowledge_private.check_embedding(knowledge.models, vector, text) is
'KB007 when fingerprint is missing or not the model''s or embedding is not of its dimensions (a null model has any), KB005
for a zero vector.';
revoke all on function knowledge_private.check_embedding(knowledge.models, vector, text) from public;

create function knowledge_private.milliseconds_since(started timestamp with time zone)
returns double precision
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select round(extract(epoch from clock_timestamp() - started) * 1000, 3)::double precision
$$;

comment on function knowledge_private.milliseconds_since(timestamp with time zone) is
'Milliseconds on the clock since started.';
revoke all on function knowledge_private.milliseconds_since(timestamp with time zone) from public;

-- ---- sql/61_search/05_run.sql
-- A search in three steps: what is asked and permitted, as SQL; two legs; and their fusion.

create function knowledge_private.prepare_search(
    query text, embedding vector, k integer, mode text, source_types text[], visibility text[], metadata jsonb,
    fingerprint text, options jsonb
)
returns knowledge_private.search_request
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    request knowledge_private.search_request;
    labels text[] := coalesce(visibility, '{org}');
    words text := knowledge_private.asked_words(query, mode, options);
    org knowledge.orgs;
    setting knowledge_private.settings;
    found record;
    wants_vectors boolean;
    may_walk boolean;
    index_worth bigint;
    enough bigint;
    permitted record;
    is_cut boolean;
    asked record;
    excluded tsquery;
    documents text;
    narrowed text;
    listed text;
    looked_up text;
begin
    request.asking := knowledge_private.context();
    perform knowledge_private.check_search(query, embedding, k, mode, options);
    request.rrf_k := coalesce((options ->> 'rrf_k')::double precision, 12);
    request.vector_weight := coalesce((options ->> 'vector_weight')::double precision, 1);
    request.keyword_weight := coalesce((options ->> 'keyword_weight')::double precision, 1);
    request.boost := options -> 'boost';
    if metadata is not null then
        documents := knowledge_private.metadata_predicate((request.asking).org_id, metadata);
    end if;
    select o as org, m as model, s as setting
    into found
    from knowledge_private.settings as s
    left join knowledge.orgs as o on o.org_id = (request.asking).org_id
    left join knowledge.models as m on m.model_id = o.active_model;
    org := found.org;
    setting := found.setting;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded');
    end if;
    if embedding is not null then
        perform knowledge_private.check_embedding(found.model, embedding, fingerprint);
        request.model_id := org.active_model;
    end if;
    wants_vectors := mode <> 'keyword' and request.model_id is not null;
    may_walk := wants_vectors and options ->> 'plan' is distinct from 'exact';
    -- Without words it is enough to know that an index is worth while; each compartment has at least one chunk.
    if may_walk and words = '' and metadata is null then
        enough := setting.exact_rows + 1;
    end if;
    loop
        select
            coalesce(array_agg(p.compartment_id), '{}') as ids,
            coalesce(sum(p.chunks), 0) as chunks,
            coalesce(sum(p.words), 0) as words,
            min(p.language) as language,
            max(p.language) as other_language
        into permitted
        from (
            select c.compartment_id, c.chunks, c.words, c.language
            from knowledge_private.permitted_compartments(request.asking, source_types, labels) as c
            where c.chunks > 0
            limit enough
        ) as p;
        is_cut := coalesce(cardinality(permitted.ids) = enough, false);
        if may_walk and permitted.chunks > setting.exact_rows then
            index_worth := knowledge_private.index_worth(org.org_id, request.model_id);
        end if;
        exit when not is_cut or permitted.chunks > index_worth;
        enough := index_worth + 1;
    end loop;
    request.chunks := permitted.chunks;
    request.words := permitted.words;

    if words <> '' then
        -- Without a language of its own a question is read in every language of what it may find.
        asked := knowledge.parse_query(words, case
            when options ? 'language' then array[options ->> 'language']
            when permitted.language = permitted.other_language then array[permitted.language]
            else coalesce((
                select array_agg(distinct c.language)
                from knowledge_private.permitted_compartments(request.asking, source_types, labels) as c
                where c.chunks > 0
            ), '{english}')
        end);
        request.lexemes := asked.lexemes;
        request.repeats := asked.repeats;
        request.prefixes := asked.prefixes;
        excluded := asked.excluded;
    elsif options ? 'language' then
        perform knowledge_private.resolve_language(options ->> 'language');
    end if;
    request.legs := case
        when cardinality(permitted.ids) = 0 then '{}'
        else array_remove(array[
            case when wants_vectors then 'vector' end,
            case when request.lexemes is not null then 'keyword' end
        ], null)
    end;
    if 'vector' = any (request.legs) then
        narrowed := nullif(concat_ws(' and ',
            documents,
            case when excluded is not null then format(
                'not exists (select from knowledge.chunks as x '
                'where x.org_id = t.org_id and x.chunk_id = t.chunk_id and x.tsv @@ %L)', excluded) end), '');
        if not is_cut then
            listed := knowledge_private.compartment_predicate(org.org_id, permitted.ids, setting.long_list, true);
        end if;
        if is_cut or cardinality(permitted.ids) > setting.long_list then
            looked_up := knowledge_private.compartment_look_up(request.asking, source_types, labels);
        end if;
        request.vector_filter := concat_ws(' and ', coalesce(listed, looked_up), narrowed);
        -- Without a filter the compartments have counted already; chunks that have no vector yet only make it cautious.
        request.permitted_vectors := case when not is_cut and narrowed is null then request.chunks end;
        if request.chunks > index_worth then
            if narrowed is null
                or knowledge_private.more_vectors(request.model_id, request.vector_filter, index_worth)
            then
                request.index_filter := concat_ws(' and ', coalesce(looked_up, listed), narrowed);
            end if;
        end if;
    end if;
    if 'keyword' = any (request.legs) then
        request.scanned := request.chunks <= setting.scanned_chunks or request.chunks <= (
            select setting.scanned_chunks * sqrt(greatest(c.reltuples, 0) / 100000)
            from pg_class as c
            where c.oid = 'knowledge.chunks'::regclass
        );
        request.keyword_predicate := knowledge_private.compartment_predicate(org.org_id, permitted.ids, setting.long_list,
            request.scanned);
        request.keyword_filter := concat_ws(' and ',
            coalesce(documents, 'true'),
            case when asked.required is not null then format('t.tsv @@ %L', asked.required) end,
            case when excluded is not null then format('not t.tsv @@ %L', excluded) end);
        request.known := array(
            select c.chunks
            from generate_subscripts(asked.lexemes, 1) as i
            left join knowledge_private.common_lexemes(org.org_id, permitted.ids, asked.lexemes, asked.prefixes) as c
                on c.term = i
            order by i
        );
    end if;
    return request;
end
$$;

comment on function knowledge_private.prepare_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) is
'Checks the arguments of search_scoped and turns them, with the context, into what the legs run on.';
revoke all on function knowledge_private.prepare_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;

create function knowledge_private.fuse_legs(
    request knowledge_private.search_request, embedding vector, depth integer
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A leg's rank counts in the fusion down to here, whatever k is: k = 10 is a prefix of k = 200.
    fused_depth constant integer := 200;
    -- With this slope what is three quarters as good as the best counts fully.
    slope constant double precision := 1.2;
    is_alone boolean := cardinality(request.legs) = 1;
begin
    -- Written so that no argument makes a plan cheaper: then it is made once for a session.
    return query
    with vector_leg as materialized (
        select l.chunk_id, l.distance, l.place::integer
        from knowledge_private.vector_leg(request, embedding, depth) with ordinality as l (chunk_id, distance, place)
    ),
    keyword_leg as materialized (
        select l.chunk_id, l.score, l.place
        from knowledge_private.keyword_leg(request, depth) as l
    ),
    -- A leg alone has nothing to be weighed against: its ranks say all.
    vector_part as materialized (
        select
            l.chunk_id, l.distance, l.place,
            case when l.place <= fused_depth then request.vector_weight / (request.rrf_k + l.place) * case
                when is_alone or e.farthest = e.nearest then 1
                else least(1, 0.1 + slope * (e.farthest - l.distance) / (e.farthest - e.nearest))
            end end as part
        from vector_leg as l
        cross join (
            select min(n.distance) as nearest, max(n.distance) as farthest from vector_leg as n where n.place <= fused_depth
        ) as e
    ),
    keyword_part as materialized (
        select
            l.chunk_id, l.score, l.place,
            case when l.place <= fused_depth then request.keyword_weight / (request.rrf_k + l.place) * case
                when is_alone then 1
                else least(1, 0.1 + slope * l.score / e.best)
            end end as part
        from keyword_leg as l
        cross join (select max(n.score) as best from keyword_leg as n) as e
    ),
    fused as (
        select
            coalesce(v.chunk_id, w.chunk_id) as chunk_id,
            v.place as vector_place,
            v.distance,
            w.place as keyword_place,
            w.score,
            v.part is not null or w.part is not null as counts,
            coalesce(v.part, 0) + coalesce(w.part, 0) as sum_of_parts
        from vector_part as v
        full join keyword_part as w on w.chunk_id = v.chunk_id
    )
    select
        f.chunk_id,
        row_number() over (
            order by f.counts desc, f.sum_of_parts desc, case when not f.counts then f.vector_place end,
            case when not f.counts then f.keyword_place end, f.chunk_id
        )::integer,
        f.sum_of_parts,
        1::double precision,
        f.vector_place,
        f.distance,
        f.keyword_place,
        f.score
    from fused as f
    -- What only the words have found so far may be near in meaning too, but further down.
    where f.counts or f.vector_place is not null or (select count(*) from vector_leg) < depth
    order by 2;
end
$$;

comment on function knowledge_private.fuse_legs(knowledge_private.search_request, vector, integer) is
'Runs the legs of a search down to depth and fuses them: each gives a chunk weight / (rrf_k + rank), times 0.1 + 1.2 g, at
most 1, where both take part: g is BM25 over the leg''s highest, or where the distance lies between the farthest, 0, and the
nearest, 1. A leg''s first 200 ranks count; rows that both legs have only beyond come after all others, in its order.';
revoke all on function knowledge_private.fuse_legs(knowledge_private.search_request, vector, integer) from public;

create function knowledge_private.boost_legs(
    request knowledge_private.search_request, embedding vector, depth integer
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
begin
    if request.boost is null then
        return query
        select f.* from knowledge_private.fuse_legs(request, embedding, depth) as f;
        return;
    end if;
    return query
    select
        f.chunk_id,
        row_number() over (order by n.score desc nulls last, case when n.score is null then f.place end, f.chunk_id)::integer,
        coalesce(n.score, f.score),
        n.boost,
        f.vector_place,
        f.distance,
        f.keyword_place,
        f.keyword_score
    from knowledge_private.fuse_legs(request, embedding, depth) as f
    cross join lateral (
        select t.document_id from knowledge.chunks as t
        where t.org_id = (request.asking).org_id and t.chunk_id = f.chunk_id offset 0
    ) as c
    cross join lateral (
        select knowledge.boost_factor(request.boost, t.metadata, t.updated_at) as boost
        from knowledge.documents as t
        where t.org_id = (request.asking).org_id and t.document_id = c.document_id offset 0
    ) as d
    cross join lateral (
        -- What counts in no leg stays where it was, after what does.
        select case when least(f.vector_place, f.keyword_place) <= 200 then f.score * d.boost end as score, d.boost
    ) as n
    order by 2;
end
$$;

comment on function knowledge_private.boost_legs(knowledge_private.search_request, vector, integer) is
'What fuse_legs gives, in the order of score times boost_factor, if the request has a boost.';
revoke all on function knowledge_private.boost_legs(knowledge_private.search_request, vector, integer) from public;

create function knowledge_private.run_search(
    request knowledge_private.search_request, embedding vector, k integer, options jsonb
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 10
set search_path = pg_catalog, pg_temp
as $$
declare
    per_document integer := (options ->> 'per_document')::integer;
    min_score double precision := coalesce((options ->> 'min_score')::double precision, 0);
    depth integer := greatest(200, k);
    -- A leg alone is in its order already, unless a weight of 0 makes all equal.
    lone text := case
        when per_document is null and request.boost is null then case
            when request.legs = '{vector}' and request.vector_weight > 0 then 'vector'
            when request.legs = '{keyword}' and request.keyword_weight > 0 then 'keyword'
        end
    end;
    best knowledge_private.ranked[];
    exhausted boolean;
begin
    if cardinality(request.legs) = 0 then
        return;
    end if;
    if lone = 'vector' then
        return query
        select
            l.chunk_id, l.place::integer, s.score, 1::double precision, l.place::integer, l.distance, null::integer,
            null::double precision
        from knowledge_private.vector_leg(request, embedding, k) with ordinality as l (chunk_id, distance, place)
        cross join lateral (
            select case when l.place <= 200 then request.vector_weight / (request.rrf_k + l.place) else 0 end as score
        ) as s
        where s.score >= min_score;
        return;
    elsif lone = 'keyword' then
        -- What the words find depends on the depth.
        return query
        select l.chunk_id, l.place, s.score, 1::double precision, null::integer, null::double precision, l.place, l.score
        from knowledge_private.keyword_leg(request, depth) as l
        cross join lateral (
            select case when l.place <= 200 then request.keyword_weight / (request.rrf_k + l.place) else 0 end as score
        ) as s
        where l.place <= k and s.score >= min_score;
        return;
    elsif per_document is null then
        return query
        select f.* from knowledge_private.boost_legs(request, embedding, depth) as f
        where f.place <= k and f.score >= min_score
        order by f.place;
        return;
    end if;
    -- Where documents give at most so many chunks, a leg must go deeper until k are found or there is no more.
    loop
        best := array(select f from knowledge_private.boost_legs(request, embedding, depth) as f);
        exhausted := cardinality(best) < depth;
        best := array(
            select (b.chunk_id, row_number() over (order by b.place), b.score, b.boost, b.vector_place, b.distance,
                b.keyword_place, b.keyword_score)::knowledge_private.ranked
            from (
                select
                    r.*,
                    row_number() over (partition by c.document_id order by r.place) as turn
                from unnest(best) as r
                cross join lateral (
                    select t.document_id from knowledge.chunks as t
                    where t.org_id = (request.asking).org_id and t.chunk_id = r.chunk_id offset 0
                ) as c
            ) as b
            where b.turn <= per_document
            order by b.place
        );
        exit when exhausted or cardinality(best) >= k;
        depth := depth * 4;
    end loop;
    return query
    select b.* from unnest(best[:k]) as b where b.score >= min_score order by b.place;
end
$$;

comment on function knowledge_private.run_search(knowledge_private.search_request, vector, integer, jsonb) is
'The k best chunks for a request, in order, with the options per_document and min_score applied.';
revoke all on function knowledge_private.run_search(
    knowledge_private.search_request, vector, integer, jsonb
) from public;

-- ---- sql/61_search/10_parse_query.sql
create function knowledge.parse_query(
    query text, languages text[], out lexemes text[], out repeats integer[], out prefixes boolean[],
    out required tsquery, out excluded tsquery
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    phrase constant text := '(^|\s)(-?)"([^"]*)"';
    word constant text := '(^|\s)-([[:alpha:]]\S*)';
    stem constant text := '(^|\s)([[:alnum:]]+)[*](?!\S)';
    -- A letter of Chinese, Japanese or Korean alone: chunks have it in pairs.
    letter constant text := '^[' || knowledge_private.cjk() || ']$';
    configs text[] := array(
        select distinct knowledge_private.resolve_language(l) from unnest(parse_query.languages) as l order by 1
    );
    free text := regexp_replace(parse_query.query, phrase, ' ', 'g');
    words text := regexp_replace(regexp_replace(free, word, ' ', 'g'), stem, ' ', 'g');
    begun text[] := array(
        select distinct p.part
        from regexp_matches(regexp_replace(free, word, ' ', 'g'), stem, 'g') as m
        cross join lateral regexp_split_to_table(lower(knowledge_private.plain_text(m[2])), ' ') as p (part)
        -- No lexeme is longer than that.
        where octet_length(p.part) between 1 and 2046
    );
    part text[];
    asked tsquery;
begin
    for part in select regexp_matches(parse_query.query, phrase, 'g') loop
        asked := knowledge_private.phrase_query(part[3], configs);
        if part[2] = '-' then
            excluded := coalesce(excluded || asked, asked, excluded);
        else
            required := coalesce(required && asked, asked, required);
            words := concat_ws(' ', words, part[3]);
        end if;
    end loop;
    for part in select regexp_matches(free, word, 'g') loop
        asked := knowledge_private.phrase_query(part[2], configs);
        excluded := coalesce(excluded || asked, asked, excluded);
    end loop;
    select
        array_agg(t.lexeme order by t.lexeme collate "C", t.prefix),
        array_agg(t.repeats order by t.lexeme collate "C", t.prefix),
        array_agg(t.prefix order by t.lexeme collate "C", t.prefix)
    into lexemes, repeats, prefixes
    from (
        select n.lexeme, n.prefix, max(n.repeats)::integer as repeats
        from (
            select u.lexeme, u.lexeme ~ letter as prefix, cardinality(u.positions) as repeats
            from unnest(configs) as c
            cross join lateral unnest(knowledge_private.lexemes(c, words)) as u
            union all
            select b.part, true, 1 from unnest(begun) as b (part)
            union all
            -- A stem may end before what was typed: "running" is in chunks as "run".
            select s.lexeme, false, 1
            from unnest(begun) as b (part)
            cross join lateral unnest(configs) as c
            cross join lateral knowledge_private.stems_begun(c, b.part) as s (lexeme)
        ) as n
        group by n.lexeme, n.prefix
    ) as t;
end
$$;

comment on function knowledge.parse_query(text, text[]) is
'How a question is read in some languages (text search configurations): lexemes, ascending, each with how often it
repeats, of which a chunk must have any; prefixes: whether it stands for every lexeme that begins so (word* in the
question, which asks for the shorter stems of words that begin so, too); required, the "quoted phrases", of which it must have all; excluded, the -words and -"phrases", of which it may
have none. Null where there are none. KB005 when there is no such configuration.';
revoke all on function knowledge.parse_query(text, text[]) from public;
grant execute on function knowledge.parse_query(text, text[]) to knowledge_reader;

-- ---- sql/61_search/11_metadata_matches.sql
create function knowledge.metadata_matches(metadata jsonb, filter jsonb)
returns boolean
language plpgsql
immutable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    matches boolean;
begin
    execute format('select %s from (select $1 as metadata) as d', knowledge_private.metadata_condition(filter))
    into matches
    using coalesce(metadata_matches.metadata, '{}');
    return matches;
end
$$;

comment on function knowledge.metadata_matches(jsonb, jsonb) is
'Whether a document with this metadata passes a metadata filter of search_scoped. A filter is a json object, all of whose
entries must hold. {"key": value}: metadata contains it, as @> does. {"key": {"$op": value}}: $eq, $ne, $in, $nin; $gt,
$gte, $lt, $lte, between two numbers or two strings; $exists with true or false. All but $exists want the key to be there.
{"$and": [filter, …]}, {"$or": [filter, …]}, {"$not": filter}. KB005 for an unknown operator or a value it cannot take.';
revoke all on function knowledge.metadata_matches(jsonb, jsonb) from public;
grant execute on function knowledge.metadata_matches(jsonb, jsonb) to knowledge_reader;

-- ---- sql/61_search/12_boost_factor.sql
create function knowledge.boost_factor(boost jsonb, metadata jsonb, updated_at timestamptz)
returns double precision
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    recency jsonb := boost -> 'recency';
    wanted record;
    dated timestamptz := updated_at;
    half_lives double precision;
    factor double precision := 1;
begin
    for wanted in
        select v.value::double precision as weight
        from jsonb_each(boost -> 'metadata') as m
        cross join lateral jsonb_each(m.value) as v
        where case jsonb_typeof(boost_factor.metadata -> m.key)
            when 'array' then v.key in (select e from jsonb_array_elements_text(boost_factor.metadata -> m.key) as e)
            else v.key = boost_factor.metadata ->> m.key
        end
        order by m.key collate "C", v.key collate "C"
    loop
        factor := least(greatest(factor * wanted.weight, 0.001), 1000);
    end loop;
    if recency ? 'key' then
        dated := case
            when pg_input_is_valid(metadata ->> (recency ->> 'key'), 'timestamptz')
                then (metadata ->> (recency ->> 'key'))::timestamptz
        end;
    end if;
    half_lives := greatest(0, extract(epoch from now()) - extract(epoch from dated))::double precision
    / 86400 / (recency -> 'half_life_days')::double precision;
    if dated is not null and recency is not null then
        factor := factor * (1 + (recency -> 'weight')::double precision * power(0.5, least(half_lives, 1000)));
    end if;
    return least(greatest(factor, 0.001), 1000);
end
$$;

comment on function knowledge.boost_factor(jsonb, jsonb, timestamptz) is
'What the option boost of search_scoped multiplies the score of a document''s chunks by, 0.001 to 1000. boost:
{"metadata": {"key": {"value": factor}}, "recency": {"half_life_days": 30, "weight": 0.2, "key": "date"}}, either or both.
metadata: each factor whose value the document''s metadata has at that key, as text, alone or in a list. recency: 1 + weight
for a document of now or later, half of the weight lost with every half-life; its date is the metadata at key, if key is
given, and no date is no boost; else when it was last published.';
revoke all on function knowledge.boost_factor(jsonb, jsonb, timestamptz) from public;
grant execute on function knowledge.boost_factor(jsonb, jsonb, timestamptz) to knowledge_reader;

-- ---- sql/61_search/20_search_scoped.sql
create function knowledge.search_scoped(
    query text default null,
    embedding vector default null,
    k integer default 10,
    mode text default 'hybrid',
    source_types text[] default null,
    visibility text[] default '{org}',
    metadata jsonb default null,
    fingerprint text default null,
    options jsonb default '{}'
)
returns table (
    rank integer,
    score double precision,
    chunk_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    org_scope text,
    visibility_label text,
    title text,
    uri text,
    heading text,
    body text,
    ordinal integer,
    char_start integer,
    char_end integer,
    locator text,
    document_metadata jsonb,
    vector_rank integer,
    vector_distance double precision,
    keyword_rank integer,
    keyword_score double precision,
    legs text[]
)
language plpgsql
stable
rows 10
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    request knowledge_private.search_request := knowledge_private.prepare_search(
        search_scoped.query, search_scoped.embedding, search_scoped.k, search_scoped.mode, search_scoped.source_types,
        search_scoped.visibility, search_scoped.metadata, search_scoped.fingerprint, search_scoped.options);
    org text := (request.asking).org_id;
begin
    return query
    select
        r.place, r.score, c.chunk_id, d.document_id, d.source_type, d.source_id, n.source_version, d.org_scope,
        m.visibility, d.title, d.uri, c.heading, c.body, (l.piece).ordinal + (p.place - (l.piece).place),
        p.char_start + (l.piece).shift, p.char_end + (l.piece).shift, p.locator, d.metadata,
        r.vector_place, r.distance, r.keyword_place, r.keyword_score, request.legs
    from knowledge_private.run_search(request, search_scoped.embedding, search_scoped.k, search_scoped.options) as r
    -- One look-up by key a row, in this order, whatever the statistics say: "offset 0" keeps each where it stands. Without
    -- statistics, right after a first bulk ingest, the planner would join every chunk of the org with every document first.
    cross join lateral (
        select t.* from knowledge.chunks as t where t.org_id = org and t.chunk_id = r.chunk_id offset 0
    ) as c
    cross join lateral (
        select t.* from knowledge.places as t where t.org_id = org and t.chunk_id = r.chunk_id offset 0
    ) as p
    cross join lateral (
        select t.* from knowledge.documents as t where t.org_id = org and t.document_id = c.document_id offset 0
    ) as d
    cross join lateral (select knowledge_private.piece_at(d.layout, p.place) as piece offset 0) as l
    cross join lateral (
        select t.* from knowledge.versions as t where t.org_id = org and t.version_id = d.live_version offset 0
    ) as n
    cross join lateral (
        select t.* from knowledge.compartments as t
        where t.org_id = org and t.compartment_id = c.compartment_id offset 0
    ) as m
    order by r.place;
end
$$;

comment on function knowledge.search_scoped(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'The k best chunks that the context may read, best first; min(k, matches) rows, always.
query: words; "quoted phrases" must stand in what the words find, -excluded words in nothing. embedding: the question
embedded by the org''s model, as [0.1,…]; fingerprint: that model''s, required with it. mode: hybrid (both legs, fused by
rank and measure), vector or keyword. k: 1 to 1000; a smaller k is a prefix of a larger. source_types: null is any, {} is
none. visibility: labels to see, {org} unless more are asked for. metadata: a filter on the document''s
metadata, see metadata_matches. options: rrf_k (12), vector_weight (1), keyword_weight (1), min_score (0), per_document (at
most so many chunks of one document), language (those of the permitted documents), plan (auto, or exact: no index), syntax (web, or
plain: quotes, minus and * in the question are no operators), boost (by recency or metadata, see boost_factor; for what is
among the first 200 of a leg).
A row: rank from 1; score, the sum over legs of weight / (rrf_k + rank), each times 0.1 + 1.2 g, at most 1, where both legs take
part (g: BM25 over the leg''s highest; 0 at the farthest of its first 200 distances, 1 at the nearest), times the boost; the citation: source_type, source_id, title, uri,
heading trail, body, char_start to char_end (from 0, end excluded) in the source, locator ("page 3") where the writer gave one; each leg''s rank and its measure (cosine
distance 0 to 2, BM25), null where the leg did not find it; legs, those that took part.
KB001, KB002 context; KB005 malformed argument, unknown option, zero vector; KB007 not the org''s model; KB011 offboarded.';
revoke all on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;

-- ---- sql/61_search/21_search_exact.sql
create function knowledge.search_exact(
    query text default null,
    embedding vector default null,
    k integer default 10,
    mode text default 'hybrid',
    source_types text[] default null,
    visibility text[] default '{org}',
    metadata jsonb default null,
    fingerprint text default null,
    options jsonb default '{}'
)
returns table (
    rank integer,
    score double precision,
    chunk_id uuid,
    vector_rank integer,
    vector_distance double precision,
    keyword_rank integer,
    keyword_score double precision
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    model_id integer;
    asked record;
    has_vectors boolean;
    vectors text := 'select null::uuid as chunk_id, null::double precision as distance where false';
begin
    -- What search_scoped refuses is refused here too; under no label it finds nothing.
    perform from knowledge.search_scoped(query, embedding, k, mode, source_types, '{}', metadata, fingerprint, options);
    select o.active_model into model_id from knowledge.orgs as o;
    has_vectors := mode <> 'keyword' and embedding is not null and model_id is not null;
    asked := knowledge.parse_query(
        case
            when mode = 'vector' then ''
            when options ->> 'syntax' = 'plain' then regexp_replace(coalesce(query, ''), '"|\*|(^|\s)-', ' ', 'g')
            else coalesce(query, '')
        end,
        case
            when options ? 'language' then array[options ->> 'language']
            else coalesce((
                select array_agg(distinct m.language)
                from knowledge.chunks as c
                inner join knowledge.compartments as m on m.compartment_id = c.compartment_id
                where (source_types is null or m.source_type = any (source_types))
                    and m.visibility = any (coalesce(search_exact.visibility, '{org}'))
            ), '{english}')
        end);
    if has_vectors then
        vectors := format(
            'select v.chunk_id, (v.embedding operator(%1$I.<=>) %1$I.l2_normalize($2)::%1$I.halfvec) + 0 as distance '
            'from knowledge.%2$I as v',
            (
                select n.nspname from pg_extension as e
                inner join pg_namespace as n on n.oid = e.extnamespace
                where e.extname = 'vector'
            ),
            'vectors_' || model_id);
    end if;

    -- Row-level security is all that decides here which chunks there are.
    return query execute
        'with permitted as ('
        '    select c.chunk_id, c.tsv, c.words, d.metadata, d.updated_at'
        '    from knowledge.chunks as c'
        '    inner join knowledge.documents as d on d.document_id = c.document_id'
        '    inner join knowledge.compartments as m on m.compartment_id = c.compartment_id'
        '    where ($3 is null or m.source_type = any ($3)) and m.visibility = any ($4)'
        '), wanted as ('
        '    select p.* from permitted as p'
        '    where ($5 is null or knowledge.metadata_matches(p.metadata, $5)) and ($9 is null or not p.tsv @@ $9)'
        '), distances as (' || vectors || -- lint: literal
        '), vector_leg as ('
        '    select w.chunk_id, v.distance, row_number() over (order by v.distance, w.chunk_id) as place'
        '    from wanted as w inner join distances as v on v.chunk_id = w.chunk_id'
        '), frequencies as ('
        '    select p.chunk_id, p.words, q.lexeme, q.prefix, q.repeats,'
        '        case when q.prefix then 1 else max(cardinality(u.positions)) end::double precision as tf'
        '    from permitted as p'
        '    cross join lateral unnest(p.tsv) as u'
        '    inner join unnest($6, $7, $13) as q (lexeme, repeats, prefix)'
        '        on case when q.prefix then starts_with(u.lexeme, q.lexeme) else u.lexeme = q.lexeme end'
        '    group by p.chunk_id, p.words, q.lexeme, q.prefix, q.repeats'
        '), totals as ('
        '    select count(*)::double precision as chunks, sum(p.words)::double precision / count(*) as length'
        '    from permitted as p having count(*) > 0'
        '), idf as ('
        '    select f.lexeme, f.prefix, ln(1 + (t.chunks - count(*) + 0.5) / (count(*) + 0.5)) as idf'
        '    from frequencies as f cross join totals as t group by f.lexeme, f.prefix, t.chunks'
        '), scores as ('
        '    select w.chunk_id, sum('
        '        f.repeats * i.idf * f.tf * 2.2 / (f.tf + 1.2 * (0.25 + 0.75 * f.words / t.length))'
        '        order by f.lexeme collate "C", f.prefix) as score'
        '    from wanted as w inner join frequencies as f on f.chunk_id = w.chunk_id'
        '    inner join idf as i on i.lexeme = f.lexeme and i.prefix = f.prefix cross join totals as t'
        '    where $8 is null or w.tsv @@ $8'
        '    group by w.chunk_id'
        '), keyword_leg as ('
        '    select s.chunk_id, s.score, row_number() over (order by s.score desc, s.chunk_id) as place from scores as s'
        '), vector_parts as ('
        '    select v.*, case when v.place > 200 then 0 else $11 / ($10 + v.place) * case'
        '            when $15 or max(v.distance) over first = min(v.distance) over first then 1'
        '            else least(1, 0.1 + 1.2::double precision * (max(v.distance) over first - v.distance)'
        '                / (max(v.distance) over first - min(v.distance) over first))'
        '        end end as part'
        '    from vector_leg as v window first as (partition by v.place <= 200)'
        '), keyword_parts as ('
        '    select w.*, case when w.place > 200 then 0 else $12 / ($10 + w.place) * case'
        '            when $15 then 1 else least(1, 0.1 + 1.2::double precision * w.score / max(w.score) over ()) end end as part'
        '    from keyword_leg as w'
        '), fused as ('
        '    select coalesce(v.chunk_id, w.chunk_id) as chunk_id, v.place as vector_place, v.distance,'
        '        w.place as keyword_place, w.score, coalesce(v.part, 0) + coalesce(w.part, 0) as sum_of_parts,'
        '        least(v.place, w.place) <= 200 as counts'
        '    from vector_parts as v full join keyword_parts as w on w.chunk_id = v.chunk_id'
        '), boosted as ('
        '    select f.*, f.sum_of_parts'
        '        * case when $14 is null then 1 else knowledge.boost_factor($14, w.metadata, w.updated_at) end as boosted'
        '    from fused as f inner join wanted as w on w.chunk_id = f.chunk_id'
        ') '
        'select (row_number() over (order by f.counts desc, f.boosted desc,'
        '        case when not f.counts then f.vector_place end, case when not f.counts then f.keyword_place end,'
        '        f.chunk_id))::integer as place, f.boosted, f.chunk_id,'
        '    f.vector_place::integer, f.distance, f.keyword_place::integer, f.score '
        'from boosted as f order by place limit $1'
    using k, embedding, source_types, coalesce(visibility, '{org}'), metadata, asked.lexemes, asked.repeats,
        asked.required, asked.excluded, coalesce((options ->> 'rrf_k')::double precision, 12),
        coalesce((options ->> 'vector_weight')::double precision, 1),
        coalesce((options ->> 'keyword_weight')::double precision, 1), asked.prefixes, options -> 'boost',
        not has_vectors or asked.lexemes is null;
end
$$;

comment on function knowledge.search_exact(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'What search_scoped must answer, written for reading and not for speed: runs with the caller''s own rights under row-level
security, compares every row, counts every word. Arguments as there; plan, min_score and per_document are ignored.';
revoke all on function knowledge.search_exact(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.search_exact(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;

-- ---- sql/61_search/22_explain_search.sql
create function knowledge.explain_search(
    query text default null,
    embedding vector default null,
    k integer default 10,
    mode text default 'hybrid',
    source_types text[] default null,
    visibility text[] default '{org}',
    metadata jsonb default null,
    fingerprint text default null,
    options jsonb default '{}'
)
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    started timestamptz := clock_timestamp();
    request knowledge_private.search_request := knowledge_private.prepare_search(
        query, embedding, k, mode, source_types, visibility, metadata, fingerprint, options);
    prepared double precision := knowledge_private.milliseconds_since(started);
    explained jsonb;
    depth integer := greatest(200, k);
    part jsonb;
    counted bigint;
    place integer;
begin
    -- Counted here, because a search counts no further than it needs.
    select jsonb_build_object('compartments', count(*), 'permitted_chunks', coalesce(sum(p.chunks), 0))
    into explained
    from knowledge_private.permitted_compartments(request.asking, source_types, coalesce(visibility, '{org}')) as p
    where p.chunks > 0;
    explained := explained || jsonb_build_object('legs', request.legs, 'prepare_ms', prepared, 'settings', (
        select jsonb_build_object('exact_rows', s.exact_rows, 'index_share', s.index_share,
            'scanned_chunks', s.scanned_chunks, 'candidates', s.candidates,
            'paired_candidates', s.paired_candidates, 'enough_weight', s.enough_weight,
            'long_list', s.long_list)
        from knowledge_private.settings as s
    ));
    if 'vector' = any (request.legs) then
        started := clock_timestamp();
        select count(*) into counted
        from knowledge_private.vector_leg(request, embedding, depth);
        explained := explained || jsonb_build_object('vector', jsonb_build_object(
            'rows', counted,
            'ms', knowledge_private.milliseconds_since(started),
            'plan', case when request.index_filter is null then 'exact' else 'index' end));
    end if;
    if 'keyword' = any (request.legs) then
        started := clock_timestamp();
        select count(*) into counted
        from knowledge_private.keyword_leg(request, depth);
        part := jsonb_build_object('rows', counted, 'ms', knowledge_private.milliseconds_since(started));
        for place in select i from generate_subscripts(request.lexemes, 1) as i loop
            execute format('select count(*) from knowledge.chunks as t where %s and %s',
                request.keyword_predicate,
                knowledge_private.match_condition(
                    knowledge_private.lexeme_query(request.lexemes[place], request.prefixes[place])::text, request.scanned))
            into counted;
            part := jsonb_set(part, '{terms}', coalesce(part -> 'terms', '[]') || jsonb_build_object(
                'lexeme', request.lexemes[place], 'prefix', request.prefixes[place], 'repeats', request.repeats[place],
                'chunks', counted, 'counted_as', request.known[place],
                'idf', ln(1 + (request.chunks - counted + 0.5) / (counted + 0.5))));
        end loop;
        explained := explained || jsonb_build_object('keyword', part);
    end if;
    started := clock_timestamp();
    select jsonb_agg(jsonb_build_object(
        'rank', r.place, 'score', r.score, 'boost', r.boost, 'chunk_id', r.chunk_id, 'vector_rank', r.vector_place,
        'vector_distance', r.distance, 'keyword_rank', r.keyword_place, 'keyword_score', r.keyword_score,
        'matched', (
            select jsonb_object_agg(u.lexeme, cardinality(u.positions) order by u.lexeme)
            from knowledge.chunks as c
            cross join lateral unnest(c.tsv) as u
            inner join unnest(request.lexemes, request.prefixes) as q (lexeme, prefix)
                on case when q.prefix then starts_with(u.lexeme, q.lexeme) else u.lexeme = q.lexeme end
            where c.org_id = (request.asking).org_id and c.chunk_id = r.chunk_id
        )) order by r.place)
    into part
    from knowledge_private.run_search(request, embedding, k, options) as r;
    return explained || jsonb_build_object('search_ms', knowledge_private.milliseconds_since(started),
        'rows', coalesce(part, '[]'));
end
$$;

comment on function knowledge.explain_search(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'Why search_scoped answers what it does with the same arguments, as json: legs that take part; compartments and chunks
permitted; per leg its rows and time, the vector leg''s plan (exact or index), the keyword leg''s terms with the number of
permitted chunks that have them and their idf; the settings that decide; and for each row its boost, both legs'' ranks and measures
and the matched lexemes with their frequency. Nothing in it is about what the context may not read. Errors as there.';
revoke all on function knowledge.explain_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.explain_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;

-- ---- sql/61_search/23_passages.sql
create function knowledge.passages(chunk_ids uuid[], neighbours integer default 1)
returns table (
    place integer,
    document_id uuid,
    source_type text,
    source_id text,
    title text,
    uri text,
    heading text,
    body text,
    first_ordinal integer,
    last_ordinal integer,
    char_start integer,
    char_end integer,
    locator text,
    chunks uuid[]
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    readable integer[] := knowledge_private.readable_compartments();
begin
    if passages.chunk_ids is null or cardinality(passages.chunk_ids) > 1000 then
        perform knowledge_private.fail('KB005', 'chunk_ids must be a list of at most 1000');
    end if;
    if passages.neighbours is null or passages.neighbours not between 0 and 100 then
        perform knowledge_private.fail('KB005', 'neighbours must be from 0 to 100');
    end if;
    return query
    with hit as materialized (
        select h.rank, p.document_id, (l.piece).ordinal + (p.place - (l.piece).place) as ordinal, d.layout
        from unnest(passages.chunk_ids) with ordinality as h (chunk_id, rank)
        cross join lateral (
            select t.* from knowledge.places as t
            where t.org_id = asking.org_id and t.chunk_id = h.chunk_id and t.compartment_id = any (readable) offset 0
        ) as p
        cross join lateral (
            select t.* from knowledge.documents as t
            where t.org_id = asking.org_id and t.document_id = p.document_id offset 0
        ) as d
        cross join lateral (select knowledge_private.piece_at(d.layout, p.place) as piece offset 0) as l
    ),
    around as (
        select
            h.document_id, p.ordinal, p.place, p.shift, min(h.rank) as rank,
            min(h.rank) filter (where h.ordinal = p.ordinal) as own
        from hit as h
        cross join lateral (
            select s.ordinal + (t.place - s.place) as ordinal, t.place, s.shift
            from knowledge_private.pieces(
                h.layout, h.ordinal - passages.neighbours, h.ordinal + passages.neighbours) as s
            cross join lateral (
                select t.place from knowledge.places as t
                where
                    t.org_id = asking.org_id and t.document_id = h.document_id
                    and t.place between s.place and s.place + (s.many - 1)
                offset 0
            ) as t
            offset 0
        ) as p
        group by h.document_id, p.ordinal, p.place, p.shift
    ),
    -- Ordinals that follow each other without a gap are one passage.
    runs as (
        select a.*, a.ordinal - row_number() over (partition by a.document_id order by a.ordinal) as run from around as a
    )
    select
        (row_number() over (order by min(r.rank)))::integer,
        r.document_id, d.source_type, d.source_id, d.title, d.uri,
        (array_agg(c.heading order by r.own nulls last, r.ordinal))[1],
        string_agg(c.body, E'\n\n' order by r.ordinal),
        min(r.ordinal), max(r.ordinal), min(c.char_start), max(c.char_end),
        (array_agg(c.locator order by r.own nulls last, r.ordinal))[1],
        array_agg(c.chunk_id order by r.ordinal)
    from runs as r
    cross join lateral (
        select p.chunk_id, p.char_start + r.shift as char_start, p.char_end + r.shift as char_end, p.locator, t.heading, t.body
        from knowledge.places as p
        cross join lateral (
            select k.heading, k.body from knowledge.chunks as k
            where k.org_id = p.org_id and k.chunk_id = p.chunk_id offset 0
        ) as t
        where p.org_id = asking.org_id and p.document_id = r.document_id and p.place = r.place offset 0
    ) as c
    cross join lateral (
        select t.* from knowledge.documents as t where t.org_id = asking.org_id and t.document_id = r.document_id offset 0
    ) as d
    group by r.document_id, r.run, d.source_type, d.source_id, d.title, d.uri
    order by 1;
end
$$;

comment on function knowledge.passages(uuid[], integer) is
'Chunks that a search found, widened by up to neighbours (0 to 100) chunks on either side within their documents; where
these touch or overlap they are one passage. place: from 1, in the order of the best of chunk_ids in it. body: the texts with
a blank line between. char_start to char_end: in the source. heading and locator: of that best chunk. A chunk_id that is not there, or
not for this caller, is left out. KB001, KB002 context, KB005 more than 1000 chunk_ids, bad neighbours.';
revoke all on function knowledge.passages(uuid[], integer) from public;
grant execute on function knowledge.passages(uuid[], integer) to knowledge_reader;

-- ---- sql/62_lifecycle/01_sources.sql
-- What there is, as the context may see it.

create type knowledge_private.source as (
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
);

comment on type knowledge_private.source is 'A document with a live version.';

create function knowledge_private.readable_sources(asking knowledge_private.claim)
returns setof knowledge_private.source
language sql
stable
begin atomic
    select
        d.document_id, d.source_type, d.source_id, v.source_version, d.org_scope, c.visibility, c.audience, d.title,
        d.uri, d.metadata, c.language, v.content_hash, v.chunk_count, d.created_at, d.updated_at
    from knowledge_private.permitted_compartments(asking) as c
    inner join knowledge.documents as d on d.org_id = c.org_id and d.compartment_id = c.compartment_id
    inner join knowledge.versions as v on v.org_id = d.org_id and v.version_id = d.live_version;
end;

comment on function knowledge_private.readable_sources(knowledge_private.claim) is
'The documents with a live version that a claim may read.';
revoke all on function knowledge_private.readable_sources(knowledge_private.claim) from public;

create function knowledge_private.forget_lexemes(org_id text, compartment_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
    -- A lexeme is kept when a hundredth of the chunks has it, so less than that cannot have held one alone.
    update knowledge.compartments as c set counted_chunks = 0
    where
        c.org_id = org_id and c.compartment_id = compartment_id
        and c.counted_chunks > 0 and (c.counted_chunks - c.chunks) * 100 >= c.counted_chunks;
    if found then
        delete from knowledge_private.lexeme_counts as l where l.org_id = org_id and l.compartment_id = compartment_id;
    end if;
end
$$;

comment on function knowledge_private.forget_lexemes(text, integer) is
'Forgets the counted lexemes of a compartment that has lost so many chunks that one of them could be of these alone.';
revoke all on function knowledge_private.forget_lexemes(text, integer) from public;

create function knowledge_private.erase_documents(asking knowledge_private.claim, documents uuid[], out erased jsonb)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    document knowledge.documents;
    model record;
    chunk uuid;
    counted bigint;
    vectors bigint := 0;
begin
    select jsonb_build_object(
        'documents', count(*),
        'digest', encode(sha256(convert_to(coalesce(string_agg(
            jsonb_build_array(d.source_type, d.source_id, v.content_hash)::text, E'\n'
            order by d.source_type, d.source_id, d.document_id), ''), 'UTF8')), 'hex'))
    into erased
    from knowledge.documents as d
    left join knowledge.versions as v on v.org_id = d.org_id and v.version_id = d.live_version
    where d.org_id = asking.org_id and d.document_id = any (documents);

    for document in
        select d.* from knowledge.documents as d
        where d.org_id = asking.org_id and d.document_id = any (documents) and d.compartment_id is not null
        order by d.compartment_id
    loop
        perform knowledge_private.count_chunks(document.org_id, document.document_id, document.compartment_id, -1);
        perform knowledge_private.forget_lexemes(document.org_id, document.compartment_id);
    end loop;
    for model in select m.model_id from knowledge.models as m where m.state <> 'retired' order by m.model_id loop
        execute format('delete from %s where org_id = $1 and document_id = any ($2)',
            knowledge_private.vector_table(model.model_id))
        using asking.org_id, documents;
        get diagnostics counted = row_count;
        vectors := vectors + counted;
    end loop;
    counted := 0;
    for chunk in
        select p.chunk_id from knowledge.places as p
        where p.org_id = asking.org_id and p.document_id = any (documents)
    loop
        delete from knowledge.chunks as c where c.org_id = asking.org_id and c.chunk_id = chunk;
        counted := counted + 1;
    end loop;
    erased := erased || jsonb_build_object('chunks', counted, 'vectors', vectors);
    select count(*) into counted
    from knowledge.versions as v
    cross join knowledge_private.staged(v) as s
    where v.org_id = asking.org_id and v.document_id = any (documents) and v.state = 'ingesting';
    erased := erased || jsonb_build_object('staged_chunks', counted);
    delete from knowledge_private.staged_chunks as s
    using knowledge.versions as v
    where
        v.org_id = asking.org_id and v.document_id = any (documents)
        and s.org_id = v.org_id and s.version_id = v.version_id;
    delete from knowledge.quarantine as q where q.org_id = asking.org_id and q.document_id = any (documents);
    get diagnostics counted = row_count;
    erased := erased || jsonb_build_object('quarantined', counted);
    delete from knowledge.versions as v where v.org_id = asking.org_id and v.document_id = any (documents);
    get diagnostics counted = row_count;
    erased := erased || jsonb_build_object('versions', counted);
    delete from knowledge.documents as d where d.org_id = asking.org_id and d.document_id = any (documents);
end
$$;

comment on function knowledge_private.erase_documents(knowledge_private.claim, uuid[]) is
'Deletes documents, which the caller has locked, with everything made of them. Returns the counts, and digest: sha256 over
the lines [source_type, source_id, content_hash], as json arrays in ascending order.';
revoke all on function knowledge_private.erase_documents(knowledge_private.claim, uuid[]) from public;

-- ---- sql/62_lifecycle/10_list_sources.sql
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

-- ---- sql/62_lifecycle/11_get_source.sql
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

-- ---- sql/62_lifecycle/12_delete_source.sql
create function knowledge.delete_source(source_type text, source_id text)
returns table (chunks bigint, versions bigint, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs := knowledge_private.use_org(asking.org_id, audits => true);
    document knowledge.documents;
    erased jsonb;
    entry knowledge.audit_log;
begin
    select d.* into document
    from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.source_type = delete_source.source_type
        and knowledge_private.text_key(d.source_id) = knowledge_private.text_key(delete_source.source_id)
    for update;
    if not found then
        perform knowledge_private.fail('KB004', 'no such source');
    end if;
    erased := knowledge_private.erase_documents(asking, array[document.document_id]);
    entry := knowledge_private.audit(asking.org_id, 'delete_source', erased);
    return query
    select (erased ->> 'chunks')::bigint, (erased ->> 'versions')::bigint, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.delete_source(text, text) is
'Erases one document of the context''s org and exact scope with its versions, chunks and vectors. Returns what was erased
and the receipt: the number and digest (hex) of its entry in audit_log. KB004 when there is none, or it is another''s.';
revoke all on function knowledge.delete_source(text, text) from public;
grant execute on function knowledge.delete_source(text, text) to knowledge_writer;

-- ---- sql/62_lifecycle/13_prune_versions.sql
create function knowledge.prune_versions(keep integer default 10)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    pruned bigint;
begin
    if keep is null or keep < 0 then
        perform knowledge_private.fail('KB005', 'keep must be 0 or more');
    end if;
    perform knowledge_private.use_org(asking.org_id);
    delete from knowledge.versions as v
    using (
        select
            o.version_id,
            row_number() over (partition by o.document_id order by o.started_at desc, o.version_id desc) as age
        from knowledge.versions as o
        inner join knowledge.documents as d on d.org_id = o.org_id and d.document_id = o.document_id
        where
            o.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
            and o.state in ('superseded', 'aborted')
    ) as old
    where v.org_id = asking.org_id and v.version_id = old.version_id and old.age > keep;
    get diagnostics pruned = row_count;
    return pruned;
end
$$;

comment on function knowledge.prune_versions(integer) is
'Forgets all but the keep newest ended versions of each document in the context''s org and exact scope; returns how many
were forgotten. Their chunks are gone already: only live text is kept. KB005 for a negative keep.';
revoke all on function knowledge.prune_versions(integer) from public;
grant execute on function knowledge.prune_versions(integer) to knowledge_writer;

-- ---- sql/62_lifecycle/14_stats.sql
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

-- ---- sql/62_lifecycle/15_delete_by_scope.sql
create function knowledge.delete_by_scope(
    dry_run boolean default true, entire_org boolean default false, source_types text[] default null
)
returns table (
    dry_run_only boolean,
    documents bigint,
    chunks bigint,
    vectors bigint,
    versions bigint,
    staged_chunks bigint,
    compartments bigint,
    audit_entry bigint,
    receipt text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    chosen uuid[];
    held integer[];
    erased jsonb;
    emptied bigint;
    entry knowledge.audit_log;
    index_name text;
begin
    if delete_by_scope.dry_run is null or delete_by_scope.entire_org is null then
        perform knowledge_private.fail('KB005', 'dry_run and entire_org must be true or false');
    end if;
    if delete_by_scope.entire_org and (asking.org_scope is not null or delete_by_scope.source_types is not null) then
        perform knowledge_private.fail('KB005', 'entire_org takes neither a scope in the context nor source_types');
    end if;
    if delete_by_scope.entire_org then
        -- Nothing is begun or published in the org from here on, also when it is only just being made.
        insert into knowledge.orgs (org_id) values (asking.org_id) on conflict do nothing;
        perform from knowledge.orgs as o where o.org_id = asking.org_id for update;
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    chosen := array(
        select d.document_id from knowledge.documents as d
        where
            d.org_id = asking.org_id
            and (delete_by_scope.entire_org or d.org_scope is not distinct from asking.org_scope)
            and (delete_by_scope.source_types is null or d.source_type = any (delete_by_scope.source_types))
        order by d.document_id
        for update
    );
    -- All compartments that this may empty, and in their order. Who is publishing into one of them is waited for here;
    -- who is to publish into one waits until it is gone, and makes another.
    held := array(
        select c.compartment_id from knowledge.compartments as c
        where
            c.org_id = asking.org_id
            and (delete_by_scope.entire_org or c.org_scope is not distinct from asking.org_scope)
            and (
                exists (
                    select from knowledge.documents as d
                    where d.org_id = c.org_id and d.compartment_id = c.compartment_id and d.document_id = any (chosen)
                )
                or not exists (
                    select from knowledge.documents as d
                    where d.org_id = c.org_id and d.compartment_id = c.compartment_id
                )
            )
        order by c.compartment_id
        for update
    );

    -- A dry run does the same work and takes it back, so its counts are those of the real one.
    begin
        erased := knowledge_private.erase_documents(asking, chosen);
        -- A statement of its own sees what was published into them while they were waited for.
        held := array(
            select h from unnest(held) as h
            where not exists (
                select from knowledge.documents as d
                where d.org_id = asking.org_id and d.compartment_id = h
            )
        );
        delete from knowledge_private.lexeme_counts as l
        where l.org_id = asking.org_id and l.compartment_id = any (held);
        delete from knowledge.compartments as c
        where c.org_id = asking.org_id and c.compartment_id = any (held);
        get diagnostics emptied = row_count;
        erased := erased || jsonb_build_object(
            'compartments', emptied, 'entire_org', delete_by_scope.entire_org,
            'source_types', to_jsonb(delete_by_scope.source_types));
        if delete_by_scope.entire_org then
            delete from knowledge.audiences as a where a.org_id = asking.org_id;
            delete from knowledge.tags as t where t.org_id = asking.org_id;
            delete from knowledge.admission_rules as r where r.org_id = asking.org_id;
            delete from knowledge_private.embedding_turns as t where t.org_id = asking.org_id;
            for index_name in
                select c.relname from knowledge.models as m
                inner join pg_class as c on c.relname = knowledge_private.index_name(asking.org_id, m.model_id)
                where c.relnamespace = 'knowledge'::regnamespace
            loop
                execute format('drop index knowledge.%I', index_name);
            end loop;
            update knowledge.orgs as o
            set status = 'offboarded', offboarded_at = now(), active_model = null
            where o.org_id = asking.org_id;
        end if;
        if delete_by_scope.dry_run then
            raise exception using errcode = 'KB000', message = 'dry run';
        end if;
        entry := knowledge_private.audit(asking.org_id, 'delete_by_scope', erased);
    exception when sqlstate 'KB000' then
        null;
    end;

    return query
    select
        delete_by_scope.dry_run, r.documents, r.chunks, r.vectors, r.versions, r.staged_chunks, r.compartments,
        entry.entry, encode(entry.digest, 'hex')
    from jsonb_to_record(erased) as r (
        documents bigint, chunks bigint, vectors bigint, versions bigint, staged_chunks bigint, compartments bigint
    );
end
$$;

comment on function knowledge.delete_by_scope(boolean, boolean, text[]) is
'Erases every document of the context''s org and exact scope (without a scope: the org-wide ones), of source_types or of
all, with versions, chunks, vectors and whatever is being ingested. entire_org: all scopes, the vocabulary and the org''s
index too, and the org is offboarded: its name is never used again (KB011). dry_run, the default, only counts. Returns the
counts and, when it was done, the receipt: number and digest (hex) of the entry in audit_log, whose details hold a digest
over the identities of what was erased. KB005 for entire_org together with a scope or source_types.';
revoke all on function knowledge.delete_by_scope(boolean, boolean, text[]) from public;
grant execute on function knowledge.delete_by_scope(boolean, boolean, text[]) to knowledge_admin;

-- ---- sql/62_lifecycle/16_verify_audit_log.sql
create function knowledge.verify_audit_log(receipt text default null)
returns table (intact boolean, entries bigint, broken_at bigint, receipt_entry bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs;
begin
    select o.* into org from knowledge.orgs as o where o.org_id = asking.org_id;
    select min(c.entry)
    into broken_at
    from (
        select
            a.entry,
            a.entry = row_number() over w
            and a.previous = lag(a.digest, 1, '\x'::bytea) over w
            and a.digest = knowledge_private.audit_digest(a) as good
        from knowledge.audit_log as a
        where a.org_id = asking.org_id
        window w as (order by a.entry)
    ) as c
    where not c.good;
    select count(*) into entries from knowledge.audit_log as a where a.org_id = asking.org_id;
    -- Cut off or added to at the end, the chain is not as long as the org remembers; with another last entry, it is.
    if broken_at is null and (entries, coalesce((
        select a.digest from knowledge.audit_log as a where a.org_id = asking.org_id order by a.entry desc limit 1
    ), '\x')) is distinct from (coalesce(org.audit_entries, 0), coalesce(org.audit_head, '\x')) then
        broken_at := case
            when entries = org.audit_entries then entries
            else least(entries, coalesce(org.audit_entries, 0)) + 1
        end;
    end if;
    select a.entry
    into receipt_entry
    from knowledge.audit_log as a
    where a.org_id = asking.org_id and encode(a.digest, 'hex') = verify_audit_log.receipt;
    intact := broken_at is null and (verify_audit_log.receipt is null or receipt_entry is not null);
    return next;
end
$$;

comment on function knowledge.verify_audit_log(text) is
'Walks the chain of the context''s org in audit_log: intact, number of entries, first entry that is changed, missing or
out of order. With a receipt also which entry it is; a receipt that is in no entry means the log is not intact. Keep
receipts outside the database: one proves the whole log before it.';
revoke all on function knowledge.verify_audit_log(text) from public;
grant execute on function knowledge.verify_audit_log(text) to knowledge_admin;

-- ---- sql/63_models/10_register_model.sql
create function knowledge.register_model(name text, dimensions integer, fingerprint text)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    model knowledge.models;
    vectors text;
begin
    perform knowledge_private.check_label(register_model.name, 'name');
    perform knowledge_private.check_label(register_model.fingerprint, 'fingerprint');
    if register_model.dimensions is null or register_model.dimensions not between 1 and 4000 then
        perform knowledge_private.fail('KB005', 'dimensions must be from 1 to 4000');
    end if;
    perform pg_advisory_xact_lock(hashtextextended('pg_knowledge models', 0));
    select m.* into model
    from knowledge.models as m
    where register_model.fingerprint = m.fingerprint or register_model.name = m.name;
    if found then
        if (model.name, model.dimensions, model.fingerprint)
            is distinct from (register_model.name, register_model.dimensions, register_model.fingerprint)
        then
            perform knowledge_private.fail('KB007', 'a model with this name or fingerprint is registered differently',
                to_jsonb(model), 'Another fingerprint is another model: give it a name of its own.');
        end if;
        return model.model_id;
    end if;

    insert into knowledge.models as m (name, dimensions, fingerprint)
    values (register_model.name, register_model.dimensions, register_model.fingerprint)
    returning m.* into model;
    vectors := knowledge_private.vector_table(model.model_id);
    execute format(
        'create table %s ('
        'org_id text collate "C" not null, '
        'chunk_id uuid not null, '
        'document_id uuid not null, '
        'compartment_id integer not null, '
        'embedding %s.halfvec(%s) not null, '
        'primary key (org_id, chunk_id), '
        'foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade'
        ') with (fillfactor = 90)',
        vectors, knowledge_private.vector_schema(), model.dimensions);
    execute format('alter table %s alter column embedding set storage plain', vectors);
    execute format('alter table %s alter column org_id set statistics 0', vectors);
    execute format('create index on %s (compartment_id, org_id)', vectors);
    execute format('create index on %s (document_id, org_id)', vectors);
    execute format('comment on table %s is %L', vectors, 'Unit vectors of the live chunks by model ' || model.name || '.');
    execute format('comment on column %s.org_id is %L', vectors, 'The tenant.');
    execute format('comment on column %s.chunk_id is %L', vectors, 'The chunk.');
    execute format('comment on column %s.document_id is %L', vectors, 'Of which document.');
    execute format('comment on column %s.compartment_id is %L', vectors, 'The compartment of the document.');
    execute format('comment on column %s.embedding is %L', vectors, 'Of heading and body, normalised to length 1.');
    perform knowledge_private.protect_compartment(vectors::regclass);
    return model.model_id;
end
$$;

comment on function knowledge.register_model(text, integer, text) is
'Registers an embedding model and makes its table vectors_<model_id>; returns model_id. fingerprint is what the embedder
will present: it must change whenever the vectors for the same text would. Repeating the call answers the same model.
KB005 malformed argument, KB007 the name or fingerprint is registered with other values.';
revoke all on function knowledge.register_model(text, integer, text) from public;
grant execute on function knowledge.register_model(text, integer, text) to knowledge_admin;

-- ---- sql/64_maintenance/01_count_lexemes.sql
-- Counting common lexemes, one compartment at a time: what a caller's search sums is what the caller may read.

create function knowledge_private.count_lexemes(compartment knowledge.compartments)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The compartment first, as an erasure does, which may have taken it away by now.
    perform from knowledge.compartments as c
    where c.org_id = compartment.org_id and c.compartment_id = compartment.compartment_id
    for no key update;
    if not found then
        return;
    end if;
    delete from knowledge_private.lexeme_counts as l
    where l.org_id = compartment.org_id and l.compartment_id = compartment.compartment_id;
    insert into knowledge_private.lexeme_counts (org_id, compartment_id, lexeme, chunks)
    select compartment.org_id, compartment.compartment_id, s.word, s.ndoc
    from ts_stat(format('select c.tsv from knowledge.chunks as c where c.org_id = %L and c.compartment_id = %L',
        compartment.org_id, compartment.compartment_id)) as s
    where s.ndoc * 100 >= compartment.chunks;
    update knowledge.compartments as c set counted_chunks = compartment.chunks
    where c.org_id = compartment.org_id and c.compartment_id = compartment.compartment_id;
end
$$;

comment on function knowledge_private.count_lexemes(knowledge.compartments) is
'Counts the lexemes of a compartment anew and keeps those in at least a hundredth of its chunks.';
revoke all on function knowledge_private.count_lexemes(knowledge.compartments) from public;

-- ---- sql/64_maintenance/02_alike_vectors.sql
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

-- ---- sql/64_maintenance/10_maintain.sql
create function knowledge.maintain()
returns table (task text, done bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions;
    compartment knowledge.compartments;
begin
    task := 'versions expired';
    done := 0;
    for version in
        select v.* from knowledge.versions as v
        where
            v.state = 'ingesting'
            and v.lease_expires_at < knowledge_private.clock() - (select s.abandoned from knowledge_private.settings as s)
        order by v.org_id, v.version_id
        for no key update skip locked
    loop
        perform knowledge_private.end_version(version, 'aborted');
        done := done + 1;
    end loop;
    return next;

    task := 'compartments counted';
    done := 0;
    for compartment in
        select c.* from knowledge.compartments as c
        where
            c.chunks > (select s.candidates + s.paired_candidates from knowledge_private.settings as s) / 10
            and abs(c.chunks - c.counted_chunks) > c.chunks / 10
        order by c.org_id, c.compartment_id
    loop
        perform knowledge_private.count_lexemes(compartment);
        done := done + 1;
    end loop;
    return next;
end
$$;

comment on function knowledge.maintain() is
'What is to be done now and then for the whole database, by a role that may become knowledge_owner: ends versions whose
lease ran out longer ago than the setting abandoned, and counts the common lexemes of compartments that have grown or
shrunk by a tenth, which keeps questions to large orgs quick. Never needed for a right answer. Returns how much was done.';
revoke all on function knowledge.maintain() from public;
grant execute on function knowledge.maintain() to knowledge_owner;

-- ---- sql/64_maintenance/11_index_plan.sql
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

-- ---- sql/90_finish/01_version.sql
create function knowledge.version()
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
    select m.version from knowledge.migrations as m order by m.applied_at desc, m.version desc limit 1
$$;

comment on function knowledge.version() is 'The version of pg_knowledge in this database.';
revoke all on function knowledge.version() from public;
grant execute on function knowledge.version() to knowledge_reader, knowledge_trusted;

-- ---- sql/90_finish/02_ledger.sql
insert into knowledge.migrations (version, checksum, granted_usage)
values ('0.1.0', 'b2e66194bd64bae35891c709d410c2033754a977690f5ff18d2e7b8662ecabad', current_setting('pg_knowledge.granted_usage')::text[]);
