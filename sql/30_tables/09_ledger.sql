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
