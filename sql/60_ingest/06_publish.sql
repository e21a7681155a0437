-- Publishing the difference: what stays keeps its row, its id and its vector; what is new comes in; what is gone goes.

create function knowledge_private.pair_chunks(
    version knowledge.versions,
    out chunk_ids uuid[],
    out kept boolean[],
    out words integer[],
    out placed boolean[],
    out gone uuid[]
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
            coalesce(
                s.words, l.words, max(l.words) over (partition by coalesce(s.content_hash, l.content_hash))
            ) as words,
            case when s.verdict = 'rejected' then null else coalesce(l.chunk_id, knowledge_private.new_id()) end as chunk_id,
            l.ordinal is not null
            and (l.ordinal, l.words, l.char_start, l.char_end, l.locator)
            is not distinct from (s.ordinal, coalesce(s.words, l.words), s.char_start, s.char_end, s.locator) as placed
        from (
            select
                c.ordinal,
                c.verdict,
                c.words,
                c.char_start,
                c.char_end,
                c.locator,
                case when c.verdict = 'admitted' then c.content_hash end as content_hash,
                row_number() over (partition by c.verdict = 'admitted', c.content_hash order by c.ordinal) as turn
            from knowledge_private.staged(version) as c
        ) as s
        full join (
            select
                p.chunk_id,
                p.ordinal,
                p.words,
                p.char_start,
                p.char_end,
                p.locator,
                p.content_hash,
                row_number() over (partition by p.content_hash order by p.ordinal) as turn
            from knowledge.positions as p
            where p.org_id = version.org_id and p.document_id = version.document_id
        ) as l on l.content_hash = s.content_hash and l.turn = s.turn
    )
    select
        array_agg(p.chunk_id order by p.ordinal) filter (where p.ordinal is not null),
        array_agg(p.live_id is not null order by p.ordinal) filter (where p.ordinal is not null),
        array_agg(p.words order by p.ordinal) filter (where p.ordinal is not null),
        array_agg(p.placed order by p.ordinal) filter (where p.ordinal is not null),
        coalesce(array_agg(p.live_id) filter (where p.ordinal is null), '{}')
    from pair as p
$$;

comment on function knowledge_private.pair_chunks(knowledge.versions) is
'Pairs the admitted chunks of a version with the live ones of its document that have the same text. By ordinal + 1:
chunk_ids, the chunk it becomes (null: rejected); kept, whether that one is live; words, its length; placed, whether its
position is right already. gone: the live chunks that pair with none.';
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
    version knowledge.versions, compartment_id integer, chunk_ids uuid[], kept boolean[],
    out embedded integer, out reused integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    insertion constant text :=
        'insert into %1$s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select s.org_id, $4[s.ordinal + 1], $3, $5, r.embedding from (%2$s) as s cross join %3$s order by s.ordinal';
    admitted constant text :=
        'select c.org_id, c.ordinal, c.content_hash from knowledge_private.staged_chunks as c '
        'where c.org_id = $1 and c.version_id = $2 and c.verdict = ''admitted'' and (not $6[c.ordinal + 1] or not exists ('
        'select from %s as v where v.org_id = $1 and v.chunk_id = $4[c.ordinal + 1] offset 0))';
    stored constant text :=
        'lateral (select e.embedding from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = s.ordinal offset 0) as r';
    others constant text :=
        ' and not exists (select from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = c.ordinal offset 0) '
        'union all select $1, u.ordinal, u.content_hash from knowledge_private.staged($7) as u '
        'where not u.with_text and not $6[u.ordinal + 1]';
    vectors text := knowledge_private.vector_table(version.model_id);
begin
    execute format(insertion, vectors, format(admitted, vectors), stored)
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept;
    get diagnostics embedded = row_count;
    execute format(insertion, vectors, format(admitted || others, vectors), knowledge_private.reusable(version.model_id))
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept, version;
    get diagnostics reused = row_count;
end
$$;

comment on function knowledge_private.publish_vectors(knowledge.versions, integer, uuid[], boolean[]) is
'Gives the chunks of a version, which are in chunks already, the vectors that were staged for them, and the others that
have none those of chunks with the same text. Returns how many of each; a chunk that has a vector keeps it.';
revoke all on function knowledge_private.publish_vectors(knowledge.versions, integer, uuid[], boolean[]) from public;

