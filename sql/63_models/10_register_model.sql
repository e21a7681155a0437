create function knowledge.register_model(name text, dimensions integer, fingerprint text)
returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    model knowledge.models;
    vectors text;
begin
    perform knowledge_private.check_label(register_model.name, 'name');
    perform knowledge_private.check_label(register_model.fingerprint, 'fingerprint');
    if register_model.dimensions is null or register_model.dimensions not between 1 and 4000 then
        perform knowledge_private.fail('KB005', 'dimensions must be from 1 to 4000');
    end if;
    perform pg_advisory_xact_lock(hashtextextended('pg_knowledge models', 0));
    select m.* into model
    from knowledge.models as m
    where register_model.fingerprint = m.fingerprint or register_model.name = m.name;
    if found then
        if (model.name, model.dimensions, model.fingerprint)
            is distinct from (register_model.name, register_model.dimensions, register_model.fingerprint)
        then
            perform knowledge_private.fail('KB007', 'a model with this name or fingerprint is registered differently',
                to_jsonb(model), 'Another fingerprint is another model: give it a name of its own.');
        end if;
        return model.model_id;
    end if;

    insert into knowledge.models as m (name, dimensions, fingerprint)
    values (register_model.name, register_model.dimensions, register_model.fingerprint)
    returning m.* into model;
    vectors := knowledge_private.vector_table(model.model_id);
    execute format(
        'create table %s ('
        'org_id text collate "C" not null, '
        'chunk_id uuid not null, '
        'document_id uuid not null, '
        'compartment_id integer not null, '
        'embedding %s.halfvec(%s) not null, '
        'primary key (org_id, chunk_id), '
        'foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade'
        ') with (fillfactor = 90)',
        vectors, knowledge_private.vector_schema(), model.dimensions);
    execute format('alter table %s alter column embedding set storage plain', vectors);
    execute format('alter table %s alter column org_id set statistics 0', vectors);
    execute format('create index on %s (compartment_id, org_id)', vectors);
    execute format('create index on %s (document_id, org_id)', vectors);
    execute format('comment on table %s is %L', vectors, 'Unit vectors of the live chunks by model ' || model.name || '.');
    execute format('comment on column %s.org_id is %L', vectors, 'The tenant.');
    execute format('comment on column %s.chunk_id is %L', vectors, 'The chunk.');
    execute format('comment on column %s.document_id is %L', vectors, 'Of which document.');
    execute format('comment on column %s.compartment_id is %L', vectors, 'The compartment of the document.');
    execute format('comment on column %s.embedding is %L', vectors, 'Of heading and body, normalised to length 1.');
    perform knowledge_private.protect_compartment(vectors::regclass);
    return model.model_id;
end
$$;

comment on function knowledge.register_model(text, integer, text) is
'Registers an embedding model and makes its table vectors_<model_id>; returns model_id. fingerprint is what the embedder
will present: it must change whenever the vectors for the same text would. Repeating the call answers the same model.
KB005 malformed argument, KB007 the name or fingerprint is registered with other values.';
revoke all on function knowledge.register_model(text, integer, text) from public;
grant execute on function knowledge.register_model(text, integer, text) to knowledge_admin;
