create function knowledge.stage_unchanged(
    version_id uuid,
    lease bigint,
    ordinals integer[],
    live_ordinals integer[],
    counts integer[],
    shifts integer[] default null
)
returns integer[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(stage_unchanged.version_id, stage_unchanged.lease);
    live knowledge.versions;
    many constant integer := cardinality(ordinals);
    batch int4multirange;
    held int4multirange := '{}';
    texts int4multirange;
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    select v.* into live
    from knowledge.versions as v
    where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live';
    if ordinals is null or live_ordinals is null or counts is null
        or (cardinality(live_ordinals), cardinality(counts), cardinality(coalesce(shifts, counts))) <> (many, many, many)
        or exists (
            select from unnest(ordinals, live_ordinals, counts, coalesce(shifts, counts)) as r (ordinal, live, many, shift)
            where
                (r.ordinal >= 0 and r.live >= 0 and r.many > 0 and r.shift is not null and r.ordinal < version.chunk_count
                and r.many <= version.chunk_count - r.ordinal and r.live < live.chunk_count
                and r.many <= live.chunk_count - r.live and abs(r.shift) < 1000000000) is not true
        )
    then
        perform knowledge_private.fail('KB005',
            'give lists of one length; each run must be within the version and within the live one');
    end if;
    select coalesce(range_agg(int4range(r.ordinal, r.ordinal + r.many)), '{}') into batch
    from unnest(ordinals, counts) as r (ordinal, many);
    if (select sum(c) from unnest(counts) as c) <> (select sum(upper(b) - lower(b)) from unnest(batch) as b) then
        perform knowledge_private.fail('KB005', 'an ordinal is in two runs');
    end if;
    perform knowledge_private.unstage_unchanged(version, batch);
    -- A live ordinal without a place: its chunk was held back or left out.
    if (live.report ->> 'quarantined')::integer + (live.report ->> 'rejected')::integer > 0 then
        select coalesce(range_agg(int4range(r.ordinal + n, r.ordinal + n, '[]')), '{}') into held
        from unnest(ordinals, live_ordinals, counts) as r (ordinal, live, many)
        cross join generate_series(0, r.many - 1) as n
        where r.live + n not in (
            select p.ordinal from knowledge.positions as p
            where p.org_id = version.org_id and p.document_id = version.document_id
        );
    end if;
    select coalesce(range_agg(int4range(s.ordinal, s.ordinal, '[]')), '{}') into texts
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal <@ batch;
    insert into knowledge_private.staged_unchanged (org_id, version_id, ordinals, live_ordinal, shift)
    select version.org_id, version.version_id, u.ordinals, r.live + (lower(u.ordinals) - r.ordinal), coalesce(r.shift, 0)
    from unnest(ordinals, live_ordinals, counts, shifts) as r (ordinal, live, many, shift)
    cross join unnest(int4multirange(int4range(r.ordinal, r.ordinal + r.many)) - texts - held) as u (ordinals);
    if (
        select sum(upper(u.ordinals) - lower(u.ordinals)) from knowledge_private.staged_unchanged as u
        where u.org_id = version.org_id and u.version_id = version.version_id
    ) <> (
        select sum(upper(o) - lower(o))
        from (
            select unnest(range_agg(int4range(u.live_ordinal, u.live_ordinal + upper(u.ordinals) - lower(u.ordinals)))) as o
            from knowledge_private.staged_unchanged as u
            where u.org_id = version.org_id and u.version_id = version.version_id
        ) as u
    ) then
        perform knowledge_private.fail('KB005', 'a live chunk can be staged once only');
    end if;
    return array(
        select generate_series(lower(h), upper(h) - 1) as ordinal
        from unnest(held - texts) as h
        order by ordinal
    );
end
$$;

comment on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[]) is
'Stages chunks without sending them: the live ones of the document live_ordinals[i] to live_ordinals[i] + counts[i] - 1 come
again, heading, body and locator unchanged, as ordinals[i] and following, shifts[i] (omitted: 0) characters further back in
the source. A chunk that is staged with its text stays so. Returns the ordinals that are to be staged with their text, because
what stood there was quarantined or rejected, ascending.
KB004 no such version, KB005 lists of different length, a run that is not within the version or within the live one, an
ordinal or a live chunk twice, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[]) from public;
grant execute on function knowledge.stage_unchanged(uuid, bigint, integer[], integer[], integer[], integer[])
to knowledge_writer;
