"""Made-up corpora, and loading them straight into the tables: through the API takes minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import psycopg

DIMENSIONS = 384
FINGERPRINT = "bench:384"
AUDIENCES = 20
CHUNKS_A_DOCUMENT = 10
INTRINSIC = 32  # directions in which the chunks of an org differ, as embeddings of real text do

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass
class Corpus:
    """Chunk i is row i of every array; its chunk_id ends in i."""

    orgs: list[str]
    org: Array  # place in orgs
    document: Array
    ordinal: Array
    compartment: Array  # number within the org
    vectors: Array | None  # unit length, float16
    # (org, compartment) -> audience
    audiences: dict[tuple[str, int], list[str]]
    bodies: list[tuple[str, str]]  # heading, body
    body: Array  # place in bodies


def half(vector: Array) -> Array:
    """As pgvector stores it: unit length, float16."""
    unit: Array = (vector / np.linalg.norm(vector)).astype(np.float16).astype(np.float32)
    return unit


def units(vectors: Array) -> Array:
    found: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return found


def zipf(total: int, parts: int, exponent: float) -> Array:
    """total, cut into falling sizes of at least 1."""
    weights = 1 / np.arange(1, parts + 1) ** exponent
    sizes = np.maximum(1, (total * weights / weights.sum()).astype(int))
    sizes[0] += total - sizes.sum()
    return sizes


def topical_vectors(rng: np.random.Generator, topics: Array) -> Array:
    """Chunks of one org: its centre, a centre for each topic, noise mostly in few directions."""

    def normal(*shape: int) -> Array:
        return units(rng.standard_normal(shape, dtype=np.float32))

    n, centres = len(topics), normal(int(topics.max()) + 1, DIMENSIONS)
    noise = units(normal(n, INTRINSIC) @ normal(INTRINSIC, DIMENSIONS))
    return units(
        0.5 * normal(1, DIMENSIONS)
        + 0.6 * centres[topics]
        + 0.5 * noise
        + 0.15 * normal(n, DIMENSIONS)
    ).astype(np.float16)


def topical(sizes: Sequence[int], seed: int, audiences: int = AUDIENCES) -> Corpus:
    """Orgs of these sizes, 20 topics in each, documents of 10 chunks each for one audience."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, audiences + 1) ** 1.5
    org, document, compartment, ordinal, vectors = [], [], [], [], []
    documents = 0
    for place, size in enumerate(sizes):
        count = -(-size // CHUNKS_A_DOCUMENT)
        topic = rng.integers(0, 20, count)
        audience = rng.choice(audiences, count, p=weights / weights.sum()) + 1
        of = np.arange(size) // CHUNKS_A_DOCUMENT
        org.append(np.full(size, place))
        document.append(documents + of)
        compartment.append(audience[of])
        ordinal.append(np.arange(size) % CHUNKS_A_DOCUMENT)
        vectors.append(topical_vectors(rng, topic[of]))
        documents += count
    all_documents = np.concatenate(document)
    # Tenants write in turn: the rows of an org lie all over the table.
    turn = np.argsort(rng.permutation(documents)[all_documents], kind="stable")
    orgs = [f"org-{i + 1}" for i in range(len(sizes))]
    numbers, places = np.concatenate(compartment)[turn], np.concatenate(org)[turn]
    return Corpus(
        orgs,
        places,
        all_documents[turn],
        np.concatenate(ordinal)[turn],
        numbers,
        np.concatenate(vectors)[turn],
        {(orgs[o], int(c)): [f"team-{c}"] for o, c in set(zip(places, numbers, strict=True))},
        [("Report", f"Part {i} of the report on subject {i % 97}.") for i in range(1000)],
        np.arange(len(places)) % 1000,
    )


def copy_vectors(conn: psycopg.Connection[Any], table: str, vectors: Array) -> None:
    """COPY (bigint, halfvec) in binary form: text would take a minute."""
    fields = [
        ("fields", ">i2"),
        *(("l1", ">i4"), ("n", ">i8")),
        *(("l2", ">i4"), ("dim", ">i2"), ("unused", ">i2"), ("v", ">f2", (DIMENSIONS,))),
    ]
    with conn.cursor() as cursor, cursor.copy(f"copy {table} from stdin (format binary)") as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
        for first in range(0, len(vectors), 10000):
            part = vectors[first : first + 10000]
            block = np.zeros(len(part), dtype=fields)
            block["fields"], block["l1"], block["l2"] = 2, 8, 4 + 2 * DIMENSIONS
            block["n"], block["dim"] = np.arange(first, first + len(part)), DIMENSIONS
            block["v"] = part
            copy.write(block.tobytes())
        copy.write(b"\xff\xff")


LOAD = """
create function pg_temp.id(kind text, n bigint) returns uuid language sql immutable as
    $$ select ('00000000-0000-7000-' || kind || '-' || lpad(to_hex(n), 12, '0'))::uuid $$;
insert into knowledge.orgs (org_id, active_model) select distinct org, %(model)s from a
    on conflict do nothing;
insert into knowledge.tags (org_id, tag) select distinct org, unnest(audience) from a;
insert into knowledge.audiences (org_id, audience, tags)
    select org_id, tag, array[tag] from knowledge.tags on conflict do nothing;
insert into knowledge.compartments (
    org_id, compartment_id, source_type, visibility, audience, language, acl, acl_version)
    select org, compartment, 'wiki', 'org', audience, 'pg_catalog.english', audience,
        cardinality(audience)
    from a;
insert into knowledge.documents (
    org_id, document_id, source_type, source_id, compartment_id, live_version, title, uri)
    select org, pg_temp.id('9000', document), 'wiki', 'page/' || document, compartment,
        pg_temp.id('a000', document), 'Page ' || document, 'https://wiki.example/' || document
    from r where ordinal = 0;
insert into knowledge.versions (
    org_id, version_id, document_id, state, source_version, content_hash, chunk_count, model_id,
    language, lease_expires_at, ended_at)
    select org, pg_temp.id('a000', document), pg_temp.id('9000', document), 'live', '1',
        document::text, count(*), %(model)s, 'pg_catalog.english', now(), now()
    from r group by org, document;
insert into knowledge.chunks (
    org_id, chunk_id, document_id, compartment_id, heading, body, tsv, words, content_hash)
    select r.org, pg_temp.id('8000', r.n), pg_temp.id('9000', r.document), r.compartment,
        b.heading, b.body, t.tsv, knowledge_private.count_words(t.tsv),
        knowledge_private.content_hash(r.org, b.heading, b.body)
    from r join (
        select b.*, knowledge_private.chunk_tsv('pg_catalog.english', b.heading, b.body) as tsv
        from b offset 0) as b on b.n = r.body
    cross join lateral (select b.tsv offset 0) as t
    order by r.n;
insert into knowledge.places (
    org_id, document_id, place, chunk_id, compartment_id, content_hash, words, char_start,
    char_end)
    select c.org_id, c.document_id, r.ordinal, c.chunk_id, c.compartment_id, c.content_hash,
        c.words, 1000 * r.ordinal, 1000 * r.ordinal + length(c.body)
    from r join knowledge.chunks as c on c.org_id = r.org and c.chunk_id = pg_temp.id('8000', r.n)
    order by r.n;
update knowledge.compartments as c set chunks = s.chunks, words = s.words
    from (
        select org_id, compartment_id, count(*) as chunks, sum(words) as words
        from knowledge.places group by 1, 2) as s
    where s.org_id = c.org_id and s.compartment_id = c.compartment_id;
"""
LOAD_VECTORS = """
insert into knowledge.vectors_{model} (org_id, chunk_id, document_id, compartment_id, embedding)
    select r.org, pg_temp.id('8000', r.n), pg_temp.id('9000', r.document), r.compartment,
        v.embedding
    from r join v on v.n = r.n order by r.n
"""


def load(
    conn: psycopg.Connection[Any], corpus: Corpus, model: int, say: Callable[[str], None]
) -> None:
    """Fill an empty database as a superuser, and vacuum and analyze it."""
    say(f"loading {len(corpus.org):,} chunks")
    with conn.transaction():
        conn.execute("set local session_replication_role = replica")  # the keys are right as made
        conn.execute(
            "create temp table a (org text, compartment integer, audience text[]) on commit drop;"
            "create temp table b (n integer, heading text, body text) on commit drop;"
            "create temp table r (n bigint, org text, document bigint, ordinal integer,"
            " compartment integer, body integer) on commit drop;"
            f"create temp table v (n bigint, embedding extensions.halfvec({DIMENSIONS}))"
            " on commit drop"
        )
        names = np.array(corpus.orgs, dtype=object)[corpus.org].tolist()
        numbers = [
            x.tolist() for x in (corpus.document, corpus.ordinal, corpus.compartment, corpus.body)
        ]
        for table, content in (
            ("a", ((o, c, sorted(audience)) for (o, c), audience in corpus.audiences.items())),
            ("b", ((i, *texts) for i, texts in enumerate(corpus.bodies))),
            ("r", zip(range(len(names)), names, *numbers, strict=True)),
        ):
            with conn.cursor() as cursor, cursor.copy(f"copy {table} from stdin") as copy:
                for row in content:
                    copy.write_row(row)
            conn.execute(f"analyze {table}")
        conn.execute(LOAD.replace("%(model)s", str(model)))
        if corpus.vectors is not None:
            copy_vectors(conn, "v", corpus.vectors)
            conn.execute("analyze v")
            conn.execute(LOAD_VECTORS.format(model=model))
    conn.execute("vacuum analyze")


def chunk_number(chunk_id: object) -> int:
    """The row of a corpus that a chunk_id stands for."""
    return int(str(chunk_id)[-12:], 16)


class Prose:
    """Text of made-up words, as unequally frequent as those of a language: headings, paragraphs."""

    def __init__(self, seed: int, words: int = 20_000) -> None:
        self.rng = np.random.default_rng(seed)
        syllables = np.array([c + v for c in "bdfgklmnprstvwz" for v in "aeiou"], dtype=object)
        found: dict[str, None] = {}
        while len(found) < words:  # the frequent ones are short
            size = 1 + int(self.rng.integers(0, 1 + len(found) // 40 if len(found) < 160 else 5))
            found["".join(self.rng.choice(syllables, size))] = None
        self.words = np.array(list(found), dtype=object)
        weights = 1 / (np.arange(words) + 2.7)
        self.below = np.cumsum(weights / weights.sum())

    def draw(self, count: int) -> list[str]:
        places = np.searchsorted(self.below, self.rng.random(count))
        found: list[str] = self.words[np.minimum(places, len(self.words) - 1)].tolist()
        return found

    def paragraph(self) -> str:
        """Sentences of 8 to 20 words, 20 to 120 words in all: about 400 characters."""
        drawn = self.draw(int(self.rng.integers(20, 121)))
        sentences, first = [], 0
        for length in self.rng.integers(8, 21, 15).tolist():
            if part := drawn[first : first + length]:
                sentences.append(" ".join(part).capitalize() + ".")
            first += length
        return " ".join(sentences)

    def text(self, characters: int) -> str:
        """Markdown of about so many characters: sections of 2 to 12 paragraphs."""
        found, size = [f"# {' '.join(self.draw(3)).capitalize()}"], 0
        while size < characters:
            found.append(f"## {' '.join(self.draw(3)).capitalize()}")
            paragraphs = [self.paragraph() for _ in range(int(self.rng.integers(2, 13)))]
            found += paragraphs
            size += sum(map(len, paragraphs))
        return "\n\n".join(found) + "\n"
