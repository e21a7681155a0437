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
