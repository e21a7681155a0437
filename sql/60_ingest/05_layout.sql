-- A document is laid out in pieces: stretches of chunks that were written together. An edit writes the chunks it brings and
-- a layout of a few pieces; what stands behind it moves with its piece, and no row of it is written.

create function knowledge_private.pieces(layout knowledge_private.piece[], low integer, high integer)
returns setof knowledge_private.piece
language sql
immutable
begin atomic
    select
        greatest(s.ordinal, low) as ordinal,
        s.place + (greatest(s.ordinal, low) - s.ordinal) as place,
        least(s.ordinal + (s.many - 1), high) - greatest(s.ordinal, low) + 1 as many,
        s.shift
    from unnest(coalesce(layout, '{"(0,0,2147483647,0)"}')) as s
    where s.ordinal <= high and s.ordinal + (s.many - 1) >= low;
end;

comment on function knowledge_private.pieces(knowledge_private.piece[], integer, integer) is
'What a layout has from ordinal low to high: whole pieces, or parts of them.';
revoke all on function knowledge_private.pieces(knowledge_private.piece[], integer, integer) from public;

create function knowledge_private.piece_at(layout knowledge_private.piece[], place integer)
returns knowledge_private.piece
language sql
immutable
begin atomic
    select case
        when layout is null then row(0, 0, 2147483647, 0)::knowledge_private.piece
        else (select s from unnest(layout) as s where piece_at.place between s.place and s.place + (s.many - 1))
    end;
end;

comment on function knowledge_private.piece_at(knowledge_private.piece[], integer) is 'The piece that has a stored place.';
revoke all on function knowledge_private.piece_at(knowledge_private.piece[], integer) from public;

create function knowledge_private.places_among(org_id text, document_id uuid, among int4multirange)
returns setof knowledge.places
language sql
stable
begin atomic
    select p.*
    from unnest(places_among.among) as r
    cross join lateral (
        select t.* from knowledge.places as t
        where
            t.org_id = places_among.org_id and t.document_id = places_among.document_id
            and t.place between lower(r) and coalesce(upper(r) - 1, 2147483647)
        offset 0
    ) as p;
end;

comment on function knowledge_private.places_among(text, uuid, int4multirange) is
'What a document has at some places; a range without an end goes to the last.';
revoke all on function knowledge_private.places_among(text, uuid, int4multirange) from public;

create function knowledge_private.lay_out(
    version knowledge.versions,
    old knowledge_private.piece[],
    out layout knowledge_private.piece[],
    out kept knowledge_private.piece[],
    out loose int4multirange,
    out base integer,
    out written_out boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- So many are looked through for each chunk that is found.
    most constant integer := 64;
    -- Places are integers, and each edit takes new ones.
    last_place constant integer := 1000000000;
    live_count constant integer := (
        select v.chunk_count from knowledge.versions as v
        where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live'
    );
begin
    select
        coalesce(array_agg(
            row(lower(u.ordinals) + (s.ordinal - u.live_ordinal), s.place, s.many, s.shift + u.shift)::knowledge_private.piece
            order by lower(u.ordinals) + (s.ordinal - u.live_ordinal)), '{}'),
        '{[0,)}' - coalesce(range_agg(int4range(s.place, s.place + s.many)), '{}')
    into kept, loose
    from knowledge_private.staged_unchanged as u
    cross join knowledge_private.pieces(
        old, u.live_ordinal, u.live_ordinal + (upper(u.ordinals) - lower(u.ordinals)) - 1) as s
    where u.org_id = version.org_id and u.version_id = version.version_id;
    if exists (select from unnest(kept) as k where abs(k.shift) >= 1000000000) then
        perform knowledge_private.fail('KB005', 'chunks were moved further than any text is long');
    end if;
    base := 0;
    written_out := cardinality(kept) > 0;
    if not written_out then
        return;
    end if;
    select coalesce(max(s.place + s.many), live_count) into base from unnest(old) as s;
    select array_agg(p.piece order by (p.piece).ordinal) into layout
    from (
        select row(lower(r), base + lower(r), upper(r) - lower(r), 0)::knowledge_private.piece as piece
        from unnest(int4multirange(int4range(0, version.chunk_count)) - (
            select range_agg(int4range(k.ordinal, k.ordinal + k.many)) from unnest(kept) as k
        )) as r
        union all
        select k from unnest(kept) as k
    ) as p;
    written_out := cardinality(layout) > most or base > last_place;
    if written_out then
        if (select min(s.place) >= version.chunk_count from unnest(old) as s) then
            base := 0;
            layout := null;
        else
            layout := array[row(0, base, version.chunk_count, 0)::knowledge_private.piece];
        end if;
    elsif layout = array[row(0, 0, version.chunk_count, 0)::knowledge_private.piece] then
        layout := null;
    end if;
end
$$;

comment on function knowledge_private.lay_out(knowledge.versions, knowledge_private.piece[]) is
'How a version is to be laid out, whose document is laid out as old. kept: what it staged as unchanged, at the ordinals of the
version and the places it has. loose: the other places. base: a chunk that is staged with its text is to be at base + its
ordinal. written_out: the pieces would be too many, or the places too high, and what is kept is to be written at base + its
ordinal as well.';
revoke all on function knowledge_private.lay_out(knowledge.versions, knowledge_private.piece[]) from public;
