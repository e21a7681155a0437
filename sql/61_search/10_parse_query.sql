create function knowledge.parse_query(
    query text, languages text[], out lexemes text[], out repeats integer[], out prefixes boolean[],
    out required tsquery, out excluded tsquery
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    phrase constant text := '(^|\s)(-?)"([^"]*)"';
    word constant text := '(^|\s)-([[:alpha:]]\S*)';
    stem constant text := '(^|\s)([[:alnum:]]+)[*](?!\S)';
    -- A letter of Chinese, Japanese or Korean alone: chunks have it in pairs.
    letter constant text := '^[' || knowledge_private.cjk() || ']$';
    configs text[] := array(
        select distinct knowledge_private.resolve_language(l) from unnest(parse_query.languages) as l order by 1
    );
    free text := regexp_replace(parse_query.query, phrase, ' ', 'g');
    words text := regexp_replace(regexp_replace(free, word, ' ', 'g'), stem, ' ', 'g');
    begun text[] := array(
        select distinct p.part
        from regexp_matches(regexp_replace(free, word, ' ', 'g'), stem, 'g') as m
        cross join lateral regexp_split_to_table(lower(knowledge_private.plain_text(m[2])), ' ') as p (part)
        -- No lexeme is longer than that.
        where octet_length(p.part) between 1 and 2046
    );
    part text[];
    asked tsquery;
begin
    for part in select regexp_matches(parse_query.query, phrase, 'g') loop
        asked := knowledge_private.phrase_query(part[3], configs);
        if part[2] = '-' then
            excluded := coalesce(excluded || asked, asked, excluded);
        else
            required := coalesce(required && asked, asked, required);
            words := concat_ws(' ', words, part[3]);
        end if;
    end loop;
    for part in select regexp_matches(free, word, 'g') loop
        asked := knowledge_private.phrase_query(part[2], configs);
        excluded := coalesce(excluded || asked, asked, excluded);
    end loop;
    select
        array_agg(t.lexeme order by t.lexeme collate "C", t.prefix),
        array_agg(t.repeats order by t.lexeme collate "C", t.prefix),
        array_agg(t.prefix order by t.lexeme collate "C", t.prefix)
    into lexemes, repeats, prefixes
    from (
        select n.lexeme, n.prefix, max(n.repeats)::integer as repeats
        from (
            select u.lexeme, u.lexeme ~ letter as prefix, cardinality(u.positions) as repeats
            from unnest(configs) as c
            cross join lateral unnest(knowledge_private.lexemes(c, words)) as u
            union all
            select b.part, true, 1 from unnest(begun) as b (part)
            union all
            -- A stem may end before what was typed: "running" is in chunks as "run".
            select s.lexeme, false, 1
            from unnest(begun) as b (part)
            cross join lateral unnest(configs) as c
            cross join lateral knowledge_private.stems_begun(c, b.part) as s (lexeme)
        ) as n
        group by n.lexeme, n.prefix
    ) as t;
end
$$;

comment on function knowledge.parse_query(text, text[]) is
'How a question is read in some languages (text search configurations): lexemes, ascending, each with how often it
repeats, of which a chunk must have any; prefixes: whether it stands for every lexeme that begins so (word* in the
question, which asks for the shorter stems of words that begin so, too); required, the "quoted phrases", of which it must have all; excluded, the -words and -"phrases", of which it may
have none. Null where there are none. KB005 when there is no such configuration.';
revoke all on function knowledge.parse_query(text, text[]) from public;
grant execute on function knowledge.parse_query(text, text[]) to knowledge_reader;