create function knowledge_private.queue_embeddings(version knowledge.versions)
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    without_vector constant text := 'not exists ('
        'select from %s as v where v.org_id = $1 and v.chunk_id = j.chunk_id offset 0)';
    missing constant integer := knowledge_private.missing_vectors(version);
begin
    execute format(
        'delete from knowledge_private.embedding_jobs as j '
        'where j.org_id = $1 and j.document_id = $2 and j.model_id = $3 and not ' || without_vector,
        knowledge_private.vector_table(version.model_id))
    using version.org_id, version.document_id, version.model_id;
    if missing > 0 then
        execute format(
            'insert into knowledge_private.embedding_jobs (org_id, model_id, chunk_id, document_id, due_at, queued_at) '
            'select $1, $3, j.chunk_id, $2, $4, $4 from knowledge.positions as j '
            'where j.org_id = $1 and j.document_id = $2 and ' || without_vector
            || ' order by j.ordinal on conflict do nothing',
            knowledge_private.vector_table(version.model_id))
        using version.org_id, version.document_id, version.model_id, knowledge_private.clock();
        insert into knowledge_private.embedding_turns (org_id, model_id)
        values (version.org_id, version.model_id)
        on conflict do nothing;
        perform pg_notify('knowledge_embeddings', '');
    end if;
    return missing;
end
$$;

comment on function knowledge_private.queue_embeddings(knowledge.versions) is
'Queues the live chunks of a version''s document that have no vector of its model, and takes those that have one from the
queue. Returns how many have none. Workers that LISTEN to knowledge_embeddings are woken; the message says nothing.';
revoke all on function knowledge_private.queue_embeddings(knowledge.versions) from public;

