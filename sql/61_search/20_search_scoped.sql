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
    asking knowledge_private.claim := knowledge_private.context();
    labels text[] := coalesce(search_scoped.visibility, '{org}');
    rrf_k double precision;
    vector_weight double precision;
    keyword_weight double precision;
    -- A leg's rank counts in the fusion down to here, whatever k is: k = 10 is a prefix of k = 200.
    fused_depth constant integer := 200;
    depth integer := greatest(fused_depth, search_scoped.k);
    org knowledge.orgs;
    model knowledge.models;
    permitted record;
    asked record;
    metadata_filter text;
    vector_filter text;
    keyword_predicate text;
    keyword_filter text;
    known double precision[];
    used_legs text[];
begin
    perform knowledge_private.check_search(search_scoped.query, search_scoped.embedding, search_scoped.k,
        search_scoped.mode, search_scoped.metadata, search_scoped.options);
    rrf_k := coalesce((search_scoped.options ->> 'rrf_k')::double precision, 10);
    vector_weight := coalesce((search_scoped.options ->> 'vector_weight')::double precision, 1);
    keyword_weight := coalesce((search_scoped.options ->> 'keyword_weight')::double precision, 1);

    select o.* into org from knowledge.orgs as o where o.org_id = asking.org_id;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded');
    end if;
    model := knowledge_private.search_model(org, search_scoped.embedding, search_scoped.fingerprint);
    asked := knowledge.parse_query(
        case when search_scoped.mode <> 'vector' then coalesce(search_scoped.query, '') else '' end,
        case
            when search_scoped.options ? 'language'
                then knowledge_private.resolve_language(search_scoped.options ->> 'language')
            else coalesce(org.language, 'pg_catalog.english')
        end);

    select coalesce(array_agg(p.compartment_id order by p.compartment_id), '{}') as ids, sum(p.chunks) as chunks,
        sum(p.words) as words
    into permitted
    from knowledge_private.permitted_compartments(asking, search_scoped.source_types, labels) as p;
    if cardinality(permitted.ids) = 0 then
        return;
    end if;
    metadata_filter := knowledge_private.metadata_predicate(asking.org_id, search_scoped.metadata);
    vector_filter := concat_ws(' and ',
        knowledge_private.compartment_predicate(asking, permitted.ids, search_scoped.source_types, labels, true),
        metadata_filter,
        case when asked.excluded is not null then format(
            'not exists (select from knowledge.chunks as x '
            'where x.org_id = t.org_id and x.chunk_id = t.chunk_id and x.tsv @@ %L)', asked.excluded) end);
    keyword_predicate := knowledge_private.compartment_predicate(asking, permitted.ids, search_scoped.source_types,
        labels, permitted.chunks <= (select s.scanned_chunks from knowledge_private.settings as s));
    keyword_filter := concat_ws(' and ', metadata_filter,
        case when asked.required is not null then format('t.tsv @@ %L', asked.required) end,
        case when asked.excluded is not null then format('not t.tsv @@ %L', asked.excluded) end);
    known := array(
        select c.chunks
        from generate_subscripts(asked.lexemes, 1) as i
        left join knowledge_private.common_lexemes(asking.org_id, permitted.ids, asked.lexemes) as c on c.term = i
        order by i
    );
    used_legs := array_remove(array[
        case when search_scoped.mode <> 'keyword' and model.model_id is not null then 'vector' end,
        case when asked.lexemes is not null then 'keyword' end
    ], null);

    return query
    with vector_leg as materialized (
        select l.chunk_id, l.distance, l.place
        from knowledge_private.vector_leg(asking.org_id, model.model_id, vector_filter, search_scoped.embedding, depth,
            coalesce(search_scoped.options ->> 'plan', 'auto')) as l
        where 'vector' = any (used_legs)
    ),
    keyword_leg as materialized (
        select l.chunk_id, l.score, l.place
        from knowledge_private.keyword_leg(keyword_predicate, keyword_filter, asked.lexemes, asked.repeats, known,
            permitted.chunks::bigint, permitted.words::bigint, depth) as l
        where 'keyword' = any (used_legs)
    ),
    fused as (
        select
            coalesce(v.chunk_id, w.chunk_id) as chunk_id,
            v.place as vector_place,
            v.distance,
            w.place as keyword_place,
            w.score,
            coalesce(v.place <= fused_depth, false) or coalesce(w.place <= fused_depth, false) as counts,
            coalesce(case when v.place <= fused_depth then vector_weight / (rrf_k + v.place) end, 0)
            + coalesce(case when w.place <= fused_depth then keyword_weight / (rrf_k + w.place) end, 0) as sum_of_ranks
        from vector_leg as v
        full join keyword_leg as w on w.chunk_id = v.chunk_id
    ),
    ranked as (
        select
            f.*,
            row_number() over (
                order by f.counts desc, f.sum_of_ranks desc, case when not f.counts then f.vector_place end,
                case when not f.counts then f.keyword_place end, f.chunk_id
            )::integer as place
        from fused as f
    )
    select
        r.place, r.sum_of_ranks, c.chunk_id, d.document_id, d.source_type, d.source_id, n.source_version, d.org_scope,
        m.visibility, d.title, d.uri, c.heading, c.body, p.ordinal, p.char_start, p.char_end, d.metadata,
        r.vector_place, r.distance, r.keyword_place, r.score, used_legs
    from ranked as r
    -- One look-up by key a row, in this order, whatever the statistics say: "offset 0" keeps each where it stands. Without
    -- statistics, right after a first bulk ingest, the planner would join every chunk of the org with every document first.
    cross join lateral (
        select t.* from knowledge.chunks as t where t.org_id = asking.org_id and t.chunk_id = r.chunk_id offset 0
    ) as c
    cross join lateral (
        select t.* from knowledge.positions as t where t.org_id = asking.org_id and t.chunk_id = r.chunk_id offset 0
    ) as p
    cross join lateral (
        select t.* from knowledge.documents as t where t.org_id = asking.org_id and t.document_id = c.document_id offset 0
    ) as d
    cross join lateral (
        select t.* from knowledge.versions as t where t.org_id = asking.org_id and t.version_id = d.live_version offset 0
    ) as n
    cross join lateral (
        select t.* from knowledge.compartments as t
        where t.org_id = asking.org_id and t.compartment_id = c.compartment_id offset 0
    ) as m
    where r.place <= search_scoped.k
    order by r.place;
end
$$;

comment on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) is
'The k best chunks that the context may read, best first; min(k, matches) rows, always.
query: words; "quoted phrases" must stand in what the words find, -excluded words in nothing. embedding: the question
embedded by the org''s model, as [0.1,…]; fingerprint: that model''s, required with it. mode: hybrid (both legs, fused by
reciprocal rank), vector or keyword. k: 1 to 1000; a smaller k is a prefix of a larger. source_types: null is any, {} is
none. visibility: labels to see, {org} unless more are asked for. metadata: json object that the document''s metadata must
contain. options: rrf_k (10), vector_weight (1), keyword_weight (1), language (the org''s), plan (auto, or exact: without
an index).
A row: rank from 1; score, the sum over legs of weight / (rrf_k + rank); the citation: source_type, source_id, title, uri,
heading trail, body, char_start to char_end (from 0, end excluded) in the source; each leg''s rank and its measure (cosine
distance 0 to 2, BM25), null where the leg did not find it; legs, those that took part.
KB001, KB002 context; KB005 malformed argument, unknown option, zero vector; KB007 not the org''s model; KB011 offboarded.';
revoke all on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.search_scoped(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;
