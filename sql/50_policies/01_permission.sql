-- The rule of who may read what, written once. search_scoped calls permitted_compartments; the policies of every
-- table with an org_id call it through current_org and readable_compartments, as initplans: once a statement.

create function knowledge_private.permitted_compartments(
    asking knowledge_private.claim, source_types text[] default null, visibility text[] default null
)
returns setof knowledge.compartments
language sql
stable
parallel restricted
begin atomic
    -- One rule, twice, for two ways to find rows: those of the org, which suits an org of few compartments whatever the
    -- caller holds; or those with a tag, which in the index are of every org. "is true" and "|| ''" keep each to its way.
    select c.*
    from knowledge.compartments as c
    where
        c.org_id = asking.org_id
        and (c.acl && (select asking.grants || array['everyone'])) is true
        and (c.org_scope is null or c.org_scope = asking.org_scope)
        and (source_types is null or c.source_type = any(source_types))
        and (permitted_compartments.visibility is null or c.visibility = any(permitted_compartments.visibility))
        and (select max(m.compartment_id) <= 1000 from knowledge.compartments as m where m.org_id = asking.org_id)
    union all
    select c.*
    from knowledge.compartments as c
    where
        c.org_id || '' = asking.org_id
        and c.acl && (select asking.grants || array['everyone'])
        and (c.org_scope is null or c.org_scope = asking.org_scope)
        and (source_types is null or c.source_type = any(source_types))
        and (permitted_compartments.visibility is null or c.visibility = any(permitted_compartments.visibility))
        and (select max(m.compartment_id) > 1000 from knowledge.compartments as m where m.org_id = asking.org_id);
end;

comment on function knowledge_private.permitted_compartments(knowledge_private.claim, text[], text[]) is
'The compartments that a claim opens: of its org, org-wide or of exactly its scope, with a tag it holds; narrowed to
source types and visibility labels unless these are null. An empty list is nothing.';
revoke all on function knowledge_private.permitted_compartments(knowledge_private.claim, text[], text[]) from public;

create function knowledge_private.current_org()
returns text
language sql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
    select c.org_id from knowledge_private.context() as c
$$;

comment on function knowledge_private.current_org() is 'The tenant of the context, for policies. KB001, KB002.';
revoke all on function knowledge_private.current_org() from public;
grant execute on function knowledge_private.current_org() to knowledge_reader;

create function knowledge_private.readable_compartments()
returns integer[]
language plpgsql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Verified here, once: inside the query below it would be for every compartment.
    asking knowledge_private.claim := knowledge_private.context();
begin
    return array(select p.compartment_id from knowledge_private.permitted_compartments(asking) as p);
end
$$;

comment on function knowledge_private.readable_compartments() is
'The compartments that the context opens, for policies. KB001, KB002.';
revoke all on function knowledge_private.readable_compartments() from public;
grant execute on function knowledge_private.readable_compartments() to knowledge_reader;
