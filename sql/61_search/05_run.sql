-- A search in three steps: what is asked and permitted, as SQL; two legs; and their fusion.

create type knowledge_private.search_request as (
    asking knowledge_private.claim,
    model_id integer,
    compartments bigint,
    chunks bigint,
    words bigint,
    vector_filter text,
    permitted_vectors bigint,
    keyword_predicate text,
    keyword_filter text,
    lexemes text[],
    repeats integer[],
    prefixes boolean[],
    known double precision[],
    plan text,
    legs text[]
);

comment on type knowledge_private.search_request is
'What a search runs on: its permission and filters as SQL conditions, its words, and the legs that take part.';

create type knowledge_private.ranked as (
    chunk_id uuid,
    place integer,
    score double precision,
    vector_place integer,
    distance double precision,
    keyword_place integer,
    keyword_score double precision
);

comment on type knowledge_private.ranked is 'A chunk that was found, its place after fusion and in each leg.';

create function knowledge_private.prepare_search(
    query text, embedding vector, k integer, mode text, source_types text[], visibility text[], metadata jsonb,
    fingerprint text, options jsonb
)
returns knowledge_private.search_request
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    request knowledge_private.search_request;
    labels text[] := coalesce(visibility, '{org}');
    org knowledge.orgs;
    permitted record;
    asked record;
    documents text;
begin
    request.asking := knowledge_private.context();
    perform knowledge_private.check_search(query, embedding, k, mode, options);
    request.plan := coalesce(options ->> 'plan', 'auto');
    documents := knowledge_private.metadata_predicate((request.asking).org_id, metadata);
    select o.* into org from knowledge.orgs as o where o.org_id = (request.asking).org_id;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded');
    end if;
    request.model_id := (knowledge_private.search_model(org, embedding, fingerprint)).model_id;

    select
        coalesce(array_agg(p.compartment_id), '{}') as ids,
        coalesce(sum(p.chunks), 0) as chunks,
        coalesce(sum(p.words), 0) as words,
        array_agg(distinct p.language) as languages
    into permitted
    from knowledge_private.permitted_compartments(request.asking, source_types, labels) as p
    where p.chunks > 0;
    request.compartments := cardinality(permitted.ids);
    request.chunks := permitted.chunks;
    request.words := permitted.words;

    -- Without a language of its own a question is read in every language of what it may find.
    asked := knowledge.parse_query(
        knowledge_private.asked_words(query, mode, options),
        case
            when options ? 'language' then array[options ->> 'language']
            else coalesce(permitted.languages, '{english}')
        end);
    request.lexemes := asked.lexemes;
    request.repeats := asked.repeats;
    request.prefixes := asked.prefixes;
    request.legs := case
        when request.compartments = 0 then '{}'
        else array_remove(array[
            case when mode <> 'keyword' and request.model_id is not null then 'vector' end,
            case when asked.lexemes is not null then 'keyword' end
        ], null)
    end;
    if 'vector' = any (request.legs) then
        -- Without a filter the compartments have counted already; chunks that have no vector yet only make it cautious.
        request.permitted_vectors := case when metadata is null and asked.excluded is null then request.chunks end;
        request.vector_filter := concat_ws(' and ',
            knowledge_private.compartment_predicate(request.asking, permitted.ids, source_types, labels, true),
            documents,
            case when asked.excluded is not null then format(
                'not exists (select from knowledge.chunks as x '
                'where x.org_id = t.org_id and x.chunk_id = t.chunk_id and x.tsv @@ %L)', asked.excluded) end);
    end if;
    if 'keyword' = any (request.legs) then
        request.keyword_predicate := knowledge_private.compartment_predicate(request.asking, permitted.ids, source_types,
            labels, request.chunks <= (select s.scanned_chunks from knowledge_private.settings as s));
        request.keyword_filter := concat_ws(' and ',
            documents,
            case when asked.required is not null then format('t.tsv @@ %L', asked.required) end,
            case when asked.excluded is not null then format('not t.tsv @@ %L', asked.excluded) end);
        request.known := array(
            select c.chunks
            from generate_subscripts(asked.lexemes, 1) as i
            left join knowledge_private.common_lexemes((request.asking).org_id, permitted.ids, asked.lexemes,
                asked.prefixes) as c on c.term = i
            order by i
        );
    end if;
    return request;
