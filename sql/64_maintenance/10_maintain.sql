create function knowledge.maintain()
returns table (task text, done bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions;
    compartment knowledge.compartments;
begin
    task := 'versions expired';
    done := 0;
    for version in
        select v.* from knowledge.versions as v
        where
            v.state = 'ingesting'
            and v.lease_expires_at < knowledge_private.clock() - (select s.abandoned from knowledge_private.settings as s)
        order by v.org_id, v.version_id
        for no key update skip locked
    loop
        perform knowledge_private.end_version(version, 'aborted');
        done := done + 1;
    end loop;
    return next;

    task := 'compartments counted';
    done := 0;
    for compartment in
        select c.* from knowledge.compartments as c
        where
            c.chunks > (select s.candidates + s.paired_candidates from knowledge_private.settings as s) / 10
            and abs(c.chunks - c.counted_chunks) > c.chunks / 10
        order by c.org_id, c.compartment_id
    loop
        perform knowledge_private.count_lexemes(compartment);
        done := done + 1;
    end loop;
    return next;
end
$$;

comment on function knowledge.maintain() is
'What is to be done now and then for the whole database, by a role that may become knowledge_owner: ends versions whose
lease ran out longer ago than the setting abandoned, and counts the common lexemes of compartments that have grown or
shrunk by a tenth, which keeps questions to large orgs quick. Never needed for a right answer. Returns how much was done.';
revoke all on function knowledge.maintain() from public;
grant execute on function knowledge.maintain() to knowledge_owner;
