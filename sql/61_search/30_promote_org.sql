create function knowledge.promote_org()
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs := knowledge_private.use_org(asking.org_id);
    name text;
    counted bigint;
begin
    if org.active_model is null then
        perform knowledge_private.fail('KB004', 'the org has no model, so there is nothing to index');
    end if;
    name := format('vectors_%s_of_%s', org.active_model, left(encode(sha256(convert_to(asking.org_id, 'UTF8')), 'hex'), 24));
    execute format('create index if not exists %I on %s using hnsw (embedding %s.halfvec_cosine_ops) where org_id = %L',
        name, knowledge_private.vector_table(org.active_model), knowledge_private.vector_schema(), asking.org_id);
    execute format('select count(*) from %s where org_id = $1', knowledge_private.vector_table(org.active_model))
    into counted
    using asking.org_id;
    insert into knowledge_private.promoted as p (org_id, model_id, index_name, vectors)
    values (asking.org_id, org.active_model, name, counted)
    on conflict (org_id, model_id) do update set vectors = excluded.vectors;
    return name;
end
$$;

comment on function knowledge.promote_org() is
'Builds the partial HNSW index of the context''s org, for one with more vectors than the setting exact_rows, and returns
its name. Ingests into the model''s table wait while it is built (about 3,000 vectors a second). Answers are right without
it. KB004 when the org has no model.';
revoke all on function knowledge.promote_org() from public;
grant execute on function knowledge.promote_org() to knowledge_admin;
