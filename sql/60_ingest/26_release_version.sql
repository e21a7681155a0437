create function knowledge.release_version(version_id uuid, lease bigint, error text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(release_version.version_id, release_version.lease);
begin
    update knowledge.versions as v
    set
        lease_expires_at = knowledge_private.clock(),
        last_error = coalesce(left(error, 2000), v.last_error),
        failed_at = case when error is null then v.failed_at else now() end
    where v.org_id = version.org_id and v.version_id = version.version_id and v.state = 'ingesting';
end
$$;

comment on function knowledge.release_version(uuid, bigint, text) is
'Gives up the lease of a version that is being ingested: what is staged stays, and any writer may resume it at once.
error: why, for ingest_status; at most 2000 characters are kept. KB004 no such version, KB009 lease lost.';
revoke all on function knowledge.release_version(uuid, bigint, text) from public;
grant execute on function knowledge.release_version(uuid, bigint, text) to knowledge_writer;
