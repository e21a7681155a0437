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
                (e.chunk - array['ordinal', 'heading', 'body', 'char_start', 'char_end', 'tokens']) <> '{}'
                then 'unknown key'
            when not knowledge_private.is_count(e.chunk -> 'ordinal') then 'ordinal must be an integer from 0'
            when
                (e.chunk ->> 'ordinal')::integer >= chunk_count
                then format('ordinal %s is beyond chunk_count %s', e.chunk ->> 'ordinal', chunk_count)
            when coalesce(jsonb_typeof(e.chunk -> 'body'), '') <> 'string' then 'body must be a string'
            when knowledge_private.is_blank(e.chunk ->> 'body') then 'body is blank'
            when length(e.chunk ->> 'body') > 100000 then 'body is longer than 100000 characters'
            when coalesce(jsonb_typeof(e.chunk -> 'heading'), 'null') not in ('string', 'null')
                then 'heading must be a string'
            when length(e.chunk ->> 'heading') > 10000 then 'heading is longer than 10000 characters'
            when exists (
                select from unnest(array['char_start', 'char_end', 'tokens']) as k
                where
                    coalesce(jsonb_typeof(e.chunk -> k), 'null') <> 'null'
                    and not knowledge_private.is_count(e.chunk -> k)
            )
                then 'char_start, char_end and tokens must be integers from 0'
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

create function knowledge_private.check_vector(model knowledge.models, embedding vector)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    dimensions integer;
    norm double precision;
begin
    execute format('select %1$s.vector_dims($1), %1$s.vector_norm($1)', knowledge_private.vector_schema())
    into dimensions, norm
    using embedding;
    if model.model_id is not null and dimensions is distinct from model.dimensions then
        perform knowledge_private.fail('KB007',
            format('a vector of %s dimensions for a model of %s', coalesce(dimensions, 0), model.dimensions),
            jsonb_build_object('model', model.name, 'dimensions', model.dimensions));
    end if;
    if norm is null or norm = 0 or norm in ('NaN', 'Infinity') then
        perform knowledge_private.fail('KB005', 'a vector of length zero has no direction');
    end if;
end
$$;

comment on function knowledge_private.check_vector(knowledge.models, vector) is
'KB007 when embedding is not of the model''s dimensions (a null model has any), KB005 when it is zero or not finite.';
revoke all on function knowledge_private.check_vector(knowledge.models, vector) from public;
