-- A search in three steps: what is asked and permitted, as SQL; two legs; and their fusion.

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
    words text := knowledge_private.asked_words(query, mode, options);
    org knowledge.orgs;
    setting knowledge_private.settings;
    found record;
    wants_vectors boolean;
    may_walk boolean;
    index_worth bigint;
    enough bigint;
    permitted record;
    is_cut boolean;
    asked record;
    excluded tsquery;
    documents text;
    narrowed text;
    listed text;
    looked_up text;
begin
    request.asking := knowledge_private.context();
    perform knowledge_private.check_search(query, embedding, k, mode, options);
    request.rrf_k := coalesce((options ->> 'rrf_k')::double precision, 12);
    request.vector_weight := coalesce((options ->> 'vector_weight')::double precision, 1);
    request.keyword_weight := coalesce((options ->> 'keyword_weight')::double precision, 1);
    request.boost := options -> 'boost';
    if metadata is not null then
        documents := knowledge_private.metadata_predicate((request.asking).org_id, metadata);
    end if;
    select o as org, m as model, s as setting
    into found
    from knowledge_private.settings as s
    left join knowledge.orgs as o on o.org_id = (request.asking).org_id
    left join knowledge.models as m on m.model_id = o.active_model;
    org := found.org;
    setting := found.setting;
    if org.status = 'offboarded' then
        perform knowledge_private.fail('KB011', 'this org was offboarded');
    end if;
    if embedding is not null then
        perform knowledge_private.check_embedding(found.model, embedding, fingerprint);
        request.model_id := org.active_model;
    end if;
    wants_vectors := mode <> 'keyword' and request.model_id is not null;
    may_walk := wants_vectors and options ->> 'plan' is distinct from 'exact';
    -- Without words it is enough to know that an index is worth while; each compartment has at least one chunk.
    if may_walk and words = '' and metadata is null then
        enough := setting.exact_rows + 1;
    end if;
    loop
        select
            coalesce(array_agg(p.compartment_id), '{}') as ids,
            coalesce(sum(p.chunks), 0) as chunks,
            coalesce(sum(p.words), 0) as words,
            min(p.language) as language,
            max(p.language) as other_language
        into permitted
        from (
            select c.compartment_id, c.chunks, c.words, c.language
            from knowledge_private.permitted_compartments(request.asking, source_types, labels) as c
            where c.chunks > 0
            limit enough
        ) as p;
        is_cut := coalesce(cardinality(permitted.ids) = enough, false);
        if may_walk and permitted.chunks > setting.exact_rows then
            index_worth := knowledge_private.index_worth(org.org_id, request.model_id);
        end if;
        exit when not is_cut or permitted.chunks > index_worth;
        enough := index_worth + 1;
    end loop;
    request.chunks := permitted.chunks;
    request.words := permitted.words;

    if words <> '' then
        -- Without a language of its own a question is read in every language of what it may find.
        asked := knowledge.parse_query(words, case
            when options ? 'language' then array[options ->> 'language']
            when permitted.language = permitted.other_language then array[permitted.language]
            else coalesce((
                select array_agg(distinct c.language)
                from knowledge_private.permitted_compartments(request.asking, source_types, labels) as c
                where c.chunks > 0
            ), '{english}')
        end);
        request.lexemes := asked.lexemes;
        request.repeats := asked.repeats;
        request.prefixes := asked.prefixes;
        excluded := asked.excluded;
    elsif options ? 'language' then
        perform knowledge_private.resolve_language(options ->> 'language');
    end if;
    request.legs := case
        when cardinality(permitted.ids) = 0 then '{}'
        else array_remove(array[
            case when wants_vectors then 'vector' end,
            case when request.lexemes is not null then 'keyword' end
        ], null)
    end;
    if 'vector' = any (request.legs) then
        narrowed := nullif(concat_ws(' and ',
            documents,
            case when excluded is not null then format(
                'not exists (select from knowledge.chunks as x '
                'where x.org_id = t.org_id and x.chunk_id = t.chunk_id and x.tsv @@ %L)', excluded) end), '');
        if not is_cut then
            listed := knowledge_private.compartment_predicate(org.org_id, permitted.ids, setting.long_list, true);
        end if;
        if is_cut or cardinality(permitted.ids) > setting.long_list then
            looked_up := knowledge_private.compartment_look_up(request.asking, source_types, labels);
        end if;
        request.vector_filter := concat_ws(' and ', coalesce(listed, looked_up), narrowed);
        -- Without a filter the compartments have counted already; chunks that have no vector yet only make it cautious.
        request.permitted_vectors := case when not is_cut and narrowed is null then request.chunks end;
        if request.chunks > index_worth then
            if narrowed is null
                or knowledge_private.more_vectors(request.model_id, request.vector_filter, index_worth)
            then
                request.index_filter := concat_ws(' and ', coalesce(looked_up, listed), narrowed);
            end if;
        end if;
    end if;
    if 'keyword' = any (request.legs) then
        request.scanned := request.chunks <= setting.scanned_chunks or request.chunks <= (
            select setting.scanned_chunks * sqrt(greatest(c.reltuples, 0) / 100000)
            from pg_class as c
            where c.oid = 'knowledge.chunks'::regclass
        );
        request.keyword_predicate := knowledge_private.compartment_predicate(org.org_id, permitted.ids, setting.long_list,
            request.scanned);
        request.keyword_filter := concat_ws(' and ',
            coalesce(documents, 'true'),
            case when asked.required is not null then format('t.tsv @@ %L', asked.required) end,
            case when excluded is not null then format('not t.tsv @@ %L', excluded) end);
        request.known := array(
            select c.chunks
            from generate_subscripts(asked.lexemes, 1) as i
            left join knowledge_private.common_lexemes(org.org_id, permitted.ids, asked.lexemes, asked.prefixes) as c
                on c.term = i
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
    request knowledge_private.search_request, embedding vector, depth integer
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
    -- With this slope what is three quarters as good as the best counts fully.
    slope constant double precision := 1.2;
    is_alone boolean := cardinality(request.legs) = 1;
begin
    -- Written so that no argument makes a plan cheaper: then it is made once for a session.
    return query
    with vector_leg as materialized (
        select l.chunk_id, l.distance, l.place::integer
        from knowledge_private.vector_leg(request, embedding, depth) with ordinality as l (chunk_id, distance, place)
    ),
    keyword_leg as materialized (
        select l.chunk_id, l.score, l.place
        from knowledge_private.keyword_leg(request, depth) as l
    ),
    -- A leg alone has nothing to be weighed against: its ranks say all.
    vector_part as materialized (
        select
            l.chunk_id, l.distance, l.place,
            case when l.place <= fused_depth then request.vector_weight / (request.rrf_k + l.place) * case
                when is_alone or e.farthest = e.nearest then 1
                else least(1, 0.1 + slope * (e.farthest - l.distance) / (e.farthest - e.nearest))
            end end as part
        from vector_leg as l
        cross join (
            select min(n.distance) as nearest, max(n.distance) as farthest from vector_leg as n where n.place <= fused_depth
        ) as e
    ),
    keyword_part as materialized (
        select
            l.chunk_id, l.score, l.place,
            case when l.place <= fused_depth then request.keyword_weight / (request.rrf_k + l.place) * case
                when is_alone then 1
                else least(1, 0.1 + slope * l.score / e.best)
            end end as part
        from keyword_leg as l
        cross join (select max(n.score) as best from keyword_leg as n) as e
    ),
    fused as (
        select
            coalesce(v.chunk_id, w.chunk_id) as chunk_id,
            v.place as vector_place,
            v.distance,
            w.place as keyword_place,
            w.score,
            v.part is not null or w.part is not null as counts,
            coalesce(v.part, 0) + coalesce(w.part, 0) as sum_of_parts
        from vector_part as v
        full join keyword_part as w on w.chunk_id = v.chunk_id
    )
    select
        f.chunk_id,
        row_number() over (
            order by f.counts desc, f.sum_of_parts desc, case when not f.counts then f.vector_place end,
            case when not f.counts then f.keyword_place end, f.chunk_id
        )::integer,
        f.sum_of_parts,
        1::double precision,
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

comment on function knowledge_private.fuse_legs(knowledge_private.search_request, vector, integer) is
'Runs the legs of a search down to depth and fuses them: each gives a chunk weight / (rrf_k + rank), times 0.1 + 1.2 g, at
most 1, where both take part: g is BM25 over the leg''s highest, or where the distance lies between the farthest, 0, and the
nearest, 1. A leg''s first 200 ranks count; rows that both legs have only beyond come after all others, in its order.';
revoke all on function knowledge_private.fuse_legs(knowledge_private.search_request, vector, integer) from public;

create function knowledge_private.boost_legs(
    request knowledge_private.search_request, embedding vector, depth integer
)
returns setof knowledge_private.ranked
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
begin
    if request.boost is null then
        return query
        select f.* from knowledge_private.fuse_legs(request, embedding, depth) as f;
        return;
    end if;
    return query
    select
        f.chunk_id,
        row_number() over (order by n.score desc nulls last, case when n.score is null then f.place end, f.chunk_id)::integer,
        coalesce(n.score, f.score),
        n.boost,
        f.vector_place,
        f.distance,
        f.keyword_place,
        f.keyword_score
    from knowledge_private.fuse_legs(request, embedding, depth) as f
    cross join lateral (
        select t.document_id from knowledge.chunks as t
        where t.org_id = (request.asking).org_id and t.chunk_id = f.chunk_id offset 0
    ) as c
    cross join lateral (
        select knowledge.boost_factor(request.boost, t.metadata, t.updated_at) as boost
        from knowledge.documents as t
        where t.org_id = (request.asking).org_id and t.document_id = c.document_id offset 0
    ) as d
    cross join lateral (
        -- What counts in no leg stays where it was, after what does.
        select case when least(f.vector_place, f.keyword_place) <= 200 then f.score * d.boost end as score, d.boost
    ) as n
    order by 2;
end
$$;

comment on function knowledge_private.boost_legs(knowledge_private.search_request, vector, integer) is
'What fuse_legs gives, in the order of score times boost_factor, if the request has a boost.';
revoke all on function knowledge_private.boost_legs(knowledge_private.search_request, vector, integer) from public;

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
    -- A leg alone is in its order already, unless a weight of 0 makes all equal.
    lone text := case
        when per_document is null and request.boost is null then case
            when request.legs = '{vector}' and request.vector_weight > 0 then 'vector'
            when request.legs = '{keyword}' and request.keyword_weight > 0 then 'keyword'
        end
    end;
    best knowledge_private.ranked[];
    exhausted boolean;
begin
    if cardinality(request.legs) = 0 then
        return;
    end if;
    if lone = 'vector' then
        return query
        select
            l.chunk_id, l.place::integer, s.score, 1::double precision, l.place::integer, l.distance, null::integer,
            null::double precision
        from knowledge_private.vector_leg(request, embedding, k) with ordinality as l (chunk_id, distance, place)
        cross join lateral (
            select case when l.place <= 200 then request.vector_weight / (request.rrf_k + l.place) else 0 end as score
        ) as s
        where s.score >= min_score;
        return;
    elsif lone = 'keyword' then
        -- What the words find depends on the depth.
        return query
        select l.chunk_id, l.place, s.score, 1::double precision, null::integer, null::double precision, l.place, l.score
        from knowledge_private.keyword_leg(request, depth) as l
        cross join lateral (
            select case when l.place <= 200 then request.keyword_weight / (request.rrf_k + l.place) else 0 end as score
        ) as s
        where l.place <= k and s.score >= min_score;
        return;
    elsif per_document is null then
        return query
        select f.* from knowledge_private.boost_legs(request, embedding, depth) as f
        where f.place <= k and f.score >= min_score
        order by f.place;
        return;
    end if;
    -- Where documents give at most so many chunks, a leg must go deeper until k are found or there is no more.
    loop
        best := array(select f from knowledge_private.boost_legs(request, embedding, depth) as f);
        exhausted := cardinality(best) < depth;
        best := array(
            select (b.chunk_id, row_number() over (order by b.place), b.score, b.boost, b.vector_place, b.distance,
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
        exit when exhausted or cardinality(best) >= k;
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
