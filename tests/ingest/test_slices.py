"""Long ingests: in slices, by batches, with several calls of an embedder at a time, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Lock
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pg_knowledge import Chunk, Context, Knowledge, KnowledgeError, render_context
from pg_knowledge.errors import Conflict, EmbedderError, InvalidArgument, LeaseLost
from support import Database
from support.embedder import ToyEmbedder, Vectors
from support.knowledge import rows
from support.waiting import wait_until


def text(count: int, word: str = "owl") -> str:
    return "\n\n".join(f"# Section {n}\n\n{word} number {n}" for n in range(count))


def given(**more: Any) -> dict[str, Any]:
    return {"audience": ["everyone"], "batch_size": 2, **more}


def test_slices(someone: Callable[..., Knowledge]) -> None:
    """max_batches a call, from one writer to the next, until it is live; nothing twice."""
    embedders = []
    done: list[tuple[int, int]] = []
    for number in range(1, 5):
        embedders.append(ToyEmbedder())
        report = someone(embedder=embedders[-1]).ingest(
            "wiki",
            "d",
            text(7),
            **given(max_batches=1, on_progress=lambda *counts: done.append(counts)),
        )
        assert (report.complete, report.live) == (number == 4, number == 4)
        if number < 4:
            assert report.embedded == 2
            assert len(someone().search("owl")) == 0
            (status,) = someone().ingest_status()
            assert (status.chunks, status.staged, status.unembedded) == (7, 2 * number, 0)
            assert (status.leased, status.last_error) == (False, None)
    assert [len(e.texts) for e in embedders] == [2, 2, 2, 1]
    assert done == [(2, 7), (4, 7), (6, 7), (7, 7)]
    assert len(someone().search("owl")) == 7
    assert someone().ingest_status() == []


def test_failure_is_told_and_the_lease_given_up(someone: Callable[..., Knowledge]) -> None:
    """Another writer goes on at once, and ingest_status says what happened."""

    def fail(call: int, vectors: Vectors) -> Vectors:
        if call == 2:
            raise ConnectionError("the provider is gone")
        return vectors

    with pytest.raises(EmbedderError):
        someone(embedder=ToyEmbedder(fail)).ingest("wiki", "d", text(5), **given())
    (status,) = someone().ingest_status()
    assert (status.staged, status.unembedded, status.leased) == (4, 2, False)
    assert "the provider is gone" in str(status.last_error)
    assert status.failed_at is not None
    embedder = ToyEmbedder()
    assert someone(embedder=embedder).ingest("wiki", "d", text(5), **given()).embedded == 5
    assert len(embedder.texts) == 3


@pytest.mark.parametrize("staged", [2, 5], ids=["some", "all"])
def test_vectors_to_be_reused_go_away_after_a_crash(
    someone: Callable[..., Knowledge], staged: int
) -> None:
    """What a resumed ingest was told is staged wants a vector after all: it is staged again."""
    someone().ingest("wiki", "a", text(5), **given())

    def crash(done: int, total: int) -> None:
        if done >= staged:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        someone().ingest("wiki", "b", text(5), **given(on_progress=crash))
    (status,) = someone().ingest_status()
    assert (status.staged, status.unembedded) == (staged, 0)

    def delete(done: int, total: int) -> None:
        if done == total:
            someone().delete_source("wiki", "a")

    embedder = ToyEmbedder()
    kb = someone(embedder=embedder)
    report = kb.ingest("wiki", "b", text(5), **given(on_progress=delete))
    assert (report.embedded, report.reused, report.complete, report.live) == (5, 0, True, True)
    assert len(embedder.texts) == 5
    assert len(kb.search("owl", mode="vector")) == 5


def test_begin_anew(someone: Callable[..., Knowledge]) -> None:
    """resume=False does not trust what is staged."""
    someone().ingest("wiki", "d", text(5), **given(max_batches=2))
    embedder = ToyEmbedder()
    assert someone(embedder=embedder).ingest("wiki", "d", text(5), **given(resume=False)).live
    assert len(embedder.texts) == 5


def test_calls_at_a_time(someone: Callable[..., Knowledge]) -> None:
    """concurrency calls of the embedder run together, never more; every chunk gets its vector."""
    together = Barrier(3, timeout=10)
    lock = Lock()
    running, most = 0, 0

    def hook(call: int, vectors: Vectors) -> Vectors:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()  # breaks unless three are here
        with lock:
            running -= 1
        return vectors

    report = someone(embedder=ToyEmbedder(hook)).ingest(
        "wiki", "d", text(12), **given(concurrency=3)
    )
    assert (report.embedded, report.complete, most) == (12, True, 3)
    hits = someone().search("owl number 7", mode="vector", k=100)
    assert len(hits) == 12
    assert hits[0].vector_distance is not None


def test_error_in_one_of_many_calls(someone: Callable[..., Knowledge]) -> None:
    """It is raised, nothing is published, and the same call does the rest."""

    def hook(call: int, vectors: Vectors) -> Vectors:
        if call == 3:
            raise ValueError("no")
        return vectors

    with pytest.raises(EmbedderError):
        someone(embedder=ToyEmbedder(hook)).ingest("wiki", "d", text(12), **given(concurrency=3))
    assert len(someone().search("owl")) == 0
    assert someone().ingest("wiki", "d", text(12), **given(concurrency=3)).live


def test_lease_lost_while_embedding(shared: Database, someone: Callable[..., Knowledge]) -> None:
    """A writer that was too slow is refused; the one that took over publishes (33)."""

    def slow(call: int, vectors: Vectors) -> Vectors:
        if call == 1:
            shared.superuser().execute(
                "update knowledge_private.settings set clock_offset = clock_offset + '3 minutes'"
            )
            assert someone().ingest("wiki", "d", text(4), **given()).live
        return vectors

    with pytest.raises(LeaseLost):
        someone(embedder=ToyEmbedder(slow)).ingest("wiki", "d", text(4), **given())
    assert len(someone().search("owl")) == 4


def test_lease_is_renewed(shared: Database, org: str, someone: Callable[..., Knowledge]) -> None:
    """renew_lease keeps a slow writer's version from others."""
    kb = someone()
    asked: dict[str, Any] = {"source_type": "w", "source_id": "d", "content_hash": "h"}
    asked |= {"chunk_count": 1, "audience": ["everyone"]}
    version = kb._begin(0, **asked)
    for _ in range(3):
        shared.superuser().execute(
            "update knowledge_private.settings set clock_offset = clock_offset + '100 seconds'"
        )
        kb._call("select knowledge.renew_lease(%s, %s)", version["version_id"], version["lease"])
    with pytest.raises(Conflict):
        someone()._begin(0, **asked)


