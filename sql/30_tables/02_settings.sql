-- Thresholds and intervals of this database, in one row that knowledge_owner may update, and the clock that reads it.

create table knowledge_private.settings (
    only_row boolean primary key default true check (only_row),
    exact_rows integer not null default 12000 check (exact_rows >= 0),
    index_share real not null default 0.1 check (index_share between 0 and 1),
    promoted_chunks integer not null default 20000 check (promoted_chunks >= 1),
    promoted_orgs integer not null default 100 check (promoted_orgs >= 0),
    alike_vectors integer not null default 300 check (alike_vectors >= 1),
    scanned_chunks integer not null default 20000 check (scanned_chunks >= 0),
    candidates integer not null default 2000 check (candidates >= 1),
    paired_candidates integer not null default 5000 check (paired_candidates >= 0),
    enough_weight real not null default 0.65 check (enough_weight between 0 and 1),
    long_list integer not null default 5000 check (long_list >= 0),
    lease interval not null default interval '2 minutes' check (lease > interval '0'),
    abandoned interval not null default interval '1 day' check (abandoned >= interval '0'),
    claim interval not null default interval '5 minutes' check (claim > interval '0'),
    attempts integer not null default 8 check (attempts >= 1),
    first_retry interval not null default interval '10 seconds' check (first_retry > interval '0'),
    longest_retry interval not null default interval '1 hour' check (longest_retry > interval '0'),
    longest_token interval not null default interval '24 hours' check (longest_token > interval '0'),
    clock_offset interval not null default interval '0'
);

comment on table knowledge_private.settings is 'One row of settings of this database.';
comment on column knowledge_private.settings.only_row is 'Keeps the table at one row.';
comment on column knowledge_private.settings.exact_rows is
'Up to this many permitted vectors a search is exact, also in an org that has an index of its own.';
comment on column knowledge_private.settings.index_share is
'The index of an org is used only when the permitted vectors are at least this share of it.';
comment on column knowledge_private.settings.promoted_chunks is
'An org with this many chunks earns a vector index of its own (index_plan), and loses it below half of that.';
comment on column knowledge_private.settings.promoted_orgs is
'At most so many orgs have an index of their own: each costs every ingest and every plan a little.';
comment on column knowledge_private.settings.alike_vectors is
'An org with more equal vectors than this has no index: in its graph they would be an island that hides others.';
comment on column knowledge_private.settings.scanned_chunks is
'Up to this many permitted chunks are read one by one for words; of more, those that the index of lexemes gives. In a database
of n times 100,000 chunks it is the root of n times as many, because that index is shared by all orgs.';
comment on column knowledge_private.settings.candidates is
'About how many chunks the keyword leg scores, where common lexemes are counted (lexeme_counts), because a rare lexeme is in
them: the rarest first.';
comment on column knowledge_private.settings.paired_candidates is
'Of about how many more, by the next rarest lexemes, it scores those that have another lexeme that is not in every tenth chunk.';
comment on column knowledge_private.settings.enough_weight is
'The keyword leg takes no more candidates by common lexemes when those it has taken some by are this share of the idf.';
comment on column knowledge_private.settings.long_list is
'More compartments than this are looked up row by row where an org''s vector index is walked, and not written as a list.';
comment on column knowledge_private.settings.lease is 'How long a writer holds a version without renewing it.';
comment on column knowledge_private.settings.abandoned is
'maintain() ends a version that is being ingested when its lease ran out this long ago.';
comment on column knowledge_private.settings.claim is 'How long a worker holds the chunks that it claimed for embedding.';
comment on column knowledge_private.settings.attempts is
'A chunk that could not be embedded so many times is set aside as a dead letter.';
comment on column knowledge_private.settings.first_retry is
'How long after its first failure a chunk is claimed again; twice as long after each further one.';
comment on column knowledge_private.settings.longest_retry is 'But never longer than this.';
comment on column knowledge_private.settings.longest_token is 'The longest time a token may live.';
comment on column knowledge_private.settings.clock_offset is
'Added to clock_timestamp() for leases and tokens; tests move it instead of waiting.';

insert into knowledge_private.settings default values;

create function knowledge_private.clock()
returns timestamptz
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
    select clock_timestamp() + s.clock_offset from knowledge_private.settings as s
$$;

comment on function knowledge_private.clock() is 'The time that leases and tokens are measured by.';
revoke all on function knowledge_private.clock() from public;

create function knowledge_private.new_id()
returns uuid
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    bytes bytea := uuid_send(gen_random_uuid());
begin
    -- Version 7 of RFC 9562: 48 bits of milliseconds, then random bits; PostgreSQL has uuidv7() only from 18 on.
    return encode(
        set_byte(
            overlay(bytes placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3)
                from 1 for 6),
            6, (get_byte(bytes, 6) & 15) | 112),
        'hex')::uuid;
end
$$;

comment on function knowledge_private.new_id() is
'A new uuid of version 7: ordered by time of creation, counting nothing.';
revoke all on function knowledge_private.new_id() from public;
