-- Every ranking query gets its permission from here, as literals: an integer comparison on the row that it ranks.

create function knowledge_private.compartment_predicate(
    asking knowledge_private.claim, compartments integer[], source_types text[], visibility text[], indexable boolean
)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    all_of_org boolean;
    long_list integer;
    org_part text := format(case when indexable then 't.org_id = %L' else 't.org_id || '''' = %L' end, asking.org_id);
    number text := case when indexable then 't.compartment_id' else 't.compartment_id + 0' end;
begin
    select s.long_list into long_list from knowledge_private.settings as s;
    if cardinality(compartments) <= long_list then
        return format('%s and %s = any (%L::integer[])', org_part, number, compartments);
    end if;
    select count(*) = cardinality(compartments)
    into all_of_org
    from knowledge.compartments as c
    where c.org_id = asking.org_id;
    if all_of_org then
        return org_part;
    end if;
    return format(
        '%s and %s in (select p.compartment_id '
        'from knowledge_private.permitted_compartments(%L::knowledge_private.claim, %L::text[], %L::text[]) as p)',
        org_part, number, asking, source_types, visibility);
end
$$;

comment on function knowledge_private.compartment_predicate(knowledge_private.claim, integer[], text[], text[], boolean) is
'The condition on a table t with org_id and compartment_id that holds for rows in compartments, which are those that
permitted_compartments gives for the other arguments: a literal list, or for a long one all of the org or a subquery.
indexable false keeps the planner from finding these rows by an index on them, where another index is the better way.';
revoke all on function knowledge_private.compartment_predicate(
    knowledge_private.claim, integer[], text[], text[], boolean
) from public;

create function knowledge_private.metadata_predicate(org_id text, metadata jsonb)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when metadata is null then 'true'
        else format(
            't.document_id in (select d.document_id from knowledge.documents as d '
            'where d.org_id = %L and d.metadata @> %L::jsonb)',
            metadata_predicate.org_id, metadata)
    end
$$;

comment on function knowledge_private.metadata_predicate(text, jsonb) is
'The condition on a table t with document_id that holds for chunks of documents whose metadata contains metadata.';
revoke all on function knowledge_private.metadata_predicate(text, jsonb) from public;
