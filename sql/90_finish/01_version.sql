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
