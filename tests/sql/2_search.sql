-- Searching with psql alone: words, meaning, both; permission; a token.

\echo == by words, by meaning, by both
begin;
select knowledge.set_context(:'org', '{}') \gset
select rank, source_id, ordinal, title, body, legs
from knowledge.search_scoped('who grants a holiday?', mode => 'keyword');
select rank, ordinal, body, round(vector_distance::numeric, 3) as distance
from knowledge.search_scoped(embedding => '[0,0,2]', fingerprint => 'psql-test:3', k => 2);
select rank, ordinal, vector_rank, keyword_rank, legs
from knowledge.search_scoped('kitchen', '[0,0,1]', fingerprint => 'psql-test:3');
select rank, ordinal, vector_rank, keyword_rank
from knowledge.search_exact('kitchen', '[0,0,1]', fingerprint => 'psql-test:3')
inner join knowledge.positions using (chunk_id)
order by rank;
commit;

\echo == the tag opens the document for employees
begin;
select knowledge.set_context(:'org', '{}') \gset
select count(*) from knowledge.search_scoped('salaries', mode => 'keyword');
select source_type, source_id, chunks from knowledge.list_sources() order by source_id;
commit;
begin;
select knowledge.set_context(:'org', '{staff}') \gset
select source_id, body from knowledge.search_scoped('salaries', mode => 'keyword');
select source_type, source_id, chunks from knowledge.list_sources() order by source_id;
select source_type, visibility, documents, chunks, unembedded from knowledge.stats();
select body from knowledge.chunks order by body;
commit;

\echo == another tenant has nothing
begin;
select knowledge.set_context(:'org' || ' other', '{staff}') \gset
select count(*) from knowledge.search_scoped('salaries', mode => 'keyword');
select count(*) from knowledge.chunks;
commit;

\echo == a token carries the context into another transaction
select knowledge.issue_token(:'org', '{staff}') as token \gset
begin;
select knowledge.use_token(:'token') \gset
select count(*) from knowledge.search_scoped('salaries', mode => 'keyword');
commit;

\echo == the context ends with its transaction; a forged token, a zero vector, a wrong model
select count(*) from knowledge.search_scoped('salaries');
select knowledge.use_token('token.1.00.00');
begin;
select knowledge.set_context(:'org', '{}') \gset
\set ON_ERROR_ROLLBACK on
select * from knowledge.search_scoped('x', '[0,0,0]', fingerprint => 'psql-test:3');
select * from knowledge.search_scoped('x', '[1,0,0]', fingerprint => 'other:3');
select * from knowledge.search_scoped('x', '[1,0,0]');
select * from knowledge.search_scoped('x', options => '{"unknown": 1}');
select count(*) from knowledge.search_scoped('holiday', source_types => '{}', mode => 'keyword');
commit;
