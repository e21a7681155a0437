-- Row-level security is put on a table by these two, and by nothing else.

create function knowledge_private.protect_org(target regclass, readers text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table %s enable row level security', target);
    execute format('create policy own_org on %s for select using (org_id = (select knowledge_private.current_org()))',
        target);
    execute format('grant select on %s to %I', target, readers);
end
$$;

comment on function knowledge_private.protect_org(regclass, text) is
'Lets readers see the rows of the context''s org in target, and nobody anything else.';
revoke all on function knowledge_private.protect_org(regclass, text) from public;

create function knowledge_private.protect_compartment(target regclass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    execute format('alter table %s enable row level security', target);
    execute format(
        'create policy own_compartments on %s for select using ('
        'org_id = (select knowledge_private.current_org()) '
        'and compartment_id = any ((select knowledge_private.readable_compartments())::integer[]))',
        target);
    execute format('grant select on %s to knowledge_reader', target);
end
$$;

comment on function knowledge_private.protect_compartment(regclass) is
'Lets readers see the rows of target in compartments that the context opens, and nobody anything else.';
revoke all on function knowledge_private.protect_compartment(regclass) from public;

do $protect$
begin
    perform knowledge_private.protect_org('knowledge.orgs', 'knowledge_admin');
    perform knowledge_private.protect_org('knowledge.tags', 'knowledge_writer');
    perform knowledge_private.protect_org('knowledge.audiences', 'knowledge_writer');
    perform knowledge_private.protect_org('knowledge.audit_log', 'knowledge_admin');
    perform knowledge_private.protect_compartment('knowledge.compartments');
    perform knowledge_private.protect_compartment('knowledge.documents');
    perform knowledge_private.protect_compartment('knowledge.chunks');
    perform knowledge_private.protect_compartment('knowledge.places');
end
$protect$;

-- Nobody reads these directly: enabled without a policy, row-level security shows nothing.
alter table knowledge.versions enable row level security;
alter table knowledge.admission_rules enable row level security;
alter table knowledge.quarantine enable row level security;
alter table knowledge_private.staged_chunks enable row level security;
alter table knowledge_private.staged_unchanged enable row level security;
alter table knowledge_private.staged_vectors enable row level security;
alter table knowledge_private.reviews enable row level security;
alter table knowledge_private.embedding_jobs enable row level security;
alter table knowledge_private.embedding_turns enable row level security;

-- As its reader sees the tables.
grant select on knowledge.positions to knowledge_reader;

-- Of their org readers see what a search needs, and not how often its log was written.
grant select (org_id, status, language, active_model) on knowledge.orgs to knowledge_reader;

-- Models belong to the database, not to an org.
grant select on knowledge.models to knowledge_reader;
