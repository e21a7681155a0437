-- Counting common lexemes, one compartment at a time: what a caller's search sums is what the caller may read.

create function knowledge_private.count_lexemes(compartment knowledge.compartments)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The compartment first, as an erasure does, which may have taken it away by now.
    perform from knowledge.compartments as c
    where c.org_id = compartment.org_id and c.compartment_id = compartment.compartment_id
    for no key update;
    if not found then
        return;
    end if;
    delete from knowledge_private.lexeme_counts as l
    where l.org_id = compartment.org_id and l.compartment_id = compartment.compartment_id;
    insert into knowledge_private.lexeme_counts (org_id, compartment_id, lexeme, chunks)
    select compartment.org_id, compartment.compartment_id, s.word, s.ndoc
    from ts_stat(format('select c.tsv from knowledge.chunks as c where c.org_id = %L and c.compartment_id = %L',
        compartment.org_id, compartment.compartment_id)) as s
    where s.ndoc * 100 >= compartment.chunks;
    update knowledge.compartments as c set counted_chunks = compartment.chunks
    where c.org_id = compartment.org_id and c.compartment_id = compartment.compartment_id;
end
$$;

comment on function knowledge_private.count_lexemes(knowledge.compartments) is
'Counts the lexemes of a compartment anew and keeps those in at least a hundredth of its chunks.';
revoke all on function knowledge_private.count_lexemes(knowledge.compartments) from public;
