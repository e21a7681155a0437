-- What there is, as the context may see it.

create type knowledge_private.source as (
    document_id uuid,
    source_type text,
    source_id text,
    source_version text,
    org_scope text,
    visibility text,
    audience text[],
    title text,
    uri text,
    metadata jsonb,
    language text,
    content_hash text,
    chunks integer,
    created_at timestamptz,
    updated_at timestamptz
);

comment on type knowledge_private.source is 'A document with a live version.';

create function knowledge_private.readable_sources(asking knowledge_private.claim)
returns setof knowledge_private.source
language sql
stable
begin atomic
    select
        d.document_id, d.source_type, d.source_id, v.source_version, d.org_scope, c.visibility, c.audience, d.title,
        d.uri, d.metadata, c.language, v.content_hash, v.chunk_count, d.created_at, d.updated_at
    from knowledge_private.permitted_compartments(asking) as c
    inner join knowledge.documents as d on d.org_id = c.org_id and d.compartment_id = c.compartment_id
    inner join knowledge.versions as v on v.org_id = d.org_id and v.version_id = d.live_version;
end;

comment on function knowledge_private.readable_sources(knowledge_private.claim) is
'The documents with a live version that a claim may read.';
revoke all on function knowledge_private.readable_sources(knowledge_private.claim) from public;

create function knowledge_private.forget_lexemes(org_id text, compartment_id integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
    -- A lexeme is kept when a hundredth of the chunks has it, so less than that cannot have held one alone.
    update knowledge.compartments as c set counted_chunks = 0
    where
        c.org_id = org_id and c.compartment_id = compartment_id
        and c.counted_chunks > 0 and (c.counted_chunks - c.chunks) * 100 >= c.counted_chunks;
    if found then
        delete from knowledge_private.lexeme_counts as l where l.org_id = org_id and l.compartment_id = compartment_id;
    end if;
end
$$;

comment on function knowledge_private.forget_lexemes(text, integer) is
'Forgets the counted lexemes of a compartment that has lost so many chunks that one of them could be of these alone.';
revoke all on function knowledge_private.forget_lexemes(text, integer) from public;

create function knowledge_private.erase_documents(asking knowledge_private.claim, documents uuid[], out erased jsonb)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    document knowledge.documents;
    model record;
    chunk uuid;
    counted bigint;
    vectors bigint := 0;
begin
    select jsonb_build_object(
        'documents', count(*),
        'digest', encode(sha256(convert_to(coalesce(string_agg(
            jsonb_build_array(d.source_type, d.source_id, v.content_hash)::text, E'\n'
            order by d.source_type, d.source_id, d.document_id), ''), 'UTF8')), 'hex'))
    into erased
    from knowledge.documents as d
    left join knowledge.versions as v on v.org_id = d.org_id and v.version_id = d.live_version
    where d.org_id = asking.org_id and d.document_id = any (documents);

    for document in
        select d.* from knowledge.documents as d
        where d.org_id = asking.org_id and d.document_id = any (documents) and d.compartment_id is not null
        order by d.compartment_id
    loop
        perform knowledge_private.count_chunks(document.org_id, document.document_id, document.compartment_id, -1);
        perform knowledge_private.forget_lexemes(document.org_id, document.compartment_id);
    end loop;
    for model in select m.model_id from knowledge.models as m where m.state <> 'retired' order by m.model_id loop
        execute format('delete from %s where org_id = $1 and document_id = any ($2)',
            knowledge_private.vector_table(model.model_id))
        using asking.org_id, documents;
        get diagnostics counted = row_count;
        vectors := vectors + counted;
    end loop;
    counted := 0;
    for chunk in
        select p.chunk_id from knowledge.places as p
        where p.org_id = asking.org_id and p.document_id = any (documents)
    loop
        delete from knowledge.chunks as c where c.org_id = asking.org_id and c.chunk_id = chunk;
        counted := counted + 1;
    end loop;
    erased := erased || jsonb_build_object('chunks', counted, 'vectors', vectors);
    select count(*) into counted
    from knowledge.versions as v
    cross join knowledge_private.staged(v) as s
    where v.org_id = asking.org_id and v.document_id = any (documents) and v.state = 'ingesting';
    erased := erased || jsonb_build_object('staged_chunks', counted);
    delete from knowledge_private.staged_chunks as s
    using knowledge.versions as v
    where
        v.org_id = asking.org_id and v.document_id = any (documents)
        and s.org_id = v.org_id and s.version_id = v.version_id;
    delete from knowledge.quarantine as q where q.org_id = asking.org_id and q.document_id = any (documents);
    get diagnostics counted = row_count;
    erased := erased || jsonb_build_object('quarantined', counted);
    delete from knowledge.versions as v where v.org_id = asking.org_id and v.document_id = any (documents);
    get diagnostics counted = row_count;
    erased := erased || jsonb_build_object('versions', counted);
    delete from knowledge.documents as d where d.org_id = asking.org_id and d.document_id = any (documents);
end
$$;

comment on function knowledge_private.erase_documents(knowledge_private.claim, uuid[]) is
'Deletes documents, which the caller has locked, with everything made of them. Returns the counts, and digest: sha256 over
the lines [source_type, source_id, content_hash], as json arrays in ascending order.';
revoke all on function knowledge_private.erase_documents(knowledge_private.claim, uuid[]) from public;
