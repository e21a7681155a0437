-- What may be found without somebody having looked at it: rules, what they held back, and what was decided about that.

create table knowledge.admission_rules (
    org_id text collate "C" references knowledge.orgs (org_id),
    rule text not null,
    pattern text,
    longest integer check (longest >= 1),
    verdict text not null check (verdict in ('admitted', 'quarantined', 'rejected')),
    reason text not null,
    changed_at timestamptz not null default now(),
    unique nulls not distinct (org_id, rule),
    check (num_nonnulls(pattern, longest) = 1)
);

comment on table knowledge.admission_rules is
'A new chunk that matches a rule gets its verdict; of several, the severest. Those without an org hold for every org that has
none of the same name.';
comment on column knowledge.admission_rules.org_id is 'The tenant; null for every tenant.';
comment on column knowledge.admission_rules.rule is 'Name of the rule.';
comment on column knowledge.admission_rules.pattern is
'Regular expression of PostgreSQL, case-insensitive, looked for in heading, line break, body.';
comment on column knowledge.admission_rules.longest is 'Or a number of characters that a body must not exceed.';
comment on column knowledge.admission_rules.verdict is 'quarantined or rejected; admitted switches a rule of every org off.';
comment on column knowledge.admission_rules.reason is 'What the report says of such a chunk.';
comment on column knowledge.admission_rules.changed_at is 'When it was defined.';

insert into knowledge.admission_rules (rule, pattern, longest, verdict, reason)
values
(
    'prompt_injection',
    '\y(?:ignore|disregard|forget|override|bypass)\y[^.!?\n]{0,40}\y(?:previous|prior|above|earlier|preceding|foregoing|system)'
    '\y[^.!?\n]{0,30}\y(?:instructions?|prompts?|rules|directions|messages|guidelines)\y'
    '|\y(?:reveal|print|show|repeat|output|leak|disclose)\y[^.!?\n]{0,30}\y(?:system|hidden|initial|secret)\W{1,3}'
    '(?:prompt|instructions?|message)\y'
    '|\y(?:do not|don.t|never)\W{1,3}(?:tell|inform|alert|warn)\W{1,3}the\W{1,3}user\y'
    '|\yyou\W{1,3}are\W{1,3}(?:now|no longer)\y[^.!?\n]{0,40}\y(?:mode|jailbr\w*|unrestricted|dan|assistant|persona)\y'
    '|\ynew\W{1,3}(?:system\W{1,3})?instructions?\s*:',
    null, 'quarantined', 'it speaks to a language model like an order'
),
(
    'chat_markup',
    '<\|(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id)\|>|\[/?inst\]|<</?sys>>'
    '|<(?:start|end)_of_turn>',
    null, 'quarantined', 'it has the marks that separate the turns of a conversation with a language model'
),
(
    'invisible',
    '[\u0001-\u0008\u000b\u000e-\u001f\u007f\u202d\u202e\u2061-\u2064]'
    '|[a-z][\u200b-\u200d\u2060\ufeff\u00ad\u180e]{2,}[a-z]|[\u200b-\u200f\u2060\ufeff]{8,}'
    '|(?:^|[^\U0001f3f4\U000e0020-\U000e007f])[\U000e0001-\U000e007f]',
    null, 'quarantined', 'it has control characters or signs that nobody can see'
),
('too_long', null, 20000, 'quarantined', 'no embedder reads this much of a text');

create table knowledge.quarantine (
    org_id text collate "C" not null,
    chunk_id uuid not null,
    document_id uuid not null,
    version_id uuid not null,
    ordinal integer not null,
    reason text not null,
    heading text not null,
    body text not null,
    tokens integer,
    content_hash bytea not null,
    char_start integer,
    char_end integer,
    locator text,
    model_id integer references knowledge.models (model_id),
    embedding halfvec,
    held_at timestamptz not null default now(),
    primary key (org_id, chunk_id),
    unique (document_id, ordinal, org_id),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id) on delete cascade
);

comment on table knowledge.quarantine is 'The chunks of live versions that are held back until somebody has looked at them.';
comment on column knowledge.quarantine.org_id is 'The tenant.';
comment on column knowledge.quarantine.chunk_id is 'The chunk; it keeps this id when it is released.';
comment on column knowledge.quarantine.document_id is 'Of which document.';
comment on column knowledge.quarantine.version_id is 'The live version that it belongs to.';
comment on column knowledge.quarantine.ordinal is 'The place in the document that is kept for it.';
comment on column knowledge.quarantine.reason is 'Why it is held back.';
comment on column knowledge.quarantine.heading is 'As in chunks.';
comment on column knowledge.quarantine.body is 'As in chunks.';
comment on column knowledge.quarantine.tokens is 'As in chunks.';
comment on column knowledge.quarantine.content_hash is 'As in chunks.';
comment on column knowledge.quarantine.char_start is 'As in positions.';
comment on column knowledge.quarantine.char_end is 'As in positions.';
comment on column knowledge.quarantine.locator is 'As in positions.';
comment on column knowledge.quarantine.model_id is 'The model of embedding.';
comment on column knowledge.quarantine.embedding is 'Its vector, where its writer brought one.';
comment on column knowledge.quarantine.held_at is 'Since when.';

create table knowledge_private.reviews (
    org_id text collate "C" not null,
    document_id uuid not null,
    content_hash bytea not null,
    verdict text not null check (verdict in ('admitted', 'rejected')),
    reason text not null,
    primary key (org_id, document_id, content_hash),
    foreign key (org_id, document_id) references knowledge.documents (org_id, document_id) on delete cascade
);

comment on table knowledge_private.reviews is
'What was decided about quarantined texts, so that nobody is asked again when the document is ingested again.';
comment on column knowledge_private.reviews.org_id is 'The tenant.';
comment on column knowledge_private.reviews.document_id is 'Of which document.';
comment on column knowledge_private.reviews.content_hash is 'As in chunks.';
comment on column knowledge_private.reviews.verdict is 'admitted or rejected.';
comment on column knowledge_private.reviews.reason is 'What the reviewer said.';