create function knowledge_private.hold_chunks(version knowledge.versions, chunk_ids uuid[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from knowledge.quarantine as q
    where q.org_id = version.org_id and q.document_id = version.document_id;
    insert into knowledge.quarantine (
        org_id, chunk_id, document_id, version_id, ordinal, reason, heading, body, tokens, content_hash, char_start,
        char_end, locator, model_id, embedding
    )
    select
        s.org_id, chunk_ids[s.ordinal + 1], version.document_id, s.version_id, s.ordinal, s.reason, s.heading, s.body,
        s.tokens, s.content_hash, s.char_start, s.char_end, s.locator, version.model_id, e.embedding
    from knowledge_private.staged_chunks as s
    left join knowledge_private.staged_vectors as e
        on e.org_id = s.org_id and e.version_id = s.version_id and e.ordinal = s.ordinal
    where s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'quarantined'
    order by s.ordinal;
end
$$;

comment on function knowledge_private.hold_chunks(knowledge.versions, uuid[]) is
'Puts the quarantined chunks of a version in the place of those of its document''s live one.';
revoke all on function knowledge_private.hold_chunks(knowledge.versions, uuid[]) from public;

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

create function knowledge_private.index_anew(version knowledge.versions)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    place record;
    new_tsv tsvector;
    new_words integer;
begin
    for place in
        select p.ordinal, c.chunk_id, c.heading, c.body
        from knowledge.positions as p
        inner join knowledge.chunks as c on c.org_id = p.org_id and c.chunk_id = p.chunk_id
        where p.org_id = version.org_id and p.document_id = version.document_id
    loop
        new_tsv := knowledge_private.chunk_tsv(version.language, place.heading, place.body);
        new_words := knowledge_private.count_words(new_tsv);
        update knowledge.chunks as c set tsv = new_tsv, words = new_words
        where c.org_id = version.org_id and c.chunk_id = place.chunk_id;
        update knowledge.positions as p set words = new_words
        where p.org_id = version.org_id and p.document_id = version.document_id and p.ordinal = place.ordinal;
    end loop;
end
$$;

comment on function knowledge_private.index_anew(knowledge.versions) is
'Indexes the live chunks of a version''s document in the version''s language.';
revoke all on function knowledge_private.index_anew(knowledge.versions) from public;

create function knowledge_private.place_chunks(
    version knowledge.versions, compartment_id integer, chunk_ids uuid[], words integer[], placed boolean[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    -- A position that holds another chunk than it must is replaced; the others are left alone.
    delete from knowledge.positions as p
    where
        p.org_id = version.org_id and p.document_id = version.document_id
        and p.chunk_id is distinct from chunk_ids[p.ordinal + 1];
    insert into knowledge.positions as p (
        org_id, document_id, ordinal, chunk_id, compartment_id, content_hash, words, char_start, char_end, locator
    )
    select
        version.org_id, version.document_id, s.ordinal, chunk_ids[s.ordinal + 1], place_chunks.compartment_id,
        s.content_hash, place_chunks.words[s.ordinal + 1], s.char_start, s.char_end, s.locator
    from knowledge_private.staged(version) as s
    where s.verdict = 'admitted' and not placed[s.ordinal + 1]
    order by s.ordinal
    on conflict (org_id, document_id, ordinal) do update
    set
        words = excluded.words, char_start = excluded.char_start, char_end = excluded.char_end,
        locator = excluded.locator;
end
$$;

comment on function knowledge_private.place_chunks(knowledge.versions, integer, uuid[], integer[], boolean[]) is
'Writes the positions of the admitted chunks of a version; chunk_ids, words and placed as pair_chunks returns them.';
revoke all on function knowledge_private.place_chunks(knowledge.versions, integer, uuid[], integer[], boolean[]) from public;

create function knowledge_private.publish(
    version knowledge.versions, document knowledge.documents, compartment_id integer, new_language boolean,
    out kept integer, out embedded integer, out reused integer, out without_vector integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    pair record;
    chunk_ids uuid[];
    is_kept boolean[];
    chunk uuid;
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
        perform knowledge_private.index_anew(version);
    end if;
    pair := knowledge_private.pair_chunks(version);
    chunk_ids := pair.chunk_ids;
    is_kept := pair.kept;

    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    select
        s.org_id, chunk_ids[s.ordinal + 1], version.document_id, publish.compartment_id, s.heading, s.body, s.tsv,
        s.words, s.tokens, s.content_hash
    from knowledge_private.staged_chunks as s
    where
        s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'admitted'
        and not is_kept[s.ordinal + 1]
    order by s.ordinal;
    -- A text that stands in the document more often than before may have been staged without it.
    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    select
        version.org_id, chunk_ids[s.ordinal + 1], version.document_id, publish.compartment_id, c.heading, c.body, c.tsv,
        c.words, c.tokens, c.content_hash
    from knowledge_private.staged(version) as s
    cross join lateral (
        select l.* from knowledge.chunks as l
        where l.org_id = version.org_id and l.document_id = version.document_id and l.content_hash = s.content_hash
        limit 1
    ) as c
    where not s.with_text and not is_kept[s.ordinal + 1];

    kept := cardinality(array_positions(is_kept, true));
    embedded := 0;
    reused := 0;
    without_vector := cardinality(array_remove(chunk_ids, null));
    if version.model_id is not null then
        -- Before the chunks that are gone go: one of them may have the vector.
        select v.embedded, v.reused into embedded, reused
        from knowledge_private.publish_vectors(version, publish.compartment_id, chunk_ids, is_kept) as v;
    end if;

    foreach chunk in array pair.gone loop
        delete from knowledge.chunks as c where c.org_id = version.org_id and c.chunk_id = chunk;
    end loop;
    perform knowledge_private.hold_chunks(version, chunk_ids);
    perform knowledge_private.place_chunks(version, publish.compartment_id, chunk_ids, pair.words, pair.placed);
    if version.model_id is not null then
        without_vector := knowledge_private.queue_embeddings(version);
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, publish.compartment_id, 1);
end
$$;

comment on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) is
'Makes the live chunks of a document those that its version staged, indexed anew where new_language. Returns how many were
kept, how many got a new vector, how many the vector of another chunk with the same text, and how many have none.
Each statement reads one table by its key: the planner knows too little of what was just staged to join well.';
revoke all on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) from public;
