"""The driver over a connection, in an org of its own."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pg_knowledge import Context, Knowledge
from support import Database
from support.embedder import ToyEmbedder


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
