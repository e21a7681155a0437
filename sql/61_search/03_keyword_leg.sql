-- The keyword leg: BM25 (Robertson and Zaragoza 2009; k1 1.2, b 0.75, the idf of Lucene), from core PostgreSQL.
--
-- ts_rank of a query of one lexeme with all weights 1 is H2(tf) / 1.64493406685, where H2(n) is the sum of 1 / i^2
-- for i from 1 to n, so the term frequency is read back from it exactly. to_tsvector keeps at most 255 positions of a
-- lexeme, and two of them put together at most 256.

create function knowledge_private.tf_thresholds()
returns real[]
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select array_agg(h.half::real order by h.n)
    from (
        select
            i as n,
            (sum(1.0::double precision / (i * i)) over (order by i) - 0.5::double precision / (i * i)) / 1.64493406685
                as half
        from generate_series(1, 256) as i
    ) as h
$$;

comment on function knowledge_private.tf_thresholds() is
'256 numbers between the values of ts_rank for tf - 1 and tf: width_bucket(ts_rank, these) is tf.';
revoke all on function knowledge_private.tf_thresholds() from public;

create table knowledge_private.lexeme_counts (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    compartment_id integer not null,
    lexeme text collate "C" not null,
    chunks bigint not null,
    primary key (org_id, compartment_id, lexeme)
);

comment on table knowledge_private.lexeme_counts is
'The common lexemes of large compartments: counted by maintain(), summed over permitted compartments only.';
comment on column knowledge_private.lexeme_counts.org_id is 'The tenant.';
comment on column knowledge_private.lexeme_counts.compartment_id is 'The compartment.';
comment on column knowledge_private.lexeme_counts.lexeme is 'A lexeme of at least a hundredth of its chunks.';
comment on column knowledge_private.lexeme_counts.chunks is 'How many of its chunks had the lexeme.';

alter table knowledge_private.lexeme_counts enable row level security;

create function knowledge_private.common_lexemes(
    org_id text, compartments integer[], lexemes text[], prefixes boolean[]
)
returns table (term integer, chunks double precision)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- Where a tenth of the chunks or more is uncounted, nothing is known well enough.
    select q.term::integer, sum(l.chunks) * max(t.chunks) / max(t.counted)
    from (
        select sum(c.chunks)::double precision as chunks, sum(c.counted_chunks)::double precision as counted
        from knowledge.compartments as c
        where c.org_id = common_lexemes.org_id and c.compartment_id = any (compartments)
        having sum(c.counted_chunks) > 0.9 * sum(c.chunks)
    ) as t
    cross join unnest(lexemes, prefixes) with ordinality as q (lexeme, prefix, term)
    inner join knowledge_private.lexeme_counts as l
        on
            l.org_id = common_lexemes.org_id and l.compartment_id = any (compartments)
            and l.lexeme = q.lexeme collate "C" and not q.prefix
    group by q.term
$$;

comment on function knowledge_private.common_lexemes(text, integer[], text[], boolean[]) is
'Those of the lexemes (by place, from 1) that are known to be common in the compartments, and in about how many chunks.';
revoke all on function knowledge_private.common_lexemes(text, integer[], text[], boolean[]) from public;

