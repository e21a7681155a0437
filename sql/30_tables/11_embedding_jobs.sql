-- The queue of chunks that were published without a vector. A job is gone when its chunk has its vector, or is gone.

create table knowledge_private.embedding_jobs (
    org_id text collate "C" not null,
    model_id integer not null references knowledge.models (model_id),
    chunk_id uuid not null,
    document_id uuid not null,
    due_at timestamptz not null,
    attempts integer not null default 0,
    claim uuid,
    reason text,
    dead boolean not null default false,
    queued_at timestamptz not null,
    primary key (org_id, model_id, chunk_id),
    foreign key (org_id, chunk_id) references knowledge.chunks (org_id, chunk_id) on delete cascade
) with (fillfactor = 80);

create index embedding_jobs_chunk on knowledge_private.embedding_jobs (chunk_id, org_id);
create index embedding_jobs_document on knowledge_private.embedding_jobs (document_id, org_id);
create index embedding_jobs_claim on knowledge_private.embedding_jobs (claim);
create index embedding_jobs_due on knowledge_private.embedding_jobs (model_id, org_id, due_at) where not dead;

comment on table knowledge_private.embedding_jobs is 'Chunks that are live without a vector of a model.';
comment on column knowledge_private.embedding_jobs.org_id is 'The tenant.';
comment on column knowledge_private.embedding_jobs.model_id is 'The model that is to embed it.';
comment on column knowledge_private.embedding_jobs.chunk_id is 'The chunk.';
comment on column knowledge_private.embedding_jobs.document_id is 'Of which document.';
comment on column knowledge_private.embedding_jobs.due_at is
'From when on it may be claimed: at once, after a failure later, and while it is claimed when the claim runs out.';
comment on column knowledge_private.embedding_jobs.attempts is 'How often embedding it has failed, or a worker vanished.';
comment on column knowledge_private.embedding_jobs.claim is 'The claim it was last part of; null after a failure.';
comment on column knowledge_private.embedding_jobs.reason is 'Of the last failure.';
comment on column knowledge_private.embedding_jobs.dead is 'Set aside after too many failures, until retry_embeddings.';
comment on column knowledge_private.embedding_jobs.queued_at is 'Since when it waits.';

create table knowledge_private.embedding_turns (
    org_id text collate "C" not null references knowledge.orgs (org_id),
    model_id integer not null references knowledge.models (model_id),
    served_at timestamptz not null default '-infinity',
    primary key (org_id, model_id)
) with (fillfactor = 50);

comment on table knowledge_private.embedding_turns is
'Whose turn it is: a claim begins with the org that was served longest ago. An org with nothing queued has no row here, or
one that the next claim takes away.';
comment on column knowledge_private.embedding_turns.org_id is 'The tenant.';
comment on column knowledge_private.embedding_turns.model_id is 'The model.';
comment on column knowledge_private.embedding_turns.served_at is 'When chunks of it were last claimed.';

alter table knowledge_private.embedding_jobs alter column org_id set statistics 0;
