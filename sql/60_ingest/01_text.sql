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

create function knowledge_private.cjk()
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    -- Iteration marks, Hiragana to Katakana (half-width, too), Han with extensions and compatibility forms, Hangul.
    select '\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9d\U00020000-\U0003134f'
$$;

comment on function knowledge_private.cjk() is
'The Chinese, Japanese and Korean letters, as ranges for a bracket expression.';
revoke all on function knowledge_private.cjk() from public;

create function knowledge_private.plain_text(value text)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    cjk constant text := knowledge_private.cjk();
    folded text;
    part text;
    plain text := '';
begin
    if value !~ '[^\u0001-\u007f]' then
        return value;
    end if;
    folded := normalize(regexp_replace(normalize(value, nfd), '([A-Za-z])[\u0300-\u036f]+', '\1', 'g'), nfc);
    if folded !~ ('[' || cjk || ']') then
        return folded;
    end if;
    for part in select m[1] from regexp_matches(folded, '([' || cjk || ']+|[^' || cjk || ']+)', 'g') as m loop
        if part ~ ('^[' || cjk || ']') then
            -- substr would count letters from the start each time.
            part := coalesce((
                select string_agg(p.pair, ' ' order by p.place)
                from (
                    select l.letter || lead(l.letter) over (order by l.place) as pair, l.place
                    from string_to_table(part, null) with ordinality as l (letter, place)
                ) as p
            ), part);
        end if;
        plain := concat_ws(' ', plain, part);
    end loop;
    return plain;
end
$$;

comment on function knowledge_private.plain_text(text) is
'The text as the parser of PostgreSQL should see it: Latin letters without accents, and each run of Chinese, Japanese or
Korean letters as its overlapping pairs, since such text has no spaces.';
revoke all on function knowledge_private.plain_text(text) from public;

create function knowledge_private.lexemes(language text, value text)
returns tsvector
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    gap constant text := 'qgapq qgapq ';
    plain text := knowledge_private.plain_text(value);
    whole tsvector := to_tsvector(language::regconfig, plain);
    parts text;
begin
    if plain ~ '[[:alnum:]][/\\.@:_=&?#+~-]+[[:alnum:]]' then
        -- One letter, or a number of two digits, says too little to be found by: "i.e.", "3-5".
        select string_agg(regexp_replace(regexp_replace(m[1], '[^[:alnum:]]+', ' ', 'g'), '\m([[:alnum:]]|[0-9]{2})\M', '', 'g'), ' ')
        into parts
        from regexp_matches(plain, '([[:alnum:]]+(?:[/\\.@:_=&?#+~-]+[[:alnum:]]+)+)', 'g') as m
        where m[1] ~ '[[:alpha:]]';
    end if;
    if parts is null then
        return whole;
    end if;
    -- What the parser has found by itself counts as often as it found it; only missing parts are added, with a gap before
    -- them, so that no phrase leads from the text into its parts.
    return whole || ts_delete(
        to_tsvector(language::regconfig, gap || parts),
        tsvector_to_array(whole || to_tsvector(language::regconfig, gap)));
end
$$;

comment on function knowledge_private.lexemes(text, text) is
'The lexemes of a text in a language (a text search configuration). Paths, identifiers, addresses and other words with
inner punctuation are in it whole and by their parts.';
revoke all on function knowledge_private.lexemes(text, text) from public;

create function knowledge_private.lexeme_query(lexeme text, prefix boolean)
returns tsquery
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return ('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || case when prefix then ''':*' else '''' end)::tsquery;
end
$$;

comment on function knowledge_private.lexeme_query(text, boolean) is
'The query for exactly this lexeme, or for all that begin so.';
revoke all on function knowledge_private.lexeme_query(text, boolean) from public;

create function knowledge_private.phrase_query(phrase text, languages text[])
returns tsquery
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    plain constant text := btrim(knowledge_private.plain_text(phrase));
    language text;
    one tsquery;
    any_language tsquery;
begin
    if plain ~ ('^[' || knowledge_private.cjk() || ']$') then
        return knowledge_private.lexeme_query(plain, true);
    end if;
    foreach language in array languages loop
        one := phraseto_tsquery(language::regconfig, plain);
        if numnode(one) > 0 then
            any_language := coalesce(any_language || one, one);
        end if;
    end loop;
    return any_language;
end
$$;

comment on function knowledge_private.phrase_query(text, text[]) is
'The query for the words of phrase in their order, in any of the languages; null when they are all stop words. A Chinese,
Japanese or Korean letter alone is looked for as the first of a pair.';
revoke all on function knowledge_private.phrase_query(text, text[]) from public;

create function knowledge_private.last_letters(value text)
returns tsvector
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when value !~ '[^\u0001-\u007f]' then ''
        else (
            select to_tsvector('pg_catalog.simple'::regconfig, coalesce(string_agg(m[1], ' '), ''))
            from regexp_matches(
                normalize(value, nfc), format('[%1$s]([%1$s])(?![%1$s])', knowledge_private.cjk()), 'g') as m
        )
    end
$$;

comment on function knowledge_private.last_letters(text) is
'The last letter of each run of Chinese, Japanese or Korean letters in a text: a question for one letter looks for lexemes
that begin with it, and no pair begins with these.';
revoke all on function knowledge_private.last_letters(text) from public;

create function knowledge_private.chunk_tsv(language text, heading text, body text)
returns tsvector
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(heading) + octet_length(body) = length(heading) + length(body) then
        return setweight(knowledge_private.lexemes(language, heading), 'A')
            || setweight(knowledge_private.lexemes(language, body), 'B');
    end if;
    return setweight(knowledge_private.lexemes(language, heading) || knowledge_private.last_letters(heading), 'A')
        || setweight(knowledge_private.lexemes(language, body) || knowledge_private.last_letters(body), 'B');
end
$$;

comment on function knowledge_private.chunk_tsv(text, text, text) is
'The lexemes of a chunk: heading with weight A, body with weight B.';
revoke all on function knowledge_private.chunk_tsv(text, text, text) from public;

create function knowledge_private.count_words(tsv tsvector)
returns integer
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    any_lexeme tsquery := knowledge_private.lexeme_query((tsvector_to_array(tsv))[1], false);
begin
    -- Normalization 2 divides a rank by the number of positions: a third of the time that counting them takes.
    return coalesce(round(ts_rank(tsv, any_lexeme) / ts_rank(tsv, any_lexeme, 2)), 0);
end
$$;

comment on function knowledge_private.count_words(tsvector) is 'Number of positions in tsv: the length that BM25 uses.';
revoke all on function knowledge_private.count_words(tsvector) from public;

create function knowledge_private.content_hash(org_id text, heading text, body text)
returns bytea
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The inner one is what stage_unchanged is given.
    return sha256(
        convert_to(length(org_id) || ':' || org_id, 'UTF8')
        || sha256(convert_to(octet_length(heading) || ':' || heading || body, 'UTF8')));
end
$$;

comment on function knowledge_private.content_hash(text, text, text) is
'sha256 over org, heading and body: equal exactly when an embedder would be given the same text for the same org.';
revoke all on function knowledge_private.content_hash(text, text, text) from public;
