-- Every ranking query gets its permission from here, as literals: an integer comparison on the row that it ranks.

create function knowledge_private.compartment_predicate(
    org_id text, compartments integer[], long_list integer, indexable boolean
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    all_of_org boolean;
    org_part text := format(case when indexable then 't.org_id = %L' else 't.org_id || '''' = %L' end,
        compartment_predicate.org_id);
begin
    if cardinality(compartments) > long_list then
        -- They are numbered from 1.
        select max(c.compartment_id) = cardinality(compartments)
        into all_of_org
        from knowledge.compartments as c
        where c.org_id = compartment_predicate.org_id;
        if all_of_org then
            return org_part;
        end if;
    end if;
    return format('%s and %s = any (%L::integer[])',
        org_part, case when indexable then 't.compartment_id' else 't.compartment_id + 0' end, compartments);
end
$$;

comment on function knowledge_private.compartment_predicate(text, integer[], integer, boolean) is
'The condition on a table t with org_id and compartment_id that holds for rows in compartments of an org: a literal list,
which hashes; or for one longer than long_list that is all there is, nothing but the org. indexable false keeps the planner from finding
these rows by an index on them, where another index is the better way.';
revoke all on function knowledge_private.compartment_predicate(text, integer[], integer, boolean) from public;

create function knowledge_private.compartment_look_up(
    asking knowledge_private.claim, source_types text[], visibility text[]
)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- "offset 0": never joined, always by key.
    select format(
        't.org_id = %L and exists (select from knowledge_private.permitted_compartments(%L::knowledge_private.claim, '
        '%L::text[], %L::text[]) as p where p.org_id = t.org_id and p.compartment_id = t.compartment_id offset 0)',
        asking.org_id, asking, source_types, visibility)
$$;

comment on function knowledge_private.compartment_look_up(knowledge_private.claim, text[], text[]) is
'The condition on a table t that holds for rows in compartments that permitted_compartments gives for these arguments,
looked up for each row: for the few rows that a vector index gives, where a list would be long.';
revoke all on function knowledge_private.compartment_look_up(knowledge_private.claim, text[], text[]) from public;

create function knowledge_private.metadata_condition(filter jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    comparison constant jsonb := '{"$eq": "=", "$ne": "<>", "$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}';
    conditions text[] := '{}';
    field record;
    test record;
begin
    if jsonb_typeof(filter) is distinct from 'object' then
        perform knowledge_private.fail('KB005', 'a metadata filter must be a json object');
    end if;
    for field in select f.key, f.value from jsonb_each(filter) as f loop
        if field.key in ('$and', '$or') then
            if jsonb_typeof(field.value) <> 'array' then
                perform knowledge_private.fail('KB005', format('%s takes a list of filters', field.key));
            end if;
            conditions := conditions || coalesce('(' || (
                select string_agg(knowledge_private.metadata_condition(e), case field.key when '$and' then ' and ' else ' or ' end)
                from jsonb_array_elements(field.value) as e
            ) || ')', case field.key when '$and' then 'true' else 'false' end);
        elsif field.key = '$not' then
            conditions := conditions || format('not %s', knowledge_private.metadata_condition(field.value));
        elsif field.key like '$%' then
            perform knowledge_private.fail('KB005', format('unknown operator in metadata: %s', field.key));
        elsif jsonb_typeof(field.value) <> 'object' or not exists (
            select from jsonb_object_keys(field.value) as k where k like '$%'
        ) then
            conditions := conditions || format('d.metadata @> %L', jsonb_build_object(field.key, field.value));
        else
            for test in select t.key, t.value from jsonb_each(field.value) as t loop
                if comparison ? test.key
                    and (test.key in ('$eq', '$ne') or jsonb_typeof(test.value) in ('number', 'string'))
                then
                    -- Numbers compare with numbers and strings with strings; nothing else is greater or less.
                    conditions := conditions || format(
                        '(jsonb_typeof(d.metadata -> %1$L) %3$s and d.metadata -> %1$L %2$s %4$L::jsonb)',
                        field.key, comparison ->> test.key,
                        case
                            when test.key in ('$eq', '$ne') then 'is not null'
                            else format('is not distinct from %L', jsonb_typeof(test.value))
                        end, test.value);
                elsif test.key in ('$in', '$nin') and jsonb_typeof(test.value) = 'array' then
                    conditions := conditions || format('(d.metadata ? %1$L and %2$s d.metadata -> %1$L = any (%3$L::jsonb[]))',
                        field.key, case test.key when '$nin' then 'not' else '' end,
                        array(select e from jsonb_array_elements(test.value) as e));
                elsif test.key = '$exists' and jsonb_typeof(test.value) = 'boolean' then
                    conditions := conditions || format('(d.metadata ? %L) = %L::boolean', field.key, test.value);
                else
                    perform knowledge_private.fail('KB005', format('unknown operator in metadata, or a wrong value: %s', test.key),
                        field.value);
                end if;
            end loop;
        end if;
    end loop;
    return coalesce('(' || array_to_string(nullif(conditions, '{}'), ' and ') || ')', 'true');
end
$$;

comment on function knowledge_private.metadata_condition(jsonb) is
'The condition on a row d with metadata that a filter (see metadata_matches) stands for. KB005 for a malformed filter.';
revoke all on function knowledge_private.metadata_condition(jsonb) from public;

create function knowledge_private.metadata_predicate(org_id text, filter jsonb)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when filter is null then 'true'
        else format(
            't.document_id in (select d.document_id from knowledge.documents as d where d.org_id = %L and %s)',
            metadata_predicate.org_id, knowledge_private.metadata_condition(filter))
    end
$$;

comment on function knowledge_private.metadata_predicate(text, jsonb) is
'The condition on a table t with document_id that holds for chunks of documents whose metadata a filter matches.';
revoke all on function knowledge_private.metadata_predicate(text, jsonb) from public;

create function knowledge_private.match_condition(query text, scanned boolean)
returns text
language sql
immutable
begin atomic
    select format(case when scanned then 'ts_match_vq(t.tsv, %L)' else 't.tsv @@ %L' end, query);
end;

comment on function knowledge_private.match_condition(text, boolean) is
'The condition on a table t that its tsv matches a tsquery. scanned: as a call, which no index serves; that of lexemes is
everybody''s, and for a small org most of what it gives is of others.';
revoke all on function knowledge_private.match_condition(text, boolean) from public;
