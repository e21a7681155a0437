create function knowledge.release_chunk(chunk_id uuid, reason text default null)
returns table (document_id uuid, ordinal integer, embedded boolean, audit_entry bigint, receipt text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held knowledge.quarantine := knowledge_private.decide(release_chunk.chunk_id, 'admitted', release_chunk.reason);
    compartment knowledge.compartments;
    version knowledge.versions;
    tsv tsvector;
    entry knowledge.audit_log;
begin
    select v.* into version
    from knowledge.versions as v
    where v.org_id = held.org_id and v.version_id = held.version_id;
    select c.* into compartment
    from knowledge.compartments as c
    where
        c.org_id = held.org_id
        and c.compartment_id = (
            select d.compartment_id from knowledge.documents as d
            where d.org_id = held.org_id and d.document_id = held.document_id
        )
    for no key update;
    tsv := knowledge_private.chunk_tsv(compartment.language, held.heading, held.body);
    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    values (
        held.org_id, held.chunk_id, held.document_id, compartment.compartment_id, held.heading, held.body, tsv,
        knowledge_private.count_words(tsv), held.tokens, held.content_hash
    );
    insert into knowledge.places (
        org_id, document_id, place, chunk_id, compartment_id, content_hash, words, char_start, char_end, locator
    )
    select
        held.org_id, held.document_id, s.place, held.chunk_id, compartment.compartment_id, held.content_hash,
        knowledge_private.count_words(tsv), held.char_start - s.shift, held.char_end - s.shift, held.locator
    from knowledge.documents as d
    cross join knowledge_private.pieces(d.layout, held.ordinal, held.ordinal) as s
    where d.org_id = held.org_id and d.document_id = held.document_id;
    update knowledge.compartments as c
    set chunks = c.chunks + 1, words = c.words + knowledge_private.count_words(tsv)
    where c.org_id = held.org_id and c.compartment_id = compartment.compartment_id;
    embedded := held.embedding is not null and version.model_id = held.model_id;
    if embedded then
        execute format(
            'insert into %s (org_id, chunk_id, document_id, compartment_id, embedding) values ($1, $2, $3, $4, $5)',
            knowledge_private.vector_table(held.model_id))
        using held.org_id, held.chunk_id, held.document_id, compartment.compartment_id, held.embedding;
    end if;
    if version.model_id is not null then
        perform knowledge_private.queue_embeddings(version);
    end if;
    entry := knowledge_private.audit(held.org_id, 'release_chunk', jsonb_build_object(
        'content_hash', encode(held.content_hash, 'hex'), 'reason', release_chunk.reason));
    return query
    select held.document_id, held.ordinal, release_chunk.embedded, entry.entry, encode(entry.digest, 'hex');
end
$$;

comment on function knowledge.release_chunk(uuid, text) is
'Publishes a quarantined chunk into the live version of its document: from the commit on it is found. The same text is
admitted when the document is ingested again. Returns its place; embedded, whether it has its vector (else a worker is to
make it); and the receipt: number and digest (hex) of its entry in audit_log. KB004 when it is not in the quarantine of the
context''s org and exact scope.';
revoke all on function knowledge.release_chunk(uuid, text) from public;
grant execute on function knowledge.release_chunk(uuid, text) to knowledge_admin;
