-- pg_knowledge: takes away what the install made, in this database, with all documents in it. There is no way back.
--
--     psql -X -1 -v ON_ERROR_STOP=1 -f uninstall.sql
--
-- Apply it as the role that installed, or as a superuser. It is one statement, so it happens whole or not at all. It
-- refuses (KB013) while something outside the schemas knowledge and knowledge_private depends on them, or while
-- something in them is not of the install. Roles that the DBA made stay, and so does a role that is still in use.

do $uninstall$
declare
    applying constant text := current_user;
    messages constant text := current_setting('client_min_messages');
    saved constant text := current_setting('role');
    knowledge_owner constant oid := to_regrole('knowledge_owner');
    schemas constant oid[] := array_remove(array[to_regnamespace('knowledge'), to_regnamespace('knowledge_private')], null);
    problems text[];
    granted_to text[];
    vector_schema text;
    role text;
begin
    perform set_config('search_path', 'pg_catalog, pg_temp', true);
    if knowledge_owner is null
        or not exists (select from pg_class where relname = 'migrations' and relnamespace = to_regnamespace('knowledge'))
    then
        raise exception using errcode = 'KB013', message = 'pg_knowledge is not installed in this database';
    end if;
    if not pg_has_role(applying, knowledge_owner, 'set') then
        raise exception using errcode = 'KB013',
            message = format('%s may not remove pg_knowledge', applying),
            hint = 'Apply this file as the role that installed it, or as a superuser.';
    end if;

    -- Nothing comes in between the looking and the dropping.
    perform set_config('role', 'knowledge_owner', true);
    lock table knowledge.migrations, knowledge.orgs in access exclusive mode;

    -- What would be dropped with the schemas, from the dependencies; where each thing is, from its catalog.
    with recursive falls (classid, objid) as (
        select 'pg_namespace'::regclass::oid, s.oid from unnest(schemas) as s (oid)
        union
        select d.classid, d.objid
        from falls as f
        inner join pg_depend as d on d.refclassid = f.classid and d.refobjid = f.objid
    ),
    -- A rule, a trigger, a constraint … is where its table is; an index or a TOAST table where the table is.
    part (classid, objid, parent_class, parent_id) as (
        select 'pg_rewrite'::regclass::oid, oid, 'pg_class'::regclass::oid, ev_class from pg_rewrite
        union all
        select 'pg_trigger'::regclass::oid, oid, 'pg_class'::regclass::oid, tgrelid from pg_trigger
        union all
        select 'pg_policy'::regclass::oid, oid, 'pg_class'::regclass::oid, polrelid from pg_policy
        union all
        select 'pg_attrdef'::regclass::oid, oid, 'pg_class'::regclass::oid, adrelid from pg_attrdef
        union all
        select 'pg_constraint'::regclass::oid, oid, 'pg_class'::regclass::oid, conrelid from pg_constraint
        where conrelid <> 0
        union all
        select 'pg_class'::regclass::oid, reltoastrelid, 'pg_class'::regclass::oid, oid from pg_class
        where reltoastrelid <> 0
        union all
        select 'pg_class'::regclass::oid, i.indexrelid, 'pg_class'::regclass::oid, t.oid
        from pg_index as i
        inner join pg_class as t on t.reltoastrelid = i.indrelid
    ),
    place (classid, objid, schema_id, owner) as (
        select 'pg_class'::regclass::oid, oid, relnamespace, relowner from pg_class
        union all
        select 'pg_proc'::regclass::oid, oid, pronamespace, proowner from pg_proc
        union all
        select 'pg_type'::regclass::oid, oid, typnamespace, typowner from pg_type
        union all
        select 'pg_namespace'::regclass::oid, oid, oid, nspowner from pg_namespace
    )
    select array_agg(o.description order by o.description collate "C")
    into problems
    from (
        select distinct
            case
                when q.schema_id is null or q.schema_id <> all (schemas) then 'depends on pg_knowledge: '
                else format('is owned by %I: ', pg_get_userbyid(q.owner))
            end || pg_describe_object(coalesce(p.parent_class, f.classid), coalesce(p.parent_id, f.objid), 0) as description
        from falls as f
        left join part as p on p.classid = f.classid and p.objid = f.objid
        left join place as q on q.classid = coalesce(p.parent_class, f.classid) and q.objid = coalesce(p.parent_id, f.objid)
        where q.schema_id is null or q.schema_id <> all (schemas) or q.owner <> knowledge_owner
    ) as o;
    if cardinality(problems) > 0 then
        raise exception using errcode = 'KB013',
            message = 'pg_knowledge is not removed: there are objects here that it did not make',
            detail = to_json(problems)::text,
            hint = 'Drop or move them, then apply this file again.';
    end if;

    select e.extnamespace::regnamespace::text
    into vector_schema
    from pg_extension as e
    where e.extname = 'vector';
    granted_to := array(select distinct unnest(m.granted_usage) from knowledge.migrations as m);
    perform set_config('client_min_messages', 'warning', true);
    drop schema knowledge, knowledge_private cascade;
    perform set_config('client_min_messages', messages, true);
    -- Back to the built-in default, so that no entry stays.
    alter default privileges for role knowledge_owner grant execute on functions to public;
    perform set_config('role', saved, true);

    foreach role in array granted_to loop
        execute format('revoke usage on schema %s from %I', vector_schema, role);
    end loop;
    -- The comment says that the install made the role. Another database may use it, or the DBA for something else.
    foreach role in array array[
        'knowledge_trusted', 'knowledge_admin', 'knowledge_writer', 'knowledge_reader', 'knowledge_owner'
    ] loop
        if shobj_description(to_regrole(role), 'pg_authid') like 'pg\_knowledge: %' then
            begin
                execute format('drop role %I', role);
            exception when dependent_objects_still_exist or insufficient_privilege or object_in_use then
                raise notice 'the role % stays: %', role, sqlerrm;
            end;
        end if;
    end loop;
end
$uninstall$;
