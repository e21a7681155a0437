-- What is searched: live chunks only. Their text, their place and (made by register_model) their vectors are three
-- tables, so that what moves a chunk within its document rewrites one narrow row at most and no index of text or vectors.

create table knowledge.chunks (
    org_id text collate "C" not null,
    chunk_id uuid not null,
    document_id uuid not null,
    compartment_id integer not null,
    heading text not null,
    body text not null check (body ~ '\S'),
    tsv tsvector not null,
    words integer not null,
    tokens integer,
    content_hash bytea not null,
    primary key (org_id, chunk_id)
);

-- A chunk of the usual size stays in one piece: to compress it or to cut it up takes longer than to read it. What is
-- ranked by words stays in the row as it is; a body that makes the row too long goes out of it first.
alter table knowledge.chunks alter column tsv set storage main, set (toast_tuple_target = 4080);

create index chunks_compartment on knowledge.chunks (compartment_id, org_id);
create index chunks_content on knowledge.chunks (content_hash);
create index chunks_tsv on knowledge.chunks using gin (tsv);

comment on table knowledge.chunks is
'The live chunks. Readers see those in compartments that they may open: exactly what search could show.';
comment on column knowledge.chunks.org_id is 'The tenant.';
comment on column knowledge.chunks.chunk_id is 'The chunk; it keeps its id as long as its text stays.';
comment on column knowledge.chunks.document_id is 'Of which document.';
comment on column knowledge.chunks.compartment_id is 'The compartment of the document.';
comment on column knowledge.chunks.heading is 'Heading trail, outermost first; may be empty.';
comment on column knowledge.chunks.body is 'The text, as it stands in the source.';
comment on column knowledge.chunks.tsv is 'Heading with weight A and body with weight B, in the document''s language.';
comment on column knowledge.chunks.words is 'Number of positions in tsv: the length that BM25 uses.';
comment on column knowledge.chunks.tokens is 'Length in tokens as the writer counted it.';
comment on column knowledge.chunks.content_hash is
'sha256 of org, heading and body: the key for reuse, which never meets another org''s.';

create table knowledge.places (
    org_id text collate "C" not null,
    document_id uuid not null,
    place integer not null check (place >= 0),
    chunk_id uuid not null,
    compartment_id integer not null,
    content_hash bytea not null,
    words integer not null,
    char_start integer,
    char_end integer,
    locator text,
    primary key (org_id, document_id, place),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id),
    foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade
) with (fillfactor = 80);

create unique index places_chunk on knowledge.places (chunk_id, org_id);

comment on table knowledge.places is
'Where each live chunk stands, as it was written; documents.layout says where that is in the document now: see positions.';
comment on column knowledge.places.org_id is 'The tenant.';
comment on column knowledge.places.document_id is 'The document.';
comment on column knowledge.places.place is 'Its ordinal, where documents.layout says nothing else.';
comment on column knowledge.places.chunk_id is 'The chunk.';
comment on column knowledge.places.compartment_id is 'The compartment of the document.';
comment on column knowledge.places.content_hash is 'As in chunks, so that comparing a document reads no text.';
comment on column knowledge.places.words is 'As in chunks, so that counting a document reads no text.';
comment on column knowledge.places.char_start is 'First character in the source, from 0, less the shift of its piece.';
comment on column knowledge.places.char_end is 'One after the last character in the source, less the same.';
comment on column knowledge.places.locator is 'Where it is in the original, for a citation: "page 3".';

create view knowledge.positions with (security_invoker = true) as
select
    p.org_id,
    p.document_id,
    s.ordinal + (p.place - s.place) as ordinal,
    p.chunk_id,
    p.compartment_id,
    p.char_start + s.shift as char_start,
    p.char_end + s.shift as char_end,
    p.locator
from knowledge.documents as d
cross join lateral unnest(coalesce(d.layout, '{"(0,0,2147483647,0)"}')) as s
inner join knowledge.places as p
    on p.org_id = d.org_id and p.document_id = d.document_id and p.place between s.place and s.place + (s.many - 1);

comment on view knowledge.positions is
'Where each live chunk stands in its document. Readers see those in compartments that they may open.';
comment on column knowledge.positions.org_id is 'The tenant.';
comment on column knowledge.positions.document_id is 'The document.';
comment on column knowledge.positions.ordinal is
'0, 1, 2 … within the document; what was quarantined or rejected leaves a gap.';
comment on column knowledge.positions.chunk_id is 'The chunk.';
comment on column knowledge.positions.compartment_id is 'The compartment of the document.';
comment on column knowledge.positions.char_start is 'First character in the source, from 0.';
comment on column knowledge.positions.char_end is 'One after the last character in the source.';
comment on column knowledge.positions.locator is 'Where it is in the original, for a citation: "page 3".';

