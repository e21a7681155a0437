create function knowledge.list_admission_rules()
returns table (rule text, pattern text, longest integer, verdict text, reason text, own boolean)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    asking knowledge_private.claim := knowledge_private.context();
begin
    return query
    select r.rule, r.pattern, r.longest, r.verdict, r.reason, r.org_id is not null
    from knowledge_private.admission_rules(asking.org_id) as r
    order by r.rule;
end
$$;

comment on function knowledge.list_admission_rules() is
'The rules by which new chunks of the context''s org are admitted, quarantined or rejected, those that are switched off left
out; own: the org''s, and not every org''s. define_admission_rule changes them. KB001, KB002 context.';
revoke all on function knowledge.list_admission_rules() from public;
grant execute on function knowledge.list_admission_rules() to knowledge_admin;
