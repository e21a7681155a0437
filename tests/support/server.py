"""Servers, databases and roles for tests.

Test roles are cluster-wide, made once and used by their short names: ``app_reader`` and so on in
``ROLES``, and ``test_installer``, which applies the migration. On a server given by DATABASE_URL
each carries a prefix; where SQL needs a name, ask ``db.role("app_reader")``.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pg_knowledge.embedded import EmbeddedServer

MIGRATIONS = Path(
    os.environ.get("PG_KNOWLEDGE_TEST_MIGRATIONS")
    or Path(__file__).resolve().parents[2] / "migrations"
)
INSTALLER = "test_installer"
GROUPS = (
    "knowledge_owner",
    "knowledge_reader",
    "knowledge_writer",
    "knowledge_admin",
    "knowledge_trusted",
)
# login role -> the group roles it is a member of
ROLES: dict[str, tuple[str, ...]] = {
    "app_reader": ("knowledge_reader",),
    "app_writer": ("knowledge_writer",),
    "app_admin": ("knowledge_admin",),
    "app_backend": ("knowledge_admin", "knowledge_trusted"),  # a Python service
    "app_trusted": ("knowledge_trusted", "knowledge_reader"),
    "app_nobody": (),
}
_numbers = itertools.count(1)


class MigrationMissing(FileNotFoundError):
    """There is no migrations/pg_knowledge--X.sql; it is built from sql/."""


def migration_file(directory: Path = MIGRATIONS) -> Path:
    """The fresh-install file of the highest version: pg_knowledge--X.sql, not --A--B.sql."""
    found = [
        ([int(number) for number in re.findall(r"\d+", match[1])], path)
        for path in directory.glob("pg_knowledge--*.sql")
        if (match := re.fullmatch(r"pg_knowledge--((?:(?!--).)+)\.sql", path.name))
    ]
    if not found:
        raise MigrationMissing(f"no pg_knowledge--<version>.sql in {directory}")
    return max(found)[1]


@dataclass
class Server:
    """A running server, and its superuser (or a user who may create databases and roles)."""

    host: str | None
    port: int
    user: str
    password: str | None = None
    options: str = ""
    maintenance_dbname: str = "postgres"
    template_dbname: str = "template1"  # what pytest-postgresql clones the template from
    prefix: str = ""  # of the names of test roles
    extra: dict[str, Any] = field(default_factory=dict)  # libpq parameters: sslmode, ...

    @classmethod
    def from_url(cls, url: str) -> Server:
        """The server that a DATABASE_URL points to; its database is only used for maintenance."""
        parts: dict[str, Any] = dict(conninfo_to_dict(url))
        return cls(
            host=parts.pop("host", None),
            port=int(parts.pop("port", 5432)),
            user=parts.pop("user", "postgres"),
            password=parts.pop("password", None),
            options=parts.pop("options", ""),
            maintenance_dbname=parts.pop("dbname", "postgres"),
            prefix="kbtest_",
            extra=parts,
        )

    def role(self, name: str) -> str:
        """The full name of a test role."""
        return self.prefix + name

    def role_password(self, name: str) -> str:
        """A password that every session working on this server derives alike."""
        return hashlib.sha256(f"{self.role(name)}\0{self.password}".encode()).hexdigest()[:32]

    def conninfo(self, dbname: str | None = None, role: str | None = None) -> str:
        """A connection string; dbname None = for maintenance, role None = the superuser."""
        return make_conninfo(
            "",
            host=self.host,
            port=self.port,
            dbname=dbname or self.maintenance_dbname,
            user=self.user if role is None else self.role(role),
            password=self.password if role is None else self.role_password(role),
            options=self.options or None,
            **self.extra,
        )

    def connect(
        self, dbname: str | None = None, role: str | None = None, **kw: Any
    ) -> psycopg.Connection[Any]:
        """Connect, in autocommit mode unless told; arguments as for ``conninfo`` and psycopg."""
        kw.setdefault("autocommit", True)
        return psycopg.connect(self.conninfo(dbname, role), **kw)

    @contextmanager
    def database(
        self, *, prepared: bool = True, migrations: Path = MIGRATIONS
    ) -> Iterator[Database]:
        """A new database, dropped at the end; prepared: with the migration, like the template."""
        name = f"kb_{os.getpid()}_{next(_numbers)}"
        identifier = sql.Identifier(name)
        with self.connect() as conn:
            conn.execute(sql.SQL("create database {}").format(identifier))
        db = Database(self, name)
        try:
            if prepared:
                prepare_database(self, name, migrations)
            yield db
        finally:
            db.close()
            with suppress(psycopg.OperationalError), self.connect() as conn:  # it may be down
                conn.execute(sql.SQL("drop database if exists {} with (force)").format(identifier))


class LocalServer(Server):
    """A server of our own, which a test may stop, kill and start: ``.embedded``."""

    def __init__(self, embedded: EmbeddedServer) -> None:
        embedded.start()
        super().__init__(host=embedded.host, port=embedded.port, user="postgres")
        self.embedded = embedded

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.embedded.close()


@dataclass
class Database:
    """One database, and connections to it that end with it."""

    server: Server
    name: str
    _connections: list[psycopg.Connection[Any]] = field(default_factory=list)

    def role(self, name: str) -> str:
        """The full name of a test role, for use in SQL."""
        return self.server.role(name)

    def uri(self, role: str | None = None) -> str:
        """A connection string for psycopg, pools and other processes; None = the superuser."""
        return self.server.conninfo(self.name, role)

    def connect(
        self, role: str = "app_reader", autocommit: bool = True, **kw: Any
    ) -> psycopg.Connection[Any]:
        """A connection as a test role (see ``ROLES``), closed at teardown."""
        return self._keep(self.server.connect(self.name, role, autocommit=autocommit, **kw))

    def superuser(self, autocommit: bool = True, **kw: Any) -> psycopg.Connection[Any]:
        """A connection as the superuser, closed at teardown."""
        return self._keep(self.server.connect(self.name, autocommit=autocommit, **kw))

    def installer(self, autocommit: bool = True, **kw: Any) -> psycopg.Connection[Any]:
        """A connection as the role that applied the migration, closed at teardown."""
        return self.connect(INSTALLER, autocommit, **kw)

    def close(self) -> None:
        """Close every connection made here."""
        while self._connections:
            self._connections.pop().close()

    def _keep(self, conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
        self._connections.append(conn)
        return conn


def prepare_database(server: Server, dbname: str, migrations: Path = MIGRATIONS) -> None:
    """Make an empty database ready, as a DBA would with the least rights.

    The superuser creates the extension vector in the schema ``extensions`` and the roles; the
    installer, who is none, applies the migration in one transaction. Roles belong to the whole
    cluster, and an earlier database may have left them, so nothing is assumed about them.
    Raises MigrationMissing.
    """
    migration = migration_file(migrations).read_bytes()
    with server.connect() as conn:
        conn.execute("select pg_advisory_lock(hashtextextended('pg_knowledge test roles', 0))")
        for role in (INSTALLER, *ROLES):
            _create_role(conn, server, role)
        _adopt_groups(conn, server)
        with server.connect(dbname) as own:
            own.execute("create schema if not exists extensions")
            own.execute("create extension if not exists vector schema extensions")
            own.execute("grant usage on schema extensions to public")
            allow_install(own, server, dbname)
        with server.connect(dbname, INSTALLER, autocommit=False) as installer:
            installer.execute(migration)
        for role, groups in ROLES.items():
            for group in groups:
                _execute(conn, "grant {} to {}", group, server.role(role))


def allow_install(conn: psycopg.Connection[Any], server: Server, dbname: str) -> None:
    """Let the installer create schemas in the database. A clone does not copy such a grant."""
    _execute(conn, "grant create on database {} to {}", dbname, server.role(INSTALLER))


def _create_role(conn: psycopg.Connection[Any], server: Server, role: str) -> None:
    name = server.role(role)
    if not conn.execute("select from pg_roles where rolname = %s", (name,)).rowcount:
        _execute(conn, "create role {}", name)
    options = "createrole" if role == INSTALLER else "nocreaterole"
    password = sql.Literal(server.role_password(role))
    superuser = conn.execute("select rolsuper from pg_roles where rolname = current_user")
    if superuser.fetchone() == (True,):  # others may not even mention these two
        options += " nosuperuser nobypassrls"
    statement = sql.SQL("alter role {} with login " + options + " password {}")
    conn.execute(statement.format(sql.Identifier(name), password))


def _adopt_groups(conn: psycopg.Connection[Any], server: Server) -> None:
    """Give the installer the group roles that exist as if it had created them itself."""
    like_creator = "admin true, inherit false, set false"
    if conn.info.server_version < 160000:
        like_creator = "admin option"
    found = conn.execute("select rolname from pg_roles where rolname = any(%s)", (list(GROUPS),))
    for (group,) in found.fetchall():
        _execute(conn, "grant {} to {} with " + like_creator, group, server.role(INSTALLER))


def _execute(conn: psycopg.Connection[Any], statement: str, *names: str) -> None:
    """Run a statement with names in its {} places."""
    query = sql.SQL(statement)
    conn.execute(query.format(*map(sql.Identifier, names)))


@contextmanager
def as_context(
    conn: psycopg.Connection[Any],
    org_id: object,
    grants: Sequence[str] = (),
    org_scope: str | None = None,
) -> Iterator[psycopg.Connection[Any]]:
    """A transaction on conn whose context is set; conn's role must be in knowledge_trusted.

    Inside an open transaction it is a savepoint, and the context lasts until the outer end.
    """
    with conn.transaction():
        conn.execute(
            "select knowledge.set_context(org_id => %s, grants => %s, org_scope => %s)",
            (org_id, list(grants), org_scope),
        )
        yield conn
