-- What a search may ask for.

create function knowledge_private.check_factor(value jsonb, highest numeric, argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(value) is distinct from 'number' or value::numeric not between 0.001 and highest then
        perform knowledge_private.fail('KB005', format('%s must be a number from 0.001 to %s', argument, highest));
    end if;
end
$$;

comment on function knowledge_private.check_factor(jsonb, numeric, text) is
'KB005 unless value is a number from 0.001 to highest; argument names it in the message.';
revoke all on function knowledge_private.check_factor(jsonb, numeric, text) from public;

create function knowledge_private.check_boost(boost jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    recency jsonb := boost -> 'recency';
    part record;
begin
    perform knowledge_private.check_keys(boost, array['recency', 'metadata'], 'boost');
    if boost ? 'recency' then
        perform knowledge_private.check_keys(recency, array['half_life_days', 'weight', 'key'], 'boost.recency');
        if coalesce(jsonb_typeof(recency -> 'key'), 'string') <> 'string' then
            perform knowledge_private.fail('KB005', 'boost.recency.key must be a string');
        end if;
        perform knowledge_private.check_factor(recency -> 'half_life_days', 1000000, 'boost.recency.half_life_days');
        perform knowledge_private.check_factor(recency -> 'weight', 1000, 'boost.recency.weight');
    end if;
    if boost ? 'metadata' then
        if jsonb_typeof(boost -> 'metadata') <> 'object' then
            perform knowledge_private.fail('KB005', 'boost.metadata must be a json object');
        end if;
        for part in select m.key, m.value from jsonb_each(boost -> 'metadata') as m loop
            if jsonb_typeof(part.value) <> 'object' then
                perform knowledge_private.fail('KB005', format('boost.metadata.%s must be a json object', part.key));
            end if;
            perform knowledge_private.check_factor(v.value, 1000, format('boost.metadata.%s.%s', part.key, v.key))
            from jsonb_each(part.value) as v;
        end loop;
    end if;
end
$$;

comment on function knowledge_private.check_boost(jsonb) is 'KB005 unless boost is one that boost_factor takes.';
revoke all on function knowledge_private.check_boost(jsonb) from public;

create function knowledge_private.check_search(query text, embedding vector, k integer, mode text, options jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    option record;
begin
    if k is null or k not between 1 and 1000 then
        perform knowledge_private.fail('KB005', 'k must be from 1 to 1000');
    end if;
    if mode is null or mode not in ('hybrid', 'vector', 'keyword') then
        perform knowledge_private.fail('KB005', 'mode must be hybrid, vector or keyword');
    end if;
    if length(query) > 10000 then
        perform knowledge_private.fail('KB005', 'query is longer than 10000 characters');
    end if;
    if mode = 'vector' and embedding is null then
        perform knowledge_private.fail('KB005', 'mode vector needs an embedding');
    end if;
    if (mode = 'keyword' or embedding is null) and knowledge_private.is_blank(coalesce(query, '')) then
        perform knowledge_private.fail('KB005', 'query is blank');
    end if;
    if options = '{}' then
        return;
    end if;
    perform knowledge_private.check_keys(options,
        array['rrf_k', 'vector_weight', 'keyword_weight', 'min_score', 'per_document', 'language', 'plan', 'syntax', 'boost'],
        'options');
    for option in select o.key, o.value from jsonb_each(options) as o loop
        if option.key in ('rrf_k', 'vector_weight', 'keyword_weight', 'min_score') then
            if jsonb_typeof(option.value) <> 'number' or option.value < '0' or option.value > '1000000'
                or (option.value > '0' and option.value < '0.000001')
            then
                perform knowledge_private.fail('KB005', format('%s must be 0 or a number from 0.000001 to 1000000', option.key));
            end if;
        elsif option.key = 'per_document' then
            if not knowledge_private.is_count(option.value) or option.value = '0' then
                perform knowledge_private.fail('KB005', 'per_document must be an integer from 1');
            end if;
        elsif option.key = 'boost' then
            perform knowledge_private.check_boost(option.value);
        elsif jsonb_typeof(option.value) <> 'string' then
            perform knowledge_private.fail('KB005', format('%s must be a string', option.key));
        end if;
    end loop;
    if options ->> 'syntax' not in ('web', 'plain') then
        perform knowledge_private.fail('KB005', 'syntax must be web or plain');
    end if;
    if options ->> 'plan' not in ('auto', 'exact') then
        perform knowledge_private.fail('KB005', 'plan must be auto or exact');
    end if;
end
$$;

comment on function knowledge_private.check_search(text, vector, integer, text, jsonb) is
'KB005 unless the arguments of a search make sense together.';
revoke all on function knowledge_private.check_search(text, vector, integer, text, jsonb) from public;

create function knowledge_private.asked_words(query text, mode text, options jsonb)
returns text
language sql
immutable
begin atomic
    select case
        when mode = 'vector' or query is null then ''
        -- Without these signs nothing is a phrase, excluded or the beginning of a word.
        when options ->> 'syntax' = 'plain' then regexp_replace(query, '"|\*|(^|\s)-', ' ', 'g')
        else query
    end;
end;

comment on function knowledge_private.asked_words(text, text, jsonb) is
'The words that a search asks for, as parse_query reads them: those of query, none in mode vector; in syntax plain without
operators.';
revoke all on function knowledge_private.asked_words(text, text, jsonb) from public;

create function knowledge_private.stems_begun(language text, beginning text)
returns setof text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    -- The beginning of a word with each way it might go on: "organi", "organiz" and "organizati" all lead to organization.
    select l.lexeme
    from unnest(tsvector_to_array(to_tsvector(language::regconfig, (
        select string_agg(beginning || substr(e.ending, i.typed + 1), ' ')
        from unnest(string_to_array(
            ',e,s,ed,en,er,ing,ion,ation,al,ly,y,ies,ic,ism,ful,ous,ment,ness,ent,ant,ence,ance,ability,ung,heit,keit,lich', ','
        )) as e (ending)
        cross join lateral generate_series(0, length(e.ending)) as i (typed)
        where right(beginning, i.typed) = left(e.ending, i.typed)
    )))) as l (lexeme)
    where not starts_with(l.lexeme, beginning)
$$;

comment on function knowledge_private.stems_begun(text, text) is
'The stems that words with this beginning may have in a language and that do not begin so themselves: runni, run.';
revoke all on function knowledge_private.stems_begun(text, text) from public;

create function knowledge_private.check_embedding(model knowledge.models, embedding vector, fingerprint text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if fingerprint is null or (model.model_id is not null and fingerprint <> model.fingerprint) then
        perform knowledge_private.fail('KB007', 'this embedding is not of the org''s model',
            jsonb_build_object('fingerprint', fingerprint, 'model', model.name),
            'Embed the question with the org''s model and name its fingerprint.');
    end if;
    if knowledge_private.dimensions(embedding) is distinct from model.dimensions
        or knowledge_private.norm(embedding) in (0, 'NaN', 'Infinity')
    then
        perform knowledge_private.check_vectors(model, array[embedding]);
    end if;
end
$$;

comment on function knowledge_private.check_embedding(knowledge.models, vector, text) is
'KB007 when fingerprint is missing or not the model''s or embedding is not of its dimensions (a null model has any), KB005
for a zero vector.';
revoke all on function knowledge_private.check_embedding(knowledge.models, vector, text) from public;

create function knowledge_private.milliseconds_since(started timestamp with time zone)
returns double precision
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select round(extract(epoch from clock_timestamp() - started) * 1000, 3)::double precision
$$;

comment on function knowledge_private.milliseconds_since(timestamp with time zone) is
'Milliseconds on the clock since started.';
revoke all on function knowledge_private.milliseconds_since(timestamp with time zone) from public;
