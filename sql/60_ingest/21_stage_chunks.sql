create function knowledge.stage_chunks(version_id uuid, lease bigint, chunks jsonb)
returns table (ordinal integer, needs_embedding boolean, verdict text, reason text)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions := knowledge_private.writable_version(stage_chunks.version_id, stage_chunks.lease);
    suspicion record := knowledge_private.suspicion(version.org_id);
    problem text;
    batch integer[];
    missing integer[];
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    problem := knowledge_private.chunks_problem(chunks, version.chunk_count);
    if problem is not null then
        perform knowledge_private.fail('KB005', problem);
    end if;
    batch := array(select (e ->> 'ordinal')::integer from jsonb_array_elements(chunks) as e order by 1);
    perform knowledge_private.unstage_unchanged(version, (
        select coalesce(range_agg(int4range(b, b, '[]')), '{}') from unnest(batch) as b
    ));
    perform knowledge_private.unstage_chunks(version, batch, chunks);

    insert into knowledge_private.staged_chunks (
        org_id, version_id, ordinal, verdict, reason, heading, body, tsv, words, tokens, content_hash, char_start, char_end,
        locator
    )
    with given as materialized (
        select
            c.ordinal,
            coalesce(c.heading, '') as heading,
            c.body,
            c.char_start,
            c.char_end,
            c.tokens,
            c.locator,
            c.verdict,
            c.reason,
            knowledge_private.is_blank(c.body) as blank
        from jsonb_to_recordset(chunks) as c (
            ordinal integer, heading text, body text, char_start integer, char_end integer, tokens integer, locator text,
            verdict text, reason text
        )
    ),
    batch as materialized (
        -- One look at all of them costs a tenth of one look at each.
        select
            not suspicion.batchwise
            or string_agg(g.heading || E'\n' || g.body, E'\n') ~* ('(?w)' || suspicion.pattern) as suspicious
        from given as g
    )
    select
        version.org_id, version.version_id, c.ordinal, v.verdict,
        case
            when c.blank then 'it is blank'
            when r.verdict is not null then r.reason
            when v.verdict = 'admitted' then null
            when v.verdict = c.verdict then coalesce(c.reason, 'its writer says so')
            else j.ruling[2]
        end,
        c.heading, t.body, t.tsv, knowledge_private.count_words(t.tsv), c.tokens, h.content_hash, c.char_start, c.char_end,
        c.locator
    from given as c
    cross join batch as b
    cross join lateral (
        select knowledge_private.content_hash(version.org_id, c.heading, c.body) as content_hash
        offset 0
    ) as h
    left join knowledge_private.reviews as r
        on r.org_id = version.org_id and r.document_id = version.document_id and r.content_hash = h.content_hash
    cross join lateral (
        select case
            when
                r.verdict is null
                and (
                    b.suspicious and (c.heading || E'\n' || c.body) ~* suspicion.pattern
                    or length(c.body) > suspicion.longest
                )
                then knowledge_private.judge(version.org_id, c.heading, c.body)
        end as ruling
        offset 0
    ) as j
    cross join lateral (
        -- A reviewer's word settles it; else the severer of the writer's and the rules', which is the greater word.
        select case
            when c.blank then 'rejected'
            else coalesce(r.verdict, greatest(c.verdict, j.ruling[1], 'admitted'))
        end as verdict
        offset 0
    ) as v
    cross join lateral (
        select
            case when v.verdict = 'rejected' then '' else c.body end as body,
            case
                when v.verdict = 'admitted' then knowledge_private.chunk_tsv(version.language, c.heading, c.body)
                else ''
            end as tsv
        offset 0
    ) as t;

    missing := knowledge_private.unembedded(version, batch);
    return query
    select s.ordinal, s.ordinal = any (missing), s.verdict, s.reason
    from knowledge_private.staged_chunks as s
    where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = any (batch)
    order by s.ordinal;
end
$$;

comment on function knowledge.stage_chunks(uuid, bigint, jsonb) is
'Stages a batch of chunks of a version that begin_version gave, in any order and as often as you like. chunks: a json
array of {"ordinal": 0, "body": "text", "heading": "A > B", "char_start": 0, "char_end": 4, "tokens": 1, "locator": "page 3",
"verdict": "quarantined", "reason": "…"}; ordinal and body are required; char_end is one past the last character; locator is
for citations; verdict is what the writer thinks of it, and the rules of the org (admission_rules) may be severer, but not
a reviewer of the same text (release_chunk, reject_chunk). A blank body is rejected. Returns per ordinal, ascending, the
verdict and its reason, and whether it needs a vector: not when it is rejected, or a live chunk of the org with the same
heading and body has one, which is reused. All of the batch is staged, or none of it.
KB004 no such version, KB005 malformed chunk, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_chunks(uuid, bigint, jsonb) from public;
grant execute on function knowledge.stage_chunks(uuid, bigint, jsonb) to knowledge_writer;
