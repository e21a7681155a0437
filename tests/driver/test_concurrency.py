"""Many writers over one pool: exactly one version of each document lives, and nobody deadlocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from pg_knowledge import Context, Knowledge, chunk_text
from pg_knowledge.errors import Conflict, LeaseLost, NotFound
from support import Database, wait_until
from support.embedder import ToyEmbedder
from support.writer import NEW, OLD, check_served, document, ingest

THREADS = 16
WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]


@pytest.fixture
def pool(shared: Database, org: str) -> Iterator[ConnectionPool[Any]]:
    with ConnectionPool(shared.uri("app_backend"), min_size=4, max_size=8) as pool:
        yield pool


def stands_whole(kb: Knowledge, source_id: str, texts: list[str]) -> None:
    """What is live is exactly one of the texts."""
    hits = [hit for hit in kb.search("common", k=1000) if hit.source_id == source_id]
    bodies = [hit.body for hit in sorted(hits, key=lambda hit: hit.ordinal)]
    assert bodies in [[chunk.body for chunk in chunk_text(text)] for text in texts]


def test_same_document(pool: ConnectionPool[Any], org: str, shared: Database) -> None:
    """Sixteen texts for one document at once: each attempt ends as live or is told why not."""
    kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
    texts = [document(" ".join(random.Random(n).sample(WORDS, 5))) for n in range(THREADS)]
    start = threading.Barrier(THREADS)
    searching = threading.Event()

    def write(text: str) -> bool:
        start.wait(30)
        try:
            return kb.ingest("wiki", "a", text, audience=["everyone"], batch_size=2).live
        except (Conflict, LeaseLost):
            return False

    def read() -> int:
        seen = 0
        while not searching.is_set():
            hits = kb.search("common", k=1000)
            if hits:
                bodies = [hit.body for hit in sorted(hits, key=lambda hit: hit.ordinal)]
                assert bodies in [[c.body for c in chunk_text(text)] for text in texts]
                seen += 1
        return seen

    with ThreadPoolExecutor(THREADS + 1) as threads:
        reader = threads.submit(read)
        live = list(threads.map(write, texts))
        if any(live):
            wait_until(lambda: reader.done() or len(kb.search("common")) > 0)
        searching.set()
        reader.result(30)
    assert any(live)
    stands_whole(kb, "a", texts)
    query = "select count(*) from knowledge.versions where state = 'live' and org_id = %s"
    assert shared.superuser().execute(query, (org,)).fetchone() == (1,)


def test_same_text(pool: ConnectionPool[Any], org: str) -> None:
    """Sixteen writers of the same text: one does it, the others wait and find it done."""
    embedder = ToyEmbedder()
    kb = Knowledge(pool, Context(org), embedder=embedder)
    start = threading.Barrier(THREADS)

    def write(_: int) -> Any:
        start.wait(30)
        return ingest(kb, OLD, wait=30)

    with ThreadPoolExecutor(THREADS) as threads:
        reports = list(threads.map(write, range(THREADS)))
    assert len({report.version_id for report in reports}) == 1
    assert sorted(report.embedded for report in reports) == [0] * (THREADS - 1) + [5]
    assert len(embedder.texts) == 5
    check_served(kb, OLD)


def test_different_documents(pool: ConnectionPool[Any], org: str) -> None:
    """Writers of documents of their own, that share texts and compartments, never fail."""
    kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
    kb.define_tag("hr")
    kb.define_audience("staff", ["hr"])
    audiences = (["everyone"], ["staff"], ["everyone", "staff"])
    last: dict[str, str] = {}

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(5):
            text = document(" ".join(rng.sample(WORDS, 4)))
            name = f"doc {number}"
            report = kb.ingest("wiki", name, text, audience=rng.choice(audiences), batch_size=2)
            assert report.live
            last[name] = text
            if rng.random() < 0.2:
                kb.delete_source("wiki", name)
                del last[name]

    with ThreadPoolExecutor(THREADS) as threads:
        for outcome in [threads.submit(work, number) for number in range(THREADS)]:
            outcome.result(60)
    mine = kb.as_context(Context(org, ["hr"]))
    assert {source.source_id for source in mine.list_sources()} == set(last)
    for name, text in last.items():
        stands_whole(mine, name, [text])


def test_writers_and_erasure(pool: ConnectionPool[Any], org: str) -> None:
    """While documents come in, the scope is erased again and again: no deadlock, no ruins."""
    kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
    done = threading.Event()

    def write(number: int) -> None:
        for text in (OLD, NEW, OLD, NEW):
            with suppress(NotFound, LeaseLost):
                kb.ingest("wiki", f"doc {number}", text, audience=["everyone"], batch_size=2)

    def erase() -> None:
        while not done.is_set():
            kb.delete_by_scope(dry_run=False)
            kb.prune(0)

    with ThreadPoolExecutor(9) as threads:
        eraser = threads.submit(erase)
        writers = [threads.submit(write, number) for number in range(8)]
        try:
            for writer in writers:
                writer.result(60)
        finally:
            done.set()
        eraser.result(60)
    for source in kb.list_sources():
        stands_whole(kb, source.source_id, [OLD, NEW])


def test_wait(pool: ConnectionPool[Any], org: str) -> None:
    """wait=0: Conflict at once; wait=…: the other writer is waited for, and its work is found."""
    busy, released = threading.Event(), threading.Event()

    def hang(call: int, vectors: Any) -> Any:
        busy.set()
        assert released.wait(30)
        return vectors

    first = Knowledge(pool, Context(org), embedder=ToyEmbedder(hang))
    embedder = ToyEmbedder()
    second = Knowledge(pool, Context(org), embedder=embedder)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(ingest, first, OLD)
        wait_until(busy.is_set)
        for patience in (0, 0.2):
            with pytest.raises(Conflict):
                ingest(second, OLD, wait=patience)
        waiting = threads.submit(ingest, second, OLD, wait=30)
        released.set()
        assert slow.result(30).embedded == 5
        assert waiting.result(30).skipped == 5
    assert embedder.calls == []


def test_a_vector_to_be_reused_goes_away(pool: ConnectionPool[Any], org: str) -> None:
    """Its document is deleted between staging and publishing: the text is embedded after all."""
    plain = Knowledge(pool, Context(org), embedder=ToyEmbedder())
    plain.ingest("wiki", "a", document("ant bee"), audience=["everyone"])

    def delete(call: int, vectors: Any) -> Any:
        if call == 1:
            plain.delete_source("wiki", "a")
        return vectors

    embedder = ToyEmbedder(delete)
    kb = Knowledge(pool, Context(org), embedder=embedder)
    report = kb.ingest("wiki", "b", document("ant bee cat"), audience=["everyone"])
    assert (report.live, report.complete, report.chunks) == (True, True, 3)
    assert report.embedded + report.reused == 3
    stands_whole(kb, "b", [document("ant bee cat")])
    assert len(kb.search("common", mode="vector")) == 3
