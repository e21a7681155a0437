"""Never half-published: a crash at any point leaves the old version, and the same call does the
rest without asking the embedder again for what was stored.
"""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from pg_knowledge import Context, Knowledge
from pg_knowledge.errors import Conflict
from support import Database, LocalServer, Server, as_context, wait_until
from support.embedder import ToyEmbedder
from support.hostile import everything
from support.invariants import check_invariants
from support.knowledge import register
from support.writer import NEW, OLD, STEPS, Stepwise, check_served, document, ingest

POINTS = range(len(STEPS))
# Locks of another session in which a call stays, in the midst of its transaction.
ORG = "select from knowledge.orgs where org_id = %s for update"
HALF_PUBLISHED = "select from knowledge.places where org_id = %s for update"
BLOCKED = [(STEPS.index(step), ORG) for step in dict.fromkeys(STEPS) if step != "done"]
BLOCKED.append((STEPS.index("finalize_version"), HALF_PUBLISHED))
# The texts of NEW that are embedded, one list a batch.
ASKED = [["Section 0", "Section 2"], ["Section 3", "Section 4"], ["Section 5"]]
_orgs = (f"org {n}" for n in itertools.count(1))


def still_asked(point: int) -> list[list[str]]:
    """What is left for the embedder when the calls before STEPS[point] were committed."""
    return ASKED[STEPS[:point].count("store_embeddings") :]


def asked(embedder: ToyEmbedder) -> list[list[str]]:
    """The headings that the embedder was given, call by call."""
    return [[text.splitlines()[0] for text in call] for call in embedder.calls]


@pytest.fixture(scope="module")
def kb(server: Server) -> Iterator[Database]:
    """One database for the tests that keep to an org of their own."""
    with server.database() as database:
        register(database.connect("app_admin"))
        yield database


@pytest.fixture
def org(kb: Database) -> Iterator[str]:
    """An org in which OLD is live; what must always hold is checked at the end."""
    name = next(_orgs)
    ingest(knowledge(kb, name), OLD)
    yield name
    check_invariants(kb.superuser(), [name])
    kb.close()


def knowledge(
    db: Database, org: str, embedder: ToyEmbedder | None = None, writer: str | None = None
) -> Knowledge:
    conn = db.connect("app_backend")
    return Knowledge(conn, Context(org), embedder=embedder or ToyEmbedder(), writer=writer)


def check_live(db: Database, org: str, text: str) -> None:
    """text is served whole, to searches and to direct reads."""
    check_served(knowledge(db, org), text)
    with as_context(db.connect("app_backend"), org) as conn:
        row = conn.execute("select count(*) from knowledge.chunks").fetchone()
        assert row == (text.count("#"),)


def check_resumes(db: Database, org: str, point: int, writer: str | None = "w") -> None:
    """The same call does the rest, and only that; once more, and there is nothing to do."""
    embedder = ToyEmbedder()
    kb = knowledge(db, org, embedder, writer)
    report = ingest(kb, NEW)
    assert asked(embedder) == still_asked(point)
    if STEPS[point] == "done":
        assert (report.embedded, report.skipped) == (0, 6)
    else:
        assert (report.embedded, report.skipped, report.complete) == (5, 1, True)
    check_live(db, org, NEW)
    assert ingest(kb, NEW).skipped == 6
    assert asked(embedder) == still_asked(point)


