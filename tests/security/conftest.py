"""A world to attack: two orgs, each with a scope, an audience and a visibility of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from support import Database, Server, as_context
from support.hostile import CATALOG, SCHEMAS
from support.knowledge import publish, register

ORGS = ("acme", "globex")


def words_of(org: str) -> list[str]:
    """Bodies that name their org, so that a leak shows."""
    return [f"alpha secret of {org}", f"beta secret of {org}"]


def fill(backend: psycopg.Connection[Any], org: str) -> None:
    """One document each for everyone, for an audience, in a scope and under another visibility."""
    with as_context(backend, org, ["hr"]):
        backend.execute("select knowledge.define_tag('hr')")
        backend.execute("select knowledge.define_audience('staff', '{hr}')")
        publish(backend, "open", words_of(org), metadata={"org": org}, title=f"Open {org}")
        publish(backend, "closed", [f"salaries of {org}"], audience=["staff"])
        publish(backend, "draft", [f"draft of {org}"], visibility="draft")
    with as_context(backend, org, ["hr"], "eu"):
        publish(backend, "open", [f"alpha of {org} in eu"])


@pytest.fixture(scope="module")
def world(server: Server) -> Iterator[Database]:
    """One database for all tests of a module: they read, or roll back what they do."""
    with server.database() as db:
        backend = db.connect("app_backend")
        register(backend)
        for org in ORGS:
            fill(backend, org)
        db.superuser().execute("analyze")
        yield db


@pytest.fixture(autouse=True)
def _close_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test opened ends with the test, also in a database that lives on."""
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").close()


@pytest.fixture(scope="module")
def relations(world: Database) -> list[tuple[str, str, bool]]:
    """(schema, name, has row-level security) of all tables and views."""
    return world.superuser().execute(CATALOG["relations"], (list(SCHEMAS),)).fetchall()


@pytest.fixture(scope="module")
def protected(relations: list[tuple[str, str, bool]]) -> list[str]:
    """Names of the tables of schema knowledge that have row-level security."""
    return [name for schema, name, rls in relations if rls and schema == "knowledge"]


@pytest.fixture
def clock(world: Database) -> Iterator[Callable[[str], None]]:
    """Moves the clock of tokens and leases to an interval from now; back at the end."""

    def move(offset: str) -> None:
        query = "update knowledge_private.settings set clock_offset = %s"
        world.superuser().execute(query, (offset,))

    yield move
    move("0")
