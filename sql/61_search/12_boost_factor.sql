create function knowledge.boost_factor(boost jsonb, metadata jsonb, updated_at timestamptz)
returns double precision
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    recency jsonb := boost -> 'recency';
    wanted record;
    dated timestamptz := updated_at;
    half_lives double precision;
    factor double precision := 1;
begin
    for wanted in
        select v.value::double precision as weight
        from jsonb_each(boost -> 'metadata') as m
        cross join lateral jsonb_each(m.value) as v
        where case jsonb_typeof(boost_factor.metadata -> m.key)
            when 'array' then v.key in (select e from jsonb_array_elements_text(boost_factor.metadata -> m.key) as e)
            else v.key = boost_factor.metadata ->> m.key
        end
        order by m.key collate "C", v.key collate "C"
    loop
        factor := least(greatest(factor * wanted.weight, 0.001), 1000);
    end loop;
    if recency ? 'key' then
        dated := case
            when pg_input_is_valid(metadata ->> (recency ->> 'key'), 'timestamptz')
                then (metadata ->> (recency ->> 'key'))::timestamptz
        end;
    end if;
    half_lives := greatest(0, extract(epoch from now()) - extract(epoch from dated))::double precision
    / 86400 / (recency -> 'half_life_days')::double precision;
    if dated is not null and recency is not null then
        factor := factor * (1 + (recency -> 'weight')::double precision * power(0.5, least(half_lives, 1000)));
    end if;
    return least(greatest(factor, 0.001), 1000);
end
$$;

comment on function knowledge.boost_factor(jsonb, jsonb, timestamptz) is
'What the option boost of search_scoped multiplies the score of a document''s chunks by, 0.001 to 1000. boost:
{"metadata": {"key": {"value": factor}}, "recency": {"half_life_days": 30, "weight": 0.2, "key": "date"}}, either or both.
metadata: each factor whose value the document''s metadata has at that key, as text, alone or in a list. recency: 1 + weight
for a document of now or later, half of the weight lost with every half-life; its date is the metadata at key, if key is
given, and no date is no boost; else when it was last published.';
revoke all on function knowledge.boost_factor(jsonb, jsonb, timestamptz) from public;
grant execute on function knowledge.boost_factor(jsonb, jsonb, timestamptz) to knowledge_reader;
