"""Install and uninstall: nothing needs superuser, and nothing is left behind."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support import Database, LocalServer, Server, as_context, migration_file
from support.knowledge import promote, publish, register, rows, search
from support.server import GROUPS, INSTALLER, MIGRATIONS

ROOT = Path(__file__).resolve().parents[2]
UNINSTALL = MIGRATIONS / "uninstall.sql"
APPS = {
    "app_backend": ("knowledge_admin", "knowledge_trusted"),
    "app_reader": ("knowledge_reader",),
}

# What an install could leave behind. An acl that says what no acl would say counts as none.
CATALOGS = {
    "pg_class": "oid, relname, relnamespace, relowner, relacl::text, relkind, relrowsecurity",
    "pg_proc": "oid, proname, pronamespace, proowner, proacl::text",
    "pg_namespace": "oid, nspname, nspowner, array(select a::text from"
    " unnest(coalesce(nspacl, acldefault('n', nspowner))) as a order by 1)",
    "pg_type": "oid, typname, typnamespace, typowner, typacl::text",
    "pg_roles": "oid, rolname, rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolconfig",
    "pg_auth_members": "roleid, member, grantor, admin_option, inherit_option, set_option",
    "pg_default_acl": "defaclrole, defaclnamespace, defaclobjtype, defaclacl::text",
    "pg_shdepend": "dbid, classid, objid, objsubid, refclassid, refobjid, deptype",
    "pg_shdescription": "objoid, classoid, description",
    "pg_description": "objoid, classoid, objsubid, description",
    "pg_depend": "classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype",
    "pg_attrdef": "oid",
    "pg_cast": "oid",
    "pg_constraint": "oid",
    "pg_db_role_setting": "setdatabase, setrole, setconfig",
    "pg_event_trigger": "oid",
    "pg_extension": "oid, extname, extowner, extnamespace",
    "pg_index": "indexrelid",
    "pg_init_privs": "objoid, classoid, objsubid, initprivs::text",
    "pg_operator": "oid",
    "pg_policy": "oid",
    "pg_rewrite": "oid",
    "pg_statistic_ext": "oid",
    "pg_trigger": "oid",
    "pg_ts_config": "oid",
}


def snapshot(db: Database) -> dict[str, list[str]]:
    with db.server.connect(db.name) as conn:
        return {
            catalog: sorted(str(row) for row in conn.execute(f"select {columns} from {catalog}"))
            for catalog, columns in CATALOGS.items()
        }


def difference(before: dict[str, list[str]], after: dict[str, list[str]]) -> dict[str, list[str]]:
    return {
        catalog: changed
        for catalog in before
        if (changed := sorted(set(before[catalog]) ^ set(after[catalog])))
    }


@pytest.fixture(scope="module")
def cluster(crash_server: Callable[..., LocalServer]) -> LocalServer:
    """A server of this file alone: roles belong to the whole of it, and here they come and go."""
    server = crash_server(fsync="off", synchronous_commit="off", full_page_writes="off")
    with server.connect() as conn:
        for role in (INSTALLER, *APPS):
            conn.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
    return server


@pytest.fixture
def make(cluster: LocalServer) -> Iterator[Callable[..., Database]]:
    """Makes databases without pg_knowledge: ``make(vector="public")``, or None for no pgvector."""
    made: list[Any] = []
    with cluster.connect() as conn:
        conn.execute(f"alter role {INSTALLER} createrole")

    def new(vector: str | None = "extensions", open_to_all: bool = True) -> Database:
        context = cluster.database(prepared=False)
        made.append(context)
        db = context.__enter__()
        name = sql.Identifier(vector or "public")
        with cluster.connect(db.name) as conn:
            conn.execute(f"grant create on database {db.name} to {INSTALLER}")
            conn.execute(sql.SQL("create schema if not exists {}").format(name))
            if vector:
                conn.execute(sql.SQL("create extension vector schema {}").format(name))
            if open_to_all and vector != "public":
                conn.execute(sql.SQL("grant usage on schema {} to public").format(name))
        return db

    yield new
    for context in made:
        context.__exit__(None, None, None)
    with cluster.connect() as conn:
        for role in reversed(GROUPS):
            conn.execute(f"drop role if exists {role}")


def apply(db: Database, file: Path, role: str | None = INSTALLER) -> list[str]:
    """Run a whole file in one execute; returns the notices."""
    notices: list[str] = []
    with db.server.connect(db.name, role, autocommit=False) as conn:
        conn.add_notice_handler(lambda diag: notices.append(diag.message_primary or ""))
        conn.execute(file.read_bytes())
    return notices


def install(db: Database, role: str | None = INSTALLER) -> None:
    apply(db, migration_file(), role)


def psql(
    db: Database, *arguments: object, role: str | None = INSTALLER
) -> subprocess.CompletedProcess[str]:
    program = db.server.embedded.bindir / "psql"  # type: ignore[attr-defined]
    command = [program, "-X", *arguments, "-d", db.uri(role)]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=60
    )


def admit(db: Database) -> None:
    """The three grants of the DBA."""
    with db.server.connect(db.name) as conn:
        for app, groups in APPS.items():
            for group in groups:
                conn.execute(f"grant {group} to {app}")


def use(db: Database, org: str = "org") -> list[str]:
    """Publish and search as an application; returns the bodies that were found."""
    with db.server.connect(db.name, "app_backend") as conn:
        register(conn)
        with as_context(conn, org):
            publish(conn, "doc", ["alpha text", "beta text"])
        with as_context(conn, org):
            return [row["body"] for row in search(conn, "alpha", options={"plan": "exact"})]


def erase(db: Database, org: str = "org") -> int:
    with db.server.connect(db.name, "app_backend") as conn, as_context(conn, org):
        query = "select chunks from knowledge.delete_by_scope(dry_run => false, entire_org => true)"
        return int(rows(conn, query)[0]["chunks"])


def refusal(call: Callable[[], Any]) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as caught:
        call()
    assert caught.value.sqlstate == "KB013", caught.value
    return caught.value


# -- install


@pytest.mark.parametrize("vector", ["public", "extensions", "Odd Schema"])
def test_round_trip(make: Callable[..., Database], vector: str) -> None:
    """Wherever pgvector is: install, use, uninstall; every catalog is as it was before."""
    db = make(vector)
    before = snapshot(db)
    install(db)
    admit(db)
    assert use(db) == ["alpha text", "beta text"]
    assert erase(db) == 2
    use(db, "another org")
    assert apply(db, UNINSTALL) == []
    assert difference(before, snapshot(db)) == {}
    install(db)  # and again
    admit(db)
    assert use(db) == ["alpha text", "beta text"]


def test_promoted_index_goes(make: Callable[..., Database]) -> None:
    """Indexes and tables that came later are removed like those of the install."""
    db = make()
    before = snapshot(db)
    install(db)
    admit(db)
    use(db)
    with db.server.connect(db.name, "app_backend") as conn:
        conn.execute("select knowledge.register_model('second', 3, 'second:3')")
    with db.server.connect(db.name) as conn:
        promote(conn, "org")
    apply(db, UNINSTALL)
    assert difference(before, snapshot(db)) == {}


def test_installer_is_no_superuser(make: Callable[..., Database]) -> None:
    """CREATEROLE and CREATE on the database are all; nothing belongs to the installer."""
    db = make()
    install(db)
    with db.server.connect(db.name) as conn:
        (role,) = rows(
            conn, "select rolsuper, rolbypassrls from pg_roles where rolname = %s", INSTALLER
        )
        owned = rows(
            conn,
            "select deptype from pg_shdepend where refobjid = %s::regrole and deptype = 'o'",
            INSTALLER,
        )
        logins = rows(
            conn,
            "select rolname from pg_roles where rolname like 'knowledge%%'"
            " and (rolcanlogin or rolsuper or rolbypassrls or rolcreaterole or rolcreatedb)",
        )
    assert (role, owned, logins) == ({"rolsuper": False, "rolbypassrls": False}, [], [])


def test_usage_is_granted_and_taken_back(make: Callable[..., Database]) -> None:
    """Where only the installer may use pgvector's schema, it passes that on, if it may."""
    db = make("Odd Schema", open_to_all=False)
    before = snapshot(db)
    assert 'grant usage on schema "Odd Schema"' in str(
        refusal(lambda: install(db)).diag.message_hint
    )
    assert difference(before, snapshot(db)) == {}
    with db.server.connect(db.name) as conn:
        conn.execute(f'grant usage on schema "Odd Schema" to {INSTALLER} with grant option')
    before = snapshot(db)
    install(db)
    admit(db)
    assert use(db) == ["alpha text", "beta text"]
    apply(db, UNINSTALL)
    assert difference(before, snapshot(db)) == {}


