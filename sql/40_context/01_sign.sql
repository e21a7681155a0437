-- Signed texts: <purpose>.<key>.<payload in hex>.<hmac in hex>. The purpose is signed too, so a token is no context.

create function knowledge_private.mac(message text, inner_pad bytea, outer_pad bytea)
returns text
language sql
stable
begin atomic
    select encode(sha256(outer_pad || sha256(inner_pad || convert_to(message, 'UTF8'))), 'hex');
end;

comment on function knowledge_private.mac(text, bytea, bytea) is 'HMAC-SHA256 of message as hex (RFC 2104).';
revoke all on function knowledge_private.mac(text, bytea, bytea) from public;

create function knowledge_private.sign(purpose text, payload jsonb)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key record;
    message text;
begin
    select k.* into strict key
    from knowledge_private.signing_keys as k
    where k.valid_until is null
    order by k.key_id desc
    limit 1;
    message := concat_ws('.', purpose, key.key_id, encode(convert_to(payload::text, 'UTF8'), 'hex'));
    return message || '.' || knowledge_private.mac(message, key.inner_pad, key.outer_pad);
end
$$;

comment on function knowledge_private.sign(text, jsonb) is 'payload as a text signed for purpose with the newest key.';
revoke all on function knowledge_private.sign(text, jsonb) from public;

create function knowledge_private.verify(purpose text, signed text)
returns jsonb
language plpgsql
stable
parallel restricted
set search_path = pg_catalog, pg_temp
as $$
declare
    part text[] := string_to_array(signed, '.');
    key record;
begin
    -- No more of its form is checked: what has the right hmac was written by sign, and nothing else is decoded.
    if cardinality(part) is distinct from 4 or part[2] !~ '^[0-9]{1,9}$' then
        return null;
    end if;
    select k.* into key
    from knowledge_private.signing_keys as k
    where k.key_id = part[2]::integer and (k.valid_until is null or k.valid_until > knowledge_private.clock());
    if not found
        or part[1] <> purpose
        or part[4] <> knowledge_private.mac(concat_ws('.', part[1], part[2], part[3]), key.inner_pad, key.outer_pad)
    then
        return null;
    end if;
    return convert_from(decode(part[3], 'hex'), 'UTF8')::jsonb;
end
$$;

comment on function knowledge_private.verify(text, text) is
'The payload of a text that sign made for the same purpose with a key that is still valid, else null.';
revoke all on function knowledge_private.verify(text, text) from public;
