create function knowledge.define_audience(audience text, tags text[])
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    normal text[] := array(select distinct t collate "C" from unnest(tags) as t order by 1);
    unknown text[];
    changed bigint;
begin
    perform knowledge_private.check_name(audience, 'audience');
    if cardinality(normal) = 0 or array_position(normal, null) is not null then
        perform knowledge_private.fail('KB006', 'an audience needs at least one tag');
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    unknown := array(
        select n from unnest(normal) as n
        where
            n <> 'everyone'
            and not exists (select from knowledge.tags as t where t.org_id = asking.org_id and t.tag = n)
    );
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB006', format('unknown tag: %s', unknown[1]),
            jsonb_build_object('unknown', unknown), 'knowledge.define_tag adds one to the vocabulary.');
    end if;

    insert into knowledge.audiences as d (org_id, audience, tags)
    values (asking.org_id, define_audience.audience, normal)
    on conflict (org_id, audience) do update
    set tags = excluded.tags, version = d.version + 1, changed_at = now()
    where d.tags is distinct from excluded.tags;
    if not found then
        return 0;
    end if;

    perform from knowledge.compartments as c
    where c.org_id = asking.org_id and define_audience.audience = any (c.audience)
    order by c.compartment_id
    for no key update;
    update knowledge.compartments as c
    set acl = r.acl, acl_version = r.acl_version
    from knowledge.compartments as o
    cross join lateral knowledge_private.derive_acl(o.org_id, o.audience) as r
    where
        o.org_id = asking.org_id and define_audience.audience = any (o.audience)
        and c.org_id = o.org_id and c.compartment_id = o.compartment_id;
    get diagnostics changed = row_count;
    perform knowledge_private.audit(asking.org_id, 'define_audience',
        jsonb_build_object('audience_digest', encode(knowledge_private.text_key(audience), 'hex'), 'tags', cardinality(normal),
            'compartments', changed));
    return changed;
end
$$;

comment on function knowledge.define_audience(text, text[]) is
'Says which tags open an audience, and derives the permission of every compartment with it anew: the documents follow at
once, without a chunk being written. Returns the number of compartments that changed. KB006 for an unknown tag or no tag,
KB005 for a reserved or malformed name.';
revoke all on function knowledge.define_audience(text, text[]) from public;
grant execute on function knowledge.define_audience(text, text[]) to knowledge_admin;