class Limited(Exception):
    def __init__(self, retry_after: float) -> None:
        self.retry_after = retry_after


def test_rate_limit(someone: Callable[..., Knowledge]) -> None:
    """An embedder that says when to come back is asked again then; for long it is not waited."""

    def limited(call: int, vectors: Vectors) -> Vectors:
        if call in (1, 2):
            raise Limited(0.01)
        return vectors

    embedder = ToyEmbedder(limited)
    assert someone(embedder=embedder).ingest("wiki", "d", text(2), **given()).embedded == 2
    assert len(embedder.calls) == 3

    def for_long(call: int, vectors: Vectors) -> Vectors:
        raise Limited(3600)

    with pytest.raises(EmbedderError):
        someone(embedder=ToyEmbedder(for_long)).ingest("wiki", "e", text(2, "toad"), **given())


@pytest.mark.parametrize("threads", [1, 3])
def test_in_bulk(shared: Database, org: str, threads: int) -> None:
    """An iterator is read as it is needed; one bad document does not stop the others."""
    read = 0

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal read
        for number in range(12):
            read += 1
            body = "" if number == 5 else text(3, f"owl{number}")
            yield {"source_id": f"d{number}", "text": body}

    with ConnectionPool(
        shared.uri("app_backend"), min_size=threads, kwargs={"autocommit": True}
    ) as pool:
        kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
        outcomes = kb.ingest_many(
            documents(), threads=threads, source_type="wiki", audience=["everyone"]
        )
        first = next(outcomes)
        assert read <= threads + 1
        rest = [first, *outcomes]
        assert sorted(o.source_id for o in rest) == sorted(f"d{n}" for n in range(12))
        (failed,) = [o for o in rest if o.error]
        assert (failed.source_id, failed.report) == ("d5", None)
        assert isinstance(failed.error, InvalidArgument)
        assert len(list(kb.list_sources())) == 11


def test_threads_need_a_pool(someone: Callable[..., Knowledge]) -> None:
    for wrong in ({"threads": 2}, {"threads": 0}):
        with pytest.raises(InvalidArgument):
            list(someone().ingest_many([], **wrong))
    for wrong in ({"batch_size": 0}, {"max_batches": 0}, {"concurrency": 0}):
        with pytest.raises(InvalidArgument):
            someone().ingest("wiki", "d", text(1), **given(**wrong))


def test_unchanged_chunks_are_not_sent(shared: Database, someone: Callable[..., Knowledge]) -> None:
    """Of an edited document the driver sends the text of what is new, and of doubles."""
    sent: list[str] = []

    class Watched(Knowledge):
        def _staged(self, chunk: Any) -> dict[str, Any]:
            sent.append(chunk.body)
            return super()._staged(chunk)

    kb = someone()
    kb.__class__ = Watched
    kb.ingest("wiki", "d", text(9), **given())
    assert len(sent) == 9
    del sent[:]
    edited = text(9).replace("number 4", "number four")
    report = kb.ingest("wiki", "d", edited, **given())
    assert (report.embedded, report.skipped) == (1, 8)
    assert sent == ["# Section 4\n\nowl number four"]
    # The same section twice where it was once, and shifted: the second needs no embedder.
    del sent[:]
    twice = edited.replace("# Section 1\n\nowl number 1", "# Section 0\n\nowl number 0")
    report = kb.ingest("wiki", "d", twice, **given())
    assert (report.embedded, report.reused, report.skipped) == (0, 1, 8)
    assert sent == ["# Section 0\n\nowl number 0"]
    bodies = [hit.body for hit in kb.search("owl", mode="keyword", k=100)]
    assert sorted(bodies) == sorted(
        twice.split("\n\n# ")[0:1] + ["# " + s for s in twice.split("\n\n# ")[1:]]
    )


