"""Chunks without a vector: found by words at once, by meaning when a worker has been there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import psycopg
import pytest

from pg_knowledge import Context, Knowledge
from pg_knowledge.worker import Worker
from support import Database, Server
from support.embedder import ToyEmbedder, Vectors, wrong_at
from support.invariants import check_invariants
from support.knowledge import FINGERPRINT, register, rows, toy_vector, vector_text
from support.waiting import wait_until

CLAIM = "select * from knowledge.claim_embeddings(%s, %s)"
COMPLETE = "select knowledge.complete_embeddings(%s, %s, %s::extensions.vector[]) as n"
FAIL = "select knowledge.fail_embeddings(%s, %s, %s, %s::interval) as n"


@pytest.fixture
def db(server: Server) -> Iterator[Database]:
    """A database of its own: the queue serves all orgs of one."""
    with server.database() as database:
        register(database.connect("app_admin"))
        yield database
        check_invariants(database.superuser())


def knowledge(db: Database, org: str = "acme", embedder: ToyEmbedder | None = None) -> Knowledge:
    return Knowledge(db.connect("app_backend"), Context(org), embedder=embedder or ToyEmbedder())


def publish(kb: Knowledge, source_id: str, count: int = 3, word: str = "owl") -> None:
    """A document of count chunks, for words only."""
    text = "\n\n".join(f"# Section {n}\n\n{word} {source_id} {n}" for n in range(count))
    report = kb.ingest("wiki", source_id, text, audience=["everyone"], allow_unembedded=True)
    assert (report.chunks, report.embedded, report.complete, report.live) == (count, 0, False, True)


def worker(db: Database, embedder: ToyEmbedder | None = None, **given: Any) -> Worker:
    return Worker(db.connect("app_trusted"), embedder or ToyEmbedder(), **given)


def claim(conn: psycopg.Connection[Any], k: int = 100) -> list[dict[str, Any]]:
    return rows(conn, CLAIM, FINGERPRINT, k)


def complete(conn: psycopg.Connection[Any], claimed: list[dict[str, Any]]) -> int:
    texts = [f"{row['heading']}\n{row['body']}" for row in claimed]
    vectors = [vector_text(toy_vector(text)) for text in texts]
    ids = [row["chunk_id"] for row in claimed]
    return int(rows(conn, COMPLETE, claimed[0]["claim"], ids, vectors)[0]["n"])


def fail(conn: psycopg.Connection[Any], claimed: list[dict[str, Any]], wait: str | None) -> int:
    ids = [row["chunk_id"] for row in claimed]
    return int(rows(conn, FAIL, claimed[0]["claim"], ids, "out of order", wait)[0]["n"])


def move_clock(db: Database, interval: str) -> None:
    db.superuser().execute(
        "update knowledge_private.settings set clock_offset = clock_offset + %s::interval",
        (interval,),
    )


def states(kb: Knowledge) -> dict[str, int]:
    return {state.state: state.chunks for state in kb.embedding_queue()}


def test_words_now_meaning_later(db: Database) -> None:
    """Published for words at once without a call of the embedder; a worker does the rest."""
    embedder = ToyEmbedder()
    kb = knowledge(db, embedder=embedder)
    publish(kb, "d")
    assert embedder.calls == []
    assert len(kb.search("owl", mode="keyword")) == 3
    assert len(kb.search("owl", mode="vector")) == 0
    assert states(kb) == {"waiting": 3}
    done = worker(db).drain()
    assert (done.claimed, done.stored, done.failed, done.postponed) == (3, 3, 0, 0)
    assert len(kb.search("owl", mode="vector")) == 3
    assert states(kb) == {}
    assert kb.stats()[0].unembedded == 0


def test_same_text_again(db: Database) -> None:
    """Without vectors allowed it is unchanged; with an embedder it is completed, queue and all."""
    kb = knowledge(db)
    publish(kb, "d")
    text = "\n\n".join(f"# Section {n}\n\nowl d {n}" for n in range(3))
    again = kb.ingest("wiki", "d", text, allow_unembedded=True)
    assert (again.skipped, again.live) == (3, True)
    assert states(kb) == {"waiting": 3}
    report = kb.ingest("wiki", "d", text)
    assert (report.embedded, report.skipped, report.complete) == (3, 3, True)
    assert states(kb) == {}


def test_two_workers_never_hold_the_same_chunk(db: Database) -> None:
    """SKIP LOCKED: claims that run into each other share the queue out."""
    publish(knowledge(db), "d", 40)
    claims: list[list[dict[str, Any]]] = []
    conns = [db.connect("app_trusted") for _ in range(4)]
    start = Barrier(4)

    def work(conn: psycopg.Connection[Any]) -> None:
        start.wait()
        for _ in range(4):
            claims.append(claim(conn, 3))

    threads = [Thread(target=work, args=(conn,)) for conn in conns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [row["chunk_id"] for rows_ in claims for row in rows_]
    assert len(ids) == len(set(ids)) == 40
    # While a claim is open in another transaction, its chunks are passed over.
    move_clock(db, "6 minutes")
    with conns[0].transaction():
        first = claim(conns[0], 30)
        second = claim(conns[1], 30)
    assert (len(first), len(second)) == (30, 10)
    assert not {r["chunk_id"] for r in first} & {r["chunk_id"] for r in second}


def test_a_claim_runs_out(db: Database) -> None:
    """A worker that vanished loses its chunks to another, whose vectors count; its own do not."""
    kb = knowledge(db)
    publish(kb, "d")
    conn = db.connect("app_trusted")
    gone = claim(conn)
    assert claim(conn) == []
    move_clock(db, "6 minutes")
    heir = claim(conn)
    assert [row["attempts"] for row in heir] == [1, 1, 1]
    assert complete(conn, gone) == 0
    assert fail(conn, gone, None) == 0
    assert complete(conn, heir) == 3
    assert complete(conn, heir) == 0
    assert len(kb.search("owl", mode="vector")) == 3


def test_back_off_and_dead_letters(db: Database) -> None:
    """Twice as long after each failure, dead with its reason after the eighth, then revived."""
    kb = knowledge(db)
    publish(kb, "d", 1)
    conn = db.connect("app_trusted")
    for seconds in (10, 20, 40, 80, 160, 320, 640):
        claimed = claim(conn)
        assert fail(conn, claimed, None) == 1
        move_clock(db, f"{seconds - 2} seconds")
        assert claim(conn) == []
        assert states(kb) == {"retrying": 1}
        move_clock(db, "2 seconds")
    assert fail(conn, claim(conn), None) == 1
    move_clock(db, "1 year")
    assert claim(conn) == []
    (dead,) = kb.embedding_queue()
    assert (dead.state, dead.reason, dead.attempts) == ("dead", "out of order", 8)
    assert len(kb.search("owl", mode="keyword")) == 1
    assert kb.retry_embeddings() == 1
    assert complete(conn, claim(conn)) == 1


def test_a_text_that_kills_its_worker_ends(db: Database) -> None:
    """A claim that ran out counts as a failure: eight dead workers are enough."""
    kb = knowledge(db)
    publish(kb, "d", 1)
    conn = db.connect("app_trusted")
    for _ in range(8):
        assert len(claim(conn)) == 1
        move_clock(db, "6 minutes")
    assert claim(conn) == []
    assert states(kb) == {"dead": 1}


def test_an_outage_kills_nothing(db: Database) -> None:
    """Given back with retry_after, chunks come back as often as it takes."""
    publish(knowledge(db), "d", 1)
    conn = db.connect("app_trusted")
    for _ in range(20):
        assert fail(conn, claim(conn), "30 seconds") == 1
        assert claim(conn) == []
        move_clock(db, "31 seconds")
    assert [row["attempts"] for row in claim(conn)] == [0]


def test_fair_between_orgs(db: Database) -> None:
    """An org with much to do does not keep one with little waiting: they take turns (41)."""
    publish(knowledge(db, "a large"), "d", 60)
    conn = db.connect("app_trusted")
    assert {row["org_id"] for row in claim(conn, 10)} == {"a large"}
    publish(knowledge(db, "b small"), "d", 2)
    publish(knowledge(db, "c small"), "d", 2)
    turns = [{row["org_id"] for row in claim(conn, 2)} for _ in range(4)]
    assert turns == [{"b small"}, {"c small"}, {"a large"}, {"a large"}]


def looks(db: Database, conn: psycopg.Connection[Any]) -> int:
    """How often a claim looks into the queue, through whatever index or none."""
    jobs = rows(
        db.superuser(),
        "select array_agg(indexrelid) || indrelid as ids from pg_index"
        " where indrelid = 'knowledge_private.embedding_jobs'::regclass group by indrelid",
    )[0]["ids"]
    query = "select sum(pg_stat_get_xact_numscans(i)) as n from unnest(%s) as i"
    with conn.transaction():
        (before,) = rows(conn, query, jobs)
        claim(conn)
        (after,) = rows(conn, query, jobs)
        return int(after["n"] - before["n"])


def test_a_claim_costs_what_is_queued(db: Database) -> None:
    """Orgs that had something queued once, or have but dead letters, are not looked at again."""
    kb = knowledge(db, "busy")
    for org in [f"org {n}" for n in range(30)]:
        publish(kb.as_context(Context(org)), "d", 1)
    publish(kb, "d", 3)
    conn = db.connect("app_trusted")
    assert complete(conn, claim(conn)) == 33
    publish(kb.as_context(Context("dead")), "d", 1)
    db.superuser().execute("update knowledge_private.embedding_jobs set dead = true")
    claim(conn)  # notices
    publish(kb, "e", 3)
    assert looks(db, conn) <= 3
    # And they come back, one by new chunks, one by revived ones.
    publish(kb.as_context(Context("org 7")), "e", 1)
    assert kb.as_context(Context("dead")).retry_embeddings() == 1
    assert {row["org_id"] for row in claim(conn)} == {"org 7", "dead"}


@pytest.mark.parametrize("first", ["publish", "claim"])
def test_a_claim_while_something_is_being_queued(db: Database, first: str) -> None:
    """An org whose queue a claim finds empty at this moment is not forgotten."""
    kb = knowledge(db)
    publish(kb, "d", 1)
    conn = db.connect("app_trusted")
    assert complete(conn, claim(conn)) == 1
    other = db.connect("app_backend")
    queueing = Knowledge(other, Context("acme"), embedder=ToyEmbedder())
    if first == "publish":
        with other.transaction():
            publish(queueing, "e", 3)
            assert claim(conn) == []
    else:
        waiting = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        late = Thread(target=publish, args=(queueing, "e", 3))
        with conn.transaction():
            assert claim(conn) == []
            late.start()
            wait_until(lambda: rows(db.superuser(), waiting, other.info.backend_pid))
        late.join(10)
    assert len(claim(conn)) == 3


def test_a_claim_that_sees_the_past_forgets_no_org(db: Database) -> None:
    """In a transaction with one snapshot a claim cannot know that nothing is queued by now."""
    kb = knowledge(db)
    publish(kb, "d", 1)
    conn = db.connect("app_trusted")
    assert complete(conn, claim(conn)) == 1
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        rows(conn, "select count(*) from pg_class")
        publish(kb, "e", 3)
        assert claim(conn) == []
    assert len(claim(conn)) == 3


def test_failing_rows_at_the_head_starve_nobody(db: Database) -> None:
    """What failed waits behind what did not (41)."""
    publish(knowledge(db), "bad", 3, "toad")
    conn = db.connect("app_trusted")
    assert fail(conn, claim(conn, 3), None) == 3
    publish(knowledge(db), "good", 3)
    move_clock(db, "11 seconds")
    publish(knowledge(db), "later", 3)
    turns = [{row["body"].split()[-2] for row in claim(conn, 3)} for _ in range(3)]
    assert turns == [{"good"}, {"bad"}, {"later"}]


def test_nothing_is_left_behind(db: Database) -> None:
    """Deleting and re-ingesting takes chunks out of the queue (40)."""
    kb = knowledge(db)
    publish(kb, "a")
    publish(kb, "b")
    publish(kb, "b", 2)
    assert states(kb) == {"waiting": 5}
    conn = db.connect("app_trusted")
    claimed = claim(conn)
    kb.delete_source("wiki", "a")
    assert complete(conn, claimed) == 2
    kb.delete_by_scope(dry_run=False, entire_org=True)
    (left,) = rows(db.superuser(), "select count(*) as n from knowledge_private.embedding_jobs")
    assert left["n"] == 0


def test_bad_calls(db: Database) -> None:
    """Wrong vectors and malformed calls are refused whole, and the claim stays."""
    publish(knowledge(db), "d", 2)
    conn = db.connect("app_trusted")
    claimed = claim(conn)
    ids, number = [row["chunk_id"] for row in claimed], claimed[0]["claim"]
    good = vector_text(toy_vector("x"))
    for vectors, code in (
        ([good], "KB005"),
        ([good, "[1,2]"], "KB007"),
        ([good, vector_text([0.0] * 8)], "KB005"),
        (None, "KB005"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            rows(conn, COMPLETE, number, ids, vectors)
        assert caught.value.sqlstate == code
    for call, arguments, code in (
        (CLAIM, ("unknown", 1), "KB007"),
        (CLAIM, (FINGERPRINT, 0), "KB005"),
        (CLAIM, (FINGERPRINT, None), "KB005"),
        (FAIL, (number, ids, None, None), "KB005"),
        (FAIL, (number, ids, "x", "-1 second"), "KB005"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            rows(conn, call, *arguments)
        assert caught.value.sqlstate == code
    assert complete(conn, claimed) == 2


def test_only_trusted_roles_are_workers(db: Database) -> None:
    """Texts of all orgs are for roles that may say who is asking."""
    for role in ("app_reader", "app_writer", "app_admin"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            claim(db.connect(role))


def test_queue_is_counted_in_the_scope(db: Database) -> None:
    """embedding_queue and retry_embeddings see the exact scope of the context only."""
    kb = knowledge(db)
    publish(kb, "d")
    other = kb.as_context(Context("acme", org_scope="eu"))
    assert other.embedding_queue() == []
    db.superuser().execute("update knowledge_private.embedding_jobs set dead = true")
    assert other.retry_embeddings() == 0
    assert kb.as_context(Context("globex")).retry_embeddings() == 0
    assert kb.retry_embeddings() == 3


# -- the worker


class Limited(Exception):
    """As an HTTP client raises it."""

    def __init__(self, after: str | None) -> None:
        class Response:
            status_code = 429
            headers = {} if after is None else {"Retry-After": after}

        self.response = Response()


def test_rate_limit_postpones(db: Database) -> None:
    """Retry-After: everything is given back, counted as nobody's failure, and left alone."""
    kb = knowledge(db)
    publish(kb, "d")

    def limited(call: int, vectors: Vectors) -> Vectors:
        raise Limited("120")

    embedder = ToyEmbedder(limited)
    done = worker(db, embedder).drain()
    assert (done.claimed, done.stored, done.failed, done.postponed) == (3, 0, 0, 3)
    assert len(embedder.calls) == 1
    (state,) = kb.embedding_queue()
    assert (state.state, state.attempts) == ("retrying", 0)
    move_clock(db, "121 seconds")
    assert worker(db).drain().stored == 3


