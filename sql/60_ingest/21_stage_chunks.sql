create function knowledge.stage_chunks(version_id uuid, lease bigint, chunks jsonb)
returns table (ordinal integer, needs_embedding boolean)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions := knowledge_private.writable_version(stage_chunks.version_id, stage_chunks.lease);
    problem text;
    batch integer[];
    missing integer[];
    ordinals integer[];
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    problem := knowledge_private.chunks_problem(chunks, version.chunk_count);
    if problem is not null then
        perform knowledge_private.fail('KB005', problem);
    end if;
    ordinals := array(select (e ->> 'ordinal')::integer from jsonb_array_elements(chunks) as e);

    insert into knowledge_private.staged_chunks as s (
        org_id, version_id, ordinal, heading, body, tsv, words, tokens, content_hash, char_start, char_end
    )
    select
        version.org_id, version.version_id, c.ordinal, h.heading, c.body, t.tsv,
        knowledge_private.count_words(t.tsv), c.tokens, knowledge_private.content_hash(version.org_id, h.heading, c.body),
        c.char_start, c.char_end
    from jsonb_to_recordset(chunks) as c (
        ordinal integer, heading text, body text, char_start integer, char_end integer, tokens integer
    )
    cross join lateral (select coalesce(c.heading, '') as heading) as h
    cross join lateral (select knowledge_private.chunk_tsv(version.language, h.heading, c.body) as tsv offset 0) as t
    on conflict (org_id, version_id, ordinal) do update
    set
        heading = excluded.heading, body = excluded.body, tsv = excluded.tsv, words = excluded.words,
        tokens = excluded.tokens, content_hash = excluded.content_hash, char_start = excluded.char_start,
        char_end = excluded.char_end,
        embedding = case when s.content_hash = excluded.content_hash then s.embedding end;

    batch := array(select (e ->> 'ordinal')::integer from jsonb_array_elements(chunks) as e order by 1);
    missing := knowledge_private.unembedded(version, batch);
    return query
    select o, o = any (missing) from unnest(batch) as o;
end
$$;

comment on function knowledge.stage_chunks(uuid, bigint, jsonb) is
'Stages a batch of chunks of a version that begin_version gave, in any order and as often as you like. chunks: a json
array of {"ordinal": 0, "body": "text", "heading": "A > B", "char_start": 0, "char_end": 4, "tokens": 1}; ordinal and
body are required; char_end is one past the last character. Returns per ordinal whether it needs a vector: not when a live
chunk of the org with the same heading and body has one, which is reused. All of the batch is staged, or none of it.
KB004 no such version, KB005 malformed chunk, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_chunks(uuid, bigint, jsonb) from public;
grant execute on function knowledge.stage_chunks(uuid, bigint, jsonb) to knowledge_writer;