class Child:
    """A writer in a process of its own, see support/writer.py; it stands before ``step``."""

    def __init__(self, db: Database, org: str, writer: str = "w", text: str = NEW) -> None:
        tests = Path(__file__).resolve().parents[1]
        path = os.pathsep.join([str(tests), str(tests.parent / "python")])
        command = [sys.executable, "-m", "support.writer", db.uri("app_backend"), org, writer, text]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.step = self._read()

    def go(self) -> None:
        """Let it do its step, without waiting."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def go_to(self, point: int) -> None:
        """Do the steps before STEPS[point]."""
        for step in STEPS[:point]:
            assert self.step == step
            self.next()
        assert self.step == STEPS[point]

    def next(self) -> str:
        """Do one step; the name of the next, or how it ended."""
        self.go()
        self.step = self._read()
        return self.step

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> str:
        assert self.process.stdout
        assert select.select([self.process.stdout], [], [], 30)[0], "the writer says nothing"
        return self.process.stdout.readline().strip()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@contextmanager
def blocking(db: Database, org: str, lock: str) -> Iterator[Callable[[], Any]]:
    """Holds a lock; yields what answers the process ids that wait for it."""
    holder = db.superuser(autocommit=False)
    holder.execute(lock.encode(), (org,))
    pid = holder.info.backend_pid
    root = db.superuser()
    query = "select pid from pg_stat_activity where %s = any (pg_blocking_pids(pid))"
    yield lambda: [waiting for (waiting,) in root.execute(query, (pid,)).fetchall()]
    holder.close()


def is_gone(db: Database, pid: int) -> Callable[[], bool]:
    root = db.superuser()
    query = "select from pg_stat_activity where pid = %s"
    return lambda: root.execute(query, (pid,)).rowcount == 0


# -- the client dies


@pytest.mark.parametrize("point", POINTS)
def test_client_killed_between_two_calls(kb: Database, org: str, point: int) -> None:
    """Whatever was committed is not done again, whatever was not is done by the same call."""
    with Child(kb, org) as child:
        child.go_to(point)
        child.kill()
    check_live(kb, org, NEW if STEPS[point] == "done" else OLD)
    check_resumes(kb, org, point)


@pytest.mark.parametrize(("point", "lock"), BLOCKED[2:])  # the others die with the server, below
def test_client_killed_in_a_call(kb: Database, org: str, point: int, lock: str) -> None:
    """A call whose client died before its commit leaves nothing, however far it had come."""
    with Child(kb, org) as child:
        child.go_to(point)
        with blocking(kb, org, lock) as waiting:
            child.go()
            (pid,) = wait_until(waiting)
            child.kill()
            check_live(kb, org, OLD)  # readers wait for nobody
    wait_until(is_gone(kb, pid))
    check_live(kb, org, OLD)
    check_resumes(kb, org, point)


def test_client_killed_again_and_again(kb: Database, org: str) -> None:
    """Each attempt takes over where the last one died, and comes one batch further."""
    for _ in ASKED:
        with Child(kb, org) as child:
            while child.step != "store_embeddings":
                child.next()
            child.next()
            child.kill()
        check_live(kb, org, OLD)
    embedder = ToyEmbedder()
    ingest(knowledge(kb, org, embedder, "w"), NEW)
    assert embedder.calls == []
    check_live(kb, org, NEW)


@contextmanager
def later(db: Database, offset: str) -> Iterator[None]:
    """The clock of leases, moved ahead."""
    root = db.superuser()
    move = "update knowledge_private.settings set clock_offset = %s"
    root.execute(move, (offset,))
    try:
        yield
    finally:
        root.execute(move, ("0",))


@pytest.mark.parametrize("name", ["", "other"])
def test_lease_of_a_dead_writer(kb: Database, org: str, name: str) -> None:
    """Without the name of the dead writer: Conflict until its lease has run out, and not longer."""
    point = 4
    with Child(kb, org, name) as child:
        child.go_to(point)
        child.kill()
    embedder = ToyEmbedder()
    with pytest.raises(Conflict) as refused:
        ingest(knowledge(kb, org, embedder), NEW)
    assert "lease_expires_at" in refused.value.detail
    with later(kb, "119 s"), pytest.raises(Conflict):
        ingest(knowledge(kb, org, embedder), NEW)
    assert embedder.calls == []
    check_live(kb, org, OLD)
    with later(kb, "3 min"):
        check_resumes(kb, org, point, None)


@pytest.mark.parametrize(
    ("step", "finished"),
    [
        ("stage_chunks", False),
        ("store_embeddings", True),
        ("finalize_version", False),
        ("finalize_version", True),
    ],
)
def test_zombie_is_refused(kb: Database, org: str, step: str, finished: bool) -> None:
    """A writer that slept through its lease is told so, and changes nothing."""
    point = STEPS.index(step)
    with Child(kb, org, "") as zombie:
        zombie.go_to(point)
        zombie.process.send_signal(signal.SIGSTOP)
        with later(kb, "3 min"):
            if finished:
                check_resumes(kb, org, point, None)
            else:
                with Child(kb, org, "") as heir:
                    assert heir.next() in STEPS  # begin_version took the lease
        before = everything(kb.superuser())
        zombie.process.send_signal(signal.SIGCONT)
        assert zombie.next() == "LeaseLost"
        assert everything(kb.superuser()) == before
    check_live(kb, org, NEW if finished else OLD)


def test_zombie_of_another_text_is_refused(kb: Database, org: str) -> None:
    """A newer text ends the ingest of an older one at once; its writer cannot publish it."""
    with Child(kb, org, "", text=document("yak zebu")) as zombie:
        while zombie.step != "finalize_version":
            zombie.next()
        ingest(knowledge(kb, org), NEW)
        assert zombie.next() == "LeaseLost"
    check_live(kb, org, NEW)


def test_late_writer_without_rival_goes_on(kb: Database, org: str) -> None:
    """An expired lease that nobody took is still the writer's own."""
    with Child(kb, org, "") as child, later(kb, "3 min"):
        child.go_to(STEPS.index("done"))
    check_live(kb, org, NEW)


# -- the server dies


class Thread:
    """A writer in a thread of the tests; it waits before STEPS[point] for ``let_go``."""

    def __init__(self, db: Database, org: str, point: int, pool: ThreadPoolExecutor) -> None:
        self.org = org
        self.point = point
        self._arrived, self._released = threading.Event(), threading.Event()
        self._left = iter(STEPS[: point + 1])
        conn = db.connect("app_backend")
        context, embedder = Context(org), ToyEmbedder()
        kb = Stepwise(conn, context, embedder=embedder, writer="w", watch=self._watch)
        self.outcome: Future[object] = pool.submit(self._run, kb)

    def _run(self, kb: Knowledge) -> object:
        report = ingest(kb, NEW)
        self._watch("done")
        return report

    def _watch(self, step: str) -> None:
        expected = next(self._left, None)
        assert expected in (step, None)
        if expected is not None and self._left.__length_hint__() == 0:
            self._arrived.set()
            assert self._released.wait(60)

    def wait(self) -> None:
        wait_until(lambda: self._arrived.is_set() or self.outcome.done())
        assert not self.outcome.done()

    def let_go(self) -> None:
        self._released.set()


