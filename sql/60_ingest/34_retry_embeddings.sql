create function knowledge.retry_embeddings()
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    revived bigint;
begin
    perform from knowledge.documents as d
    where
        d.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and d.document_id in (
            select j.document_id from knowledge_private.embedding_jobs as j where j.org_id = asking.org_id and j.dead
        )
    order by d.document_id
    for share;
    update knowledge_private.embedding_jobs as j
    set dead = false, attempts = 0, claim = null, due_at = knowledge_private.clock()
    from knowledge.documents as d
    where
        j.org_id = asking.org_id and j.dead
        and d.org_id = j.org_id and d.document_id = j.document_id
        and d.org_scope is not distinct from asking.org_scope;
    get diagnostics revived = row_count;
    if revived > 0 then
        perform knowledge_private.take_turn(j.org_id, j.model_id)
        from (
            select distinct q.org_id, q.model_id
            from knowledge_private.embedding_jobs as q
            where q.org_id = asking.org_id and not q.dead
        ) as j;
        perform pg_notify('knowledge_embeddings', '');
    end if;
    return revived;
end
$$;

comment on function knowledge.retry_embeddings() is
'Puts the dead letters of the context''s org and exact scope back into the queue, due at once and with no failures counted;
returns how many.';
revoke all on function knowledge.retry_embeddings() from public;
grant execute on function knowledge.retry_embeddings() to knowledge_writer;
