"""The ingest benchmark: ``make bench-ingest``; what is measured, and numbers: README.md."""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus as made
import numpy as np
import psycopg
from psycopg_pool import ConnectionPool

from pg_knowledge import Chunk, Context, Knowledge
from pg_knowledge.chunking import chunk_text
from pg_knowledge.embedded import EmbeddedServer
from pg_knowledge.local import LocalEmbedder
from pg_knowledge.staging import embedded_text
from search import HERE, SERVER, database, promote, say, setting
from support import Database, LocalServer, wait_until
from support.knowledge import vector_text

SECTIONS = ("peers", "promoted", "reingest", "memory")
CHUNKS_A_DOCUMENT = 500
# As many documents at a time as the machine of the README has cores.
THREADS = 2
MAX_CHARS = 1300  # makes chunks of 800 characters on average
ORG = "acme"
Figures = dict[str, float]


@dataclass
class Options:
    rows: int
    batch: int


@dataclass
class Document:
    name: str
    text: str
    chunks: list[Chunk]


class Lookup:
    """An embedder that has its vectors already; a text that it does not know gets one of them."""

    name = "bench"
    dimensions = made.DIMENSIONS
    fingerprint = made.FINGERPRINT

    def __init__(self, vectors: made.Array, texts: Sequence[str] = ()) -> None:
        self.vectors = vectors
        self.places = {text: place for place, text in enumerate(texts)}
        self.calls: list[int] = []  # texts in each

    def embed(self, texts: Sequence[str]) -> made.Array:
        self.calls.append(len(texts))
        places = [self.places.get(t, zlib.crc32(t.encode()) % len(self.vectors)) for t in texts]
        found: made.Array = self.vectors[places]
        return found


@dataclass
class Load:
    """Documents with ready chunks, and a vector for each chunk."""

    documents: list[Document]
    vectors: made.Array  # float32

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for document in self.documents for chunk in document.chunks]

    @property
    def texts(self) -> list[str]:
        return [embedded_text(chunk.heading, chunk.body) for chunk in self.chunks]

    def parts(self) -> Iterator[tuple[Document, made.Array]]:
        first = 0
        for document in self.documents:
            yield document, self.vectors[first : first + len(document.chunks)]
            first += len(document.chunks)


def some_vectors(rows: int, seed: int) -> made.Array:
    rng = np.random.default_rng(seed)
    return made.topical_vectors(rng, rng.integers(0, 20, rows)).astype(np.float32)


