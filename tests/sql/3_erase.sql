-- Erasing with psql alone, with a receipt.

\echo == one document
begin;
select knowledge.set_context(:'org', '{staff}') \gset
select chunks, versions, audit_entry, receipt from knowledge.delete_source('wiki', 'salaries') \gset
select :'chunks' as chunks, :'versions' as versions, length(:'receipt') as receipt_length;
select intact, receipt_entry = :audit_entry as found from knowledge.verify_audit_log(:'receipt');
select source_id from knowledge.list_sources();
commit;

\echo == a dry run of everything, then everything
begin;
select knowledge.set_context(:'org', '{staff}') \gset
select documents, chunks, vectors, versions, staged_chunks, compartments, receipt
from knowledge.delete_by_scope(entire_org => true);
select source_id from knowledge.list_sources();
select documents, chunks, vectors, versions, staged_chunks, compartments, length(receipt) as receipt_length
from knowledge.delete_by_scope(entire_org => true, dry_run => false);
commit;

\echo == nothing is left, and the name is not used again
begin;
select knowledge.set_context(:'org', '{staff}') \gset
select count(*) from knowledge.chunks;
select status from knowledge.orgs;
select entry, action, details -> 'documents' as documents, details -> 'chunks' as chunks
from knowledge.audit_log order by entry;
select intact, entries from knowledge.verify_audit_log();
\set ON_ERROR_ROLLBACK on
select * from knowledge.search_scoped('holiday');
select * from knowledge.begin_version('wiki', 'handbook', 'v1', 1, array['everyone']);
commit;