def test_other_documents_tell_nothing(
    shared: Database, org: str, someone: Callable[..., Knowledge]
) -> None:
    """What is live in another document is staged like any text; its vectors are reused."""
    kb = someone()
    kb.ingest("wiki", "a", text(2), **given())
    kb.ingest("wiki", "b", text(1, "toad"), **given())
    report = kb.ingest("wiki", "b", text(2), **given())
    assert report.skipped == 0
    assert report.reused == 2


def test_interrupted_before_the_texts(
    shared: Database, org: str, someone: Callable[..., Knowledge]
) -> None:
    """What was staged as unchanged is resumed like the rest, and replayed without harm (36)."""
    kb = someone()
    kb.ingest("wiki", "d", text(9), **given())
    edited = text(9).replace("number 4", "number four")
    del_calls: list[str] = []

    class Dying(Knowledge):
        def _stage(self, version: Any, batch: Any) -> set[int]:
            del_calls.append("stage")
            raise KeyboardInterrupt

    kb.__class__ = Dying
    with pytest.raises(KeyboardInterrupt):
        kb.ingest("wiki", "d", edited, **given())
    assert del_calls == ["stage"]
    (status,) = someone().ingest_status()
    assert (status.staged, status.chunks) == (8, 9)
    assert "KeyboardInterrupt" in str(status.last_error)
    report = someone().ingest("wiki", "d", edited, **given())
    assert (report.embedded, report.skipped) == (1, 8)


def test_many_threads_one_org(shared: Database, org: str) -> None:
    """64 threads, the same and different documents: no deadlock, one live version each (33)."""
    with ConnectionPool(
        shared.uri("app_backend"), min_size=8, max_size=32, kwargs={"autocommit": True}, timeout=120
    ) as pool:
        kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
        start = Barrier(64)

        def work(number: int) -> str:
            start.wait()
            name = f"d{number % 8}"
            body = text(4, f"owl{number % 8} edition{number // 16}")
            try:
                kb.ingest("wiki", name, body, **given(wait=60))
                return "published"
            except LeaseLost:
                return "a newer text won"

        with ThreadPoolExecutor(64) as threads:
            outcomes = list(threads.map(work, range(64)))
        assert set(outcomes) <= {"published", "a newer text won"}
        sources = list(kb.list_sources())
    assert sorted(s.source_id for s in sources) == sorted(f"d{n}" for n in range(8))
    live = rows(
        shared.superuser(),
        "select count(*) as n, count(distinct document_id) as d from knowledge.versions"
        " where org_id = %s and state = 'live'",
        org,
    )
    assert live == [{"n": 8, "d": 8}]
    assert {s.chunks for s in sources} == {4}


def test_status_is_of_the_scope(someone: Callable[..., Knowledge], org: str) -> None:
    """Another scope sees nothing of it, and a role that only reads may not ask."""
    kb = someone()
    kb.ingest("wiki", "d", text(5), **given(max_batches=1))
    assert kb.as_context(Context(org, org_scope="eu")).ingest_status() == []
    assert len(kb.ingest_status()) == 1
    with pytest.raises((KnowledgeError, psycopg.Error)):
        kb.as_context(Context("")).ingest_status()
    assert wait_until(lambda: kb.ingest("wiki", "d", text(5), **given()).live)


def test_locators_reach_citations(someone: Callable[..., Knowledge]) -> None:
    """Where a chunk stood in the original file is told with it, also when only that has changed."""
    kb = someone()
    pages = [Chunk(n, "", f"owl {n}", n, n + 1, 2, f"page {n + 1}") for n in range(3)]
    kb.ingest("file", "d", "", **given(chunks=pages))
    assert {hit.body: hit.locator for hit in kb.search("owl")} == {
        "owl 0": "page 1",
        "owl 1": "page 2",
        "owl 2": "page 3",
    }
    moved = [replace(page, locator=f"page {page.ordinal + 2}") for page in pages]
    report = kb.ingest("file", "d", "", **given(chunks=moved))
    assert (report.embedded, report.skipped) == (0, 3)
    (hit,) = kb.search('"owl 2"', mode="keyword")
    assert hit.locator == "page 4"
    (passage,) = kb.passages([hit], 0)
    assert passage.locator == "page 4"
    assert 'locator="page 4"' in render_context([passage])
