-- The keys that contexts and tokens are signed with: HMAC-SHA256 (RFC 2104) with the two padded keys kept ready, from
-- core sha256() and 244 random bits of gen_random_uuid().

create table knowledge_private.signing_keys (
    key_id integer generated always as identity primary key,
    inner_pad bytea not null check (length(inner_pad) = 64),
    outer_pad bytea not null check (length(outer_pad) = 64),
    created_at timestamptz not null default now(),
    valid_until timestamptz
);

comment on table knowledge_private.signing_keys is 'HMAC keys. The newest signs; the others verify until they expire.';
comment on column knowledge_private.signing_keys.key_id is 'Named in every signed text.';
comment on column knowledge_private.signing_keys.inner_pad is 'Key xor 0x36, 64 bytes.';
comment on column knowledge_private.signing_keys.outer_pad is 'Key xor 0x5c, 64 bytes.';
comment on column knowledge_private.signing_keys.created_at is 'When it was made.';
comment on column knowledge_private.signing_keys.valid_until is 'Null for the key that signs.';

create function knowledge_private.add_signing_key()
returns integer
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    key bytea := sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));
    inner_pad bytea := decode(repeat('36', 64), 'hex');
    outer_pad bytea := decode(repeat('5c', 64), 'hex');
    new_key integer;
begin
    for i in 0..31 loop
        inner_pad := set_byte(inner_pad, i, get_byte(key, i) # 54);
        outer_pad := set_byte(outer_pad, i, get_byte(key, i) # 92);
    end loop;
    insert into knowledge_private.signing_keys (inner_pad, outer_pad)
    values (inner_pad, outer_pad)
    returning key_id into new_key;
    return new_key;
end
$$;

comment on function knowledge_private.add_signing_key() is 'Makes a key that signs from now on; returns its key_id.';
revoke all on function knowledge_private.add_signing_key() from public;

do $key$
begin
    perform knowledge_private.add_signing_key();
end
$key$;