def test_one_bad_text_fails_alone(db: Database) -> None:
    """The batch is halved until the text to blame stands alone."""
    kb = knowledge(db)
    publish(kb, "d", 9)

    class Picky(ToyEmbedder):
        def embed(self, texts: Any) -> Any:
            if any("d 4" in text for text in texts):
                raise ValueError("it does not like this one")
            return super().embed(texts)

    done = worker(db, Picky()).drain()
    assert (done.stored, done.failed, done.postponed) == (8, 1, 0)
    (state,) = kb.embedding_queue()
    assert (state.chunks, state.attempts) == (1, 1)
    assert "does not like" in str(state.reason)


@pytest.mark.parametrize("wrong", ["fewer", "more", "short", "zero", "nan"])
def test_wrong_vectors_are_not_stored(db: Database, wrong: str) -> None:
    """An embedder that answers wrongly once loses nothing: halves are asked again (30)."""
    change = {
        "fewer": lambda vectors: vectors[:-1],
        "more": lambda vectors: [*vectors, vectors[0]],
        "short": lambda vectors: [vectors[0][:-1], *vectors[1:]],
        "zero": lambda vectors: [[0.0] * 8, *vectors[1:]],
        "nan": lambda vectors: [[float("nan")] * 8, *vectors[1:]],
    }[wrong]
    publish(knowledge(db), "d", 4)
    embedder = wrong_at(1, change)
    done = worker(db, embedder).drain()
    assert (done.stored, done.failed) == (4, 0)
    assert [len(call) for call in embedder.calls] == [4, 2, 2]


