create function knowledge.finalize_version(version_id uuid, lease bigint, allow_unembedded boolean default false)
returns table (
    chunks integer,
    embedded integer,
    reused integer,
    skipped integer,
    quarantined integer,
    rejected integer,
    complete boolean,
    live boolean
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    version knowledge.versions := knowledge_private.writable_version(finalize_version.version_id, finalize_version.lease);
    document knowledge.documents;
    old knowledge.compartments;
    target integer;
    staged integer;
    held integer;
    refused integer;
    missing integer[];
    done record;
begin
    if version.state = 'ingesting' then
        select
            count(*), count(*) filter (where s.verdict = 'quarantined'), count(*) filter (where s.verdict = 'rejected')
        into staged, held, refused
        from knowledge_private.staged(version) as s;
        missing := knowledge_private.unembedded(version);
        if staged <> version.chunk_count or (cardinality(missing) > 0 and not coalesce(allow_unembedded, false)) then
            perform knowledge_private.fail('KB008',
                format('%s of %s chunks are staged, %s of them without a vector', staged, version.chunk_count,
                    cardinality(missing)),
                jsonb_build_object('chunk_count', version.chunk_count, 'staged', staged, 'unembedded', cardinality(missing)),
                'Stage what is missing; stage_chunks tells which ordinals need a vector.');
        end if;
        if refused = version.chunk_count then
            perform knowledge_private.fail('KB005', 'every chunk of this version was rejected',
                jsonb_build_object('reason', (
                    select min(s.reason) from knowledge_private.staged_chunks as s
                    where s.org_id = version.org_id and s.version_id = version.version_id
                )),
                'What was live stays live; abort_version forgets this version.');
        end if;

        select d.* into strict document
        from knowledge.documents as d
        where d.org_id = version.org_id and d.document_id = version.document_id;
        select c.* into old
        from knowledge.compartments as c
        where c.org_id = document.org_id and c.compartment_id = document.compartment_id;
        -- Again when it was erased while it was waited for; the failed look gives its locks back, so their order holds.
        loop
            begin
                target := knowledge_private.ensure_compartment(document.org_id, document.org_scope, document.source_type,
                    coalesce(version.visibility, old.visibility, 'org'), coalesce(version.audience, old.audience),
                    version.language);
                perform from knowledge.compartments as c
                where c.org_id = version.org_id and c.compartment_id in (old.compartment_id, target)
                order by c.compartment_id
                for no key update;
                exit when exists (
                    select from knowledge.compartments as c
                    where c.org_id = version.org_id and c.compartment_id = target
                );
                raise exception using errcode = 'KB000', message = 'the compartment was erased';
            exception when sqlstate 'KB000' then
                null;
            end;
        end loop;

        done := knowledge_private.publish(version, document, target, old.language <> version.language);
        if done.without_vector > 0 and not coalesce(allow_unembedded, false) then
            perform knowledge_private.fail('KB008', 'a vector that was to be reused is gone',
                jsonb_build_object('chunk_count', version.chunk_count, 'unembedded', done.without_vector),
                'Stage what is missing; stage_chunks tells which ordinals need a vector.');
        end if;

        update knowledge.versions as v set state = 'superseded', ended_at = now(), outline = null
        where v.org_id = version.org_id and v.document_id = version.document_id and v.state = 'live';
        perform knowledge_private.end_version(version, 'live');
        update knowledge.versions as v
        set report = jsonb_build_object('chunks', version.chunk_count, 'embedded', done.embedded, 'reused', done.reused,
            'skipped', done.kept, 'quarantined', held, 'rejected', refused, 'complete', done.without_vector = 0, 'live', true)
        where v.org_id = version.org_id and v.version_id = version.version_id
        returning v.* into version;
        update knowledge.documents as d
        set
            compartment_id = target, live_version = version.version_id, layout = done.layout,
            title = coalesce(version.title, d.title), uri = coalesce(version.uri, d.uri),
            metadata = coalesce(version.metadata, d.metadata), updated_at = now()
        where d.org_id = version.org_id and d.document_id = version.document_id;
    end if;

    return query
    select r.chunks, r.embedded, r.reused, r.skipped, r.quarantined, r.rejected, r.complete, r.live
    from jsonb_to_record(version.report) as r (
        chunks integer, embedded integer, reused integer, skipped integer, quarantined integer, rejected integer,
        complete boolean, live boolean
    );
end
$$;

comment on function knowledge.finalize_version(uuid, bigint, boolean) is
'Publishes a version in one step: until it commits the old one is served, from then on the new one. Only the difference is
written; a chunk whose heading and body are unchanged keeps its row, id and vector. Counts: chunks in the version;
embedded, those that brought a vector of their own; reused, those that took the vector of another chunk with the same
text; skipped, those that were kept as they were; complete, whether every chunk has a vector. Repeating the call repeats
the report. quarantined, those held back until release_chunk or reject_chunk; rejected, those left out. allow_unembedded
publishes chunks without a vector for words; claim_embeddings gives them to a worker.
KB004 no such version, KB005 every chunk was rejected, KB008 a chunk or vector is missing, KB009 lease lost, KB011 org offboarded.';
revoke all on function knowledge.finalize_version(uuid, bigint, boolean) from public;
grant execute on function knowledge.finalize_version(uuid, bigint, boolean) to knowledge_writer;
