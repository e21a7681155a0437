-- What one step of a search hands to the next.

create type knowledge_private.search_request as (
    asking knowledge_private.claim,
    model_id integer,
    chunks bigint,
    words bigint,
    vector_filter text,
    index_filter text,
    permitted_vectors bigint,
    keyword_predicate text,
    keyword_filter text,
    scanned boolean,
    lexemes text[],
    repeats integer[],
    prefixes boolean[],
    known double precision[],
    legs text[],
    rrf_k double precision,
    vector_weight double precision,
    keyword_weight double precision,
    boost jsonb
);

comment on type knowledge_private.search_request is
'What a search runs on: its permission and filters as SQL conditions, its words, and the legs that take part. index_filter:
null where the vector leg compares all. scanned: whether the keyword leg reads all that is permitted. permitted_vectors: null where it is not known. boost: null where nothing is boosted.';

create type knowledge_private.ranked as (
    chunk_id uuid,
    place integer,
    score double precision,
    boost double precision,
    vector_place integer,
    distance double precision,
    keyword_place integer,
    keyword_score double precision
);

comment on type knowledge_private.ranked is
'A chunk that was found, its place after fusion and in each leg. score: with its boost, which is 1 where there is none.';
