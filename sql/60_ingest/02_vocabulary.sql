-- What tags and audiences may be called, and which tags an audience turns into.

create function knowledge_private.check_name(label text, argument text)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_label(label, argument);
    if label = 'everyone' or label like '\_%' then
        perform knowledge_private.fail('KB005', format('%s is reserved: everyone, and names that begin with _', argument));
    end if;
    return label;
end
$$;

comment on function knowledge_private.check_name(text, text) is
'Returns label, or raises KB005 when it is malformed or reserved for the system.';
revoke all on function knowledge_private.check_name(text, text) from public;

create function knowledge_private.check_audience(org_id text, audience text[])
returns text[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    normal text[] := array(select distinct a collate "C" from unnest(audience) as a order by 1);
    unknown text[];
begin
    if cardinality(normal) = 0 or array_position(normal, null) is not null then
        perform knowledge_private.fail('KB006', 'declare an audience: with none, nobody could ever find the document',
            null, 'The built-in audience everyone is the whole org.');
    end if;
    unknown := array(
        select a from unnest(normal) as a
        where
            a <> 'everyone'
            and not exists (
                select from knowledge.audiences as d
                where d.org_id = check_audience.org_id and d.audience = a
            )
    );
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB006', format('unknown audience: %s', unknown[1]),
            jsonb_build_object('unknown', unknown), 'knowledge.define_audience adds one to the vocabulary.');
    end if;
    return normal;
end
$$;

comment on function knowledge_private.check_audience(text, text[]) is
'The audience sorted and without doubles. KB006 when it is empty or not in the vocabulary.';
revoke all on function knowledge_private.check_audience(text, text[]) from public;

create function knowledge_private.derive_acl(org_id text, audience text[], out acl text[], out acl_version bigint)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        array(
            select distinct t.tag from (
                select unnest(d.tags) as tag
                from knowledge.audiences as d
                where d.org_id = derive_acl.org_id and d.audience = any (derive_acl.audience)
                union all
                select 'everyone' where 'everyone' = any (derive_acl.audience)
            ) as t
            order by t.tag
        ),
        (
            select coalesce(sum(d.version), 0)
            from knowledge.audiences as d
            where d.org_id = derive_acl.org_id and d.audience = any (derive_acl.audience)
        )
$$;

comment on function knowledge_private.derive_acl(text, text[]) is
'The tags that open a declared audience, sorted, and the version of the rules they were derived by.';
revoke all on function knowledge_private.derive_acl(text, text[]) from public;

create function knowledge_private.use_org(org_id text, audits boolean default false)
returns knowledge.orgs
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    org knowledge.orgs;
begin
    select o.* into org from knowledge.orgs as o where o.org_id = use_org.org_id for key share;
    if not found then
        -- Not before looking: this waits for whoever is writing an entry of the audit log.
        insert into knowledge.orgs (org_id) values (use_org.org_id) on conflict do nothing;
        select o.* into org from knowledge.orgs as o where o.org_id = use_org.org_id for key share;
    end if;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded; its name is not used again');
    end if;
    if audits then
        -- The log is written last, but who waits for the org while holding a document could wait for ever.
        perform from knowledge.orgs as o where o.org_id = use_org.org_id for no key update;
    end if;
    return org;
end
$$;

comment on function knowledge_private.use_org(text, boolean) is
'The row of an org, made if it is new, locked against offboarding; audits: also against other entries in its
log, which every caller of audit says before it locks anything else. KB011 when it was offboarded.';
revoke all on function knowledge_private.use_org(text, boolean) from public;

create function knowledge_private.audit(org_id text, action text, details jsonb)
returns knowledge.audit_log
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    entry knowledge.audit_log;
begin
    select o.org_id, o.audit_entries + 1, o.audit_head
    into strict entry.org_id, entry.entry, entry.previous
    from knowledge.orgs as o
    where o.org_id = audit.org_id
    for no key update;
    entry.at := clock_timestamp();
    entry.actor := session_user;
    entry.action := audit.action;
    entry.details := audit.details;
    entry.digest := knowledge_private.audit_digest(entry);
    insert into knowledge.audit_log select entry.*;
    update knowledge.orgs as o
    set audit_entries = entry.entry, audit_head = entry.digest
    where o.org_id = audit.org_id;
    return entry;
end
$$;

comment on function knowledge_private.audit(text, text, jsonb) is 'Appends an entry to the org''s audit_log.';
revoke all on function knowledge_private.audit(text, text, jsonb) from public;

create function knowledge_private.audit_digest(entry knowledge.audit_log)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(entry.previous || convert_to(jsonb_build_array(
        entry.org_id, entry.entry, (extract(epoch from entry.at) * 1000000)::bigint, entry.actor, entry.action,
        entry.details)::text, 'UTF8'))
$$;

comment on function knowledge_private.audit_digest(knowledge.audit_log) is 'What digest must be for an entry of audit_log.';
revoke all on function knowledge_private.audit_digest(knowledge.audit_log) from public;