end
$$;

comment on function knowledge_private.prepare_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) is
'Checks the arguments of search_scoped and turns them, with the context, into what the legs run on.';
revoke all on function knowledge_private.prepare_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;

create function knowledge_private.fuse_legs(
    request knowledge_private.search_request, embedding vector, depth integer, options jsonb
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A leg's rank counts in the fusion down to here, whatever k is: k = 10 is a prefix of k = 200.
    fused_depth constant integer := 200;
    rrf_k double precision := coalesce((options ->> 'rrf_k')::double precision, 10);
    vector_weight double precision := coalesce((options ->> 'vector_weight')::double precision, 1);
    keyword_weight double precision := coalesce((options ->> 'keyword_weight')::double precision, 1);
begin
    return query
    with vector_leg as materialized (
        select l.chunk_id, l.distance, l.place
        from knowledge_private.vector_leg((request.asking).org_id, request.model_id, request.vector_filter,
            request.permitted_vectors, embedding, depth, request.plan) as l
        where 'vector' = any (request.legs)
    ),
    keyword_leg as materialized (
        select l.chunk_id, l.score, l.place
        from knowledge_private.keyword_leg(request.keyword_predicate, request.keyword_filter, request.lexemes,
            request.repeats, request.prefixes, request.known, request.chunks, request.words, depth) as l
        where 'keyword' = any (request.legs)
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
    )
    select
        f.chunk_id,
        row_number() over (
            order by f.counts desc, f.sum_of_ranks desc, case when not f.counts then f.vector_place end,
            case when not f.counts then f.keyword_place end, f.chunk_id
        )::integer,
        f.sum_of_ranks,
        f.vector_place,
        f.distance,
        f.keyword_place,
        f.score
    from fused as f
    -- What only the words have found so far may be near in meaning too, but further down.
    where f.counts or f.vector_place is not null or (select count(*) from vector_leg) < depth
    order by 2;
end
$$;

comment on function knowledge_private.fuse_legs(knowledge_private.search_request, vector, integer, jsonb) is
'Runs the legs of a search down to depth and fuses them by reciprocal rank. A leg''s first 200 ranks count; rows that both
legs have only beyond come after all others, in the order of their leg.';
revoke all on function knowledge_private.fuse_legs(
    knowledge_private.search_request, vector, integer, jsonb
) from public;

create function knowledge_private.run_search(
    request knowledge_private.search_request, embedding vector, k integer, options jsonb
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 10
set search_path = pg_catalog, pg_temp
as $$
declare
    per_document integer := (options ->> 'per_document')::integer;
    min_score double precision := coalesce((options ->> 'min_score')::double precision, 0);
    depth integer := greatest(200, k);
    best knowledge_private.ranked[];
    exhausted boolean;
begin
    if cardinality(request.legs) = 0 then
        return;
    end if;
    -- Where documents give at most so many chunks, a leg must go deeper until k are found or there is no more.
    loop
        best := array(select f from knowledge_private.fuse_legs(request, embedding, depth, options) as f);
        exhausted := cardinality(best) < depth;
        if per_document is not null then
            best := array(
                select (b.chunk_id, row_number() over (order by b.place), b.score, b.vector_place, b.distance,
                    b.keyword_place, b.keyword_score)::knowledge_private.ranked
                from (
                    select
                        r.*,
                        row_number() over (partition by c.document_id order by r.place) as turn
                    from unnest(best) as r
                    cross join lateral (
                        select t.document_id from knowledge.chunks as t
                        where t.org_id = (request.asking).org_id and t.chunk_id = r.chunk_id offset 0
                    ) as c
                ) as b
                where b.turn <= per_document
                order by b.place
            );
        end if;
        exit when per_document is null or exhausted or cardinality(best) >= k;
        depth := depth * 4;
    end loop;
    return query
    select b.* from unnest(best[:k]) as b where b.score >= min_score order by b.place;
end
$$;

comment on function knowledge_private.run_search(knowledge_private.search_request, vector, integer, jsonb) is
'The k best chunks for a request, in order, with the options per_document and min_score applied.';
revoke all on function knowledge_private.run_search(
    knowledge_private.search_request, vector, integer, jsonb
) from public;
