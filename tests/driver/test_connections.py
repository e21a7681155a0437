"""The connection is the caller's: short transactions, nothing left open, nothing left set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from pg_knowledge import Context, Knowledge, KnowledgeError
from pg_knowledge.errors import InvalidArgument, NotFound
from support import Database
from support.embedder import ToyEmbedder
from support.hostile import everything
from support.writer import NEW, OLD, check_served, ingest

SETTINGS = "select name, setting, source from pg_settings order by name"


@pytest.fixture
def pool(shared: Database, org: str) -> Iterator[ConnectionPool[Any]]:
    url = shared.uri("app_backend")
    with ConnectionPool(url, min_size=2, max_size=2, timeout=5) as pool:
        pool.wait()
        yield pool


def states(shared: Database, pool: ConnectionPool[Any]) -> set[str]:
    """The states of the pool's sessions, as the server sees them."""
    with pool.connection() as one, pool.connection() as two:
        pids = [one.info.backend_pid, two.info.backend_pid]
    root = shared.superuser()
    query = "select state from pg_stat_activity where pid = any (%s)"
    return {state for (state,) in root.execute(query, (pids,)).fetchall()}


def test_a_thousand_searches(shared: Database, pool: ConnectionPool[Any], org: str) -> None:
    """Empty and failing searches through two connections: none stays idle in transaction."""
    kb = Knowledge(pool, Context(org), embedder=ToyEmbedder())
    stranger = kb.as_context(Context(f"{org}, nobody's"))
    for n in range(1000):
        assert len((stranger if n % 2 else kb).search("nothing there", k=1)) == 0
        if n % 10 == 0:
            with pytest.raises(InvalidArgument):
                kb.search("x", k=1001)
            with pytest.raises(NotFound):
                kb.get_source("wiki", "missing")
    assert states(shared, pool) == {"idle"}
    with pool.connection() as one, pool.connection() as two:
        for conn in (one, two):
            assert conn.info.transaction_status == TransactionStatus.IDLE
    assert pool.get_stats().get("requests_errors", 0) == 0


@pytest.mark.parametrize("autocommit", [True, False])
def test_nothing_stays_open_or_set(shared: Database, org: str, autocommit: bool) -> None:
    """After success and failure alike: idle, and every setting as before."""
    conn = shared.connect("app_backend", autocommit=autocommit)

    def settings() -> Any:
        found = conn.execute(SETTINGS).fetchall()
        found += conn.execute("select current_setting('knowledge.context', true)").fetchall()
        conn.rollback()
        return [row for row in found if row not in ((None,), ("",))]

    kb = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    kb.ingest("wiki", "first", "text", audience=["everyone"])  # loads pgvector and its settings
    before = settings()
    calls: list[Callable[[], object]] = [
        lambda: ingest(kb, OLD),
        lambda: kb.search("common"),
        lambda: list(kb.list_sources()),
        lambda: kb.stats(),
        lambda: kb.get_source("wiki", "missing"),
        lambda: kb.search("common", k=0),
        lambda: kb.ingest("wiki", "b", "text"),
        lambda: kb.as_context(Context("")).stats(),
        lambda: kb.delete_by_scope(),
        lambda: kb.delete_source("wiki", "doc"),
    ]
    failed = 0
    for call in calls:
        try:
            call()
        except KnowledgeError:
            failed += 1
        assert conn.info.transaction_status == TransactionStatus.IDLE
        assert settings() == before
    assert failed == 4
    assert conn.autocommit == autocommit


def test_an_abandoned_listing_holds_nothing(shared: Database, org: str, kb: Knowledge) -> None:
    """A generator that is not read to its end keeps no transaction and no connection."""
    for n in range(3):
        kb.ingest("wiki", str(n), "text", audience=["everyone"])
    with ConnectionPool(shared.uri("app_backend"), min_size=1, max_size=1, timeout=5) as pool:
        pooled = Knowledge(pool, Context(org))
        listing = pooled.list_sources(page_size=1)
        assert next(listing).source_id == "0"
        assert len(pooled.search("text")) == 3
        assert next(listing).source_id == "1"


