create function knowledge.rotate_signing_key(revoke_tokens boolean default false)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    lock table knowledge_private.signing_keys in share row exclusive mode;
    delete from knowledge_private.signing_keys as k where k.valid_until <= knowledge_private.clock();
    update knowledge_private.signing_keys as k
    set valid_until = case when revoke_tokens then '-infinity' else knowledge_private.clock() + s.longest_token end
    from knowledge_private.settings as s
    where k.valid_until is null or revoke_tokens;
    perform knowledge_private.add_signing_key();
end
$$;

comment on function knowledge.rotate_signing_key(boolean) is
'Signs with a new key from now on. Tokens of the old key stay good until they expire, unless revoke_tokens. Concerns the
whole database, so only a role that can become knowledge_owner may call it.';
revoke all on function knowledge.rotate_signing_key(boolean) from public;
grant execute on function knowledge.rotate_signing_key(boolean) to knowledge_owner;
