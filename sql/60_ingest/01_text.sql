-- Text becomes lexemes here, for chunks and for questions alike.

create function knowledge_private.resolve_language(language text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    found_name text;
begin
    select format('%I.%I', n.nspname, c.cfgname)
    into found_name
    from pg_ts_config as c
    inner join pg_namespace as n on n.oid = c.cfgnamespace
    where
        resolve_language.language in (c.cfgname, n.nspname || '.' || c.cfgname)
        -- One of a session is gone tomorrow, and the org's searches with it.
        and not starts_with(n.nspname, 'pg_temp_')
    order by n.nspname <> 'pg_catalog', n.nspname
    limit 1;
    if found_name is null then
        perform knowledge_private.fail('KB005', 'unknown language: no such text search configuration',
            jsonb_build_object('language', language), 'select cfgname from pg_ts_config lists them.');
    end if;
    return found_name;
end
$$;

comment on function knowledge_private.resolve_language(text) is
'The qualified name of a text search configuration, from its name with or without schema. KB005 when there is none.';
revoke all on function knowledge_private.resolve_language(text) from public;

create function knowledge_private.chunk_tsv(language text, heading text, body text)
returns tsvector
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select
        setweight(to_tsvector(language::regconfig, heading), 'A')
        || setweight(to_tsvector(language::regconfig, body), 'B')
$$;

comment on function knowledge_private.chunk_tsv(text, text, text) is
'The lexemes of a chunk: heading with weight A, body with weight B.';
revoke all on function knowledge_private.chunk_tsv(text, text, text) from public;

create function knowledge_private.count_words(tsv tsvector)
returns integer
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(sum(cardinality(u.positions)), 0)::integer from unnest(tsv) as u
$$;

comment on function knowledge_private.count_words(tsvector) is 'Number of positions in tsv: the length that BM25 uses.';
revoke all on function knowledge_private.count_words(tsvector) from public;

create function knowledge_private.content_hash(org_id text, heading text, body text)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(convert_to(concat_ws(':', length(org_id), length(heading), org_id || heading || body), 'UTF8'))
$$;

comment on function knowledge_private.content_hash(text, text, text) is
'sha256 over org, heading and body: equal exactly when an embedder would be given the same text for the same org.';
revoke all on function knowledge_private.content_hash(text, text, text) from public;
