create function knowledge.abort_version(version_id uuid)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs := knowledge_private.use_org(asking.org_id);
    version knowledge.versions;
begin
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id in (
            select v.document_id from knowledge.versions as v
            where v.org_id = asking.org_id and v.version_id = abort_version.version_id
        )
    for update;
    if found then
        select v.* into version
        from knowledge.versions as v
        where v.org_id = asking.org_id and v.version_id = abort_version.version_id;
    end if;
    if version.version_id is null then
        perform knowledge_private.fail('KB004', 'no such version');
    end if;
    if version.state <> 'ingesting' then
        return false;
    end if;
    perform knowledge_private.end_version(version, 'aborted');
    -- A document that never had a live version leaves nothing behind.
    delete from knowledge.documents as d
    where d.org_id = version.org_id and d.document_id = version.document_id and d.live_version is null;
    return true;
end
$$;

comment on function knowledge.abort_version(uuid) is
'Ends a version that is being ingested, whoever holds its lease, and forgets what it staged; what is live stays live.
Returns false when it was not being ingested any more. KB004 when there is no such version in the org and exact scope.';
revoke all on function knowledge.abort_version(uuid) from public;
grant execute on function knowledge.abort_version(uuid) to knowledge_writer;