@pytest.mark.parametrize("chain", [True, False], ids=["all grants made", "bare"])
def test_roles_made_beforehand(make: Callable[..., Database], chain: bool) -> None:
    """Without CREATEROLE, on roles that the DBA made; those stay at uninstall."""
    db = make()
    with db.server.connect() as conn:
        conn.execute(f"alter role {INSTALLER} nocreaterole")
        for group in GROUPS:
            conn.execute(f"create role {group} nologin")
            conn.execute(f"grant {group} to {INSTALLER} with admin true, inherit false, set false")
        conn.execute(f"grant knowledge_owner to {INSTALLER} with inherit false, set true")
        if chain:
            conn.execute("grant knowledge_reader to knowledge_writer")
            conn.execute("grant knowledge_writer to knowledge_admin")
    before = snapshot(db)
    install(db)
    admit(db)
    assert use(db) == ["alpha text", "beta text"]
    with db.server.connect() as conn:
        for app, groups in APPS.items():
            for group in groups:
                conn.execute(f"revoke {group} from {app}")
    apply(db, UNINSTALL)
    left = difference(before, snapshot(db))
    if chain:
        assert left == {}
    else:  # the memberships among roles that stay, which other databases may need
        assert set(left) == {"pg_auth_members", "pg_shdepend"}
        assert len(left["pg_auth_members"]) == 2


