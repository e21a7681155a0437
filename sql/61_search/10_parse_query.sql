create function knowledge.parse_query(
    query text, language text, out lexemes text[], out repeats integer[], out required tsquery, out excluded tsquery
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    config regconfig;
    phrase constant text := '(^|\s)(-?)"([^"]*)"';
    word constant text := '(^|\s)-([[:alpha:]]\S*)';
    words text := regexp_replace(regexp_replace(query, phrase, ' ', 'g'), word, ' ', 'g');
    part text[];
begin
    begin
        -- Not by number: a number that is no configuration would be an error of the server's own.
        config := case when language !~ '^([0-9]*|-)$' then language::regconfig end;
    exception when undefined_object or invalid_name or invalid_schema_name or syntax_error then
        config := null;
    end;
    if config is null then
        raise exception using errcode = 'KB005', message = 'unknown language: no such text search configuration',
            hint = 'select cfgname from pg_ts_config lists them.';
    end if;
    for part in select regexp_matches(query, phrase, 'g') loop
        if part[2] = '-' then
            excluded := coalesce(excluded || phraseto_tsquery(config, part[3]), phraseto_tsquery(config, part[3]));
        else
            required := coalesce(required && phraseto_tsquery(config, part[3]), phraseto_tsquery(config, part[3]));
            words := concat_ws(' ', words, part[3]);
        end if;
    end loop;
    for part in select regexp_matches(regexp_replace(query, phrase, ' ', 'g'), word, 'g') loop
        excluded := coalesce(excluded || phraseto_tsquery(config, part[2]), phraseto_tsquery(config, part[2]));
    end loop;
    -- A phrase of stop words asks for nothing.
    required := case when numnode(required) > 0 then required end;
    excluded := case when numnode(excluded) > 0 then excluded end;
    select array_agg(u.lexeme order by u.lexeme collate "C"), array_agg(cardinality(u.positions) order by u.lexeme collate "C")
    into lexemes, repeats
    from unnest(to_tsvector(config, words)) as u;
end
$$;

comment on function knowledge.parse_query(text, text) is
'How a question is read in a language (a text search configuration): lexemes, ascending, each with how often it repeats,
of which a chunk must have any; required, the "quoted phrases", of which it must have all; excluded, the -words and
-"phrases", of which it may have none. Null where there are none. KB005 when there is no such configuration.';
revoke all on function knowledge.parse_query(text, text) from public;
grant execute on function knowledge.parse_query(text, text) to knowledge_reader;