def test_outage_is_not_the_texts_fault(db: Database) -> None:
    """When whatever is given fails, what was not tried alone is only postponed."""
    publish(knowledge(db), "d", 16)

    def down(call: int, vectors: Vectors) -> Vectors:
        raise ConnectionError("no route to host")

    embedder = ToyEmbedder(down)
    w = worker(db, embedder)
    done = w.drain()
    assert (done.claimed, done.stored, done.failed, done.postponed) == (16, 0, 2, 14)
    assert len(embedder.calls) < 16
    assert w.run_once().claimed == 0  # it leaves the provider alone
    move_clock(db, "1 minute")
    assert worker(db).drain().stored == 16


def test_worker_process(db: Database) -> None:
    """pg-knowledge worker: woken by a notification, killed without loss, stopped gracefully."""
    kb = knowledge(db)
    tests = Path(__file__).resolve().parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "python")])}
    command = [sys.executable, "-m", "pg_knowledge.cli", "worker"]
    command += ["--database", db.uri("app_trusted"), "--embedder", "support.embedder:ToyEmbedder"]
    # With an hour between looks only a notification wakes it.
    command += ["--poll", "3600"]
    listening = (
        "select from pg_stat_activity where datname = current_database()"
        " and query ilike 'listen %%' or query ilike '%%claim_embeddings%%' and state = 'idle'"
    )
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: rows(db.superuser(), listening))
        publish(kb, "a")
        wait_until(lambda: not kb.embedding_queue())
        process.kill()
        process.wait()
        publish(kb, "b")
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: not kb.embedding_queue())
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "claimed=3, stored=3" in log
        assert "stopped" in log
    finally:
        process.kill()
        process.wait()
    assert len(kb.search("owl", mode="vector", k=10)) == 6


def test_a_worker_and_a_publisher_meet(db: Database) -> None:
    """The vector of a chunk that is just being published with one: both go through, in turn."""
    kb = knowledge(db)
    publish(kb, "d")
    conn = db.connect("app_trusted")
    claimed = claim(conn)
    other = db.connect("app_backend")
    stored: list[int] = []
    with other.transaction():
        text = "\n\n".join(f"# Section {n}\n\nowl d {n}" for n in range(3))
        Knowledge(other, Context("acme"), embedder=ToyEmbedder()).ingest("wiki", "d", text)
        late = Thread(target=lambda: stored.append(complete(conn, claimed)))
        late.start()
        waiting = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        wait_until(lambda: rows(db.superuser(), waiting, conn.info.backend_pid))
    late.join(10)
    assert stored == [0]
    assert len(kb.search("owl", mode="vector")) == 3