def test_without_pgvector(make: Callable[..., Database]) -> None:
    """KB013 that says what to do, and nothing is made."""
    db = make(None)
    before = snapshot(db)
    assert "create extension vector" in str(refusal(lambda: install(db)).diag.message_hint)
    assert difference(before, snapshot(db)) == {}


def test_wrong_encoding(make: Callable[..., Database], cluster: LocalServer) -> None:
    """Anything but UTF8 is refused."""
    with cluster.connect() as conn:
        conn.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
    try:
        db = Database(cluster, "latin")
        assert "UTF8" in str(refusal(lambda: install(db, None)))
    finally:
        with cluster.connect() as conn:
            conn.execute("drop database latin")


def test_twice(make: Callable[..., Database]) -> None:
    """The second time is refused (KB013), and the first stands as it was."""
    db = make()
    install(db)
    admit(db)
    use(db)
    before = snapshot(db)
    assert "already installed" in str(refusal(lambda: install(db)))
    assert difference(before, snapshot(db)) == {}
    assert use(db) == ["alpha text", "beta text"]


@pytest.mark.parametrize("role", [INSTALLER, None], ids=["installer", "superuser"])
@pytest.mark.parametrize("roles", [False, True], ids=["fresh cluster", "roles are there"])
@pytest.mark.parametrize("stop", [0, 1], ids=["going on", "ON_ERROR_STOP"])
def test_without_one_transaction(
    make: Callable[..., Database], stop: int, roles: bool, role: str | None
) -> None:
    """psql -f without -1 is refused, and even psql that goes on after errors makes nothing."""
    db = make()
    if roles:
        install(make())
    before = snapshot(db)
    done = psql(db, "-v", f"ON_ERROR_STOP={stop}", "-f", migration_file(), role=role)
    assert "must run inside one transaction" in done.stderr
    assert (done.returncode != 0) == bool(stop)
    assert difference(before, snapshot(db)) == {}


