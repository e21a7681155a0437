create function knowledge.stage_unchanged(
    version_id uuid,
    lease bigint,
    ordinals integer[],
    hashes bytea[],
    char_starts integer[] default null,
    char_ends integer[] default null,
    locators text[] default null
)
returns integer[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    version knowledge.versions := knowledge_private.writable_version(stage_unchanged.version_id, stage_unchanged.lease);
    -- As content_hash begins.
    salt constant bytea := convert_to(length(version.org_id) || ':' || version.org_id, 'UTF8');
    many constant integer := cardinality(ordinals);
    unknown integer[];
begin
    if version.state = 'live' then
        perform knowledge_private.fail('KB008', 'this version is published already');
    end if;
    if ordinals is null or hashes is null or cardinality(hashes) <> many
        or cardinality(coalesce(char_starts, ordinals)) <> many or cardinality(coalesce(char_ends, ordinals)) <> many
        or cardinality(coalesce(locators, ordinals::text[])) <> many
        or (select count(distinct o) <> many or min(o) < 0 or max(o) >= version.chunk_count from unnest(ordinals) as o)
        or exists (select from unnest(hashes) as h where h is null or length(h) <> 32)
    then
        perform knowledge_private.fail('KB005', 'give one sha256 for each ordinal, each ordinal once, and lists of one length');
    end if;
    perform knowledge_private.unstage(version, ordinals);
    with asked as (
        select a.*, sha256(salt || a.hash) as content_hash
        from unnest(ordinals, hashes, char_starts, char_ends, locators)
            as a (ordinal, hash, char_start, char_end, locator)
    ),
    known as (
        select a.*
        from asked as a
        where
            a.content_hash in (
                select p.content_hash from knowledge.positions as p
                where p.org_id = version.org_id and p.document_id = version.document_id
            )
            and not exists (
                select from knowledge_private.staged_chunks as s
                where s.org_id = version.org_id and s.version_id = version.version_id and s.ordinal = a.ordinal
            )
    ),
    kept as (
        insert into knowledge_private.staged_unchanged
        select
            version.org_id, version.version_id, int4range(min(k.ordinal), max(k.ordinal), '[]'), array_agg(k.ordinal),
            array_agg(k.content_hash), array_agg(k.char_start), array_agg(k.char_end), array_agg(k.locator)
        from known as k
        having count(*) > 0
    )
    select array_agg(a.ordinal order by a.ordinal) into unknown
    from asked as a
    where not exists (select from known as k where k.ordinal = a.ordinal);
    return coalesce(unknown, '{}');
end
$$;

comment on function knowledge.stage_unchanged(uuid, bigint, integer[], bytea[], integer[], integer[], text[]) is
'Stages chunks without sending their text, as far as the live version of the document has the same text. hashes[i], for
ordinals[i], is the sha256 of: the length of the heading in bytes of UTF-8, ":", heading, body. char_starts, char_ends
and locators as in stage_chunks. Returns the ordinals that are to be staged with their text, ascending.
KB004 no such version, KB005 lists of different length, KB008 published already, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.stage_unchanged(uuid, bigint, integer[], bytea[], integer[], integer[], text[]) from public;
grant execute on function knowledge.stage_unchanged(uuid, bigint, integer[], bytea[], integer[], integer[], text[])
to knowledge_writer;
