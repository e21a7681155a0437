create function knowledge.delete_source(source_type text, source_id text)
returns table (chunks bigint, versions bigint, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs := knowledge_private.use_org(asking.org_id, audits => true);
    document knowledge.documents;
    erased jsonb;
    entry knowledge.audit_log;
begin
    select d.* into document
    from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.source_type = delete_source.source_type
        and knowledge_private.text_key(d.source_id) = knowledge_private.text_key(delete_source.source_id)
    for update;
    if not found then
        perform knowledge_private.fail('KB004', 'no such source');
    end if;
    erased := knowledge_private.erase_documents(asking, array[document.document_id]);
    entry := knowledge_private.audit(asking.org_id, 'delete_source', erased);
    return query
    select (erased ->> 'chunks')::bigint, (erased ->> 'versions')::bigint, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.delete_source(text, text) is
'Erases one document of the context''s org and exact scope with its versions, chunks and vectors. Returns what was erased
and the receipt: the number and digest (hex) of its entry in audit_log. KB004 when there is none, or it is another''s.';
revoke all on function knowledge.delete_source(text, text) from public;
grant execute on function knowledge.delete_source(text, text) to knowledge_writer;
