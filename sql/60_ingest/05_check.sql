-- What a batch must look like before any of it is kept.

create function knowledge_private.chunks_problem(chunks jsonb, chunk_count integer)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    problem text;
begin
    if chunks is null or jsonb_typeof(chunks) <> 'array' then
        return 'chunks must be a json array';
    end if;
    select format('chunk %s of the batch: %s', e.place, p.problem)
    into problem
    from jsonb_array_elements(chunks) with ordinality as e (chunk, place)
    cross join lateral (
        select case
            when jsonb_typeof(e.chunk) <> 'object' then 'not a json object'
            when
                (e.chunk - array[
                    'ordinal', 'heading', 'body', 'char_start', 'char_end', 'tokens', 'locator', 'verdict', 'reason'
                ]) <> '{}'
                then 'unknown key'
            when
                (e.chunk -> 'ordinal') is null
                or concat_ws(',', e.chunk -> 'ordinal', e.chunk -> 'char_start', e.chunk -> 'char_end', e.chunk -> 'tokens')
                !~ '^[0-9]{1,9}(,([0-9]{1,9}|null))*$'
                then 'ordinal, char_start, char_end and tokens must be integers from 0, and ordinal must be there'
            when
                (e.chunk ->> 'ordinal')::integer >= chunk_count
                then format('ordinal %s is beyond chunk_count %s', e.chunk ->> 'ordinal', chunk_count)
            when coalesce(jsonb_typeof(e.chunk -> 'body'), '') <> 'string' then 'body must be a string'
            when length(e.chunk ->> 'body') > 100000 then 'body is longer than 100000 characters'
            when
                concat_ws(
                    ',', jsonb_typeof(e.chunk -> 'heading'), jsonb_typeof(e.chunk -> 'locator'),
                    jsonb_typeof(e.chunk -> 'reason'))
                !~ '^((string|null),?)*$'
                then 'heading, locator and reason must be strings'
            when length(e.chunk ->> 'heading') > 10000 then 'heading is longer than 10000 characters'
            when length(e.chunk ->> 'locator') > 500 or length(e.chunk ->> 'reason') > 500
                then 'locator and reason must be strings of at most 500 characters'
            when coalesce(e.chunk -> 'verdict', 'null') not in ('null', '"admitted"', '"quarantined"', '"rejected"')
                then 'verdict must be admitted, quarantined or rejected'
            when (e.chunk ->> 'char_end')::integer < (e.chunk ->> 'char_start')::integer
                then 'char_end is before char_start'
        end as problem
    ) as p
    where p.problem is not null
    order by e.place
    limit 1;
    if problem is null then
        select format('ordinal %s stands twice in the batch', e.chunk ->> 'ordinal')
        into problem
        from jsonb_array_elements(chunks) as e (chunk)
        group by e.chunk ->> 'ordinal'
        having count(*) > 1
        limit 1;
    end if;
    return problem;
end
$$;

comment on function knowledge_private.chunks_problem(jsonb, integer) is
'What is wrong with a batch for stage_chunks, in words; null when nothing is.';
revoke all on function knowledge_private.chunks_problem(jsonb, integer) from public;

create function knowledge_private.is_count(value jsonb)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_typeof(value) is not distinct from 'number' and value::text ~ '^[0-9]{1,9}$'
$$;

comment on function knowledge_private.is_count(jsonb) is 'Whether value is a json integer from 0 to 999999999.';
revoke all on function knowledge_private.is_count(jsonb) from public;

-- Bound to pgvector's functions when the migration runs, wherever they are: to call these needs no dynamic SQL.

create function knowledge_private.dimensions(embedding vector)
returns integer
language sql
immutable
begin atomic
    select vector_dims(embedding);
end;

comment on function knowledge_private.dimensions(vector) is 'The number of dimensions of a vector.';
revoke all on function knowledge_private.dimensions(vector) from public;

create function knowledge_private.norm(embedding vector)
returns double precision
language sql
immutable
begin atomic
    select vector_norm(embedding);
end;

comment on function knowledge_private.norm(vector) is 'The length of a vector.';
revoke all on function knowledge_private.norm(vector) from public;

create function knowledge_private.check_vectors(model knowledge.models, embeddings vector[])
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    dimensions integer;
    pointless boolean;
begin
    select
        max(coalesce(knowledge_private.dimensions(e), 0)) filter (
            where model.dimensions is not null and knowledge_private.dimensions(e) is distinct from model.dimensions
        ),
        bool_or(coalesce(knowledge_private.norm(e), 0) in (0, 'NaN', 'Infinity'))
    into dimensions, pointless
    from unnest(embeddings) as e;
    if dimensions is not null then
        perform knowledge_private.fail('KB007',
            format('a vector of %s dimensions for a model of %s', dimensions, model.dimensions),
            jsonb_build_object('model', model.name, 'dimensions', model.dimensions));
    end if;
    if pointless then
        perform knowledge_private.fail('KB005', 'a vector of length zero has no direction');
    end if;
end
$$;

comment on function knowledge_private.check_vectors(knowledge.models, vector[]) is
'KB007 when one is not of the model''s dimensions (a null model has any), KB005 when one is zero, null or not finite.';
revoke all on function knowledge_private.check_vectors(knowledge.models, vector[]) from public;
