-- The vector leg. No index is shared between orgs: permitted vectors are compared one by one, or, in an org that has
-- earned a partial HNSW index of its own, found through that and checked for completeness.

create table knowledge_private.promoted (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    model_id integer not null references knowledge.models (model_id),
    index_name text not null,
    vectors bigint not null,
    primary key (org_id, model_id)
);

comment on table knowledge_private.promoted is 'The orgs that have a vector index of their own.';
comment on column knowledge_private.promoted.org_id is 'The tenant.';
comment on column knowledge_private.promoted.model_id is 'The model whose vectors are indexed.';
comment on column knowledge_private.promoted.index_name is 'Name of the index, in schema knowledge.';
comment on column knowledge_private.promoted.vectors is 'How many vectors it had when it was built.';

alter table knowledge_private.promoted enable row level security;

create function knowledge_private.vector_plan(
    org_id text, model_id integer, predicate text, out plan text, out permitted bigint
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    enough bigint;
    -- Whatever is enough: so many that a short answer is noticed, for every depth.
    deepest constant integer := 1000;
begin
    plan := 'exact';
    select greatest(s.exact_rows, (s.index_share * p.vectors)::bigint)
    into enough
    from knowledge_private.promoted as p
    inner join pg_class as c on c.relname = p.index_name and c.relnamespace = 'knowledge'::regnamespace
    inner join pg_index as i on i.indexrelid = c.oid and i.indisvalid
    cross join knowledge_private.settings as s
    where p.org_id = vector_plan.org_id and p.model_id = vector_plan.model_id;
    if found then
        execute format('select count(*) from (select from %s as t where %s limit %s) as n',
            knowledge_private.vector_table(model_id), predicate, greatest(enough + 1, deepest))
        into permitted;
        if permitted > enough then
            plan := 'index';
        end if;
    end if;
end
$$;

comment on function knowledge_private.vector_plan(text, integer, text) is
'How to find the nearest of the vectors that predicate permits: exact, or through the org''s index when it has one and
there are enough of them to make it worth while. permitted is their number, counted no further than that or 1000; null if
unasked.';
revoke all on function knowledge_private.vector_plan(text, integer, text) from public;

create function knowledge_private.exact_leg(model_id integer, predicate text, embedding vector, depth integer)
returns table (chunk_id uuid, distance double precision)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
begin
    -- "+ 0": no index can serve this order, whatever the planner thinks. A halfvec holds neither very short nor very long
    -- vectors, so the question is normalised first, as what is stored was.
    return query execute format(
        'select t.chunk_id, (t.embedding operator(%1$s.<=>) %1$s.l2_normalize($1)::%1$s.halfvec) + 0 as distance '
        'from %2$s as t where %3$s order by distance, t.chunk_id limit %4$s',
        knowledge_private.vector_schema(), knowledge_private.vector_table(model_id), predicate, depth)
    using embedding;
end
$$;

comment on function knowledge_private.exact_leg(integer, text, vector, integer) is
'The nearest depth vectors that predicate permits, by comparing all of them; cosine distance, 0 to 2, ascending.';
revoke all on function knowledge_private.exact_leg(integer, text, vector, integer) from public;

create function knowledge_private.index_leg(model_id integer, predicate text, embedding vector, depth integer)
returns table (chunk_id uuid, distance double precision)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted text[] := array[
        ['hnsw.iterative_scan', 'relaxed_order'],
        ['hnsw.ef_search', least(1000, greatest(100, 2 * depth))::text],
        ['hnsw.max_scan_tuples', '2000000'],
        ['hnsw.scan_mem_multiplier', '16']
    ];
    before text[] := array(
        select current_setting(w.name) from unnest(wanted[:][1:1]) with ordinality as w (name, place) order by w.place
    );
begin
    perform set_config(wanted[i][1], wanted[i][2], true) from generate_subscripts(wanted, 1) as i;
    return query execute format(
        'select n.chunk_id, n.distance from ('
        'select t.chunk_id, t.embedding operator(%1$s.<=>) %1$s.l2_normalize($1)::%1$s.halfvec as distance '
        'from %2$s as t where %3$s order by t.embedding operator(%1$s.<=>) %1$s.l2_normalize($1)::%1$s.halfvec limit %4$s'
        ') as n order by n.distance + 0, n.chunk_id',
        knowledge_private.vector_schema(), knowledge_private.vector_table(model_id), predicate, depth)
    using embedding;
    perform set_config(wanted[i][1], before[i], true) from generate_subscripts(wanted, 1) as i;
end
$$;

comment on function knowledge_private.index_leg(integer, text, vector, integer) is
'Like exact_leg, through the org''s partial HNSW index, which predicate must imply; may miss some.';
revoke all on function knowledge_private.index_leg(integer, text, vector, integer) from public;

create function knowledge_private.vector_leg(
    org_id text, model_id integer, predicate text, embedding vector, depth integer, plan text
)
returns table (chunk_id uuid, distance double precision, place integer)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    chosen text := vector_leg.plan;
    permitted bigint;
    nearest knowledge_private.measured[];
begin
    if chosen = 'auto' then
        select p.plan, p.permitted into chosen, permitted
        from knowledge_private.vector_plan(vector_leg.org_id, vector_leg.model_id, vector_leg.predicate) as p;
        if chosen = 'index' then
            nearest := array(
                select (l.chunk_id, l.distance)::knowledge_private.measured
                from knowledge_private.index_leg(vector_leg.model_id, vector_leg.predicate, vector_leg.embedding,
                    vector_leg.depth) as l
            );
        end if;
    end if;
    if nearest is null or cardinality(nearest) < least(vector_leg.depth, permitted) then
        nearest := array(
            select (l.chunk_id, l.distance)::knowledge_private.measured
            from knowledge_private.exact_leg(vector_leg.model_id, vector_leg.predicate, vector_leg.embedding,
                vector_leg.depth) as l
        );
    end if;
    return query
    select n.chunk_id, n.distance, n.place::integer
    from unnest(nearest) with ordinality as n (chunk_id, distance, place);
end
$$;

comment on function knowledge_private.vector_leg(text, integer, text, vector, integer, text) is
'The nearest depth vectors that predicate permits, numbered from 1. plan: auto takes the org''s index where vector_plan
says so, and compares exactly when its answer is short; exact always compares.';
revoke all on function knowledge_private.vector_leg(text, integer, text, vector, integer, text) from public;
