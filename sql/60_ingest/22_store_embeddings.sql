create function knowledge.store_embeddings(
    version_id uuid, lease bigint, fingerprint text, ordinals integer[], embeddings vector[]
)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(store_embeddings.version_id, store_embeddings.lease);
    model knowledge.models;
    stored integer;
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    select m.* into model from knowledge.models as m where m.model_id = version.model_id;
    if store_embeddings.fingerprint is distinct from model.fingerprint or model.fingerprint is null then
        perform knowledge_private.fail('KB007', 'these vectors are not of the version''s model',
            jsonb_build_object('fingerprint', store_embeddings.fingerprint, 'model', model.name));
    end if;
    if ordinals is null or embeddings is null or cardinality(ordinals) <> cardinality(embeddings)
        or coalesce(array_ndims(ordinals), 1) <> 1 or array_position(ordinals, null) is not null
        or cardinality(ordinals) <> (select count(distinct o) from unnest(ordinals) as o)
    then
        perform knowledge_private.fail('KB005', 'give one vector for each ordinal, each ordinal once',
            jsonb_build_object('ordinals', cardinality(ordinals), 'embeddings', cardinality(embeddings)));
    end if;
    perform knowledge_private.check_vectors(model, embeddings);

    delete from knowledge_private.staged_vectors as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = any (ordinals);
    execute format(
        'insert into knowledge_private.staged_vectors (org_id, version_id, ordinal, embedding) '
        'select $1, $2, e.ordinal, %1$s.l2_normalize(e.embedding)::%1$s.halfvec '
        'from unnest($3, $4) as e (ordinal, embedding) '
        'where exists (select from knowledge_private.staged_chunks as c '
        'where c.org_id = $1 and c.version_id = $2 and c.ordinal = e.ordinal offset 0)',
        knowledge_private.vector_schema())
    using version.org_id, version.version_id, ordinals, embeddings;
    get diagnostics stored = row_count;
    if stored <> cardinality(ordinals) then
        perform knowledge_private.fail('KB005', 'stage the chunks before their vectors: an ordinal is not staged');
    end if;
    return stored;
end
$$;

comment on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) is
'Stores the vectors of staged chunks: embeddings[i] belongs to ordinals[i]. fingerprint is the embedder''s and must be
that of the version''s model. Vectors are normalised to length 1. Returns how many were stored: all, or none.
KB004 no such version, KB005 lists of different length, an ordinal that is not staged, a zero vector, KB007 another model
or length, KB008 published already, KB009 lease lost.';
revoke all on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) from public;
grant execute on function knowledge.store_embeddings(uuid, bigint, text, integer[], vector[]) to knowledge_writer;
