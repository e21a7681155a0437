"""Peers that are measured when they are installed: each class searches a corpus as one caller.

The tables of those inside PostgreSQL are filled by SQL, since only searching is measured, and
get the HNSW index that the peer would make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import corpus as made
import psycopg

Answer = list[int]


class Peer(Protocol):
    def search(self, org: str, compartments: Sequence[int]) -> Callable[[made.Array], Answer]: ...


class Langchain:
    """langchain-postgres: PGVectorStore with columns for what is filtered."""

    def __init__(self, superuser: psycopg.Connection[Any], uri: str, vectors: str) -> None:
        from langchain_core.embeddings import DeterministicFakeEmbedding
        from langchain_postgres import Column, PGEngine, PGVectorStore

        engine = PGEngine.from_connection_string(uri.replace("postgresql:", "postgresql+psycopg:"))
        columns = [Column("org", "TEXT"), Column("audience", "INTEGER")]
        engine.init_vectorstore_table("langchain", made.DIMENSIONS, metadata_columns=columns)
        superuser.execute(
            "insert into langchain (langchain_id, content, embedding, org, audience)"
            f" select chunk_id, 'text', embedding, org_id, compartment_id from {vectors};"
            "create index on langchain using hnsw (embedding extensions.vector_cosine_ops);"
            "create index on langchain (org); create index on langchain (audience);"
            "analyze langchain"
        )
        self.store = PGVectorStore.create_sync(
            engine,
            DeterministicFakeEmbedding(size=made.DIMENSIONS),
            "langchain",
            metadata_columns=["org", "audience"],
        )

    def search(self, org: str, compartments: Sequence[int]) -> Callable[[made.Array], Answer]:
        wanted = {"$and": [{"org": {"$eq": org}}, {"audience": {"$in": list(compartments)}}]}

        def ask(vector: made.Array) -> Answer:
            found = self.store.similarity_search_with_score_by_vector(
                vector.tolist(), k=10, filter=wanted
            )
            return [made.chunk_number(document.id) for document, _ in found]

        return ask


class LlamaIndex:
    """llama-index-vector-stores-postgres, metadata as jsonb with indexes on the keys."""

    def __init__(self, superuser: psycopg.Connection[Any], uri: str, vectors: str) -> None:
        from llama_index.vector_stores.postgres import PGVectorStore

        self.store = PGVectorStore.from_params(
            connection_string=uri.replace("postgresql:", "postgresql+psycopg2:"),
            async_connection_string=uri.replace("postgresql:", "postgresql+asyncpg:"),
            table_name="llama",
            embed_dim=made.DIMENSIONS,
            use_jsonb=True,
            indexed_metadata_keys={("org", "text"), ("audience", "text")},
            hnsw_kwargs={"hnsw_m": 16, "hnsw_ef_construction": 64, "hnsw_ef_search": 40},
        )
        self.search("nobody", [0])(made.units(made.np.ones(made.DIMENSIONS)))  # makes its table
        superuser.execute(
            "drop index if exists data_llama_embedding_idx;"
            "insert into data_llama (text, metadata_, node_id, embedding) select 'text',"
            " jsonb_build_object('org', org_id, 'audience', compartment_id::text), chunk_id,"
            f" embedding from {vectors};"
            "create index on data_llama using hnsw (embedding extensions.vector_cosine_ops);"
            "analyze data_llama"
        )

    def search(self, org: str, compartments: Sequence[int]) -> Callable[[made.Array], Answer]:
        from llama_index.core.vector_stores import types as t

        wanted = t.MetadataFilters(
            filters=[
                t.MetadataFilter(key="org", value=org),
                t.MetadataFilter(
                    key="audience", value=list(map(str, compartments)), operator=t.FilterOperator.IN
                ),
            ]
        )

        def ask(vector: made.Array) -> Answer:
            query = t.VectorStoreQuery(
                query_embedding=vector.tolist(), similarity_top_k=10, filters=wanted
            )
            return [made.chunk_number(i) for i in self.store.query(query).ids or []]

        return ask


class Chroma:
    """Chroma in this process, with metadata."""

    def __init__(self, folder: str, corpus: made.Corpus) -> None:
        import chromadb

        assert corpus.vectors is not None
        client = chromadb.PersistentClient(folder)
        self.collection = client.create_collection(
            "chunks", configuration={"hnsw": {"space": "cosine"}}, embedding_function=None
        )
        for first in range(0, len(corpus.org), 5000):
            part = range(first, min(first + 5000, len(corpus.org)))
            self.collection.add(
                ids=[str(i) for i in part],
                embeddings=corpus.vectors[part.start : part.stop].astype("float32"),
                metadatas=[
                    {"org": corpus.orgs[corpus.org[i]], "audience": int(corpus.compartment[i])}
                    for i in part
                ],
            )

    def search(self, org: str, compartments: Sequence[int]) -> Callable[[made.Array], Answer]:
        where: Any = {"$and": [{"org": org}, {"audience": {"$in": list(compartments)}}]}

        def ask(vector: made.Array) -> Answer:
            found = self.collection.query(
                query_embeddings=[vector], n_results=10, where=where, include=["distances"]
            )
            return [int(i) for i in found["ids"][0]]

        return ask


def installed(
    superuser: psycopg.Connection[Any],
    uri: str,
    vectors: str,
    folder: str,
    corpus: made.Corpus,
    say: Callable[..., None],
) -> Iterator[tuple[str, Peer]]:
    """Each peer that can be made ready; the others are named."""
    makers: dict[str, Callable[[], Peer]] = {
        "langchain-postgres": lambda: Langchain(superuser, uri, vectors),
        "llama-index": lambda: LlamaIndex(superuser, uri, vectors),
        "Chroma": lambda: Chroma(folder, corpus),
    }
    for name, make in makers.items():
        try:
            yield name, make()
            say(name, "is ready")
        except ImportError as missing:
            say(f"{name} is left out: {missing}")
