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
