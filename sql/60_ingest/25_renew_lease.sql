create function knowledge.renew_lease(version_id uuid, lease bigint)
returns timestamptz
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(renew_lease.version_id, renew_lease.lease);
begin
    return (
        select v.lease_expires_at from knowledge.versions as v
        where v.org_id = version.org_id and v.version_id = version.version_id
    );
end
$$;

comment on function knowledge.renew_lease(uuid, bigint) is
'Says that the writer of a version is still at it, as each of its other calls does; for one whose embedder takes longer than
a lease. Returns when the lease expires now. KB004 no such version, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.renew_lease(uuid, bigint) from public;
grant execute on function knowledge.renew_lease(uuid, bigint) to knowledge_writer;
