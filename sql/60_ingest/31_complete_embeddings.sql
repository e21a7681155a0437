create function knowledge.complete_embeddings(claim uuid, chunk_ids uuid[], embeddings vector[])
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    model knowledge.models;
    stored integer;
begin
    if claim is null or chunk_ids is null or embeddings is null or cardinality(chunk_ids) <> cardinality(embeddings)
        or cardinality(chunk_ids) <> (select count(distinct c) from unnest(chunk_ids) as c)
    then
        perform knowledge_private.fail('KB005', 'give one vector for each chunk, each chunk once',
            jsonb_build_object('chunk_ids', cardinality(chunk_ids), 'embeddings', cardinality(embeddings)));
    end if;
    select m.* into model
    from knowledge.models as m
    where m.model_id = (
        select j.model_id from knowledge_private.embedding_jobs as j where j.claim = complete_embeddings.claim limit 1
    );
    if not found then
        return 0;
    end if;
    perform knowledge_private.check_vectors(model, embeddings);
    -- The documents first, as whoever publishes, moves or deletes their chunks does.
    perform from knowledge.documents as d
    where (d.org_id, d.document_id) in (
        select j.org_id, j.document_id from knowledge_private.embedding_jobs as j
        where j.claim = complete_embeddings.claim and j.chunk_id = any (complete_embeddings.chunk_ids)
    )
    order by d.org_id, d.document_id
    for share;
    execute format(
        'with done as ('
        'delete from knowledge_private.embedding_jobs as j '
        'where j.claim = $1 and j.chunk_id = any ($2) returning j.org_id, j.chunk_id) '
        'insert into %1$s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select c.org_id, c.chunk_id, c.document_id, c.compartment_id, %2$s.l2_normalize(e.embedding)::%2$s.halfvec '
        'from done inner join unnest($2, $3) as e (chunk_id, embedding) on e.chunk_id = done.chunk_id '
        'inner join knowledge.chunks as c on c.org_id = done.org_id and c.chunk_id = done.chunk_id '
        'order by c.org_id, c.chunk_id on conflict (org_id, chunk_id) do nothing',
        knowledge_private.vector_table(model.model_id), knowledge_private.vector_schema())
    using claim, chunk_ids, embeddings;
    get diagnostics stored = row_count;
    return stored;
end
$$;

comment on function knowledge.complete_embeddings(uuid, uuid[], vector[]) is
'Stores the vectors of claimed chunks: embeddings[i] belongs to chunk_ids[i]. From then on they are found by meaning. Returns
how many were stored; the others were deleted or claimed by another worker meanwhile. All, or none when one is refused.
KB005 lists of different length, a zero vector, KB007 another length than the model''s.';
revoke all on function knowledge.complete_embeddings(uuid, uuid[], vector[]) from public;
grant execute on function knowledge.complete_embeddings(uuid, uuid[], vector[]) to knowledge_trusted;
