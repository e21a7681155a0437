"""Fixtures. A test asks for ``db``: a database of its own with the migration applied; or for
``shared`` and ``org``: an org of its own in a database with others.

DATABASE_URL: test on that server instead of an embedded one; its user must be able to create
databases, roles and the extension vector. PG_KNOWLEDGE_TEST_MAJOR: 18 (default) or 16.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from pytest_postgresql import factories

from pg_knowledge import Context, Knowledge
from pg_knowledge.embedded import EmbeddedServer
from support.embedder import ToyEmbedder
from support.invariants import check_invariants
from support.knowledge import register
from support.server import Database, LocalServer, Server, allow_install, prepare_database

MAJOR = int(os.environ.get("PG_KNOWLEDGE_TEST_MAJOR", "18"))
DATABASE_URL = os.environ.get("DATABASE_URL")
# Nothing here outlives a crash of the machine.
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_orgs = itertools.count(1)


def _load(
    *, host: str, port: int, user: str, dbname: str, password: str | None, **_: object
) -> None:
    """Prepare the template database; pytest-postgresql says where it is."""
    if DATABASE_URL:
        prepare_database(Server.from_url(DATABASE_URL), dbname)
    else:
        prepare_database(Server(host, port, user, password), dbname)


knowledge_template = factories.postgresql_noproc(
    depends_on="server", dbname=f"kb_{os.getpid()}", load=[_load]
)
knowledge_clone = factories.postgresql("knowledge_template")


def _local(major: int, settings: dict[str, str]) -> LocalServer:
    embedded = EmbeddedServer(major=major, settings=settings)
    try:
        assert embedded.bindir
    except RuntimeError as missing:
        pytest.skip(str(missing))
    return LocalServer(embedded)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server that the tests share. It keeps running."""
    if DATABASE_URL:
        yield Server.from_url(DATABASE_URL)
    else:
        with LocalServer(EmbeddedServer(major=MAJOR, settings=QUICK)) as local:
            yield local


@pytest.fixture
def db(server: Server, knowledge_clone: psycopg.Connection[Any]) -> Iterator[Database]:
    """A database of this test alone, with the migration applied: a clone of the template."""
    knowledge_clone.autocommit = True
    database = Database(server, knowledge_clone.info.dbname)
    allow_install(knowledge_clone, server, database.name)
    knowledge_clone.close()
    yield database
    database.close()


@pytest.fixture(scope="session")
def shared(server: Server) -> Iterator[Database]:
    """A database with the toy model registered, for tests that keep to an org of their own."""
    with server.database() as database:
        with psycopg.connect(database.uri("app_admin"), autocommit=True) as conn:
            register(conn)
        yield database


@pytest.fixture
def org(shared: Database) -> Iterator[str]:
    """The name of a new org; at the end what must always hold is checked, the clock is right again
    and connections end."""
    name = f"org {next(_orgs)}"
    yield name
    check_invariants(shared.superuser(), [name])
    shared.superuser().execute("update knowledge_private.settings set clock_offset = '0'")
    shared.close()


@pytest.fixture
def someone(shared: Database, org: str) -> Callable[..., Knowledge]:
    """Makes a driver on a connection of its own: ``someone(embedder=None, writer='w')``."""

    def make(**given: Any) -> Knowledge:
        given = {"embedder": ToyEmbedder(), **given}
        return Knowledge(shared.connect("app_backend"), Context(org), **given)

    return make


@pytest.fixture(scope="module")
def crash_server() -> Iterator[Callable[..., LocalServer]]:
    """Makes servers that may be killed: ``crash_server(**settings)``, with fsync on.

    Each is closed at the end of the module, or of its own ``with`` block. Prepare databases with
    ``with server.database() as db``; crash with ``server.embedded.kill()`` and ``.start()``.
    """
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(_local(MAJOR, {"fsync": "on", **settings}))


@pytest.fixture(scope="session")
def pg16() -> Iterator[LocalServer]:
    """A PostgreSQL 16, for tests marked pg16: ``with pg16.database() as db``."""
    with _local(16, QUICK) as local:
        yield local
