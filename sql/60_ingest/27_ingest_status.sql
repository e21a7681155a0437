create function knowledge.ingest_status()
returns table (
    version_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    chunks integer,
    staged bigint,
    unembedded bigint,
    quarantined bigint,
    rejected bigint,
    age interval,
    lease_holder text,
    lease_expires_at timestamptz,
    leased boolean,
    last_error text,
    failed_at timestamptz
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    clock timestamptz := knowledge_private.clock();
begin
    return query
    select
        v.version_id, d.document_id, d.source_type, d.source_id, v.source_version, v.chunk_count, s.staged,
        cardinality(knowledge_private.unembedded(v))::bigint, s.quarantined, s.rejected, clock - v.started_at, v.lease_holder,
        v.lease_expires_at, v.lease_expires_at > clock, v.last_error, v.failed_at
    from knowledge.versions as v
    inner join knowledge.documents as d on d.org_id = v.org_id and d.document_id = v.document_id
    cross join lateral (
        select
            count(*) as staged,
            count(*) filter (where c.verdict = 'quarantined') as quarantined,
            count(*) filter (where c.verdict = 'rejected') as rejected
        from knowledge_private.staged(v) as c
    ) as s
    where v.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope and v.state = 'ingesting'
    order by v.started_at, v.version_id;
end
$$;

comment on function knowledge.ingest_status() is
'The versions that are being ingested in the context''s org and exact scope, the oldest first: chunks it must have; staged;
unembedded, the staged ones that still want a vector; quarantined and rejected among them; age since it was begun; who
holds the lease and until when; leased, whether it holds; what its writer last failed of (release_version).';
revoke all on function knowledge.ingest_status() from public;
grant execute on function knowledge.ingest_status() to knowledge_writer;
