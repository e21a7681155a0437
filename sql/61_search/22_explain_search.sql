create function knowledge.explain_search(
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
returns jsonb
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    started timestamptz := clock_timestamp();
    request knowledge_private.search_request := knowledge_private.prepare_search(
        query, embedding, k, mode, source_types, visibility, metadata, fingerprint, options);
    prepared double precision := knowledge_private.milliseconds_since(started);
    explained jsonb;
    depth integer := greatest(200, k);
    part jsonb;
    counted bigint;
    place integer;
begin
    -- Counted here, because a search counts no further than it needs.
    select jsonb_build_object('compartments', count(*), 'permitted_chunks', coalesce(sum(p.chunks), 0))
    into explained
    from knowledge_private.permitted_compartments(request.asking, source_types, coalesce(visibility, '{org}')) as p
    where p.chunks > 0;
    explained := explained || jsonb_build_object('legs', request.legs, 'prepare_ms', prepared, 'settings', (
        select jsonb_build_object('exact_rows', s.exact_rows, 'index_share', s.index_share,
            'scanned_chunks', s.scanned_chunks, 'candidates', s.candidates,
            'paired_candidates', s.paired_candidates, 'enough_weight', s.enough_weight,
            'long_list', s.long_list)
        from knowledge_private.settings as s
    ));
    if 'vector' = any (request.legs) then
        started := clock_timestamp();
        select count(*) into counted
        from knowledge_private.vector_leg(request, embedding, depth);
        explained := explained || jsonb_build_object('vector', jsonb_build_object(
            'rows', counted,
            'ms', knowledge_private.milliseconds_since(started),
            'plan', case when request.index_filter is null then 'exact' else 'index' end));
    end if;
    if 'keyword' = any (request.legs) then
        started := clock_timestamp();
        select count(*) into counted
        from knowledge_private.keyword_leg(request, depth);
        part := jsonb_build_object('rows', counted, 'ms', knowledge_private.milliseconds_since(started));
        for place in select i from generate_subscripts(request.lexemes, 1) as i loop
            execute format('select count(*) from knowledge.chunks as t where %s and %s',
                request.keyword_predicate,
                knowledge_private.match_condition(
                    knowledge_private.lexeme_query(request.lexemes[place], request.prefixes[place])::text, request.scanned))
            into counted;
            part := jsonb_set(part, '{terms}', coalesce(part -> 'terms', '[]') || jsonb_build_object(
                'lexeme', request.lexemes[place], 'prefix', request.prefixes[place], 'repeats', request.repeats[place],
                'chunks', counted, 'counted_as', request.known[place],
                'idf', ln(1 + (request.chunks - counted + 0.5) / (counted + 0.5))));
        end loop;
        explained := explained || jsonb_build_object('keyword', part);
    end if;
    started := clock_timestamp();
    select jsonb_agg(jsonb_build_object(
        'rank', r.place, 'score', r.score, 'boost', r.boost, 'chunk_id', r.chunk_id, 'vector_rank', r.vector_place,
        'vector_distance', r.distance, 'keyword_rank', r.keyword_place, 'keyword_score', r.keyword_score,
        'matched', (
            select jsonb_object_agg(u.lexeme, cardinality(u.positions) order by u.lexeme)
            from knowledge.chunks as c
            cross join lateral unnest(c.tsv) as u
            inner join unnest(request.lexemes, request.prefixes) as q (lexeme, prefix)
                on case when q.prefix then starts_with(u.lexeme, q.lexeme) else u.lexeme = q.lexeme end
            where c.org_id = (request.asking).org_id and c.chunk_id = r.chunk_id
        )) order by r.place)
    into part
    from knowledge_private.run_search(request, embedding, k, options) as r;
    return explained || jsonb_build_object('search_ms', knowledge_private.milliseconds_since(started),
        'rows', coalesce(part, '[]'));
end
$$;

comment on function knowledge.explain_search(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'Why search_scoped answers what it does with the same arguments, as json: legs that take part; compartments and chunks
permitted; per leg its rows and time, the vector leg''s plan (exact or index), the keyword leg''s terms with the number of
permitted chunks that have them and their idf; the settings that decide; and for each row its boost, both legs'' ranks and measures
and the matched lexemes with their frequency. Nothing in it is about what the context may not read. Errors as there.';
revoke all on function knowledge.explain_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.explain_search(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;