@pytest.fixture(scope="module")
def mortal(crash_server: Callable[..., LocalServer]) -> Iterator[tuple[LocalServer, Database]]:
    """A server with fsync that may be killed, and a database on it."""
    server = crash_server()
    with server.database() as database:
        register(database.connect("app_admin"))
        yield server, database


def crash(server: LocalServer, how: str) -> None:
    if how == "kill":
        server.embedded.kill()
    else:
        server.embedded.stop("immediate")


@pytest.mark.parametrize("how", ["immediate", "kill"])
def test_server_crash(
    mortal: tuple[LocalServer, Database], how: Literal["immediate", "kill"]
) -> None:
    """Writers at every point, between two calls and in the midst of each, lose their server."""
    server, db = mortal
    with ThreadPoolExecutor(len(POINTS) + len(BLOCKED)) as pool, ExitStack() as locks:
        writers = []
        for point, lock in [(point, "") for point in POINTS] + BLOCKED:
            org = next(_orgs)
            ingest(knowledge(db, org), OLD)
            writer = Thread(db, org, point, pool)
            writers.append(writer)
            writer.wait()
            if lock:
                waiting = locks.enter_context(blocking(db, org, lock))
                writer.let_go()
                wait_until(waiting)
        crash(server, how)
        for writer in writers:
            writer.let_go()
            if STEPS[writer.point] == "done":
                writer.outcome.result(60)
            else:
                with pytest.raises(psycopg.OperationalError):
                    writer.outcome.result(60)
    db.close()
    server.embedded.start()
    check_invariants(db.superuser())
    for writer in writers:
        check_live(db, writer.org, NEW if STEPS[writer.point] == "done" else OLD)
        check_resumes(db, writer.org, writer.point)
    check_invariants(db.superuser())


def test_pool_survives_a_crash_of_the_server(mortal: tuple[LocalServer, Database]) -> None:
    """The broken connection is the pool's to replace: the same Knowledge goes on."""
    server, db = mortal
    check = ConnectionPool.check_connection
    with ConnectionPool(
        db.uri("app_backend"), min_size=1, max_size=2, check=check, timeout=30
    ) as pool:
        org = next(_orgs)
        kb = Knowledge(pool, Context(org), embedder=ToyEmbedder(), writer="w")
        ingest(kb, OLD)
        crash_once = iter([lambda: crash(server, "immediate")])

        def on_progress(done: int, total: int) -> None:
            for act in crash_once:
                act()

        db.close()
        pool.timeout = 0.1  # else it would wait for the server to come back
        with pytest.raises(psycopg.OperationalError):
            ingest(kb, NEW, on_progress=on_progress)
        server.embedded.start()
        pool.timeout = 30
        check_served(kb, OLD)
        assert ingest(kb, NEW).live
        check_served(kb, NEW)
    check_invariants(db.superuser(), [org])


# -- minutes of it


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_client_killed_anywhere(kb: Database, org: str, seed: int) -> None:
    """Killed at any moment, also within a call and its commit: the old text or the new."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 4)):
        with Child(kb, org) as child:
            for _ in STEPS:
                child.go()
            try:
                child.process.wait(rng.uniform(0, 0.04))
            except subprocess.TimeoutExpired:
                child.kill()
        text = NEW if knowledge(kb, org).get_source("wiki", "doc").source_version == "new" else OLD
        check_live(kb, org, text)
    ingest(knowledge(kb, org, writer="w"), NEW)
    check_live(kb, org, NEW)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_server_killed_anywhere(mortal: tuple[LocalServer, Database], seed: int) -> None:
    """Eight writers that publish two texts in turn, and a crash at any moment."""
    server, db = mortal
    rng = random.Random(seed)
    orgs = [next(_orgs) for _ in range(8)]
    for org in orgs:
        ingest(knowledge(db, org), OLD)
    published: dict[str, str] = {}

    def work(org: str) -> None:
        kb = knowledge(db, org, writer="w")
        for text in itertools.cycle([NEW, OLD]):
            ingest(kb, text)
            published[org] = text

    with ThreadPoolExecutor(len(orgs)) as pool:
        outcomes = [pool.submit(work, org) for org in orgs]
        threading.Event().wait(rng.uniform(0, 1))
        crash(server, rng.choice(["immediate", "kill"]))
        for outcome in outcomes:
            with pytest.raises(psycopg.OperationalError):
                outcome.result(60)
    db.close()
    server.embedded.start()
    check_invariants(db.superuser())
    for org in orgs:
        old = knowledge(db, org).get_source("wiki", "doc").source_version == "old"
        check_live(db, org, OLD if old else NEW)
        ingest(knowledge(db, org, writer="w"), NEW)
        check_live(db, org, NEW)
    check_invariants(db.superuser())
