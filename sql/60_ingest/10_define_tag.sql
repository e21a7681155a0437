create function knowledge.define_tag(tag text, description text default '')
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    perform knowledge_private.check_name(tag, 'tag');
    perform knowledge_private.use_org(asking.org_id);
    insert into knowledge.tags as t (org_id, tag, description)
    values (asking.org_id, define_tag.tag, coalesce(define_tag.description, ''))
    on conflict (org_id, tag) do update set description = excluded.description;
end
$$;

comment on function knowledge.define_tag(text, text) is
'Adds a tag to the closed vocabulary of the context''s org, or describes it anew. KB005 for a reserved or malformed name.';
revoke all on function knowledge.define_tag(text, text) from public;
grant execute on function knowledge.define_tag(text, text) to knowledge_admin;
