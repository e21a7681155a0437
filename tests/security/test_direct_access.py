"""Nobody but the owner writes a table, and whoever reads one sees what the context may see.

Case 28: ON CONFLICT, COPY, TRUNCATE, views of others, materialised views: each has a test.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from support import Database, as_context
from support.hostile import CATALOG, SCHEMAS, code_of, error_of, everything, table, undone
from support.server import ROLES

WRITES = {
    "insert": "insert into {t} default values",
    "insert or ignore": "insert into {t} default values on conflict do nothing",
    "update": "update {t} set {c} = {c}",
    "delete": "delete from {t}",
    "truncate": "truncate {t} cascade",
    "copy from": "copy {t} from program 'true'",
    "merge insert": "merge into {t} using (select) as s on false when not matched then insert "
    "default values",
    "merge delete": "merge into {t} using (select) as s on true when matched then delete",
    "lock rows": "select from {t} for update",
    "share rows": "select from {t} for key share",
    "lock": "lock table {t} in row share mode",
    "lock all": "lock table {t} in access exclusive mode",
    "no row security": "alter table {t} disable row level security",
    "policy": "create policy open on {t} using (true)",
    "column": "alter table {t} add column mine integer",
    "owner": "alter table {t} owner to current_user",
    "index": "create index on {t} ({c})",
    "trigger": "create trigger mine before insert on {t} execute function "
    "suppress_redundant_updates_trigger()",
    "rule": "create rule mine as on insert to {t} do instead nothing",
    "drop": "drop table {t} cascade",
    "comment": "comment on table {t} is 'mine'",
    "grant": "grant select on {t} to public",
    "statistics": "alter table {t} alter column {c} set statistics 0",
}

# Of the one view: no privilege, cannot be written, is no table (16: MERGE has no views).
REFUSALS = {"42501", "55000", "42809", "0A000"}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", WRITES)
def test_no_role_writes_a_table(
    world: Database, relations: list[tuple[str, str, bool]], role: str, kind: str
) -> None:
    """No login role may write, lock or change any table of either schema, with a context or not."""
    caller = world.connect(role)
    columns = dict(
        world.superuser()
        .execute(
            "select distinct on (attrelid) attrelid::regclass::text, attname from pg_attribute"
            " where attnum > 0 and attgenerated = '' and attidentity = ''"
            " order by attrelid, attnum desc"
        )
        .fetchall()
    )
    wrong = {}
    for schema, name, _ in relations:
        statement = sql.SQL(WRITES[kind]).format(
            t=table(schema, name), c=sql.Identifier(columns[f"{schema}.{name}"])
        )
        code = code_of(caller, statement)
        if code not in (REFUSALS if name == "positions" else {"42501"}):
            wrong[f"{schema}.{name}"] = code
    if kind == "grant" and role != "app_nobody":  # a warning and no effect, for who may see it
        assert set(wrong.values()) <= {None}
        assert (
            not world.superuser()
            .execute(
                "select from pg_class as c cross join aclexplode(c.relacl) as a where a.grantee = 0"
                " and c.relnamespace::regnamespace::text like 'knowledge%'"
            )
            .rowcount
        )
    else:
        assert wrong == {}


@pytest.mark.parametrize("role", ["app_reader", "app_writer", "app_admin", "app_backend"])
def test_copy_from_is_refused(world: Database, role: str) -> None:
    """COPY FROM STDIN is refused on every table that can be read (case 28)."""
    caller = world.connect(role)
    for name in ("chunks", "documents", "compartments", "positions", "vectors_1", "models"):
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege),
            caller.cursor().copy(f"copy knowledge.{name} from stdin"),
        ):
            pass


@pytest.mark.parametrize("role", ROLES)
def test_private_tables_are_unreadable(
    world: Database, relations: list[tuple[str, str, bool]], role: str
) -> None:
    """SELECT and COPY TO on signing keys, staging and settings is refused to everybody."""
    caller = world.connect(role)
    private = [name for schema, name, _ in relations if schema == "knowledge_private"]
    assert {"settings", "signing_keys", "staged_chunks"} <= set(private)
    for name in [*private, "anything"]:
        for query in ("table knowledge_private.{}", "copy knowledge_private.{} to stdout"):
            assert code_of(caller, query.format(name)) == "42501"


@pytest.mark.parametrize("role", ROLES)
def test_private_functions_cannot_be_called(world: Database, role: str) -> None:
    """No helper can be called by name, also those that policies call."""
    functions = world.superuser().execute(CATALOG["functions"], (list(SCHEMAS),)).fetchall()
    caller = world.connect(role)
    names = {name for schema, name, *_ in functions if schema == "knowledge_private"}
    assert {"context", "sign", "put_claim", "current_org"} <= names
    for name in sorted(names):
        query = sql.SQL("select {}()").format(table("knowledge_private", name))
        assert code_of(caller, query) == "42501"


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    "statement",
    [
        "create table {}.mine ()",
        "create view {}.mine as select 1",
        "create type {}.mine as (a integer)",
        "create sequence {}.mine",
        "create function {}.mine() returns integer language sql return 1",
        "create function {}.version() returns text language sql return 'x'",
        "create operator {}.=== (leftarg = text, rightarg = text, function = texteq)",
        "drop schema {} cascade",
        "alter schema {} owner to current_user",
        "comment on schema {} is ''",
    ],
)
def test_nothing_can_be_created_in_the_schemas(
    world: Database, schema: str, statement: str
) -> None:
    """Both schemas belong to knowledge_owner, and nobody else can put or drop anything there."""
    for role in ROLES:
        assert code_of(world.connect(role), statement.format(schema)) == "42501"


@pytest.mark.parametrize("role", ROLES)
def test_nobody_becomes_the_owner(world: Database, role: str) -> None:
    """No login role can become knowledge_owner or a role above its own."""
    caller = world.connect(role)
    forbidden = {"knowledge_owner", "postgres"}
    if "knowledge_trusted" not in ROLES[role]:
        forbidden.add("knowledge_trusted")
    for name in forbidden:
        assert code_of(caller, sql.SQL("set role {}").format(sql.Identifier(name))) == "42501"


def test_copy_to_gives_own_rows(world: Database) -> None:
    """COPY TO goes through row-level security: only rows of the context."""
    caller = world.connect("app_trusted")
    with as_context(caller, "acme"), caller.cursor().copy("copy knowledge.chunks to stdout") as out:
        copied = b"".join(bytes(block) for block in out).decode()
    assert "secret of acme" in copied
    assert "globex" not in copied
    with (
        pytest.raises(psycopg.Error) as refused,
        caller.cursor().copy("copy knowledge.chunks to stdout") as out,
    ):
        list(out)
    assert refused.value.sqlstate == "KB001"


@pytest.fixture
def can_create(world: Database) -> psycopg.Connection:
    """app_trusted may create in public for a moment; a connection as that role."""
    root = world.superuser()
    for name in ("app_trusted", "app_backend"):
        root.execute(f"grant create on schema public to {world.role(name)}")
    return world.connect("app_trusted")


@pytest.mark.parametrize("invoker", ["true", "false"])
def test_view_of_another_role(
    world: Database, can_create: psycopg.Connection, invoker: str
) -> None:
    """A view over chunks shows whoever asks through it the rows of their own context at most."""
    can_create.execute(
        f"create view public.peek with (security_invoker = {invoker}) as"
        " select * from knowledge.chunks"
    )
    try:
        can_create.execute("grant select on public.peek to public")
        other = world.connect("app_backend")
        assert code_of(other, "table public.peek") == "KB001"
        for org in ("acme", "globex"):
            with as_context(other, org, ["hr"]):
                own = set(other.execute("select body from knowledge.chunks").fetchall())
                assert set(other.execute("select body from public.peek").fetchall()) == own
                assert all(org in body for (body,) in own)
        # Whoever may not call the policy functions is refused, whoever owns the view.
        assert code_of(world.connect("app_nobody"), "table public.peek") == "42501"
    finally:
        can_create.execute("drop view public.peek")


def test_materialized_view_holds_the_rows_of_its_maker(
    world: Database, can_create: psycopg.Connection
) -> None:
    """A materialised view is a copy of what its maker could read; without a context, none.

    Who may read rows may also give them away; a refresh without a context is refused.
    """
    statement = "create materialized view public.kept as select body from knowledge.chunks"
    assert code_of(can_create, statement) == "KB001"
    with undone(can_create):
        can_create.execute("select knowledge.set_context('acme', '{}')")
        own = can_create.execute("select body from knowledge.chunks").fetchall()
        can_create.execute(statement)
        assert sorted(can_create.execute("table public.kept").fetchall()) == sorted(own)
        assert all("acme" in body for (body,) in own)
        can_create.execute("select set_config('knowledge.context', '', true)")
        assert code_of(can_create, "refresh materialized view public.kept") == "KB001"


@pytest.mark.parametrize(
    "statement",
    [
        "create table public.probe (org_id text, chunk_id uuid,"
        " foreign key (org_id, chunk_id) references knowledge.chunks)",
        "create table public.probe (org_id text references knowledge.orgs)",
        "create table public.probe () inherits (knowledge.chunks)",
    ],
)
def test_no_probing_through_keys(can_create: psycopg.Connection, statement: str) -> None:
    """A foreign key to, or a child of, a table would tell whether a row exists: refused."""
    with as_context(can_create, "acme"):
        assert code_of(can_create, statement) == "42501"


def test_no_probing_through_unique_keys(world: Database) -> None:
    """An insert that would collide and one that would not are refused alike (case 28)."""
    caller = world.connect("app_backend")
    known = world.superuser().execute("select chunk_id from knowledge.chunks").fetchone()
    insert = (
        "insert into knowledge.chunks (org_id, chunk_id, document_id, compartment_id, heading,"
        " body, tsv, words, content_hash) values ('globex', %s, gen_random_uuid(), 1, '', 'x', '',"
        " 1, '') on conflict (org_id, chunk_id) do nothing"
    )
    with as_context(caller, "acme"):
        errors = [
            error_of(caller, insert, (chunk,))
            for chunk in (known[0], "00000000-0000-7000-8000-000000000000")
        ]
    assert {(e.sqlstate, e.message_primary) for e in errors if e} == {
        ("42501", "permission denied for table chunks")
    }


LEAKS = {
    "function": "pg_temp.leak(t::text)",
    "operator": "t::text operator(pg_temp.!!!) ''",
    "error text": "(t::text)::integer > 0",
    "limited": "pg_temp.leak(t::text) limit 1000",
    "or": "(pg_temp.leak(t::text) or t.org_id = 'globex')",
}


# No role but the owner may read these at all.
UNREADABLE = {"versions", "quarantine", "admission_rules"}


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("indexes", ["on", "off"])
def test_leaky_functions_see_own_rows(
    world: Database, protected: list[str], leak: str, indexes: str
) -> None:
    """A cheap function in WHERE that tells what it is given is given rows of the context only."""
    caller = world.connect("app_backend")
    caller.execute(f"set enable_indexscan = {indexes}; set enable_bitmapscan = {indexes}")
    seen: list[str] = []
    caller.add_notice_handler(lambda diag: seen.append(diag.message_primary or ""))
    caller.execute(
        """
        create function pg_temp.leak(text) returns boolean language plpgsql cost 0.0000001 as
        $$ begin raise notice '%', $1; return true; end $$;
        create function pg_temp.leak(text, text) returns boolean language plpgsql cost 0.0000001 as
        $$ begin raise notice '%', $1; return true; end $$;
        create operator pg_temp.!!! (leftarg = text, rightarg = text, function = pg_temp.leak)
        """
    )
    readable = [name for name in protected if name not in UNREADABLE]
    for name in readable:
        with as_context(caller, "acme"):
            query = sql.SQL("select from {} as t where " + LEAKS[leak])
            refused = error_of(caller, query.format(table("knowledge", name)))
            if refused:
                assert leak == "error text"
                seen.append(refused.message_primary or "")
    assert len(seen) >= len(readable)
    assert [text for text in seen if "globex" in text] == []
    # Nor rows of the same org in another scope, or for another audience.
    assert [text for text in seen if "in eu" in text or "salaries" in text] == []


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("row_security", "off"),
        ("standard_conforming_strings", "off"),
        ("transform_null_equals", "on"),
        ("default_transaction_isolation", "serializable"),
        ("search_path", "''"),
        ("search_path", "pg_temp, public"),
        ("plan_cache_mode", "force_generic_plan"),
        ("debug_parallel_query", "on"),
        ("bytea_output", "escape"),
        ("extra_float_digits", "-15"),
        ("DateStyle", "German"),
        ("IntervalStyle", "iso_8601"),
        ("TimeZone", "Asia/Tokyo"),
        ("hnsw.ef_search", "1"),
        ("constraint_exclusion", "on"),
        ("enable_seqscan", "off"),
        ("session_replication_role", "replica"),
    ],
)
def test_no_setting_widens(world: Database, setting: str, value: str) -> None:
    """Whatever a reader may set, it sees the rows of its context or an error, and nothing more."""
    caller = world.connect("app_trusted")
    set_it = sql.SQL("set {} = {}").format(sql.SQL(setting), sql.Literal(value))
    if setting == "search_path":
        set_it = sql.SQL(f"set {setting} = {value}")
    queries = (
        "select body from knowledge.chunks",
        "select body from knowledge.search_scoped('secret', mode => 'keyword')",
        "select body from knowledge.search_exact('secret', mode => 'keyword') as s"
        " join knowledge.chunks using (chunk_id)",
        "select title from knowledge.list_sources()",
    )
    with as_context(caller, "acme"):
        expected = [sorted(caller.execute(query).fetchall()) for query in queries]
    if code_of(caller, set_it) == "42501":
        assert setting == "session_replication_role"
        return
    caller.execute(set_it)
    with as_context(caller, "acme"):
        for query, rows in zip(queries, expected, strict=True):
            if code_of(caller, query) is None:
                assert sorted(caller.execute(query).fetchall()) == rows
            else:
                assert setting in ("row_security", "standard_conforming_strings")


def test_statistics_show_no_rows(world: Database, protected: list[str]) -> None:
    """pg_stats hides the values of every protected table from those who read it under a policy."""
    caller = world.connect("app_admin")
    assert (
        world.superuser()
        .execute("select from pg_stats where schemaname = 'knowledge' and tablename = 'chunks'")
        .rowcount
    )
    query = "select tablename from pg_stats where schemaname = any (%s)"
    shown = {name for (name,) in caller.execute(query, (list(SCHEMAS),))}
    assert shown & set(protected) == set()
    assert shown <= {"models", "migrations"}
    assert code_of(caller, "select from pg_statistic") == "42501"
    stats = "select from pg_stats_ext where schemaname = any (%s)"
    assert caller.execute(stats, (list(SCHEMAS),)).rowcount == 0


def test_nothing_is_kept_in_large_objects(world: Database) -> None:
    """No text goes where row-level security does not reach."""
    root = world.superuser()
    assert root.execute("select from pg_largeobject_metadata").rowcount == 0
    functions = root.execute(CATALOG["functions"], (list(SCHEMAS),)).fetchall()
    assert [name for _, name, _, source, *_ in functions if "lo_" in source] == []


def test_attacks_left_everything_in_place(world: Database) -> None:
    """After all of the above the tables hold what they held."""
    found = everything(world.superuser())
    assert len(found["knowledge.chunks"]) == 10
    assert len(found["knowledge.documents"]) == 8
