-- The vector leg. No index is shared between orgs: permitted vectors are compared one by one, or, in an org that has
-- earned a partial HNSW index of its own, found through that and checked for completeness.

create function knowledge_private.index_name(org_id text, model_id integer)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select format('vectors_%s_of_%s', model_id, left(encode(knowledge_private.text_key(org_id), 'hex'), 24))
$$;

comment on function knowledge_private.index_name(text, integer) is
'The name, in schema knowledge, of the index that an org has on a model''s vectors if it has one.';
revoke all on function knowledge_private.index_name(text, integer) from public;

create function knowledge_private.vector_plan(
    org_id text, model_id integer, predicate text, counted bigint, depth integer, out plan text, out permitted bigint
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    enough bigint;
begin
    plan := 'exact';
    if counted <= (select s.exact_rows from knowledge_private.settings as s) then
        return;
    end if;
    if exists (
        select from pg_class as c
        inner join pg_index as i on i.indexrelid = c.oid
        where
            c.relname = knowledge_private.index_name(vector_plan.org_id, vector_plan.model_id)
            and c.relnamespace = 'knowledge'::regnamespace and i.indisvalid
    ) then
        select greatest(s.exact_rows, (s.index_share * (
            select sum(c.chunks) from knowledge.compartments as c where c.org_id = vector_plan.org_id
        ))::bigint)
        into enough
        from knowledge_private.settings as s;
        permitted := counted;
        if permitted is null then
            execute format('select count(*) from (select from %s as t where %s limit %s) as n',
                knowledge_private.vector_table(model_id), predicate, greatest(enough + 1, depth))
            into permitted;
        end if;
        if permitted > enough then
            plan := 'index';
        end if;
    end if;
end
$$;

comment on function knowledge_private.vector_plan(text, integer, text, bigint, integer) is
'How to find the nearest of the vectors that predicate permits: exact, or through the org''s index when it has one and
there are enough of them to make it worth while. permitted is their number: counted, where it is
known, else counted here, but no further than that or depth; null if unasked.';
revoke all on function knowledge_private.vector_plan(text, integer, text, bigint, integer) from public;

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
set enable_sort = off
set enable_seqscan = off
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
    org_id text, model_id integer, predicate text, counted bigint, embedding vector, depth integer, plan text
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
        from knowledge_private.vector_plan(vector_leg.org_id, vector_leg.model_id, vector_leg.predicate,
            vector_leg.counted, vector_leg.depth) as p;
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

comment on function knowledge_private.vector_leg(text, integer, text, bigint, vector, integer, text) is
'The nearest depth vectors that predicate permits, numbered from 1. counted: how many there are, if it is known. plan: auto
takes the org''s index where vector_plan says so, and compares exactly when its answer is short; exact always compares.';
revoke all on function knowledge_private.vector_leg(text, integer, text, bigint, vector, integer, text) from public;
