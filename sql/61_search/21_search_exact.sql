create function knowledge.search_exact(
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
    vector_rank integer,
    vector_distance double precision,
    keyword_rank integer,
    keyword_score double precision
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    model_id integer;
    asked record;
    has_vectors boolean;
    vectors text := 'select null::uuid as chunk_id, null::double precision as distance where false';
begin
    -- What search_scoped refuses is refused here too; under no label it finds nothing.
    perform from knowledge.search_scoped(query, embedding, k, mode, source_types, '{}', metadata, fingerprint, options);
    select o.active_model into model_id from knowledge.orgs as o;
    has_vectors := mode <> 'keyword' and embedding is not null and model_id is not null;
    asked := knowledge.parse_query(
        case
            when mode = 'vector' then ''
            when options ->> 'syntax' = 'plain' then regexp_replace(coalesce(query, ''), '"|\*|(^|\s)-', ' ', 'g')
            else coalesce(query, '')
        end,
        case
            when options ? 'language' then array[options ->> 'language']
            else coalesce((
                select array_agg(distinct m.language)
                from knowledge.chunks as c
                inner join knowledge.compartments as m on m.compartment_id = c.compartment_id
                where (source_types is null or m.source_type = any (source_types))
                    and m.visibility = any (coalesce(search_exact.visibility, '{org}'))
            ), '{english}')
        end);
    if has_vectors then
        vectors := format(
            'select v.chunk_id, (v.embedding operator(%1$I.<=>) %1$I.l2_normalize($2)::%1$I.halfvec) + 0 as distance '
            'from knowledge.%2$I as v',
            (
                select n.nspname from pg_extension as e
                inner join pg_namespace as n on n.oid = e.extnamespace
                where e.extname = 'vector'
            ),
            'vectors_' || model_id);
    end if;

    -- Row-level security is all that decides here which chunks there are.
    return query execute
        'with permitted as ('
        '    select c.chunk_id, c.tsv, c.words, d.metadata, d.updated_at'
        '    from knowledge.chunks as c'
        '    inner join knowledge.documents as d on d.document_id = c.document_id'
        '    inner join knowledge.compartments as m on m.compartment_id = c.compartment_id'
        '    where ($3 is null or m.source_type = any ($3)) and m.visibility = any ($4)'
        '), wanted as ('
        '    select p.* from permitted as p'
        '    where ($5 is null or knowledge.metadata_matches(p.metadata, $5)) and ($9 is null or not p.tsv @@ $9)'
        '), distances as (' || vectors || -- lint: literal
        '), vector_leg as ('
        '    select w.chunk_id, v.distance, row_number() over (order by v.distance, w.chunk_id) as place'
        '    from wanted as w inner join distances as v on v.chunk_id = w.chunk_id'
        '), frequencies as ('
        '    select p.chunk_id, p.words, q.lexeme, q.prefix, q.repeats,'
        '        case when q.prefix then 1 else max(cardinality(u.positions)) end::double precision as tf'
        '    from permitted as p'
        '    cross join lateral unnest(p.tsv) as u'
        '    inner join unnest($6, $7, $13) as q (lexeme, repeats, prefix)'
        '        on case when q.prefix then starts_with(u.lexeme, q.lexeme) else u.lexeme = q.lexeme end'
        '    group by p.chunk_id, p.words, q.lexeme, q.prefix, q.repeats'
        '), totals as ('
        '    select count(*)::double precision as chunks, sum(p.words)::double precision / count(*) as length'
        '    from permitted as p having count(*) > 0'
        '), idf as ('
        '    select f.lexeme, f.prefix, ln(1 + (t.chunks - count(*) + 0.5) / (count(*) + 0.5)) as idf'
        '    from frequencies as f cross join totals as t group by f.lexeme, f.prefix, t.chunks'
        '), scores as ('
        '    select w.chunk_id, sum('
        '        f.repeats * i.idf * f.tf * 2.2 / (f.tf + 1.2 * (0.25 + 0.75 * f.words / t.length))'
        '        order by f.lexeme collate "C", f.prefix) as score'
        '    from wanted as w inner join frequencies as f on f.chunk_id = w.chunk_id'
        '    inner join idf as i on i.lexeme = f.lexeme and i.prefix = f.prefix cross join totals as t'
        '    where $8 is null or w.tsv @@ $8'
        '    group by w.chunk_id'
        '), keyword_leg as ('
        '    select s.chunk_id, s.score, row_number() over (order by s.score desc, s.chunk_id) as place from scores as s'
        '), vector_parts as ('
        '    select v.*, case when v.place > 200 then 0 else $11 / ($10 + v.place) * case'
        '            when $15 or max(v.distance) over first = min(v.distance) over first then 1'
        '            else least(1, 0.1 + 1.2::double precision * (max(v.distance) over first - v.distance)'
        '                / (max(v.distance) over first - min(v.distance) over first))'
        '        end end as part'
        '    from vector_leg as v window first as (partition by v.place <= 200)'
        '), keyword_parts as ('
        '    select w.*, case when w.place > 200 then 0 else $12 / ($10 + w.place) * case'
        '            when $15 then 1 else least(1, 0.1 + 1.2::double precision * w.score / max(w.score) over ()) end end as part'
        '    from keyword_leg as w'
        '), fused as ('
        '    select coalesce(v.chunk_id, w.chunk_id) as chunk_id, v.place as vector_place, v.distance,'
        '        w.place as keyword_place, w.score, coalesce(v.part, 0) + coalesce(w.part, 0) as sum_of_parts,'
        '        least(v.place, w.place) <= 200 as counts'
        '    from vector_parts as v full join keyword_parts as w on w.chunk_id = v.chunk_id'
        '), boosted as ('
        '    select f.*, f.sum_of_parts'
        '        * case when $14 is null then 1 else knowledge.boost_factor($14, w.metadata, w.updated_at) end as boosted'
        '    from fused as f inner join wanted as w on w.chunk_id = f.chunk_id'
        ') '
        'select (row_number() over (order by f.counts desc, f.boosted desc,'
        '        case when not f.counts then f.vector_place end, case when not f.counts then f.keyword_place end,'
        '        f.chunk_id))::integer as place, f.boosted, f.chunk_id,'
        '    f.vector_place::integer, f.distance, f.keyword_place::integer, f.score '
        'from boosted as f order by place limit $1'
    using k, embedding, source_types, coalesce(visibility, '{org}'), metadata, asked.lexemes, asked.repeats,
        asked.required, asked.excluded, coalesce((options ->> 'rrf_k')::double precision, 12),
        coalesce((options ->> 'vector_weight')::double precision, 1),
        coalesce((options ->> 'keyword_weight')::double precision, 1), asked.prefixes, options -> 'boost',
        not has_vectors or asked.lexemes is null;
end
$$;

comment on function knowledge.search_exact(text, vector, integer, text, text[], text[], jsonb, text, jsonb) is
'What search_scoped must answer, written for reading and not for speed: runs with the caller''s own rights under row-level
security, compares every row, counts every word. Arguments as there; plan, min_score and per_document are ignored.';
revoke all on function knowledge.search_exact(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) from public;
grant execute on function knowledge.search_exact(
    text, vector, integer, text, text[], text[], jsonb, text, jsonb
) to knowledge_reader;
