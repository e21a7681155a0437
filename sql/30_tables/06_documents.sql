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
