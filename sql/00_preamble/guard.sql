-- pg_knowledge: a permission-aware knowledge base inside PostgreSQL.
--
-- This file is one transaction of plain SQL. Apply it as a role with CREATEROLE and CREATE on the database, where
-- pgvector is installed in whatever schema you keep extensions in:
--
--     psql -X -1 -v ON_ERROR_STOP=1 -f pg_knowledge--@VERSION@.sql
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
