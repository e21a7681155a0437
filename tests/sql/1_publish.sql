-- Publishing with psql alone: a model, a vocabulary, two documents, one of them edited.

select knowledge.register_model('psql test', 3, 'psql-test:3') > 0 as registered;

\echo == without a context
select * from knowledge.begin_version('wiki', 'handbook', 'v1', 3, array['everyone']);

\echo == a vocabulary
begin;
select knowledge.set_context(:'org', '{}') \gset
select knowledge.define_tag('staff', 'who works here') \gset
select knowledge.define_audience('employees', array['staff']);
select tags from knowledge.audiences;
commit;

\echo == begin: nothing is staged yet
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.begin_version(
    source_type => 'wiki', source_id => 'handbook', content_hash => 'v1', chunk_count => 3,
    audience => array['everyone'], title => 'Handbook', uri => 'https://example.com/handbook',
    fingerprint => 'psql-test:3') \gset
select :'state' as state, :'staged' as staged, :'unembedded' as unembedded, :'lease' as lease;
commit;

\echo == stage
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.stage_chunks(:'version_id', :lease, '[
    {"ordinal": 0, "body": "Holidays are granted by the manager.", "heading": "Holidays",
     "char_start": 0, "char_end": 36},
    {"ordinal": 1, "body": "The kitchen is on the second floor."},
    {"ordinal": 2, "body": "Call extension 112 in an emergency."}]');
commit;

\echo == not without vectors
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.finalize_version(:'version_id', :lease);
rollback;

\echo == store, finalize
begin;
select knowledge.set_context(:'org', '{}') \gset
select knowledge.store_embeddings(:'version_id', :lease, 'psql-test:3',
    array[0, 1, 2], '{"[1,0,0]","[0,1,0]","[0,0,1]"}');
commit;
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.finalize_version(:'version_id', :lease);
commit;

\echo == the same again is live
begin;
select knowledge.set_context(:'org', '{}') \gset
select state from knowledge.begin_version('wiki', 'handbook', 'v1', 3, fingerprint => 'psql-test:3');
commit;

\echo == one paragraph edited: one chunk to embed
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.begin_version('wiki', 'handbook', 'v2', 3) \gset
select * from knowledge.stage_chunks(:'version_id', :lease, '[
    {"ordinal": 0, "body": "Holidays are granted by the manager.", "heading": "Holidays"},
    {"ordinal": 1, "body": "The kitchen is on the third floor."},
    {"ordinal": 2, "body": "Call extension 112 in an emergency."}]');
select knowledge.store_embeddings(:'version_id', :lease, 'psql-test:3', array[1], '{"[0,1,1]"}');
select * from knowledge.finalize_version(:'version_id', :lease);
commit;

\echo == for employees only, without vectors
begin;
select knowledge.set_context(:'org', '{}') \gset
select * from knowledge.begin_version('wiki', 'salaries', 'v1', 1, array['employees']) \gset
select * from knowledge.stage_chunks(:'version_id', :lease,
    '[{"ordinal": 0, "body": "Salaries are paid on the last day."}]');
select * from knowledge.finalize_version(:'version_id', :lease, allow_unembedded => true);
commit;

\echo == an unknown audience, an unknown option, another model
begin;
select knowledge.set_context(:'org', '{}') \gset
\set ON_ERROR_ROLLBACK on
select * from knowledge.begin_version('wiki', 'x', 'v1', 1, array['nobody']);
select * from knowledge.begin_version('wiki', 'x', 'v1', 1, array['everyone'], options => '{"force": true}');
select * from knowledge.begin_version('wiki', 'x', 'v1', 1, array['everyone'], fingerprint => 'other:3');
commit;