def make_load(rows: int, seed: int) -> Load:
    prose, documents = made.Prose(seed), []
    for number in range(max(1, rows // CHUNKS_A_DOCUMENT)):
        text = prose.text(min(rows, CHUNKS_A_DOCUMENT) * 805)
        chunks = chunk_text(text, max_chars=MAX_CHARS)
        documents.append(Document(f"{seed}/{number}", text, chunks))
    load = Load(documents, np.zeros(0))
    load.vectors = some_vectors(len(load.chunks), seed)
    return load


def long_text(chunks: int, seed: int) -> str:
    """A text that the driver cuts into a little more than so many chunks."""
    return made.Prose(seed).text(chunks * 645)


# -- ours


@contextmanager
def session(
    db: Database, embedder: Lookup | LocalEmbedder, threads: int = 1
) -> Iterator[Knowledge]:
    """A knowledge base on connections of its own; at the end, what it wrote has been counted."""
    with ConnectionPool(
        db.uri("app_backend"),
        min_size=threads,
        max_size=threads,
        kwargs={"autocommit": True, "application_name": "bench"},
    ) as pool:
        yield Knowledge(pool, Context(ORG), embedder=embedder)
    alive = "select from pg_stat_activity where application_name = 'bench'"
    watch = db.superuser()
    wait_until(lambda: not watch.execute(alive).fetchall(), timeout=10)


def publish(
    kb: Knowledge,
    documents: Sequence[Document],
    options: Options,
    ready: bool = True,
    threads: int = 1,
) -> tuple[int, float]:
    """Ingests the documents, threads at a time; how many chunks, and seconds."""
    count, started = 0, time.perf_counter()
    given = (
        {
            "source_id": d.name,
            "text": d.text,
            "title": d.name,
            "chunks": d.chunks if ready else None,
        }
        for d in documents
    )
    for outcome in kb.ingest_many(
        given,
        threads=threads,
        source_type="wiki",
        audience=["everyone"],
        batch_size=options.batch,
    ):
        if outcome.error:
            raise outcome.error
        assert outcome.report
        assert outcome.report.live
        assert outcome.report.complete
        count += outcome.report.chunks
    return count, time.perf_counter() - started


def ours(server: LocalServer, load: Load, options: Options, ready: bool = True) -> dict[str, Any]:
    with database(server) as (db, _):
        with session(db, Lookup(load.vectors, load.texts), THREADS) as kb:
            count, seconds = publish(kb, load.documents, options, ready, THREADS)
            row: dict[str, Any] = rate(count, seconds)
            found = kb.search(load.chunks[-1].body, k=1)
            assert len(found) == 1
        superuser = db.superuser()
        setting(superuser, promoted_chunks=1)
        started = time.perf_counter()
        promote(superuser)
        seconds += time.perf_counter() - started
        row["rate_with_index"] = rate(count, seconds)["rate"]
        return row


def rate(chunks: int, seconds: float) -> dict[str, float]:
    return {"chunks": chunks, "seconds": round(seconds, 2), "rate": round(chunks / seconds, 1)}


# -- peers: each is made ready, then fills itself, which is timed, then answers one question


class Peer(ABC):
    @abstractmethod
    def fill(self) -> None:
        """Everything in, until it can be searched."""

    @abstractmethod
    def nearest(self, vector: made.Array) -> str:
        """The text of the chunk nearest to vector."""


class Langchain(Peer):
    """langchain-postgres as its guide has it: PGVectorStore, add, then apply an HNSWIndex."""

    def __init__(self, uri: str, load: Load) -> None:
        from langchain_core.embeddings import DeterministicFakeEmbedding
        from langchain_postgres import PGEngine, PGVectorStore

        self.load = load
        engine = PGEngine.from_connection_string(uri.replace("postgresql:", "postgresql+psycopg:"))
        engine.init_vectorstore_table("langchain", made.DIMENSIONS)
        embedding = DeterministicFakeEmbedding(size=made.DIMENSIONS)
        self.store = PGVectorStore.create_sync(engine, embedding, "langchain")
        self.lists = [vectors.tolist() for _, vectors in load.parts()]

    def fill(self) -> None:
        from langchain_postgres.v2.indexes import HNSWIndex

        for document, vectors in zip(self.load.documents, self.lists, strict=True):
            bodies = [chunk.body for chunk in document.chunks]
            about = [{"source": document.name, "heading": c.heading} for c in document.chunks]
            self.store.add_embeddings(bodies, vectors, about)
        self.store.apply_vector_index(HNSWIndex())

    def nearest(self, vector: made.Array) -> str:
        (found,) = self.store.similarity_search_by_vector(vector.tolist(), k=1)
        return str(found.page_content)


class OldLangchain(Peer):
    """langchain-postgres's deprecated PGVector, which adds in bulk; it documents no HNSW index, so
    one is made by hand.
    """

    def __init__(self, uri: str, load: Load) -> None:
        from langchain_core.embeddings import DeterministicFakeEmbedding
        from langchain_postgres import PGVector

        self.load, self.uri = load, uri
        self.store = PGVector(
            DeterministicFakeEmbedding(size=made.DIMENSIONS),
            connection=uri.replace("postgresql:", "postgresql+psycopg:"),
            embedding_length=made.DIMENSIONS,
            use_jsonb=True,
        )
        self.lists = [vectors.tolist() for _, vectors in load.parts()]

    def fill(self) -> None:
        for document, vectors in zip(self.load.documents, self.lists, strict=True):
            bodies = [chunk.body for chunk in document.chunks]
            about = [{"source": document.name, "heading": c.heading} for c in document.chunks]
            self.store.add_embeddings(bodies, vectors, about)
        with psycopg.connect(self.uri, autocommit=True) as conn:
            conn.execute(
                "create index on langchain_pg_embedding using hnsw (embedding vector_cosine_ops)"
            )

    def nearest(self, vector: made.Array) -> str:
        (found,) = self.store.similarity_search_by_vector(vector.tolist(), k=1)
        return str(found.page_content)


class LlamaIndex(Peer):
    """llama-index's PGVectorStore with hnsw_kwargs as documented: the index is there from the
    beginning.
    """

    def __init__(self, uri: str, load: Load) -> None:
        from llama_index.core.schema import BaseNode, TextNode
        from llama_index.vector_stores.postgres import PGVectorStore

        self.store = PGVectorStore.from_params(
            connection_string=uri.replace("postgresql:", "postgresql+psycopg2:"),
            async_connection_string=uri.replace("postgresql:", "postgresql+asyncpg:"),
            table_name="llama",
            embed_dim=made.DIMENSIONS,
            hnsw_kwargs={
                "hnsw_m": 16,
                "hnsw_ef_construction": 64,
                "hnsw_ef_search": 40,
                "hnsw_dist_method": "vector_cosine_ops",
            },
        )
        self.nodes: list[list[BaseNode]] = [
            [
                TextNode(
                    text=chunk.body,
                    embedding=vector,
                    metadata={"source": document.name, "heading": chunk.heading},
                )
                for chunk, vector in zip(document.chunks, vectors.tolist(), strict=True)
            ]
            for document, vectors in load.parts()
        ]

    def fill(self) -> None:
        for nodes in self.nodes:
            self.store.add(nodes)

    def nearest(self, vector: made.Array) -> str:
        from llama_index.core.vector_stores.types import VectorStoreQuery

        query = VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=1)
        (node,) = self.store.query(query).nodes or []
        return str(node.get_content())


class Lance(Peer):
    """LanceDB: one add of everything, HNSW_SQ, optimize; words: a full-text index as well."""

    def __init__(self, folder: str, load: Load, words: bool) -> None:
        import lancedb
        import pyarrow as pa

        self.load, self.words = load, words
        self.schema = pa.schema(
            [
                ("source", pa.string()),
                ("heading", pa.string()),
                ("body", pa.string()),
                ("vector", pa.list_(pa.float32(), made.DIMENSIONS)),
            ]
        )
        connection = lancedb.connect(folder)
        self.table: Any = connection.create_table(f"chunks_{words}".lower(), schema=self.schema)

    def fill(self) -> None:
        import pyarrow as pa

        vectors = pa.array(self.load.vectors.reshape(-1))
        columns = [
            pa.array([d.name for d in self.load.documents for _ in d.chunks]),
            pa.array([chunk.heading for chunk in self.load.chunks]),
            pa.array([chunk.body for chunk in self.load.chunks]),
            pa.FixedSizeListArray.from_arrays(vectors, made.DIMENSIONS),
        ]
        self.table.add(pa.table(columns, schema=self.schema))
        self.table.create_index(
            metric="cosine", num_partitions=1, index_type="IVF_HNSW_SQ", vector_column_name="vector"
        )
        if self.words:
            self.table.create_fts_index("body")
        self.table.optimize()
        for index in self.table.list_indices():
            assert self.table.index_stats(index.name).num_unindexed_rows == 0

    def nearest(self, vector: made.Array) -> str:
        query = self.table.search(vector).distance_type("cosine").refine_factor(10).limit(1)
        (row,) = query.select(["body", "_distance"]).to_list()
        return str(row["body"])


def peers(server: LocalServer, options: Options, figures: Figures) -> Any:
    load = make_load(options.rows, 1)
    bodies = [chunk.body for chunk in load.chunks]
    say(f"{len(bodies)} chunks of {sum(map(len, bodies)) // len(bodies)} characters")
    table: dict[str, Any] = {}

    def show(name: str, row: dict[str, Any]) -> None:
        table[name] = row
        say(name, row)

    ours(server, make_load(1000, 3), options)  # the first of all pays for cold files
    show("pg_knowledge", ours(server, load, options))
    with tempfile.TemporaryDirectory() as folder:
        in_postgres: dict[str, Callable[[str, Load], Peer]] = {
            "langchain-postgres": Langchain,
            "llama-index": LlamaIndex,
        }
        compared = set(in_postgres)
        in_postgres["langchain-postgres, deprecated PGVector"] = OldLangchain
        makers: dict[str, Callable[[str], Peer]] = {
            name: lambda uri, make=make: make(uri, load)  # type: ignore[misc]
            for name, make in in_postgres.items()
        }
        makers["LanceDB"] = lambda _: Lance(folder, load, False)
        makers["LanceDB with full text"] = lambda _: Lance(folder, load, True)
        for name, make in makers.items():
            try:
                with server.database(prepared=False) as db:
                    db.superuser().execute("create extension vector")
                    peer = make(server.embedded.uri(db.name))
                    started = time.perf_counter()
                    peer.fill()
                    row = rate(len(bodies), time.perf_counter() - started)
                    if name in in_postgres:
                        row["hnsw"] = hnsw_indexes(db)
                        assert row["hnsw"]
                    row["found"] = found_share(peer, load)
                    assert row["found"] > 0.8
                    show(name, row)
            except Exception as error:  # one that fails is named, and no number is made up
                say(f"{name} is left out: {type(error).__name__}: {error}")
    show("pg_knowledge again", ours(server, load, options))
    show("pg_knowledge, chunking included", ours(server, load, options, ready=False))
    # The slower of two runs, before and after the peers.
    own = min(table["pg_knowledge"]["rate"], table["pg_knowledge again"]["rate"])
    if best := [table[name]["rate"] for name in compared if name in table]:
        figures["ingest_vs_pg_peer"] = own / max(best)
    if "LanceDB" in table:
        figures["ingest_vs_lancedb"] = own / table["LanceDB"]["rate"]
    return table


def hnsw_indexes(db: Database) -> int:
    query = (
        "select count(*) from pg_class as c join pg_am as m on m.oid = c.relam"
        " where m.amname = 'hnsw'"
    )
    found = db.superuser().execute(query).fetchone()
    assert found
    return int(found[0])


def found_share(peer: Peer, load: Load) -> float:
    """Of 50 chunks, how many are found by their own vector."""
    chunks = load.chunks
    places = range(0, len(chunks), max(1, len(chunks) // 50))
    hits = [peer.nearest(load.vectors[p]) == chunks[p].body for p in places]
    return round(sum(hits) / len(hits), 3)


# -- into an org that has its index

COLUMNS = (
    "org_id, chunk_id, document_id, compartment_id, ordinal, heading, body, tokens, content_hash,"
    " char_start, char_end, embedding"
)
WIDE = """
create table public.wide (
    org_id text collate "C" not null,
    chunk_id uuid not null,
    document_id uuid not null,
    compartment_id integer not null,
    ordinal integer not null,
    heading text not null,
    body text not null,
    tokens integer,
    content_hash bytea not null,
    char_start integer,
    char_end integer,
    tsv tsvector not null generated always as (
        setweight(to_tsvector('pg_catalog.english', heading), 'A')
        || setweight(to_tsvector('pg_catalog.english', body), 'B')) stored,
    embedding extensions.halfvec(384) not null,
    primary key (org_id, chunk_id)
);
alter table public.wide alter tsv set storage main, alter embedding set storage plain;
insert into public.wide ({columns})
    select
        org_id, chunk_id, c.document_id, c.compartment_id, p.place, c.heading, c.body,
        c.tokens, c.content_hash, p.char_start, p.char_end, v.embedding
    from knowledge.chunks as c
    join knowledge.places as p using (org_id, chunk_id)
    join {vectors} as v using (org_id, chunk_id)
    order by p.document_id, p.place;
create unique index on public.wide (org_id, document_id, ordinal);
create index on public.wide (compartment_id, org_id);
create index on public.wide (content_hash);
create index on public.wide using gin (tsv);
create index on public.wide using hnsw (embedding extensions.halfvec_cosine_ops)
    with (ef_construction = 128) where org_id = 'acme'
"""


def copy_by_hand(
    conn: psycopg.Connection[Any], document: Document, vectors: made.Array, compartment: int
) -> float:
    """Seconds that one document takes: COPY in a transaction."""
    started = time.perf_counter()
    document_id = uuid.uuid4()
    statement = f"copy public.wide ({COLUMNS}) from stdin"
    with conn.transaction(), conn.cursor() as cursor, cursor.copy(statement) as copy:
        for chunk, vector in zip(document.chunks, vectors.tolist(), strict=True):
            copy.write_row(
                (
                    ORG,
                    uuid.uuid4(),
                    document_id,
                    compartment,
                    chunk.ordinal,
                    chunk.heading,
                    chunk.body,
                    chunk.tokens,
                    hashlib.sha256(embedded_text(chunk.heading, chunk.body).encode()).digest(),
                    chunk.char_start,
                    chunk.char_end,
                    vector_text(vector),
                )
            )
    return time.perf_counter() - started


def promoted(server: LocalServer, options: Options, figures: Figures) -> Any:
    old, new = make_load(options.rows * 51 // 50, 2), make_load(options.rows // 4, 3)
    # Of one space: what comes later lies among what is there.
    vectors = some_vectors(len(old.vectors) + len(new.vectors), 2)
    old.vectors, new.vectors = vectors[: len(old.vectors)], vectors[len(old.vectors) :]
    table: dict[str, Any] = {"before": len(old.chunks)}
    with database(server) as (db, model):
        superuser = db.superuser()
        with session(db, Lookup(old.vectors, old.texts)) as kb:
            publish(kb, old.documents, options)
        say(f"{len(old.chunks)} chunks are there")
        setting(superuser, promoted_chunks=min(options.rows, 20_000))
        promote(superuser)
        assert hnsw_indexes(db) == 1
        vectors_table = f"knowledge.vectors_{model}"
        superuser.execute(WIDE.format(columns=COLUMNS, vectors=vectors_table))
        superuser.execute("vacuum analyze")
        say("the table for COPY is there")
        own, copied = [], []
        with session(db, Lookup(new.vectors, new.texts)) as kb:
            for document, part in new.parts():  # in turn, so that noise falls on both
                own.append(publish(kb, [document], options)[1])
                copied.append(copy_by_hand(superuser, document, part, 1))
        table |= {
            "pg_knowledge": rate(len(new.chunks), sum(own)),
            "copy": rate(len(new.chunks), sum(copied)),
        }
    say(table)
    figures["ingest_promoted_vs_copy"] = sum(copied) / sum(own)
    return table


# -- again


def written(db: Database) -> dict[str, int]:
    """Rows inserted, updated and deleted so far, by table."""
    query = (
        "select schemaname || '.' || relname, n_tup_ins, n_tup_ins + n_tup_upd + n_tup_del"
        " from pg_stat_all_tables where schemaname in ('knowledge', 'knowledge_private')"
    )
    counts = {}
    for name, inserted, changed in db.superuser().execute(query):
        counts[name] = changed
        counts[f"into {name}"] = inserted
    return counts


def edited(text: str, share: float) -> str:
    """The text with a few words of one paragraph replaced."""
    start = text.index("\n\n", int(len(text) * share)) + 2
    while text[start] == "#" or text.index("\n\n", start) < start + 200:
        start = text.index("\n\n", start) + 2
    first = text.index(" ", start + 90)
    last = text.index(" ", first + 30)
    return text[:first] + " and here somebody has changed a few words" + text[last:]


class Local(LocalEmbedder):
    """The local embedder, counted."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls.append(len(texts))
        return super().embed(texts)


def edits(
    db: Database, model: int, embedder: Callable[[], Lookup | Local], text: str
) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """What it took to ingest a text, the same again, and five editions of it."""

    conn = db.connect("app_backend")

    def again(name: str, text: str) -> dict[str, Any]:
        asked, before = embedder(), written(db)
        kb = Knowledge(conn, Context(ORG), embedder=asked)
        started = time.perf_counter()
        kb.ingest("wiki", "long", text, audience=["everyone"])
        seconds = time.perf_counter() - started
        conn.execute("select pg_stat_force_next_flush()")
        changes = {n: c - before[n] for n, c in written(db).items() if c != before[n]}
        row = {
            "seconds": round(seconds, 4),
            "calls": len(asked.calls),
            "texts": sum(asked.calls),
            "vectors": changes.get(f"into knowledge.vectors_{model}", 0),
            "rows": sum(c for n, c in changes.items() if not n.startswith("into ")),
            "tables": {n: c for n, c in changes.items() if not n.startswith("into ")},
        }
        say(name, row)
        return row

    full = again("full", text)
    db.superuser().execute("vacuum analyze")
    same = again("same", text)
    found = []
    for share in (0.5, 0.25, 0.75, 0.1, 0.9):
        text = edited(text, share)
        found.append(again(f"edit at {share}", text))
    return full, same, found


def time_share(full: dict[str, Any], edits: list[dict[str, Any]]) -> float:
    return float(statistics.median(e["seconds"] for e in edits) / full["seconds"])


def reingest(server: LocalServer, options: Options, figures: Figures) -> Any:
    text = long_text(options.rows // 2, 4)
    chunks = len(chunk_text(text))
    vectors = some_vectors(chunks, 4)
    with database(server) as (db, model):
        full, same, found = edits(db, model, lambda: Lookup(vectors), text)
    assert full["vectors"] == chunks
    # Now and then an edit moves a cut, and two texts are new: the median says what is usual.
    figures["reingest_edit_texts"] = statistics.median(e["texts"] for e in found)
    say("calls and texts, by edit:", [(e["calls"], e["texts"]) for e in found])
    figures["reingest_edit_time_share"] = time_share(full, found)
    figures["reingest_edit_vector_inserts"] = max(e["vectors"] for e in found)
    figures["reingest_same_texts"] = same["texts"]
    figures["reingest_same_rows_written"] = same["rows"]
    table = {"chunks": chunks, "full": full, "same": same, "edits": found}
    say("with an embedder that has to work")
    local = Local()

    def counted_anew() -> Local:
        local.calls.clear()
        return local

    with server.database() as db:
        model = Knowledge(db.connect("app_backend"), Context(ORG), embedder=local).register_model()
        local.embed(["the model is loaded at the first use"])
        real, _, found = edits(db, model, counted_anew, long_text(options.rows // 20, 6))
    figures["reingest_edit_time_share_local_embedder"] = time_share(real, found)
    return table | {"local_embedder": {"full": real, "edits": found}}


# -- memory


def memory(server: LocalServer, options: Options, figures: Figures) -> Any:
    if not Path("/proc/self/clear_refs").exists():
        return say("memory is left out: it needs Linux's /proc")
    with database(server) as (db, _), tempfile.NamedTemporaryFile("w") as file:
        file.write(long_text(5 * options.rows, 5))
        file.flush()
        command = [sys.executable, __file__, "--child", db.uri("app_backend"), file.name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    table: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    say(table)
    figures["driver_peak_mb_over_text"] = table["peak_mb"] - table["before_mb"]
    return table


def status_mb(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


def child(uri: str, file: str) -> None:
    """Ingests one long document, and says what memory that took beyond what the text takes."""
    vectors = some_vectors(1000, 5)
    with psycopg.connect(uri, autocommit=True) as conn:
        kb = Knowledge(conn, Context(ORG), embedder=Lookup(vectors))
        kb.stats()  # what the first call imports and prepares is not the document's
        text = Path(file).read_text()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)  # what is free and not given back would hide as much of what the ingest takes
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        before, started = status_mb("VmRSS"), time.perf_counter()
        report = kb.ingest("wiki", "long", text, audience=["everyone"])
        seconds = time.perf_counter() - started
    found = {
        "text_mb": len(text) / 2**20,
        "before_mb": before,
        "peak_mb": status_mb("VmHWM"),
        **rate(report.chunks, seconds),
    }
    print(json.dumps(found))


# -- all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="chunks of the first section")
    parser.add_argument("--batch", type=int, default=500, help="chunks a batch of our ingest")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for JSON")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    warnings.simplefilter("ignore", DeprecationWarning)  # LanceDB renames its functions
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    given.out.mkdir(parents=True, exist_ok=True)
    options, figures = Options(given.rows, given.batch), Figures()
    with LocalServer(EmbeddedServer(settings=SERVER)) as server:
        for name in wanted:
            say("section", name)
            table = globals()[name](server, options, figures)
            (given.out / f"ingest_{name}.json").write_text(json.dumps(table, indent=1))
    for name, value in figures.items():
        print(f"figure {name} {value:.4g}")


if __name__ == "__main__":
    main()
