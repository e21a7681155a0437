create function knowledge.claim_embeddings(fingerprint text, k integer default 64)
returns table (claim uuid, org_id text, chunk_id uuid, heading text, body text, attempts integer)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    clock timestamptz := knowledge_private.clock();
    settings knowledge_private.settings;
    model integer;
    new_claim uuid := gen_random_uuid();
    turn record;
    lost uuid[];
    taken integer;
    missing integer := k;
begin
    if k is null or k not between 1 and 10000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 10000');
    end if;
    model := (knowledge_private.model_of(claim_embeddings.fingerprint)).model_id;
    select s.* into settings from knowledge_private.settings as s;
    for turn in
        select t.org_id from knowledge_private.embedding_turns as t
        where t.model_id = model
        order by t.served_at, t.org_id
    loop
        -- Each job by itself, so that one that another worker holds is passed over.
        with due as (
            select j.chunk_id
            from knowledge_private.embedding_jobs as j
            where j.model_id = model and j.org_id = turn.org_id and not j.dead and j.due_at <= clock
            order by j.due_at, j.chunk_id
            limit missing
            for no key update skip locked
        )
        update knowledge_private.embedding_jobs as j
        set
            -- A claim that ran out counts as a failure: a text that kills its worker must not do so for ever.
            attempts = j.attempts + (j.claim is not null)::integer,
            dead = j.attempts + (j.claim is not null)::integer >= settings.attempts,
            reason = case when j.claim is null then j.reason else 'its worker did not come back' end,
            claim = new_claim,
            due_at = clock + settings.claim
        from due
        where j.org_id = turn.org_id and j.model_id = model and j.chunk_id = due.chunk_id;
        get diagnostics taken = row_count;
        if taken > 0 then
            -- Passed over where another claim notes the same: no worker waits for another.
            update knowledge_private.embedding_turns as t
            set served_at = clock
            from (
                select o.org_id from knowledge_private.embedding_turns as o
                where o.org_id = turn.org_id and o.model_id = model
                for no key update skip locked
            ) as free
            where t.org_id = free.org_id and t.model_id = model;
        elsif not exists (
            select from knowledge_private.embedding_jobs as j
            where j.model_id = model and j.org_id = turn.org_id and not j.dead
        ) then
            perform knowledge_private.end_turn(turn.org_id, model);
        end if;
        missing := missing - taken;
        exit when missing <= 0;
    end loop;
    return query
    select new_claim, j.org_id, j.chunk_id, c.heading, c.body, j.attempts
    from knowledge_private.embedding_jobs as j
    inner join knowledge.chunks as c on c.org_id = j.org_id and c.chunk_id = j.chunk_id
    where j.claim = new_claim and not j.dead
    order by j.org_id, j.due_at, j.chunk_id;
end
$$;

comment on function knowledge.claim_embeddings(text, integer) is
'Gives a worker up to k (1 to 10000) chunks of any org that are live without a vector of the model with this fingerprint, the
org first that was served longest ago, those due longest first. No context is asked for: workers serve the whole database,
with a role in knowledge_trusted. Embed heading, line break, body (the body alone where the heading is empty), then call
complete_embeddings or fail_embeddings with the claim; after the setting claim (5 minutes) others may claim them, and that
counts as a failure. No rows: nothing is due; LISTEN knowledge_embeddings wakes. Commit before embedding.
KB005 bad k, KB007 unknown fingerprint.';
revoke all on function knowledge.claim_embeddings(text, integer) from public;
grant execute on function knowledge.claim_embeddings(text, integer) to knowledge_trusted;
