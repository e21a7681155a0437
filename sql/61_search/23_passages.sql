create function knowledge.passages(chunk_ids uuid[], neighbours integer default 1)
returns table (
    place integer,
    document_id uuid,
    source_type text,
    source_id text,
    title text,
    uri text,
    heading text,
    body text,
    first_ordinal integer,
    last_ordinal integer,
    char_start integer,
    char_end integer,
    locator text,
    chunks uuid[]
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    readable integer[] := knowledge_private.readable_compartments();
begin
    if passages.chunk_ids is null or cardinality(passages.chunk_ids) > 1000 then
        perform knowledge_private.fail('KB005', 'chunk_ids must be a list of at most 1000');
    end if;
    if passages.neighbours is null or passages.neighbours not between 0 and 100 then
        perform knowledge_private.fail('KB005', 'neighbours must be from 0 to 100');
    end if;
    return query
    with hit as materialized (
        select h.rank, p.document_id, (l.piece).ordinal + (p.place - (l.piece).place) as ordinal, d.layout
        from unnest(passages.chunk_ids) with ordinality as h (chunk_id, rank)
        cross join lateral (
            select t.* from knowledge.places as t
            where t.org_id = asking.org_id and t.chunk_id = h.chunk_id and t.compartment_id = any (readable) offset 0
        ) as p
        cross join lateral (
            select t.* from knowledge.documents as t
            where t.org_id = asking.org_id and t.document_id = p.document_id offset 0
        ) as d
        cross join lateral (select knowledge_private.piece_at(d.layout, p.place) as piece offset 0) as l
    ),
    around as (
        select
            h.document_id, p.ordinal, p.place, p.shift, min(h.rank) as rank,
            min(h.rank) filter (where h.ordinal = p.ordinal) as own
        from hit as h
        cross join lateral (
            select s.ordinal + (t.place - s.place) as ordinal, t.place, s.shift
            from knowledge_private.pieces(
                h.layout, h.ordinal - passages.neighbours, h.ordinal + passages.neighbours) as s
            cross join lateral (
                select t.place from knowledge.places as t
                where
                    t.org_id = asking.org_id and t.document_id = h.document_id
                    and t.place between s.place and s.place + (s.many - 1)
                offset 0
            ) as t
            offset 0
        ) as p
        group by h.document_id, p.ordinal, p.place, p.shift
    ),
    -- Ordinals that follow each other without a gap are one passage.
    runs as (
        select a.*, a.ordinal - row_number() over (partition by a.document_id order by a.ordinal) as run from around as a
    )
    select
        (row_number() over (order by min(r.rank)))::integer,
        r.document_id, d.source_type, d.source_id, d.title, d.uri,
        (array_agg(c.heading order by r.own nulls last, r.ordinal))[1],
        string_agg(c.body, E'\n\n' order by r.ordinal),
        min(r.ordinal), max(r.ordinal), min(c.char_start), max(c.char_end),
        (array_agg(c.locator order by r.own nulls last, r.ordinal))[1],
        array_agg(c.chunk_id order by r.ordinal)
    from runs as r
    cross join lateral (
        select p.chunk_id, p.char_start + r.shift as char_start, p.char_end + r.shift as char_end, p.locator, t.heading, t.body
        from knowledge.places as p
        cross join lateral (
            select k.heading, k.body from knowledge.chunks as k
            where k.org_id = p.org_id and k.chunk_id = p.chunk_id offset 0
        ) as t
        where p.org_id = asking.org_id and p.document_id = r.document_id and p.place = r.place offset 0
    ) as c
    cross join lateral (
        select t.* from knowledge.documents as t where t.org_id = asking.org_id and t.document_id = r.document_id offset 0
    ) as d
    group by r.document_id, r.run, d.source_type, d.source_id, d.title, d.uri
    order by 1;
end
$$;

comment on function knowledge.passages(uuid[], integer) is
'Chunks that a search found, widened by up to neighbours (0 to 100) chunks on either side within their documents; where
these touch or overlap they are one passage. place: from 1, in the order of the best of chunk_ids in it. body: the texts with
a blank line between. char_start to char_end: in the source. heading and locator: of that best chunk. A chunk_id that is not there, or
not for this caller, is left out. KB001, KB002 context, KB005 more than 1000 chunk_ids, bad neighbours.';
revoke all on function knowledge.passages(uuid[], integer) from public;
grant execute on function knowledge.passages(uuid[], integer) to knowledge_reader;
