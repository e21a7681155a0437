create function knowledge.issue_token(
    org_id text, grants text[], org_scope text default null, ttl interval default interval '5 minutes'
)
returns text
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    longest interval;
begin
    perform knowledge_private.check_claim(issue_token.org_id, issue_token.grants, issue_token.org_scope);
    select s.longest_token into longest from knowledge_private.settings as s;
    if ttl is null or ttl <= interval '0' or ttl > longest then
        perform knowledge_private.fail('KB005', format('ttl must be more than 0 and at most %s', longest));
    end if;
    return knowledge_private.sign('token', jsonb_build_object(
        'org_id', issue_token.org_id, 'org_scope', issue_token.org_scope, 'grants', to_jsonb(issue_token.grants),
        'expires_at', knowledge_private.clock() + ttl));
end
$$;

comment on function knowledge.issue_token(text, text[], text, interval) is
'A signed text that lets whoever holds it call use_token until ttl has passed. Arguments as for set_context. KB005 for a
malformed argument or a ttl beyond the setting longest_token.';
revoke all on function knowledge.issue_token(text, text[], text, interval) from public;
grant execute on function knowledge.issue_token(text, text[], text, interval) to knowledge_trusted;
