-- One way to fail: SQLSTATE class KB, a message for people, DETAIL as json for programs, HINT with what to do.
--
--   KB001 no context                KB006 unknown tag or audience     KB011 org offboarded
--   KB002 context refused           KB007 model mismatch              KB012 quota
--   KB003 not permitted             KB008 version not complete        KB013 installation refused
--   KB004 not found, or not yours   KB009 lease lost
--   KB005 invalid argument          KB010 conflict, retry

create function knowledge_private.fail(code text, message text, detail jsonb default null, hint text default null)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = fail.code,
        message = fail.message,
        detail = coalesce(fail.detail::text, ''),
        hint = coalesce(fail.hint, '');
end
$$;

comment on function knowledge_private.fail(text, text, jsonb, text) is
'Raises SQLSTATE code (class KB) with message, DETAIL as json and HINT. Never returns.';
revoke all on function knowledge_private.fail(text, text, jsonb, text) from public;

create function knowledge_private.check_keys(object jsonb, allowed text[], argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    unknown text[];
begin
    if object is null or jsonb_typeof(object) <> 'object' then
        perform knowledge_private.fail('KB005', format('%s must be a json object', argument));
    end if;
    unknown := array(select k from jsonb_object_keys(object) as k where k <> all (allowed) order by k);
    if cardinality(unknown) > 0 then
        perform knowledge_private.fail('KB005', format('unknown key in %s: %s', argument, unknown[1]),
            jsonb_build_object('unknown', unknown, 'allowed', allowed));
    end if;
end
$$;

comment on function knowledge_private.check_keys(jsonb, text[], text) is
'Raises KB005 unless object is a json object whose keys are all allowed; argument names it in the message.';
revoke all on function knowledge_private.check_keys(jsonb, text[], text) from public;

create function knowledge_private.check_flags(object jsonb, flags text[], argument text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    flag text;
begin
    foreach flag in array flags loop
        if jsonb_typeof(object -> flag) <> 'boolean' then
            perform knowledge_private.fail('KB005', format('%s in %s must be true or false', flag, argument));
        end if;
    end loop;
end
$$;

comment on function knowledge_private.check_flags(jsonb, text[], text) is
'Raises KB005 unless each of flags that object has is true or false.';
revoke all on function knowledge_private.check_flags(jsonb, text[], text) from public;

create function knowledge_private.is_blank(value text)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Written out, because what [:space:] holds beyond ASCII depends on the locale of the database.
    return value !~ '[^[:space:]\u0085\u00a0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]';
end
$$;

comment on function knowledge_private.is_blank(text) is
'Whether a text has nothing but spaces of any width, none included, and other signs that nobody can see.';
revoke all on function knowledge_private.is_blank(text) from public;

create function knowledge_private.check_label(label text, argument text, longest integer default 500)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if label is null or knowledge_private.is_blank(label) or octet_length(label) > longest or label ~ '[\u0001-\u001f\u007f]' then
        perform knowledge_private.fail('KB005',
            format('%s must be 1 to %s bytes, not blank, without control characters', argument, longest));
    end if;
    return label;
end
$$;

comment on function knowledge_private.check_label(text, text, integer) is
'Returns label, or raises KB005 when it is null, blank, longer than longest bytes or has control characters.';
revoke all on function knowledge_private.check_label(text, text, integer) from public;

create function knowledge_private.text_key(value text)
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
    select sha256(convert_to(value, 'UTF8'))
$$;

comment on function knowledge_private.text_key(text) is 'A digest to index by: of long texts an index holds this.';
revoke all on function knowledge_private.text_key(text) from public;
