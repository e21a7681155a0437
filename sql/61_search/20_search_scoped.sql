create function knowledge.search_scoped(
    query text default null,
    embedding vector default null,
    k integer default 10,
    mode text default 'hybrid',
    source_types text[] default null,
    visibility text[] default '{org}',
    metadata jsonb default null,
    fingerprint text default null,
    options jsonb default '{}'
)
returns table (
    rank integer,
    score double precision,
    chunk_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    org_scope text,
    visibility_label text,
    title text,
    uri text,
    heading text,
    body text,
    ordinal integer,
    char_start integer,
    char_end integer,
    locator text,
    document_metadata jsonb,
    vector_rank integer,
    vector_distance double precision,
    keyword_rank integer,
    keyword_score double precision,
    legs text[]
)
language plpgsql
stable
rows 10
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    request knowledge_private.search_request := knowledge_private.prepare_search(
        search_scoped.query, search_scoped.embedding, search_scoped.k, search_scoped.mode, search_scoped.source_types,
        search_scoped.visibility, search_scoped.metadata, search_scoped.fingerprint, search_scoped.options);
    org text := (request.asking).org_id;
begin
    return query
    select
        r.place, r.score, c.chunk_id, d.document_id, d.source_type, d.source_id, n.source_version, d.org_scope,
        m.visibility, d.title, d.uri, c.heading, c.body, (l.piece).ordinal + (p.place - (l.piece).place),
        p.char_start + (l.piece).shift, p.char_end + (l.piece).shift, p.locator, d.metadata,
        r.vector_place, r.distance, r.keyword_place, r.keyword_score, request.legs
    from knowledge_private.run_search(request, search_scoped.embedding, search_scoped.k, search_scoped.options) as r
    -- One look-up by key a row, in this order, whatever the statistics say: "offset 0" keeps each where it stands. Without
    -- statistics, right after a first bulk ingest, the planner would join every chunk of the org with every document first.
    cross join lateral (
        select t.* from knowledge.chunks as t where t.org_id = org and t.chunk_id = r.chunk_id offset 0
    ) as c
    cross join lateral (
        select t.* from knowledge.places as t where t.org_id = org and t.chunk_id = r.chunk_id offset 0
    ) as p
    cross join lateral (
        select t.* from knowledge.documents as t where t.org_id = org and t.document_id = c.document_id offset 0
    ) as d
    cross join lateral (select knowledge_private.piece_at(d.layout, p.place) as piece offset 0) as l
    cross join lateral (
        select t.* from knowledge.versions as t where t.org_id = org and t.version_id = d.live_version offset 0
    ) as n
    cross join lateral (
        select t.* from knowledge.compartments as t
        where t.org_id = org and t.compartment_id = c.compartment_id offset 0
    ) as m
    order by r.place;
end
$$;

comment on function knowledge.search_scoped(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'The k best chunks that the context may read, best first; min(k, matches) rows, always.
query: words; "quoted phrases" must stand in what the words find, -excluded words in nothing. embedding: the question
embedded by the org''s model, as [0.1,…]; fingerprint: that model''s, required with it. mode: hybrid (both legs, fused by
rank and measure), vector or keyword. k: 1 to 1000; a smaller k is a prefix of a larger. source_types: null is any, {} is
none. visibility: labels to see, {org} unless more are asked for. metadata: a filter on the document''s
metadata, see metadata_matches. options: rrf_k (12), vector_weight (1), keyword_weight (1), min_score (0), per_document (at
most so many chunks of one document), language (those of the permitted documents), plan (auto, or exact: no index), syntax (web, or
plain: quotes, minus and * in the question are no operators), boost (by recency or metadata, see boost_factor; for what is
among the first 200 of a leg).
A row: rank from 1; score, the sum over legs of weight / (rrf_k + rank), each times 0.1 + 1.2 g, at most 1, where both legs take
part (g: BM25 over the leg''s highest; 0 at the farthest of its first 200 distances, 1 at the nearest), times the boost; the citation: source_type, source_id, title, uri,
heading trail, body, char_start to char_end (from 0, end excluded) in the source, locator ("page 3") where the writer gave one; each leg''s rank and its measure (cosine
distance 0 to 2, BM25), null where the leg did not find it; legs, those that took part.
KB001, KB002 context; KB005 malformed argument, unknown option, zero vector; KB007 not the org''s model; KB011 offboarded.';
revoke all on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;
