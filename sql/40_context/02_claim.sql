-- The claim in force: a signed text in the transaction-local setting knowledge.context. It names the backend and the
-- transaction it was made in, so its text is worth nothing anywhere else.

create type knowledge_private.claim as (
    org_id text,
    org_scope text,
    grants text[],
    expires_at timestamptz
);

comment on type knowledge_private.claim is 'Who is asking.';

create function knowledge_private.transaction_mark()
returns text
language sql
stable
parallel restricted
begin atomic
    select concat_ws('/', pg_backend_pid(), (extract(epoch from transaction_timestamp()) * 1000000)::bigint, session_user);
end;

comment on function knowledge_private.transaction_mark() is
'Names this transaction of this backend: process, start in microseconds, login role.';
revoke all on function knowledge_private.transaction_mark() from public;

create function knowledge_private.put_claim(org_id text, grants text[], org_scope text, expires_at timestamptz)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config('knowledge.context', knowledge_private.sign('context', jsonb_build_object(
        'org_id', org_id, 'org_scope', org_scope, 'grants', to_jsonb(grants), 'expires_at', expires_at,
        'mark', knowledge_private.transaction_mark())), true);
end
$$;

comment on function knowledge_private.put_claim(text, text[], text, timestamptz) is
'Stores a signed claim in knowledge.context until the end of the transaction.';
revoke all on function knowledge_private.put_claim(text, text[], text, timestamptz) from public;

create function knowledge_private.context()
returns knowledge_private.claim
language plpgsql
stable
parallel restricted
set search_path = pg_catalog, pg_temp
as $$
declare
    signed text := nullif(current_setting('knowledge.context', true), '');
    payload jsonb;
    claim knowledge_private.claim;
begin
    if signed is null then
        perform knowledge_private.fail('KB001', 'no context: who is asking?', null,
            'Call knowledge.set_context or knowledge.use_token in this transaction.');
    end if;
    payload := knowledge_private.verify('context', signed);
    if payload is null or payload ->> 'mark' is distinct from knowledge_private.transaction_mark() then
        perform knowledge_private.fail('KB002', 'context refused: not made in this transaction', null,
            'Call knowledge.set_context or knowledge.use_token in this transaction.');
    end if;
    claim := jsonb_populate_record(claim, payload);
    if claim.expires_at is not null and claim.expires_at <= knowledge_private.clock() then
        perform knowledge_private.fail('KB002', 'context refused: the token has expired');
    end if;
    return claim;
end
$$;

comment on function knowledge_private.context() is
'The verified claim in force. KB001 without one, KB002 when it is forged, copied, replayed or expired.';
revoke all on function knowledge_private.context() from public;

create function knowledge_private.check_claim(org_id text, grants text[], org_scope text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform knowledge_private.check_label(org_id, 'org_id');
    if org_scope is not null then
        perform knowledge_private.check_label(org_scope, 'org_scope');
    end if;
    if grants is null or coalesce(array_ndims(grants), 1) <> 1 or array_position(grants, null) is not null then
        perform knowledge_private.fail('KB005', 'grants must be a list of tags without nulls; an empty list grants nothing');
    end if;
end
$$;

comment on function knowledge_private.check_claim(text, text[], text) is
'KB005 unless the parts of a claim are well-formed.';
revoke all on function knowledge_private.check_claim(text, text[], text) from public;
