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
