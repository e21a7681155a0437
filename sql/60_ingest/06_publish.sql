-- Publishing the difference: what stays keeps its row, its id and its vector; what is new comes in; what is gone goes.

create function knowledge_private.pair_chunks(
    version knowledge.versions, out chunk_ids uuid[], out kept boolean[], out gone uuid[]
)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    -- The same text may stand in a document several times: the first pairs with the first, the second with the second.
    with pair as (
        select
            s.ordinal,
            l.chunk_id as live_id,
            coalesce(l.chunk_id, knowledge_private.new_id()) as chunk_id
        from (
            select
                c.ordinal,
                c.content_hash,
                row_number() over (partition by c.content_hash order by c.ordinal) as turn
            from knowledge_private.staged_chunks as c
            where c.org_id = version.org_id and c.version_id = version.version_id
        ) as s
        full join (
            select
                p.chunk_id,
                p.content_hash,
                row_number() over (partition by p.content_hash order by p.ordinal) as turn
            from knowledge.positions as p
            where p.org_id = version.org_id and p.document_id = version.document_id
        ) as l on l.content_hash = s.content_hash and l.turn = s.turn
    )
    select
        array_agg(p.chunk_id order by p.ordinal) filter (where p.ordinal is not null),
        array_agg(p.live_id is not null order by p.ordinal) filter (where p.ordinal is not null),
        coalesce(array_agg(p.chunk_id) filter (where p.ordinal is null), '{}')
    from pair as p
$$;

comment on function knowledge_private.pair_chunks(knowledge.versions) is
'Pairs the staged chunks of a version with the live ones of its document that have the same text. chunk_ids and kept, by
ordinal + 1: the chunk it becomes, and whether that one is live; gone: the live chunks that pair with none.';
revoke all on function knowledge_private.pair_chunks(knowledge.versions) from public;

create function knowledge_private.count_chunks(org_id text, document_id uuid, compartment_id integer, sign integer)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    update knowledge.compartments as c
    set chunks = c.chunks + sign * n.chunks, words = c.words + sign * n.words
    from (
        select count(*) as chunks, coalesce(sum(p.words), 0) as words
        from knowledge.positions as p
        where p.org_id = count_chunks.org_id and p.document_id = count_chunks.document_id
    ) as n
    where c.org_id = count_chunks.org_id and c.compartment_id = count_chunks.compartment_id
$$;

comment on function knowledge_private.count_chunks(text, uuid, integer, integer) is
'Adds (sign 1) or takes away (sign -1) the chunks of a document in the counters of a compartment.';
revoke all on function knowledge_private.count_chunks(text, uuid, integer, integer) from public;

