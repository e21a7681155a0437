create function knowledge.set_context(org_id text, grants text[], org_scope text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_claim(set_context.org_id, set_context.grants, set_context.org_scope);
    perform knowledge_private.put_claim(set_context.org_id, set_context.grants, set_context.org_scope, null);
end
$$;

comment on function knowledge.set_context(text, text[], text) is
'Says who is asking, until the end of this transaction: tenant, tags held ({} holds only the built-in everyone) and
optionally the part of the tenant. For back ends that have authenticated the caller; a role that can run SQL of its own
should get a token instead. KB005 for a blank or malformed argument.';
revoke all on function knowledge.set_context(text, text[], text) from public;
grant execute on function knowledge.set_context(text, text[], text) to knowledge_trusted;
