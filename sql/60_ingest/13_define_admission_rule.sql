create function knowledge.define_admission_rule(
    rule text, verdict text, reason text default null, pattern text default null, longest integer default null
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    asking knowledge_private.claim := knowledge_private.context();
    shared knowledge.admission_rules;
begin
    perform knowledge_private.check_label(define_admission_rule.rule, 'rule');
    if define_admission_rule.verdict is null
        or define_admission_rule.verdict not in ('admitted', 'quarantined', 'rejected')
    then
        perform knowledge_private.fail('KB005', 'verdict must be admitted, quarantined or rejected');
    end if;
    perform knowledge_private.use_org(asking.org_id, audits => true);
    if num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 0 then
        -- The rule of every org by this name, with another verdict.
        select r.* into shared
        from knowledge.admission_rules as r
        where r.org_id is null and r.rule = define_admission_rule.rule;
    end if;
    if num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 2
        or (num_nonnulls(define_admission_rule.pattern, define_admission_rule.longest) = 0 and shared.rule is null)
        or define_admission_rule.longest < 1
    then
        perform knowledge_private.fail('KB005', 'a rule has a pattern, or a longest of at least 1 character');
    end if;
    if define_admission_rule.pattern ~ '\\[1-9]' or define_admission_rule.pattern ~ '^(\*\*\*|\(\?[a-z])' then
        perform knowledge_private.fail('KB005', 'a pattern has no back references and no embedded options');
    end if;
    begin
        perform '' ~* ('(?:' || define_admission_rule.pattern || ')');
    exception when invalid_regular_expression then
        perform knowledge_private.fail('KB005', 'the pattern is no regular expression: ' || sqlerrm);
    end;
    insert into knowledge.admission_rules (org_id, rule, pattern, longest, verdict, reason)
    values (
        asking.org_id, define_admission_rule.rule, coalesce(define_admission_rule.pattern, shared.pattern),
        coalesce(define_admission_rule.longest, shared.longest), define_admission_rule.verdict,
        coalesce(define_admission_rule.reason, shared.reason, 'the rules of the org')
    )
    on conflict (org_id, rule) do update
    set
        pattern = excluded.pattern, longest = excluded.longest, verdict = excluded.verdict,
        reason = excluded.reason, changed_at = now();
    perform knowledge_private.audit(asking.org_id, 'define_admission_rule', jsonb_build_object(
        'rule', define_admission_rule.rule, 'verdict', define_admission_rule.verdict));
end
$$;

comment on function knowledge.define_admission_rule(text, text, text, text, integer) is
'Defines or replaces a rule of the context''s org for new chunks. pattern: a regular expression of PostgreSQL,
case-insensitive, looked for in heading, line break, body; or longest: a number of characters that a body must not exceed;
neither: those of the rule that every org has by this name. verdict: quarantined holds such a chunk for review, rejected
leaves it out, admitted switches the rule off. reason: for the report. What is live already is not looked at again. It goes
into audit_log. KB005 malformed argument, KB011 org offboarded.';
revoke all on function knowledge.define_admission_rule(text, text, text, text, integer) from public;
grant execute on function knowledge.define_admission_rule(text, text, text, text, integer) to knowledge_admin;
