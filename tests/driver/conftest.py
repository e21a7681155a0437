"""One database for the driver's tests; each test keeps to orgs of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pg_knowledge import Context, Knowledge
from support import Database, Server
from support.embedder import ToyEmbedder
from support.invariants import check_invariants
from support.knowledge import register

_orgs = itertools.count(1)


@pytest.fixture(scope="session")
def shared(server: Server) -> Iterator[Database]:
    """A database with the toy model registered."""
    with server.database() as database:
        with psycopg.connect(database.uri("app_admin"), autocommit=True) as conn:
            register(conn)
        yield database


@pytest.fixture
def org(shared: Database) -> Iterator[str]:
    """The name of a new org; what must always hold is checked, and connections end, at the end."""
    name = f"org {next(_orgs)}"
    yield name
    check_invariants(shared.superuser(), [name])
    shared.close()


@pytest.fixture
def conn(shared: Database, org: str) -> psycopg.Connection[Any]:
    """A connection of a Python service: it says who is asking, and is no superuser."""
    return shared.connect("app_backend")


@pytest.fixture
def embedder() -> ToyEmbedder:
    return ToyEmbedder()


@pytest.fixture
def kb(conn: psycopg.Connection[Any], org: str, embedder: ToyEmbedder) -> Knowledge:
    """The driver over ``conn``, for ``org``, with ``embedder``."""
    return Knowledge(conn, Context(org), embedder=embedder)


@pytest.fixture
def someone(shared: Database, org: str) -> Callable[..., Knowledge]:
    """Makes a driver on a connection of its own: ``someone(embedder=None, writer='w')``."""

    def make(**given: Any) -> Knowledge:
        given = {"embedder": ToyEmbedder(), **given}
        return Knowledge(shared.connect("app_backend"), Context(org), **given)

    return make
