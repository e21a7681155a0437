create function knowledge.delete_by_scope(
    dry_run boolean default true, entire_org boolean default false, source_types text[] default null
)
returns table (
    dry_run_only boolean,
    documents bigint,
    chunks bigint,
    vectors bigint,
    versions bigint,
    staged_chunks bigint,
    compartments bigint,
    audit_entry bigint,
    receipt text
)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    chosen uuid[];
    held integer[];
    erased jsonb;
    emptied bigint;
    entry knowledge.audit_log;
    index_name text;
begin
    if delete_by_scope.dry_run is null or delete_by_scope.entire_org is null then
        perform knowledge_private.fail('KB005', 'dry_run and entire_org must be true or false');
    end if;
    if delete_by_scope.entire_org and (asking.org_scope is not null or delete_by_scope.source_types is not null) then
        perform knowledge_private.fail('KB005', 'entire_org takes neither a scope in the context nor source_types');
    end if;
    if delete_by_scope.entire_org then
        -- Nothing is begun or published in the org from here on, also when it is only just being made.
        insert into knowledge.orgs (org_id) values (asking.org_id) on conflict do nothing;
        perform from knowledge.orgs as o where o.org_id = asking.org_id for update;
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    chosen := array(
        select d.document_id from knowledge.documents as d
        where
            d.org_id = asking.org_id
            and (delete_by_scope.entire_org or d.org_scope is not distinct from asking.org_scope)
            and (delete_by_scope.source_types is null or d.source_type = any (delete_by_scope.source_types))
        order by d.document_id
        for update
    );
    -- All compartments that this may empty, and in their order. Who is publishing into one of them is waited for here;
    -- who is to publish into one waits until it is gone, and makes another.
    held := array(
        select c.compartment_id from knowledge.compartments as c
        where
            c.org_id = asking.org_id
            and (delete_by_scope.entire_org or c.org_scope is not distinct from asking.org_scope)
            and (
                exists (
                    select from knowledge.documents as d
                    where d.org_id = c.org_id and d.compartment_id = c.compartment_id and d.document_id = any (chosen)
                )
                or not exists (
                    select from knowledge.documents as d
                    where d.org_id = c.org_id and d.compartment_id = c.compartment_id
                )
            )
        order by c.compartment_id
        for update
    );

    -- A dry run does the same work and takes it back, so its counts are those of the real one.
    begin
        erased := knowledge_private.erase_documents(asking, chosen);
        -- A statement of its own sees what was published into them while they were waited for.
        held := array(
            select h from unnest(held) as h
            where not exists (
                select from knowledge.documents as d
                where d.org_id = asking.org_id and d.compartment_id = h
            )
        );
        delete from knowledge_private.lexeme_counts as l
        where l.org_id = asking.org_id and l.compartment_id = any (held);
        delete from knowledge.compartments as c
        where c.org_id = asking.org_id and c.compartment_id = any (held);
        get diagnostics emptied = row_count;
        erased := erased || jsonb_build_object(
            'compartments', emptied, 'entire_org', delete_by_scope.entire_org,
            'source_types', to_jsonb(delete_by_scope.source_types));
        if delete_by_scope.entire_org then
            delete from knowledge.audiences as a where a.org_id = asking.org_id;
            delete from knowledge.tags as t where t.org_id = asking.org_id;
            delete from knowledge.admission_rules as r where r.org_id = asking.org_id;
            delete from knowledge_private.embedding_turns as t where t.org_id = asking.org_id;
            for index_name in
                select c.relname from knowledge.models as m
                inner join pg_class as c on c.relname = knowledge_private.index_name(asking.org_id, m.model_id)
                where c.relnamespace = 'knowledge'::regnamespace
            loop
                execute format('drop index knowledge.%I', index_name);
            end loop;
            update knowledge.orgs as o
            set status = 'offboarded', offboarded_at = now(), active_model = null
            where o.org_id = asking.org_id;
        end if;
        if delete_by_scope.dry_run then
            raise exception using errcode = 'KB000', message = 'dry run';
        end if;
        entry := knowledge_private.audit(asking.org_id, 'delete_by_scope', erased);
    exception when sqlstate 'KB000' then
        null;
    end;

    return query
    select
        delete_by_scope.dry_run, r.documents, r.chunks, r.vectors, r.versions, r.staged_chunks, r.compartments,
        entry.entry, encode(entry.digest, 'hex')
    from jsonb_to_record(erased) as r (
        documents bigint, chunks bigint, vectors bigint, versions bigint, staged_chunks bigint, compartments bigint
    );
end
$$;

comment on function knowledge.delete_by_scope(boolean, boolean, text[]) is
'Erases every document of the context''s org and exact scope (without a scope: the org-wide ones), of source_types or of
all, with versions, chunks, vectors and whatever is being ingested. entire_org: all scopes, the vocabulary and the org''s
index too, and the org is offboarded: its name is never used again (KB011). dry_run, the default, only counts. Returns the
counts and, when it was done, the receipt: number and digest (hex) of the entry in audit_log, whose details hold a digest
over the identities of what was erased. KB005 for entire_org together with a scope or source_types.';
revoke all on function knowledge.delete_by_scope(boolean, boolean, text[]) from public;
grant execute on function knowledge.delete_by_scope(boolean, boolean, text[]) to knowledge_admin;
