"""One database for the tests of a module; each works in orgs of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from support import Database, Server
from support.knowledge import register

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[Database]:
    """A database with the toy model."""
    with server.database() as db:
        register(db.connect("app_backend"))
        yield db


@pytest.fixture(autouse=True)
def _close_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test opened ends with the test, also in a database that lives on."""
    yield
    if "shared" in request.fixturenames:
        request.getfixturevalue("shared").close()


@pytest.fixture
def org() -> str:
    """The name of an org that no other test uses."""
    return f"org-{next(_numbers)}"
