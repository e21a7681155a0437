create function knowledge.verify_audit_log(receipt text default null)
returns table (intact boolean, entries bigint, broken_at bigint, receipt_entry bigint)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
    org knowledge.orgs;
begin
    select o.* into org from knowledge.orgs as o where o.org_id = asking.org_id;
    select min(c.entry)
    into broken_at
    from (
        select
            a.entry,
            a.entry = row_number() over w
            and a.previous = lag(a.digest, 1, '\x'::bytea) over w
            and a.digest = knowledge_private.audit_digest(a) as good
        from knowledge.audit_log as a
        where a.org_id = asking.org_id
        window w as (order by a.entry)
    ) as c
    where not c.good;
    select count(*) into entries from knowledge.audit_log as a where a.org_id = asking.org_id;
    -- Cut off or added to at the end, the chain is not as long as the org remembers; with another last entry, it is.
    if broken_at is null and (entries, coalesce((
        select a.digest from knowledge.audit_log as a where a.org_id = asking.org_id order by a.entry desc limit 1
    ), '\x')) is distinct from (coalesce(org.audit_entries, 0), coalesce(org.audit_head, '\x')) then
        broken_at := case
            when entries = org.audit_entries then entries
            else least(entries, coalesce(org.audit_entries, 0)) + 1
        end;
    end if;
    select a.entry
    into receipt_entry
    from knowledge.audit_log as a
    where a.org_id = asking.org_id and encode(a.digest, 'hex') = verify_audit_log.receipt;
    intact := broken_at is null and (verify_audit_log.receipt is null or receipt_entry is not null);
    return next;
end
$$;

comment on function knowledge.verify_audit_log(text) is
'Walks the chain of the context''s org in audit_log: intact, number of entries, first entry that is changed, missing or
out of order. With a receipt also which entry it is; a receipt that is in no entry means the log is not intact. Keep
receipts outside the database: one proves the whole log before it.';
revoke all on function knowledge.verify_audit_log(text) from public;
grant execute on function knowledge.verify_audit_log(text) to knowledge_admin;
