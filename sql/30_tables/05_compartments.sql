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
