create function knowledge.list_quarantine(k integer default 100, after uuid default null)
returns table (
    chunk_id uuid,
    document_id uuid,
    source_type text,
    source_id text,
    title text,
    ordinal integer,
    reason text,
    heading text,
    body text,
    char_start integer,
    char_end integer,
    locator text,
    held_at timestamptz
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    if k is null or k not between 1 and 10000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 10000');
    end if;
    return query
    select
        q.chunk_id, q.document_id, d.source_type, d.source_id, d.title, q.ordinal, q.reason, q.heading, q.body,
        q.char_start, q.char_end, q.locator, q.held_at
    from knowledge.quarantine as q
    inner join knowledge.documents as d on d.org_id = q.org_id and d.document_id = q.document_id
    where
        q.org_id = asking.org_id and d.org_scope is not distinct from asking.org_scope
        and (list_quarantine.after is null or q.chunk_id > list_quarantine.after)
    order by q.chunk_id
    limit list_quarantine.k;
end
$$;

comment on function knowledge.list_quarantine(integer, uuid) is
'The chunks of the context''s org and exact scope, for whatever audience, that are held back until release_chunk or
reject_chunk: at most k (1 to 10000), those held longest first; for the next page give the last chunk_id as after. The text
is suspicious: show it to people, not to a model. KB001, KB002 context, KB005 bad k.';
revoke all on function knowledge.list_quarantine(integer, uuid) from public;
grant execute on function knowledge.list_quarantine(integer, uuid) to knowledge_admin;
