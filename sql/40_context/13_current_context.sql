create function knowledge.current_context()
returns table (org_id text, org_scope text, grants text[], expires_at timestamptz)
language sql
stable
parallel restricted
security definer
set search_path = pg_catalog, pg_temp
as $$
    select c.org_id, c.org_scope, c.grants, c.expires_at from knowledge_private.context() as c
$$;

comment on function knowledge.current_context() is
'One row: who is asking in this transaction; expires_at is null unless it came from a token. KB001 without a context,
KB002 when it is refused.';
revoke all on function knowledge.current_context() from public;
grant execute on function knowledge.current_context() to knowledge_reader, knowledge_trusted;
