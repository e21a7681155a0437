-- Publishing the difference: what stays keeps its row, its id and its vector; what is new comes in; what is gone goes.

create function knowledge_private.pair_chunks(
    version knowledge.versions,
    loose int4multirange,
    base integer,
    out first_ordinal integer,
    out chunk_ids uuid[],
    out kept boolean[],
    out placed boolean[],
    out gone uuid[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The same text may stand in a document several times: the first pairs with the first, the second with the second.
    with staged as (
        select
            c.*,
            case when c.verdict = 'admitted' then c.content_hash end as key,
            row_number() over (partition by c.verdict = 'admitted', c.content_hash order by c.ordinal) as turn
        from (
            -- Not the whole row, which holds the text.
            select s.ordinal, s.verdict, s.content_hash, s.words, s.char_start, s.char_end, s.locator
            from knowledge_private.staged_chunks as s
            where s.org_id = version.org_id and s.version_id = version.version_id
        ) as c
    ),
    live as (
        select p.*, row_number() over (partition by p.content_hash order by p.place) as turn
        from knowledge_private.places_among(version.org_id, version.document_id, loose) as p
    ),
    pair as materialized (
        select
            s.ordinal,
            l.chunk_id as live_id,
            case when s.verdict <> 'rejected' then coalesce(l.chunk_id, knowledge_private.new_id()) end as chunk_id,
            l.place is not null
            and (l.place, l.words, l.char_start, l.char_end, l.locator)
            is not distinct from (base + s.ordinal, s.words, s.char_start, s.char_end, s.locator) as placed
        from staged as s
        full join live as l on l.content_hash = s.key and l.turn = s.turn
    ),
    span as (
        select min(p.ordinal) as low, max(p.ordinal) as high from pair as p
    )
    select
        coalesce(min(o.ordinal), 0),
        coalesce(array_agg(p.chunk_id order by o.ordinal), '{}'),
        coalesce(array_agg(p.live_id is not null order by o.ordinal), '{}'),
        coalesce(array_agg(coalesce(p.placed, false) order by o.ordinal), '{}'),
        array(select g.live_id from pair as g where g.ordinal is null)
    into first_ordinal, chunk_ids, kept, placed, gone
    from span
    cross join generate_series(span.low, span.high) as o (ordinal)
    left join pair as p on p.ordinal = o.ordinal;
end
$$;

comment on function knowledge_private.pair_chunks(knowledge.versions, int4multirange, integer) is
'Pairs the chunks that a version staged with their text with the loose live ones of its document that have the same text. By
ordinal - first_ordinal + 1: chunk_ids, the chunk it becomes (null: rejected, or staged as unchanged); kept, whether that one
is live; placed, whether its place, which is to be base + its ordinal, is right already. gone: the loose ones that pair with
none.';
revoke all on function knowledge_private.pair_chunks(knowledge.versions, int4multirange, integer) from public;

create function knowledge_private.count_chunks(
    org_id text, document_id uuid, compartment_id integer, sign integer, among int4multirange default '{[0,)}'
)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    update knowledge.compartments as c
    set chunks = c.chunks + sign * n.chunks, words = c.words + sign * n.words
    from (
        select count(*) as chunks, coalesce(sum(p.words), 0) as words
        from knowledge_private.places_among(count_chunks.org_id, count_chunks.document_id, count_chunks.among) as p
    ) as n
    where c.org_id = count_chunks.org_id and c.compartment_id = count_chunks.compartment_id
$$;

comment on function knowledge_private.count_chunks(text, uuid, integer, integer, int4multirange) is
'Adds (sign 1) or takes away (sign -1) the chunks of a document, or those at some places, in the counters of a compartment.';
revoke all on function knowledge_private.count_chunks(text, uuid, integer, integer, int4multirange) from public;

create function knowledge_private.publish_vectors(
    version knowledge.versions, compartment_id integer, first_ordinal integer, chunk_ids uuid[], kept boolean[],
    out embedded integer, out reused integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    insertion constant text :=
        'insert into %1$s (org_id, chunk_id, document_id, compartment_id, embedding) '
        'select s.org_id, $4[s.ordinal - $7 + 1], $3, $5, r.embedding from (%2$s) as s cross join %3$s order by s.ordinal';
    admitted constant text :=
        'select c.org_id, c.ordinal, c.content_hash from knowledge_private.staged_chunks as c '
        'where c.org_id = $1 and c.version_id = $2 and c.verdict = ''admitted'' '
        'and (not $6[c.ordinal - $7 + 1] or not exists ('
        'select from %s as v where v.org_id = $1 and v.chunk_id = $4[c.ordinal - $7 + 1] offset 0))';
    stored constant text :=
        'lateral (select e.embedding from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = s.ordinal offset 0) as r';
    others constant text :=
        ' and not exists (select from knowledge_private.staged_vectors as e '
        'where e.org_id = $1 and e.version_id = $2 and e.ordinal = c.ordinal offset 0)';
    vectors text := knowledge_private.vector_table(version.model_id);
begin
    execute format(insertion, vectors, format(admitted, vectors), stored)
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept, first_ordinal;
    get diagnostics embedded = row_count;
    execute format(insertion, vectors, format(admitted || others, vectors), knowledge_private.reusable(version.model_id))
    using version.org_id, version.version_id, version.document_id, chunk_ids, publish_vectors.compartment_id,
        publish_vectors.kept, first_ordinal;
    get diagnostics reused = row_count;
end
$$;

comment on function knowledge_private.publish_vectors(knowledge.versions, integer, integer, uuid[], boolean[]) is
'Gives the chunks of a version, which are in chunks already, the vectors that were staged for them, and the others that
have none those of chunks with the same text; what pair_chunks returned. Returns how many of each; a chunk that has a vector
keeps it.';
revoke all on function knowledge_private.publish_vectors(knowledge.versions, integer, integer, uuid[], boolean[]) from public;

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
            'select $1, $3, j.chunk_id, $2, $4, $4 from knowledge.places as j '
            'where j.org_id = $1 and j.document_id = $2 and ' || without_vector
            || ' order by j.place on conflict do nothing',
            knowledge_private.vector_table(version.model_id))
        using version.org_id, version.document_id, version.model_id, knowledge_private.clock();
        perform knowledge_private.take_turn(version.org_id, version.model_id);
        perform pg_notify('knowledge_embeddings', '');
    end if;
    return missing;
end
$$;

comment on function knowledge_private.queue_embeddings(knowledge.versions) is
'Queues the live chunks of a version''s document that have no vector of its model, and takes those that have one from the
queue. Returns how many have none. Workers that LISTEN to knowledge_embeddings are woken; the message says nothing.';
revoke all on function knowledge_private.queue_embeddings(knowledge.versions) from public;

create function knowledge_private.hold_chunks(version knowledge.versions, first_ordinal integer, chunk_ids uuid[])
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
        s.org_id, chunk_ids[s.ordinal - first_ordinal + 1], version.document_id, s.version_id, s.ordinal, s.reason,
        s.heading, s.body, s.tokens, s.content_hash, s.char_start, s.char_end, s.locator, version.model_id, e.embedding
    from knowledge_private.staged_chunks as s
    left join knowledge_private.staged_vectors as e
        on e.org_id = s.org_id and e.version_id = s.version_id and e.ordinal = s.ordinal
    where s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'quarantined'
    order by s.ordinal;
end
$$;

comment on function knowledge_private.hold_chunks(knowledge.versions, integer, uuid[]) is
'Puts the quarantined chunks of a version, as pair_chunks returned them, in the place of those of its document''s live one.';
revoke all on function knowledge_private.hold_chunks(knowledge.versions, integer, uuid[]) from public;

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
        select p.chunk_id from knowledge.places as p
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
    update knowledge.places as p set compartment_id = move_chunks.compartment_id
    where p.org_id = document.org_id and p.document_id = document.document_id;
end
$$;

comment on function knowledge_private.move_chunks(knowledge.documents, integer) is
'Moves the live chunks of a document, their places and vectors into another compartment.';
revoke all on function knowledge_private.move_chunks(knowledge.documents, integer) from public;

create function knowledge_private.index_anew(version knowledge.versions)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    stored record;
    new_tsv tsvector;
    new_words integer;
begin
    for stored in
        select p.place, c.chunk_id, c.heading, c.body
        from knowledge.places as p
        inner join knowledge.chunks as c on c.org_id = p.org_id and c.chunk_id = p.chunk_id
        where p.org_id = version.org_id and p.document_id = version.document_id
    loop
        new_tsv := knowledge_private.chunk_tsv(version.language, stored.heading, stored.body);
        new_words := knowledge_private.count_words(new_tsv);
        update knowledge.chunks as c set tsv = new_tsv, words = new_words
        where c.org_id = version.org_id and c.chunk_id = stored.chunk_id;
        update knowledge.places as p set words = new_words
        where p.org_id = version.org_id and p.document_id = version.document_id and p.place = stored.place;
    end loop;
end
$$;

comment on function knowledge_private.index_anew(knowledge.versions) is
'Indexes the live chunks of a version''s document in the version''s language.';
revoke all on function knowledge_private.index_anew(knowledge.versions) from public;

create function knowledge_private.unplace_chunks(
    version knowledge.versions, loose int4multirange, base integer, first_ordinal integer, placed boolean[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    stretch int4range;
begin
    for stretch in select r from unnest(loose) as r loop
        delete from knowledge.places as p
        where
            p.org_id = version.org_id and p.document_id = version.document_id
            and p.place between lower(stretch) and coalesce(upper(stretch) - 1, 2147483647)
            and placed[p.place - base - first_ordinal + 1] is not true;
    end loop;
end
$$;

comment on function knowledge_private.unplace_chunks(knowledge.versions, int4multirange, integer, integer, boolean[]) is
'Forgets the loose places that are not right already; arguments as lay_out and pair_chunks return them.';
revoke all on function knowledge_private.unplace_chunks(
    knowledge.versions, int4multirange, integer, integer, boolean[]
) from public;

create function knowledge_private.write_out(version knowledge.versions, kept knowledge_private.piece[], base integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    piece knowledge_private.piece;
begin
    foreach piece in array kept loop
        if exists (
            select from knowledge.places as p
            where
                p.org_id = version.org_id and p.document_id = version.document_id
                and p.place between piece.place and piece.place + (piece.many - 1)
                and (p.char_start + piece.shift < 0 or p.char_end + piece.shift >= 1000000000)
        ) then
            perform knowledge_private.fail('KB005', 'chunks were moved further than any text is long');
        end if;
        update knowledge.places as p
        set
            place = write_out.base + piece.ordinal + (p.place - piece.place), char_start = p.char_start + piece.shift,
            char_end = p.char_end + piece.shift
        where
            p.org_id = version.org_id and p.document_id = version.document_id
            and p.place between piece.place and piece.place + (piece.many - 1);
    end loop;
end
$$;

comment on function knowledge_private.write_out(knowledge.versions, knowledge_private.piece[], integer) is
'Writes what a version keeps at base + its ordinal; arguments as lay_out returns them.';
revoke all on function knowledge_private.write_out(knowledge.versions, knowledge_private.piece[], integer) from public;

create function knowledge_private.place_chunks(
    version knowledge.versions, compartment_id integer, base integer, first_ordinal integer, chunk_ids uuid[], placed boolean[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into knowledge.places (
        org_id, document_id, place, chunk_id, compartment_id, content_hash, words, char_start, char_end, locator
    )
    select
        s.org_id, version.document_id, base + s.ordinal, chunk_ids[s.ordinal - first_ordinal + 1],
        place_chunks.compartment_id, s.content_hash, s.words, s.char_start, s.char_end, s.locator
    from knowledge_private.staged_chunks as s
    where
        s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'admitted'
        and not placed[s.ordinal - first_ordinal + 1]
    order by s.ordinal;
end
$$;

comment on function knowledge_private.place_chunks(knowledge.versions, integer, integer, integer, uuid[], boolean[]) is
'Writes where the chunks are that a version staged with their text; arguments as lay_out and pair_chunks return them.';
revoke all on function knowledge_private.place_chunks(
    knowledge.versions, integer, integer, integer, uuid[], boolean[]
) from public;

create function knowledge_private.publish(
    version knowledge.versions, document knowledge.documents, compartment_id integer, new_language boolean,
    out layout knowledge_private.piece[], out kept integer, out embedded integer, out reused integer,
    out without_vector integer
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    laid record;
    pair record;
    chunk_ids uuid[];
    is_kept boolean[];
    chunk uuid;
    counted int4multirange := '{[0,)}';
    unchanged integer;
begin
    laid := knowledge_private.lay_out(version, document.layout);
    if document.compartment_id = publish.compartment_id and not new_language and not laid.written_out then
        counted := laid.loose;
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, document.compartment_id, -1, counted);
    if document.compartment_id <> publish.compartment_id then
        perform knowledge_private.move_chunks(document, publish.compartment_id);
    end if;
    if new_language then
        perform knowledge_private.index_anew(version);
    end if;
    pair := knowledge_private.pair_chunks(version, laid.loose, laid.base);
    chunk_ids := pair.chunk_ids;
    is_kept := pair.kept;

    insert into knowledge.chunks (
        org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, tokens, content_hash
    )
    select
        s.org_id, chunk_ids[s.ordinal - pair.first_ordinal + 1], version.document_id, publish.compartment_id, s.heading,
        s.body, s.tsv, s.words, s.tokens, s.content_hash
    from knowledge_private.staged_chunks as s
    where
        s.org_id = version.org_id and s.version_id = version.version_id and s.verdict = 'admitted'
        and not is_kept[s.ordinal - pair.first_ordinal + 1]
    order by s.ordinal;

    layout := laid.layout;
    unchanged := (select coalesce(sum(k.many), 0) from unnest(laid.kept) as k);
    kept := unchanged + cardinality(array_positions(is_kept, true));
    embedded := 0;
    reused := 0;
    without_vector := unchanged + cardinality(array_remove(chunk_ids, null));
    if version.model_id is not null then
        -- Before the chunks that are gone go: one of them may have the vector.
        select v.embedded, v.reused into embedded, reused
        from knowledge_private.publish_vectors(
            version, publish.compartment_id, pair.first_ordinal, chunk_ids, is_kept) as v;
    end if;

    foreach chunk in array pair.gone loop
        delete from knowledge.chunks as c where c.org_id = version.org_id and c.chunk_id = chunk;
    end loop;
    perform knowledge_private.hold_chunks(version, pair.first_ordinal, chunk_ids);
    perform knowledge_private.unplace_chunks(version, laid.loose, laid.base, pair.first_ordinal, pair.placed);
    if laid.written_out then
        perform knowledge_private.write_out(version, laid.kept, laid.base);
    end if;
    perform knowledge_private.place_chunks(
        version, publish.compartment_id, laid.base, pair.first_ordinal, chunk_ids, pair.placed);
    if version.model_id is not null then
        without_vector := knowledge_private.queue_embeddings(version);
    end if;
    perform knowledge_private.count_chunks(version.org_id, version.document_id, publish.compartment_id, 1, counted);
end
$$;

comment on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) is
'Makes the live chunks of a document those that its version staged, indexed anew where new_language; the caller has locked
the compartment that it is in and the one that it goes into. Returns how the document is laid out now, how many chunks were
kept, how many got a new vector, how many the vector of another chunk with the same text, and how many have none.
Each statement reads one table by its key: the planner knows too little of what was just staged to join well.';
revoke all on function knowledge_private.publish(knowledge.versions, knowledge.documents, integer, boolean) from public;
