"""Installing pg_knowledge in a database: what a DBA does with psql, from Python."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from .errors import InstallationError, database_errors

__all__ = ["installed_version", "migrate", "migration_file", "version"]


def _migrations() -> Path:
    """The folder of the migrations: beside the modules in a wheel, two levels up in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "migrations", here.parents[1] / "migrations"):
        if (folder / "SHA256SUMS").is_file():
            return folder
    raise InstallationError("this installation of pg-knowledge has no migrations")


def migration_file() -> Path:
    """The newest file for a fresh install, its checksum verified. InstallationError otherwise."""
    folder = _migrations()
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    sums = {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines)}
    fresh = [n for n in sums if re.fullmatch(r"pg_knowledge--[0-9]+(\.[0-9]+)*\.sql", n)]
    name = max(fresh, key=lambda n: [int(part) for part in re.findall(r"\d+", n)])
    if hashlib.sha256((folder / name).read_bytes()).hexdigest() != sums[name]:
        raise InstallationError(f"{name} is not the file that SHA256SUMS names")
    return Path(folder / name)


def version() -> str:
    """The version of the migrations that this driver carries and works with."""
    return migration_file().name.removeprefix("pg_knowledge--").removesuffix(".sql")


def installed_version(conn: psycopg.Connection[Any]) -> str | None:
    """The version in the database of conn, None when there is none or conn may not see it."""
    with (
        conn.transaction(force_rollback=True),
        psycopg.Cursor(conn, row_factory=tuple_row) as cursor,
    ):
        cursor.execute(
            "select has_schema_privilege(oid, 'usage'),"
            " pg_has_role(to_regrole('knowledge_owner'), 'set')"
            " from pg_namespace where nspname = 'knowledge'"
        )
        may_use, may_become_owner = cursor.fetchone() or (False, False)
        if not may_use and may_become_owner:  # the role that installed it
            cursor.execute("set local role knowledge_owner")
        elif not may_use:
            return None
        cursor.execute("select to_regprocedure('knowledge.version()') is not null")
        if cursor.fetchone() != (True,):
            return None
        row = cursor.execute("select knowledge.version()").fetchone()
        return str(row[0]) if row else None


def migrate(conn: psycopg.Connection[Any]) -> str:
    """Applies the migration in one transaction and returns its version.

    conn: a role with CREATEROLE and CREATE on the database, where pgvector is installed. Raises
    InstallationError when pg_knowledge is installed already or something is missing.
    """
    migration = migration_file().read_bytes()
    with database_errors(), conn.transaction():
        conn.execute(migration)
    return version()