def test_psql(make: Callable[..., Database]) -> None:
    """The command lines of the README, quiet and with exit code 0."""
    db = make()
    before = snapshot(db)
    done = psql(db, "-1", "-q", "-v", "ON_ERROR_STOP=1", "-f", migration_file())
    assert (done.returncode, done.stderr) == (0, "")
    admit(db)
    assert use(db) == ["alpha text", "beta text"]
    done = psql(db, "-1", "-q", "-v", "ON_ERROR_STOP=1", "-f", UNINSTALL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert difference(before, snapshot(db)) == {}


def test_ledger(make: Callable[..., Database]) -> None:
    """One row: version, checksum as sql/build.py computes it, time, login role."""
    db = make()
    install(db)
    admit(db)
    with db.server.connect(db.name, "app_reader") as conn:
        (row,) = rows(
            conn, "select *, now() - applied_at < '1 hour' as fresh from knowledge.migrations"
        )
        (version,) = rows(conn, "select knowledge.version() as version")
    text = migration_file().read_text()
    assert text.count(row["checksum"]) == 1
    unsigned = text.replace(row["checksum"], "@CHECKSUM@")
    assert hashlib.sha256(unsigned.encode()).hexdigest() == row["checksum"]
    assert migration_file().name == f"pg_knowledge--{row['version']}.sql"
    assert version["version"] == row["version"]
    assert (row["applied_by"], row["fresh"], row["granted_usage"]) == (INSTALLER, True, [])


def test_files() -> None:
    """migrations/ is what sql/ builds; SHA256SUMS is right; no psql commands, no COMMIT."""
    if MIGRATIONS == ROOT / "migrations":
        command = [sys.executable, ROOT / "sql" / "build.py", "--check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")
    sums = dict(
        reversed(line.split("  ")) for line in (MIGRATIONS / "SHA256SUMS").read_text().splitlines()
    )
    files = {file.name: file.read_bytes() for file in MIGRATIONS.glob("*.sql")}
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {"uninstall.sql", migration_file().name} <= set(sums)
    for data in files.values():
        assert not re.search(r"(?im)^\s*(\\|commit\b|begin\s*;|rollback\b)", data.decode())


# -- uninstall

OBSTACLES = {
    "view": ("create view public.mine as select body from knowledge.chunks", "view public.mine"),
    "materialized view": (
        "create materialized view public.mine as select model_id from knowledge.models",
        "materialized view public.mine",
    ),
    "foreign key": (
        "create table public.mine (m integer references knowledge.models (model_id))",
        "table public.mine",
    ),
    "column type": ("create table public.mine (m knowledge.models)", "table public.mine"),
    "default": (
        "create table public.mine (m text default knowledge.version())",
        "table public.mine",
    ),
    "function": (
        "create function public.mine(m knowledge.models) returns int language sql as 'select 1'",
        "function public.mine(knowledge.models)",
    ),
    "publication": ("create publication mine for table knowledge.chunks", "mine"),
    "table in the schema": ("create table knowledge.mine (i integer)", "table knowledge.mine"),
    "function in the schema": (
        "create function knowledge.mine() returns int language sql as 'select 1'",
        "function knowledge.mine()",
    ),
    "type in the schema": (
        "create type knowledge_private.mine as enum ('a')",
        "knowledge_private.mine",
    ),
    "operator in the schema": (
        "create operator knowledge.@@@ (rightarg = integer, function = int4um)",
        "operator knowledge.@@@",
    ),
    "view in the schema": ("create view knowledge.mine as select 1 as x", "view knowledge.mine"),
}


@pytest.fixture(scope="module")
def installed(server: Server) -> Iterator[Database]:
    """One installation for the refusals, which change nothing."""
    with server.database() as db:
        yield db


@pytest.mark.parametrize("what", OBSTACLES)
def test_uninstall_refuses(installed: Database, what: str) -> None:
    """An object of the DBA's that would go, too: KB013, DETAIL names it, nothing is changed."""
    statement, name = OBSTACLES[what]
    with installed.server.connect(installed.name, autocommit=False) as conn:
        conn.execute(statement)
        before = {c: conn.execute(f"select count(*) from {c}").fetchone() for c in CATALOGS}
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            conn.execute(UNINSTALL.read_bytes())
        assert caught.value.sqlstate == "KB013"
        detail = str(caught.value.diag.message_detail)
        assert detail.startswith("[")
        assert name in detail
        assert {c: conn.execute(f"select count(*) from {c}").fetchone() for c in CATALOGS} == before
        conn.rollback()


def test_uninstall_goes_through_without_obstacles(installed: Database) -> None:
    """The refusals above are the obstacles' doing."""
    with installed.server.connect(installed.name, autocommit=False) as conn:
        conn.execute(UNINSTALL.read_bytes())
        gone = rows(conn, "select to_regnamespace('knowledge') as gone")
        assert gone == [{"gone": None}]
        conn.rollback()


def test_uninstall_needs_the_installer(installed: Database) -> None:
    """Another login role cannot, and is told why."""
    assert "may not remove" in str(refusal(lambda: apply(installed, UNINSTALL, "app_backend")))


def test_uninstall_what_is_not_there(make: Callable[..., Database]) -> None:
    """KB013 where pg_knowledge is not installed."""
    db = make()
    before = snapshot(db)
    assert "not installed" in str(refusal(lambda: apply(db, UNINSTALL)))
    assert difference(before, snapshot(db)) == {}


def test_uninstall_as_superuser(make: Callable[..., Database]) -> None:
    """The superuser removes what the installer made, also without one transaction around it."""
    db = make()
    before = snapshot(db)
    install(db)
    with db.server.connect(db.name) as conn:
        conn.execute(UNINSTALL.read_bytes())
    assert difference(before, snapshot(db)) == {}


def test_roles_of_the_dba_stay(make: Callable[..., Database]) -> None:
    """Also a superuser's uninstall drops no role that the install did not make."""
    db = make()
    with db.server.connect() as conn:
        for group in GROUPS:
            conn.execute(f"create role {group} nologin")
        conn.execute("comment on role knowledge_reader is 'made by hand'")
    install(db, None)
    apply(db, UNINSTALL, None)
    with db.server.connect() as conn:
        left = rows(conn, "select rolname from pg_roles where rolname = any(%s)", list(GROUPS))
    assert {row["rolname"] for row in left} == set(GROUPS)


def test_functions_start_closed(make: Callable[..., Database]) -> None:
    """A function that the owner makes later is nobody's until it is granted (case 23)."""
    db = make()
    install(db)
    with db.server.connect(db.name, INSTALLER) as conn:
        conn.execute("set role knowledge_owner")
        conn.execute("create function knowledge.later() returns int language sql as 'select 1'")
        (row,) = rows(
            conn, "select has_function_privilege('public', 'knowledge.later()', 'execute') as x"
        )
    assert row == {"x": False}


def test_a_role_in_use_stays(make: Callable[..., Database]) -> None:
    """A role that the DBA gave other rights is kept, with a notice; the others go."""
    db = make()
    install(db)
    with db.server.connect(db.name) as conn:
        conn.execute("create table public.mine (i integer)")
        conn.execute("grant select on public.mine to knowledge_reader")
    (notice,) = apply(db, UNINSTALL)
    assert "knowledge_reader stays" in notice
    with db.server.connect(db.name) as conn:
        left = rows(conn, "select rolname from pg_roles where rolname like 'knowledge%%'")
        assert left == [{"rolname": "knowledge_reader"}]
        assert rows(conn, "select from pg_default_acl") == []
        conn.execute("drop table public.mine")


# -- several databases, copies, older servers


def test_two_databases(make: Callable[..., Database]) -> None:
    """Side by side in one cluster: removing one leaves the roles to the other."""
    first, second = make(), make("public")
    pristine = snapshot(second)
    install(first)
    install(second)
    admit(first)
    assert use(first) == use(second) == ["alpha text", "beta text"]
    notices = apply(first, UNINSTALL)
    assert len(notices) == len(GROUPS)
    assert all("stays" in notice for notice in notices)
    assert use(second, "another org") == ["alpha text", "beta text"]
    install(first)
    assert use(first) == ["alpha text", "beta text"]
    apply(first, UNINSTALL)
    assert apply(second, UNINSTALL) == []
    assert difference(pristine, snapshot(second)) == {}


def test_dump_and_restore(
    make: Callable[..., Database], cluster: LocalServer, tmp_path: Path
) -> None:
    """A copy by pg_dump and pg_restore answers alike, with its rights, and uninstalls (case 49)."""
    db = make("Odd Schema")
    install(db)
    admit(db)
    expected = use(db)
    use(db, "another org")
    with db.server.connect(db.name) as conn:
        promote(conn, "org")
    bindir = cluster.embedded.bindir
    dump = tmp_path / "dump"

    def run(program: str, *arguments: object) -> None:
        command = [bindir / program, *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    run("pg_dump", "-Fc", "-f", dump, "-d", db.uri())
    with cluster.database(prepared=False) as copy:
        run("pg_restore", "--exit-on-error", "-d", copy.uri(), dump)
        with db.server.connect(copy.name, "app_backend") as conn:
            for org in ("org", "another org"):
                with as_context(conn, org):
                    for function in ("search_scoped", "search_exact"):
                        found = search(conn, "alpha", function)
                        assert len(found) == 2
                        with (
                            db.server.connect(db.name, "app_backend") as original,
                            as_context(original, org),
                        ):
                            assert search(original, "alpha", function) == found
        assert use(copy) == expected
        queries = (
            "select oid::regprocedure::text, array(select a::text from unnest(proacl) as a"
            " order by 1) from pg_proc"
            " where pronamespace::regnamespace::text like 'knowledge%' order by 1",
            "select oid::regclass::text, array(select a::text from unnest(relacl) as a order by 1),"
            " relrowsecurity, pg_get_userbyid(relowner) from pg_class"
            " where relnamespace::regnamespace::text like 'knowledge%' order by 1",
            "select polrelid::regclass::text, pg_get_expr(polqual, polrelid) from pg_policy"
            " order by 1",
        )
        with db.server.connect(db.name) as left, db.server.connect(copy.name) as right:
            for query in queries:
                assert left.execute(query).fetchall() == right.execute(query).fetchall()
        assert erase(copy) == 2
        notices = apply(copy, UNINSTALL)
        assert len(notices) == len(GROUPS)
        with db.server.connect(copy.name) as conn:
            assert rows(conn, "select to_regnamespace('knowledge') as gone") == [{"gone": None}]
    assert use(db) == expected


@pytest.mark.pg16
def test_postgresql_16(pg16: LocalServer) -> None:
    """The oldest supported release: install, publish, search, erase, uninstall."""
    with pg16.database() as db:
        with db.connect("app_admin") as admin:
            register(admin)
        assert use(db) == ["alpha text", "beta text"]
        assert erase(db) == 2
        db.close()
        apply(db, UNINSTALL)
        with db.server.connect(db.name) as conn:
            assert rows(conn, "select from pg_default_acl") == []
            assert rows(conn, "select to_regnamespace('knowledge') as gone") == [{"gone": None}]
