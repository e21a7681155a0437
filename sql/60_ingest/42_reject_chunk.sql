create function knowledge.reject_chunk(chunk_id uuid, reason text default null)
returns table (document_id uuid, ordinal integer, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held knowledge.quarantine := knowledge_private.decide(reject_chunk.chunk_id, 'rejected', reject_chunk.reason);
    entry knowledge.audit_log := knowledge_private.audit(held.org_id, 'reject_chunk', jsonb_build_object(
        'content_hash', encode(held.content_hash, 'hex'), 'reason', reject_chunk.reason));
begin
    return query select held.document_id, held.ordinal, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.reject_chunk(uuid, text) is
'Forgets a quarantined chunk; the same text is rejected when the document is ingested again. Returns its place and the
receipt: number and digest (hex) of its entry in audit_log. KB004 when it is not in the quarantine of the context''s org and
exact scope.';
revoke all on function knowledge.reject_chunk(uuid, text) from public;
grant execute on function knowledge.reject_chunk(uuid, text) to knowledge_admin;