create function knowledge_private.publish_vectors(
    version knowledge.versions, compartment_id integer, chunk_ids uuid[], out embedded integer, out reused integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    insertion constant text :=
        'insert into %s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select s.org_id, $4[s.ordinal + 1], $3, $5, %s '
        'from knowledge_private.staged_chunks as s %s '
        'where s.org_id = $1 and s.version_id = $2 and %s order by s.ordinal on conflict do nothing';
    vectors text := knowledge_private.vector_table(version.model_id);
begin
    execute format(insertion, vectors, 's.embedding', '', 's.embedding is not null')
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id;
    get diagnostics embedded = row_count;
    execute format(insertion, vectors, 'r.embedding',
        'cross join ' || knowledge_private.reusable(version.model_id), 's.embedding is null')
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id;
    get diagnostics reused = row_count;
end
$$;

comment on function knowledge_private.publish_vectors(knowledge.versions, integer, uuid[]) is
'Gives the chunks of a version, which are in chunks already, the vectors that were staged for them, and the others that
have none those of chunks with the same text. Returns how many of each; a chunk that has a vector keeps it.';
revoke all on function knowledge_private.publish_vectors(knowledge.versions, integer, uuid[]) from public;

create function knowledge_private.move_chunks(document knowledge.documents, compartment_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    model record;
    moved uuid;
begin
    for moved in
        select p.chunk_id from knowledge.positions as p
        where p.org_id = document.org_id and p.document_id = document.document_id
    loop
        update knowledge.chunks as c set compartment_id = move_chunks.compartment_id
        where c.org_id = document.org_id and c.chunk_id = moved;
    end loop;
    for model in select m.model_id from knowledge.models as m where m.state <> 'retired' loop
        execute format('update %s set compartment_id = $3 where org_id = $1 and document_id = $2',
            knowledge_private.vector_table(model.model_id))
        using document.org_id, document.document_id, move_chunks.compartment_id;
    end loop;
    update knowledge.positions as p set compartment_id = move_chunks.compartment_id
    where p.org_id = document.org_id and p.document_id = document.document_id;
end
$$;

comment on function knowledge_private.move_chunks(knowledge.documents, integer) is
'Moves the live chunks of a document, their positions and vectors into another compartment.';
revoke all on function knowledge_private.move_chunks(knowledge.documents, integer) from public;

create function knowledge_private.publish(
    version knowledge.versions, document knowledge.documents, compartment_id integer, new_language boolean,
    out kept integer, out embedded integer, out reused integer, out without_vector integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    pair record := knowledge_private.pair_chunks(version);
    chunk_ids uuid[] := pair.chunk_ids;
    is_kept boolean[] := pair.kept;
    chunk uuid;
    staged record;
begin
    perform from knowledge.compartments as c
    where c.org_id = version.org_id and c.compartment_id in (document.compartment_id, publish.compartment_id)
    order by c.compartment_id
    for no key update;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, document.compartment_id, -1);
    if document.compartment_id <> publish.compartment_id then
        perform knowledge_private.move_chunks(document, publish.compartment_id);
    end if;
    if new_language then
        for staged in
            select s.ordinal, s.tsv, s.words from knowledge_private.staged_chunks as s
            where s.org_id = version.org_id and s.version_id = version.version_id and is_kept[s.ordinal + 1]
        loop
            update knowledge.chunks as c set tsv = staged.tsv, words = staged.words
            where c.org_id = version.org_id and c.chunk_id = chunk_ids[staged.ordinal + 1];
        end loop;
    end if;

    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    select
        s.org_id, chunk_ids[s.ordinal + 1], version.document_id, publish.compartment_id, s.heading, s.body, s.tsv,
        s.words, s.tokens, s.content_hash
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id and not is_kept[s.ordinal + 1]
    order by s.ordinal;

    kept := cardinality(array_positions(is_kept, true));
    embedded := 0;
    reused := 0;
    without_vector := version.chunk_count;
    if version.model_id is not null then
        -- Before the chunks that are gone go: one of them may have the vector.
        select v.embedded, v.reused into embedded, reused
        from knowledge_private.publish_vectors(version, publish.compartment_id, chunk_ids) as v;
    end if;

    foreach chunk in array pair.gone loop
        delete from knowledge.chunks as c where c.org_id = version.org_id and c.chunk_id = chunk;
    end loop;
    -- A position that holds another chunk than it must is replaced; the others are left alone.
    delete from knowledge.positions as p
    where
        p.org_id = version.org_id and p.document_id = version.document_id
        and p.chunk_id is distinct from chunk_ids[p.ordinal + 1];
    insert into knowledge.positions as p (
        org_id, document_id, ordinal, chunk_id, compartment_id, content_hash, words, char_start, char_end
    )
    select
        s.org_id, version.document_id, s.ordinal, chunk_ids[s.ordinal + 1], publish.compartment_id, s.content_hash,
        s.words, s.char_start, s.char_end
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id
    order by s.ordinal
    on conflict (org_id, document_id, ordinal) do update
    set words = excluded.words, char_start = excluded.char_start, char_end = excluded.char_end
    where
        (p.words, p.char_start, p.char_end)
        is distinct from (excluded.words, excluded.char_start, excluded.char_end);

    if version.model_id is not null then
        execute format('select $3 - count(*)::integer from %s where org_id = $1 and document_id = $2',
            knowledge_private.vector_table(version.model_id))
        into without_vector
        using version.org_id, version.document_id, version.chunk_count;
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, publish.compartment_id, 1);
end
$$;

comment on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) is
'Makes the live chunks of a document those that its version staged, indexed anew where new_language. Returns how many were
kept, how many got a new vector, how many the vector of another chunk with the same text, and how many have none.
Each statement reads one table by its key: the planner knows too little of what was just staged to join well.';
revoke all on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) from public;
