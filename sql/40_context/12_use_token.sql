create function knowledge.use_token(token text)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    payload jsonb := knowledge_private.verify('token', token);
    claim knowledge_private.claim;
begin
    if payload is null then
        perform knowledge_private.fail('KB002', 'token refused', null, 'Ask the back end for a token of issue_token.');
    end if;
    claim := jsonb_populate_record(claim, payload);
    if claim.expires_at <= knowledge_private.clock() then
        perform knowledge_private.fail('KB002', 'token refused: it has expired', null, 'Ask the back end for a new one.');
    end if;
    perform knowledge_private.put_claim(claim.org_id, claim.grants, claim.org_scope, claim.expires_at);
end
$$;

comment on function knowledge.use_token(text) is
'Takes on the context that a token of issue_token carries, until the end of this transaction or the token''s expiry.
KB002 when the token is forged or has expired.';
revoke all on function knowledge.use_token(text) from public;
grant execute on function knowledge.use_token(text) to knowledge_reader;