create table knowledge_private.staged_chunks (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinal integer not null,
    verdict text not null default 'admitted' check (verdict in ('admitted', 'quarantined', 'rejected')),
    reason text,
    heading text not null,
    body text not null,
    tsv tsvector not null,
    words integer not null,
    tokens integer,
    content_hash bytea not null,
    char_start integer,
    char_end integer,
    locator text,
    primary key (org_id, version_id, ordinal),
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
) with (toast_tuple_target = 8160);

comment on table knowledge_private.staged_chunks is 'The chunks of versions that are being ingested.';
comment on column knowledge_private.staged_chunks.org_id is 'The tenant.';
comment on column knowledge_private.staged_chunks.version_id is 'The version.';
comment on column knowledge_private.staged_chunks.ordinal is 'Position in the document.';
comment on column knowledge_private.staged_chunks.verdict is 'admitted, quarantined or rejected.';
comment on column knowledge_private.staged_chunks.reason is 'Why it was not admitted.';
comment on column knowledge_private.staged_chunks.heading is 'As in chunks.';
comment on column knowledge_private.staged_chunks.body is 'As in chunks; empty where rejected.';
comment on column knowledge_private.staged_chunks.tsv is 'As in chunks.';
comment on column knowledge_private.staged_chunks.words is 'As in chunks.';
comment on column knowledge_private.staged_chunks.tokens is 'As in chunks.';
comment on column knowledge_private.staged_chunks.content_hash is 'As in chunks.';
comment on column knowledge_private.staged_chunks.char_start is 'As in positions.';
comment on column knowledge_private.staged_chunks.char_end is 'As in positions.';
comment on column knowledge_private.staged_chunks.locator is 'As in positions.';

-- What is unchanged is staged without its text, a run of chunks in a row.
create table knowledge_private.staged_unchanged (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinals int4range not null,
    live_ordinal integer not null,
    shift integer not null,
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
);

create index staged_unchanged_version on knowledge_private.staged_unchanged (version_id, org_id);

comment on table knowledge_private.staged_unchanged is
'The chunks of versions that are being ingested which are live in the document already.';
comment on column knowledge_private.staged_unchanged.org_id is 'The tenant.';
comment on column knowledge_private.staged_unchanged.version_id is 'The version.';
comment on column knowledge_private.staged_unchanged.ordinals is 'Which chunks of the version.';
comment on column knowledge_private.staged_unchanged.live_ordinal is 'Which chunk of the live version the first of them is.';
comment on column knowledge_private.staged_unchanged.shift is 'By how many characters they have moved back in the source.';

-- A table of its own: storing a vector writes no text again. They are of the version's model, so of no fixed length.
create table knowledge_private.staged_vectors (
    org_id text collate "C" not null,
    version_id uuid not null,
    ordinal integer not null,
    embedding halfvec not null,
    primary key (org_id, version_id, ordinal),
    foreign key (org_id, version_id) references knowledge.versions (org_id, version_id) on delete cascade
);

alter table knowledge_private.staged_vectors alter column embedding set storage plain;

comment on table knowledge_private.staged_vectors is 'The vectors of staged chunks.';
comment on column knowledge_private.staged_vectors.org_id is 'The tenant.';
comment on column knowledge_private.staged_vectors.version_id is 'The version.';
comment on column knowledge_private.staged_vectors.ordinal is 'Of the chunk.';
comment on column knowledge_private.staged_vectors.embedding is 'Unit vector of the version''s model.';

create type knowledge_private.measured as (
    chunk_id uuid,
    measure double precision
);

comment on type knowledge_private.measured is 'A chunk and how well it fits a question, by one leg of a search.';

-- Whatever the statistics say, no org is taken for empty: its rows are estimated as a two-hundredth of the table.
alter table knowledge.documents alter column org_id set statistics 0;
alter table knowledge.versions alter column org_id set statistics 0;
alter table knowledge.chunks alter column org_id set statistics 0;
alter table knowledge.places alter column org_id set statistics 0;
alter table knowledge_private.staged_chunks alter column org_id set statistics 0;
alter table knowledge_private.staged_unchanged alter column org_id set statistics 0;
alter table knowledge_private.staged_vectors alter column org_id set statistics 0;