create function knowledge_private.score_chunks(
    predicate text, filter text, terms tsquery[], repeats integer[], prefixes boolean[],
    known double precision[], picked boolean[], chunks bigint, words bigint, depth integer
)
returns knowledge_private.measured[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    statement text;
    best knowledge_private.measured[];
begin
    -- One pass reads the term frequencies of each row; what is counted and scored after that is numbers. Frequencies are
    -- counted over every permitted chunk; only then does the caller's filter narrow what is ranked. All is double precision:
    -- with an integer, 0.75 is numeric, which takes as long as reading the row.
    select format(
        'with hit as materialized (select t.chunk_id, 1.2 * (0.25 + 0.75 * t.words::double precision / $3) as longer, '
        '%s as wanted%s from knowledge.chunks as t where %s'
        '), found as materialized (select %s from hit as h'
        '), idf as materialized (select %s from found as f'
        '), scored as (select h.chunk_id, %s as score from hit as h cross join idf as i where h.wanted) '
        'select array_agg((b.chunk_id, b.score)::knowledge_private.measured order by b.score desc, b.chunk_id) '
        'from (select s.chunk_id, s.score from scored as s order by s.score desc, s.chunk_id limit %s) as b',
        filter,
        string_agg(format(
            case
                when q.prefix then ', (t.tsv @@ %L)::integer::double precision as tf%s'
                else ', width_bucket(ts_rank(''{1,1,1,1}'', t.tsv, %L), $1)::double precision as tf%s'
            end, q.term, q.place), '' order by q.place),
        predicate,
        string_agg(
            case
                when q.picked then format('count(*) filter (where h.tf%1$s > 0)::double precision as n%1$s', q.place)
                else format('%L::double precision as n%s', q.known, q.place)
            end, ', ' order by q.place),
        string_agg(format('ln(1 + ($2 - f.n%1$s + 0.5) / (f.n%1$s + 0.5)) as w%1$s', q.place), ', ' order by q.place),
        string_agg(format('%s * i.w%2$s * h.tf%2$s * 2.2 / (h.tf%2$s + h.longer)', q.repeats, q.place), ' + ' order by q.place),
        depth)
    into statement
    from unnest(terms, repeats, prefixes, known, picked)
        with ordinality as q (term, repeats, prefix, known, picked, place);
    execute statement
    into best
    using knowledge_private.tf_thresholds(), chunks::double precision, words::double precision / greatest(chunks, 1);
    return coalesce(best, '{}');
end
$$;

comment on function knowledge_private.score_chunks(
    text, text, tsquery[], integer[], boolean[], double precision[], boolean[], bigint, bigint, integer
) is
'The best depth chunks by BM25 over all terms, of those for which predicate holds, as it must for every permitted chunk with a
picked term, and that filter wants. Of a term that is not picked, known is the number of chunks with it. A prefix counts once in a chunk, however often it is there.';
revoke all on function knowledge_private.score_chunks(
    text, text, tsquery[], integer[], boolean[], double precision[], boolean[], bigint, bigint, integer
) from public;

create function knowledge_private.keyword_leg(request knowledge_private.search_request, depth integer)
returns table (chunk_id uuid, score double precision, place integer)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    terms tsquery[] := array(
        select knowledge_private.lexeme_query(u.lexeme, u.prefix)
        from unnest(request.lexemes, request.prefixes) with ordinality as u (lexeme, prefix, place)
        order by u.place
    );
    picked boolean[] := array(
        select u.known is null from unnest(request.known) with ordinality as u (known, place) order by u.place
    );
    left_over integer[] := array(
        select u.place::integer from unnest(request.known) with ordinality as u (known, place)
        where u.known is not null
        order by u.known, u.place
    );
    setting knowledge_private.settings;
    budget double precision;
    -- Lexemes that make a pair with another of them; and those taken only in pairs.
    partners integer[] := array(
        select u.place::integer from unnest(request.known) with ordinality as u (known, place)
        where u.known * 10 <= request.chunks
    );
    paired integer[] := '{}';
    term integer;
    chosen text;
    -- Lexemes that nobody counted are in less than a hundredth of the chunks; repeats times idf, each at least.
    weights double precision[] := array(
        select u.repeats * ln(1 + (request.chunks - u.n + 0.5) / (u.n + 0.5))
        from (
            select r.repeats, coalesce(r.known, request.chunks / 100.0) as n, r.place
            from unnest(request.repeats, request.known) with ordinality as r (repeats, known, place)
        ) as u
        order by u.place
    );
    -- What a chunk may weigh that has none of the lexemes that choose candidates.
    missed double precision := (select coalesce(sum(weights[i]), 0) from unnest(left_over) as i);
    bearable double precision;
    best knowledge_private.measured[];
begin
    if not 'keyword' = any (request.legs) then
        return;
    end if;
    select s.* into setting from knowledge_private.settings as s;
    budget := setting.candidates;
    bearable := (1 - setting.enough_weight) * (select sum(w) from unnest(weights) as w);
    -- The common words come in from the rarest on, as far as the budget goes and until the rest cannot weigh much; then, on
    -- another budget, where they stand together; and further, while too little was found.
    while cardinality(left_over) > 0
        and (not true = any (picked) or (request.known[left_over[1]] <= budget and missed > bearable))
    loop
        picked[left_over[1]] := true;
        budget := budget - request.known[left_over[1]];
        missed := missed - weights[left_over[1]];
        left_over := left_over[2:];
    end loop;
    budget := greatest(budget, 0) + setting.paired_candidates;
    foreach term in array left_over loop
        exit when request.known[term] > budget or missed <= bearable;
        paired := paired || term;
        budget := budget - request.known[term];
        missed := missed - weights[term];
    end loop;
    loop
        chosen := (select string_agg(terms[i]::text, ' | ') from generate_subscripts(terms, 1) as i where picked[i]);
        foreach term in array paired loop
            chosen := concat_ws(' | ', chosen, (
                select format('%s & (%s)', terms[term], string_agg(terms[i]::text, ' | '))
                from unnest(partners) as i where i <> term
                having count(*) > 0
            ));
        end loop;
        best := knowledge_private.score_chunks(
            request.keyword_predicate || ' and ' || knowledge_private.match_condition(chosen, request.scanned),
            request.keyword_filter, terms, request.repeats, request.prefixes, request.known, picked, request.chunks,
            request.words, depth);
        exit when cardinality(best) >= depth or cardinality(left_over) = 0;
        picked[left_over[1]] := true;
        left_over := left_over[2:];
    end loop;
    return query
    select b.chunk_id, b.measure, b.place::integer
    from unnest(best) with ordinality as b (chunk_id, measure, place);
end
$$;

comment on function knowledge_private.keyword_leg(knowledge_private.search_request, integer) is
'The best depth chunks by BM25 among those that the request permits and its filter wants, numbered from 1.';
revoke all on function knowledge_private.keyword_leg(knowledge_private.search_request, integer) from public;
