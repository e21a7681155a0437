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
