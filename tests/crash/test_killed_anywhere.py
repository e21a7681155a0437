"""Workers, drivers and the server are killed at any moment; what must always hold, holds."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pg_knowledge import Context, Knowledge
from pg_knowledge.worker import Worker
from support import Database, LocalServer
from support.embedder import ToyEmbedder
from support.invariants import check_invariants
from support.knowledge import register, rows

ROUNDS = [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 200))]


@pytest.fixture(scope="module")
def mortal(crash_server: Callable[..., LocalServer]) -> Iterator[tuple[LocalServer, Database]]:
    server = crash_server()
    with server.database() as db:
        register(db.connect("app_admin"))
        db.close()
        yield server, db


def start(*command: str) -> subprocess.Popen[str]:
    tests = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent / "python")])
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("seed", ROUNDS)
def test_killed_anywhere(mortal: tuple[LocalServer, Database], seed: int) -> None:
    """No orphan, no partial, no duplicate; then everything that was left behind is finished."""
    server, db = mortal
    rng = random.Random(seed)
    org = f"org {seed}"

    def driver() -> subprocess.Popen[str]:
        return start("support.churn", db.uri("app_backend"), org, str(rng.random()))

    def worker() -> subprocess.Popen[str]:
        command = ["pg_knowledge.cli", "worker", "--embedder", "support.embedder:ToyEmbedder"]
        return start(*command, "--poll", "0.1", "--database", db.uri("app_trusted"))

    running = {"driver": driver(), "worker": worker()}
    stdout = running["driver"].stdout
    assert stdout
    assert stdout.readline() == "ready\n"
    try:
        for _ in range(rng.randint(1, 3)):
            threading.Event().wait(rng.uniform(0.05, 0.6))
            victim = rng.choice(["driver", "worker", "server"])
            if victim == "server":
                if rng.random() < 0.5:
                    server.embedded.kill()
                else:
                    server.embedded.stop("immediate")
                for process in running.values():
                    kill(process)
                server.embedded.start()
                running = {"driver": driver(), "worker": worker()}
            else:
                kill(running[victim])
                running[victim] = driver() if victim == "driver" else worker()
            with psycopg.connect(db.uri(), autocommit=True) as conn:
                check_invariants(conn, [org])
    finally:
        for process in running.values():
            kill(process)

    superuser = db.superuser()
    check_invariants(superuser, [org])
    # A day later: leases and claims have run out, maintenance and one worker do the rest.
    superuser.execute(
        "update knowledge_private.settings set clock_offset = clock_offset + interval '2 days'"
    )
    superuser.execute("select knowledge.maintain()")
    Worker(db.connect("app_trusted"), ToyEmbedder()).drain()
    kb = Knowledge(db.connect("app_backend"), Context(org), embedder=ToyEmbedder())
    assert kb.ingest_status() == []
    assert kb.embedding_queue() == []
    for n in range(4):
        assert kb.ingest("wiki", f"d{n}", f"# End\n\nowl {n}", audience=["everyone"]).live
    assert len(kb.search("owl", k=10)) == 4
    check_invariants(superuser, [org])
    staged = "select count(*) as n from knowledge_private.staged_chunks where org_id = %s"
    assert rows(superuser, staged, org) == [{"n": 0}]
    db.close()
