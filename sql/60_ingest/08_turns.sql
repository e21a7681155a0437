-- Which orgs claim_embeddings looks at: those that have a turn. One that has jobs which are not dead has one.

create function knowledge_private.take_turn(org_id text, model_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Held until the jobs are there for all to see: a claim that finds none does not take away a turn that is held.
    loop
        perform from knowledge_private.embedding_turns as t
        where t.org_id = take_turn.org_id and t.model_id = take_turn.model_id
        for key share;
        exit when found;
        insert into knowledge_private.embedding_turns (org_id, model_id)
        values (take_turn.org_id, take_turn.model_id)
        on conflict do nothing;
    end loop;
end
$$;

comment on function knowledge_private.take_turn(text, integer) is
'Lets claim_embeddings look at an org: for whoever queues jobs of it, in the same transaction and before it ends.';
revoke all on function knowledge_private.take_turn(text, integer) from public;

create function knowledge_private.end_turn(org_id text, model_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Each statement must see what was committed before it: jobs that were queued until a moment ago.
    if current_setting('transaction_isolation') <> 'read committed' then
        return;
    end if;
    perform from knowledge_private.embedding_turns as t
    where t.org_id = end_turn.org_id and t.model_id = end_turn.model_id
    for update skip locked;
    if found then
        delete from knowledge_private.embedding_turns as t
        where
            t.org_id = end_turn.org_id and t.model_id = end_turn.model_id
            and not exists (
                select from knowledge_private.embedding_jobs as j
                where j.model_id = t.model_id and j.org_id = t.org_id and not j.dead
            );
    end if;
end
$$;

comment on function knowledge_private.end_turn(text, integer) is
'Lets claim_embeddings pass an org over, unless something of it is queued or just being queued.';
revoke all on function knowledge_private.end_turn(text, integer) from public;
