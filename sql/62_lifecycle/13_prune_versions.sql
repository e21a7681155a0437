create function knowledge.prune_versions(keep integer default 10)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    pruned bigint;
begin
    if keep is null or keep < 0 then
        perform knowledge_private.fail('KB005', 'keep must be 0 or more');
    end if;
    perform knowledge_private.use_org(asking.org_id);
    delete from knowledge.versions as v
    using (
        select
            o.version_id,
            row_number() over (partition by o.document_id order by o.started_at desc, o.version_id desc) as age
        from knowledge.versions as o
        inner join knowledge.documents as d on d.org_id = o.org_id and d.document_id = o.document_id
        where
            o.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
            and o.state in ('superseded', 'aborted')
    ) as old
    where v.org_id = asking.org_id and v.version_id = old.version_id and old.age > keep;
    get diagnostics pruned = row_count;
    return pruned;
end
$$;

comment on function knowledge.prune_versions(integer) is
'Forgets all but the keep newest ended versions of each document in the context''s org and exact scope; returns how many
were forgotten. Their chunks are gone already: only live text is kept. KB005 for a negative keep.';
revoke all on function knowledge.prune_versions(integer) from public;
grant execute on function knowledge.prune_versions(integer) to knowledge_writer;