@pytest.mark.parametrize("autocommit", [True, False])
def test_within_a_transaction_of_the_caller(shared: Database, org: str, autocommit: bool) -> None:
    """Its calls become savepoints: the caller commits, or takes all of it back."""
    conn = shared.connect("app_backend", autocommit=autocommit)
    kb = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    ingest(kb, OLD)
    before = everything(shared.superuser())
    with conn.transaction(force_rollback=True):
        ingest(kb, NEW)
        check_served(kb, NEW)
        with pytest.raises(NotFound):
            kb.get_source("wiki", "missing")
        assert conn.info.transaction_status == TransactionStatus.INTRANS
        check_served(kb, NEW)
    assert everything(shared.superuser()) == before
    check_served(kb, OLD)
    with conn.transaction():
        ingest(kb, NEW)
        assert len(kb.as_context(Context(f"{org} x")).search("common")) == 0
        check_served(kb, NEW)
    check_served(kb, NEW)


def test_within_an_implicit_transaction(shared: Database, org: str, kb: Knowledge) -> None:
    """Without autocommit an open transaction stays the caller's to commit or to roll back."""
    ingest(kb, OLD)
    conn = shared.connect("app_backend", autocommit=False)
    conn.execute("select 1")
    other = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    ingest(other, NEW)
    assert conn.info.transaction_status == TransactionStatus.INTRANS
    check_served(kb, OLD)
    conn.rollback()
    check_served(other, OLD)
    conn.execute("select 1")
    ingest(other, NEW)
    conn.commit()
    check_served(kb, NEW)


def test_a_broken_transaction_of_the_caller(shared: Database, org: str) -> None:
    """In a transaction that has failed nothing works; the error is psycopg's, as it is."""
    conn = shared.connect("app_backend", autocommit=False)
    kb = Knowledge(conn, Context(org))
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1/0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        kb.stats()
    conn.rollback()
    assert kb.stats() == []


def test_a_closed_connection(shared: Database, org: str) -> None:
    conn = shared.connect("app_backend")
    conn.close()
    with pytest.raises(psycopg.OperationalError):
        Knowledge(conn, Context(org)).stats()


def test_read_only_connections_can_search(shared: Database, org: str, kb: Knowledge) -> None:
    """A standby, or a session that is read-only: questions need no write."""
    ingest(kb, OLD)
    conn = shared.connect("app_backend")
    conn.read_only = True
    reader = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    check_served(reader, OLD)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        ingest(reader, NEW)
    check_served(reader, OLD)


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_any_isolation_level(shared: Database, org: str, level: psycopg.IsolationLevel) -> None:
    conn = shared.connect("app_backend")
    conn.isolation_level = level
    kb = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    for text in (OLD, NEW):
        ingest(kb, text)
        check_served(kb, text)


def test_no_ddl(db: Database) -> None:
    """Connecting, searching and ingesting define nothing, in a database that would notice."""
    root = db.superuser()
    root.execute(
        """
        create function refuse_ddl() returns event_trigger language plpgsql as
        $$ begin raise exception 'no % here', tg_tag; end $$
        """
    )
    kb = Knowledge(db.connect("app_backend"), Context("acme"), embedder=ToyEmbedder())
    kb.register_model()  # the one call that is meant to make a table
    root.execute("create event trigger no_ddl on ddl_command_start execute function refuse_ddl()")
    another = ToyEmbedder(name="b", fingerprint="b")
    with pytest.raises(psycopg.errors.RaiseException):
        Knowledge(db.connect("app_backend"), Context("acme"), embedder=another).register_model()
    catalogs = ("pg_class", "pg_proc", "pg_type", "pg_namespace", "pg_trigger", "pg_authid")
    query = " union all ".join(f"select '{c}', count(*) from pg_catalog.{c}" for c in catalogs)
    before = root.execute(query.encode()).fetchall()
    for text, _ in itertools.product((OLD, NEW), range(2)):
        ingest(kb, text)
        check_served(
            Knowledge(db.connect("app_backend"), Context("acme"), embedder=ToyEmbedder()), text
        )
    kb.prune(0)
    kb.delete_source("wiki", "doc")
    assert root.execute(query.encode()).fetchall() == before


def test_custom_types_of_the_caller_stay_out(shared: Database, org: str) -> None:
    """Adapters that a program set for its connection do not change the results."""
    conn = shared.connect("app_backend")
    conn.adapters.register_loader("uuid", psycopg.types.string.TextLoader)
    psycopg.types.json.set_json_loads(lambda data: {"mine": True}, conn)
    kb = Knowledge(conn, Context(org), embedder=ToyEmbedder())
    ingest(kb, OLD, metadata={"year": 2026})
    assert len(kb.search("common")) == 5
