"""What the security tests share: catalog queries, and asking what a statement is refused with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

SCHEMAS = ("knowledge", "knowledge_private")
CATALOG = {
    "relations": """
        select n.nspname, c.relname, c.relrowsecurity from pg_class as c
        join pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = any (%s) and c.relkind in ('r', 'p', 'v', 'm') order by 1, 2
    """,
    "functions": """
        select n.nspname, p.proname, p.oid, p.prosrc, p.prosecdef, p.provolatile, p.proconfig
        from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
        where n.nspname = any (%s) order by 1, 2, 3
    """,
}


@contextmanager
def undone(conn: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A transaction, or savepoint, that is rolled back at its end."""
    with conn.transaction(force_rollback=True):
        yield conn


def error_of(
    conn: psycopg.Connection[Any], statement: Any, arguments: Any = None
) -> psycopg.errors.Diagnostic | None:
    """What the statement is refused with; None when it works. It is undone in either case."""
    try:
        with undone(conn):
            conn.execute(statement, arguments)
    except psycopg.Error as refused:
        return refused.diag
    return None


def code_of(conn: psycopg.Connection[Any], statement: Any, arguments: Any = None) -> str | None:
    """The SQLSTATE that the statement is refused with; None when it works."""
    refused = error_of(conn, statement, arguments)
    return None if refused is None else refused.sqlstate


def table(schema: str, name: str) -> sql.Identifier:
    """The quoted, qualified name."""
    return sql.Identifier(schema, name)


def everything(root: psycopg.Connection[Any]) -> Mapping[str, list[tuple[Any, ...]]]:
    """All rows of all tables of both schemas but the settings, to see whether anything changed."""
    found = {}
    for schema, name, _ in root.execute(CATALOG["relations"], (list(SCHEMAS),)).fetchall():
        query = sql.SQL("select t::text from {} as t order by 1").format(table(schema, name))
        found[f"{schema}.{name}"] = root.execute(query).fetchall()
    return found
