create function knowledge.fail_embeddings(claim uuid, chunk_ids uuid[], reason text, retry_after interval default null)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    failed integer;
begin
    if claim is null or chunk_ids is null or reason is null or retry_after < interval '0' then
        perform knowledge_private.fail('KB005', 'give the claim, its chunks and a reason; retry_after is not negative');
    end if;
    update knowledge_private.embedding_jobs as j
    set
        claim = null,
        reason = left(fail_embeddings.reason, 2000),
        attempts = j.attempts + (retry_after is null)::integer,
        dead = retry_after is null and j.attempts + 1 >= s.attempts,
        due_at = knowledge_private.clock() + coalesce(
            retry_after, least(s.longest_retry, s.first_retry * power(2, least(j.attempts, 30))))
    from knowledge_private.settings as s
    where j.claim = fail_embeddings.claim and j.chunk_id = any (fail_embeddings.chunk_ids);
    get diagnostics failed = row_count;
    return failed;
end
$$;

comment on function knowledge.fail_embeddings(uuid, uuid[], text, interval) is
'Gives claimed chunks back, with the reason. Without retry_after the text is to blame: it is due again after 10 seconds, 20,
40 … at most an hour, and is set aside as a dead letter after 8 failures (settings). With retry_after the provider is to
blame (rate limit, outage): due then, and not counted. Returns how many were still claimed. KB005 malformed argument.';
revoke all on function knowledge.fail_embeddings(uuid, uuid[], text, interval) from public;
grant execute on function knowledge.fail_embeddings(uuid, uuid[], text, interval) to knowledge_trusted;
