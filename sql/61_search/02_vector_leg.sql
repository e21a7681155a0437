-- The vector leg. No index is shared between orgs: permitted vectors are compared one by one, or, in an org that has
-- earned a partial HNSW index of its own, found through that and checked for completeness.

create function knowledge_private.unit(embedding vector)
returns halfvec
language sql
immutable
begin atomic
    -- A halfvec holds neither very short nor very long vectors, so it is normalised before.
    select l2_normalize(embedding)::halfvec;
end;

comment on function knowledge_private.unit(vector) is 'A vector as vectors are stored: of length 1, in half precision.';
revoke all on function knowledge_private.unit(vector) from public;

create function knowledge_private.distance(one halfvec, other halfvec)
returns double precision
language sql
immutable
parallel safe
begin atomic
    select one <=> other;
end;

comment on function knowledge_private.distance(halfvec, halfvec) is 'The cosine distance of two vectors, 0 to 2.';
revoke all on function knowledge_private.distance(halfvec, halfvec) from public;

create function knowledge_private.index_name(org_id text, model_id integer)
returns text
language sql
immutable
begin atomic
    select 'vectors_' || model_id::text || '_of_' || left(encode(knowledge_private.text_key(org_id), 'hex'), 24);
end;

comment on function knowledge_private.index_name(text, integer) is
'The name, in schema knowledge, of the index that an org has on a model''s vectors if it has one.';
revoke all on function knowledge_private.index_name(text, integer) from public;

create function knowledge_private.index_worth(org_id text, model_id integer)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select greatest(s.exact_rows, s.index_share * c.reltuples)::bigint
    from pg_class as c
    inner join pg_index as i on i.indexrelid = c.oid
    cross join knowledge_private.settings as s
    where
        c.relname = knowledge_private.index_name(index_worth.org_id, index_worth.model_id)
        and c.relnamespace = 'knowledge'::regnamespace and i.indisvalid
$$;

comment on function knowledge_private.index_worth(text, integer) is
'The number of permitted vectors above which the org''s index is the better way than to compare all; null without an index.';
revoke all on function knowledge_private.index_worth(text, integer) from public;

create function knowledge_private.more_vectors(model_id integer, filter text, than bigint)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    counted bigint;
begin
    execute format('select count(*) from (select from %s as t where %s limit %s) as n',
        knowledge_private.vector_table(model_id), filter, than + 1)
    into counted;
    return counted > than;
end
$$;

comment on function knowledge_private.more_vectors(integer, text, bigint) is
'Whether filter holds for more than so many vectors of a model, counting no further than that.';
revoke all on function knowledge_private.more_vectors(integer, text, bigint) from public;

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
'The nearest depth vectors that predicate permits, through the org''s partial HNSW index, which predicate must imply; cosine
distance, ascending; may miss some.';
revoke all on function knowledge_private.index_leg(integer, text, vector, integer) from public;

create function knowledge_private.vector_leg(
    request knowledge_private.search_request, embedding vector, depth integer
)
returns table (chunk_id uuid, distance double precision)
language plpgsql
stable
rows 200
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Whatever is asked for, the index is walked as far, so that a smaller k finds the same.
    wanted integer := greatest(200, depth);
    nearest knowledge_private.measured[];
begin
    if not 'vector' = any (request.legs) then
        return;
    end if;
    if request.index_filter is not null then
        nearest := array(
            select (l.chunk_id, l.distance)::knowledge_private.measured
            from knowledge_private.index_leg(request.model_id, request.index_filter, embedding, wanted) as l
        );
        if cardinality(nearest) >= least(wanted, request.permitted_vectors) then
            return query
            select n.chunk_id, n.measure from unnest(nearest[:depth]) as n;
            return;
        end if;
    end if;
    -- "+ 0": no index can serve this order, whatever the planner thinks.
    return query execute format(
        'select t.chunk_id, knowledge_private.distance(t.embedding, $1) + 0 as distance '
        'from %s as t where %s order by distance, t.chunk_id limit %s',
        knowledge_private.vector_table(request.model_id), request.vector_filter, depth)
    using knowledge_private.unit(embedding);
end
$$;

comment on function knowledge_private.vector_leg(knowledge_private.search_request, vector, integer) is
'The nearest depth permitted vectors by cosine distance, ascending: through the org''s index if the request has an
index_filter; else, and when that answer is short, by comparing all of them.';
revoke all on function knowledge_private.vector_leg(knowledge_private.search_request, vector, integer) from public;
