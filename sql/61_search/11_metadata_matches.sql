create function knowledge.metadata_matches(metadata jsonb, filter jsonb)
returns boolean
language plpgsql
immutable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    matches boolean;
begin
    execute format('select %s from (select $1 as metadata) as d', knowledge_private.metadata_condition(filter))
    into matches
    using coalesce(metadata_matches.metadata, '{}');
    return matches;
end
$$;

comment on function knowledge.metadata_matches(jsonb, jsonb) is
'Whether a document with this metadata passes a metadata filter of search_scoped. A filter is a json object, all of whose
entries must hold. {"key": value}: metadata contains it, as @> does. {"key": {"$op": value}}: $eq, $ne, $in, $nin; $gt,
$gte, $lt, $lte, between two numbers or two strings; $exists with true or false. All but $exists want the key to be there.
{"$and": [filter, …]}, {"$or": [filter, …]}, {"$not": filter}. KB005 for an unknown operator or a value it cannot take.';
revoke all on function knowledge.metadata_matches(jsonb, jsonb) from public;
grant execute on function knowledge.metadata_matches(jsonb, jsonb) to knowledge_reader;
