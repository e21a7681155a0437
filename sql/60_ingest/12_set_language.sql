create function knowledge.set_language(language text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    perform knowledge_private.use_org(asking.org_id);
    update knowledge.orgs as o
    set language = knowledge_private.resolve_language(set_language.language)
    where o.org_id = asking.org_id;
end
$$;

comment on function knowledge.set_language(text) is
'The text search configuration (''german'', ''simple'' …) of documents and questions of the org that name none. Documents
that are there keep theirs until they are ingested again. KB005 when there is no such configuration.';
revoke all on function knowledge.set_language(text) from public;
grant execute on function knowledge.set_language(text) to knowledge_admin;
