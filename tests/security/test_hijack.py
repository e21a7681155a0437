"""Promise 4: whatever a caller puts in its own way, no function of the pack steps on it.

Traps that raise an error when they are touched: functions, operators, casts' domains and tables
with the names that the pack uses, in public, in pg_temp and in front of everything.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg

from support import Database, as_context
from support.hostile import SCHEMAS, code_of, undone
from support.knowledge import begin, promote, publish, register, rows, search, stage

# Signatures of everything in pg_catalog and of pgvector whose name stands in a source of ours.
CALLED = """
    with source as (
        select string_agg(coalesce(pg_get_function_sqlbody(oid), prosrc), ' ') as text
        from pg_proc where pronamespace::regnamespace::text = any (%s)
    ), word as (
        select distinct m[1] as name
        from source, regexp_matches(text || ' lower(', '\\m([a-z_0-9]+)\\s*\\(', 'g') as m
    )
    select p.proname as name, array(
        select format_type(t, null)
        from unnest(p.proargtypes) with ordinality as a (t, i) order by i
    ) as types
    from pg_proc as p join word as w on w.name = p.proname
    where p.pronamespace::regnamespace::text in ('pg_catalog', 'extensions') and p.prokind = 'f'
        and not exists (
            select from unnest(p.proargtypes) as a (t) join pg_type as y on y.oid = a.t
            where y.typtype = 'p' and y.typname not in ('anyarray', 'anyelement')
        )
        and not p.proretset
"""
OPERATORS = """
    select o.oprname as name, format_type(o.oprleft, null) as before,
        format_type(o.oprright, null) as after
    from pg_operator as o
    where o.oprleft <> 0 and o.oprname = any (%s) and (
        o.oprleft = any (%s::regtype[]) or o.oprnamespace = 'extensions'::regnamespace
    )
"""
SIGNS = [
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "||",
    "&&",
    "@@",
    "@>",
    "<@",
    "~",
    "!~",
    "~~",
    "->",
    "->>",
]
SIGNS += ["+", "-", "*", "/", "#", "&", "|", "?", "<=>"]
TYPES = ["text", "integer", "bigint", "uuid", "jsonb", "bytea", "tsvector", "tsquery", "text[]"]
TYPES += ["integer[]", "timestamptz", "interval", "double precision", "anyarray", "boolean"]
# Domains that no value fits, named like types that bodies name.
NAMES = ["text", "int4", "int8", "uuid", "jsonb", "bytea", "tsquery", "tsvector", "regconfig"]
NAMES += ["float8", "bool", "claim", "near", "pairing", "source", "halfvec", "vector", "interval"]
NAMES += ["timestamptz", "regclass", "regnamespace", "record"]
CATALOGS = ["pg_class", "pg_index", "pg_namespace", "pg_extension", "pg_ts_config", "pg_proc"]


def traps(root: psycopg.Connection[Any], schema: str) -> list[str]:
    """Statements that put traps into a schema."""
    statements = []
    body = "language plpgsql as $$ begin raise exception 'hijacked'; end $$"
    for row in rows(root, CALLED, list(SCHEMAS)):
        arguments = ", ".join(row["types"])
        returns = re.findall("anyarray|anyelement", arguments)
        name = f'{schema}."{row["name"]}"({arguments})'
        statements.append(f"create function {name} returns {(*returns, 'text')[0]} {body}")
    for row in rows(root, OPERATORS, SIGNS, TYPES):
        before, after = row["before"], row["after"]
        statements += [
            f"create or replace function {schema}.trap({before}, {after}) returns boolean {body}",
            f"create operator {schema}.{row['name']}"
            f" (leftarg = {before}, rightarg = {after}, function = {schema}.trap)",
        ]
    tables = rows(
        root,
        "select relname as name from pg_class where relkind in ('r', 'v')"
        " and relnamespace::regnamespace::text = any (%s)",
        list(SCHEMAS),
    )
    named = {row["name"] for row in tables} | set(CATALOGS)
    statements += [f'create table {schema}."{name}" (hijacked integer)' for name in named]
    # The domains come last: from then on even text is not what it was.
    domains = set(NAMES) - named
    return statements + [
        f'create domain {schema}."{name}" as pg_catalog.text check (false)' for name in domains
    ]


def code_of_keeping(conn: psycopg.Connection[Any], statement: str) -> str | None:
    """Run a statement; the SQLSTATE when it is refused."""
    try:
        conn.execute(statement)
    except psycopg.Error as refused:
        return refused.sqlstate
    return None


def whole_cycle(
    conn: psycopg.Connection[Any], root: psycopg.Connection[Any], org: str
) -> list[Any]:
    """Everything the API does, and what came of it."""
    seen: list[Any] = []
    with as_context(conn, org, ["hr"], "eu"):
        seen.append(rows(conn, "select org_scope, grants from knowledge.current_context()"))
        conn.execute("select knowledge.define_tag('hr', 'them')")
        conn.execute("select knowledge.define_audience('staff', '{hr}')")
        conn.execute("select knowledge.set_language('german')")
        conn.execute("select knowledge.set_language('english')")
        publish(conn, "a", ["red apple pie", "green pear"], audience=["staff"], metadata={"n": "1"})
        publish(conn, "a", ["red apple pie", "blue plum"], visibility="draft")
        publish(conn, "b", ["apple and plum"], language="simple")
        version = begin(conn, "c", ["unfinished business"])
        stage(conn, version, ["unfinished business"])
        conn.execute("select knowledge.abort_version(%s)", (version["version_id"],))
    for promoted in (False, True):
        if promoted:
            promote(root, org)
        with as_context(conn, org, ["hr"], "eu"):
            for mode in ("hybrid", "vector", "keyword"):
                for function in ("search_scoped", "search_exact"):
                    found = search(
                        conn,
                        'apple "plum" -pear',
                        function,
                        mode=mode,
                        source_types=["wiki"],
                        visibility=["org", "draft"],
                        options={"language": "english"},
                    )
                    seen.append([(row["rank"], row["keyword_rank"]) for row in found])
            seen.append(len(search(conn, "apple", metadata={"n": "1"}, visibility=["draft"])))
    with as_context(conn, org, ["hr"], "eu"):
        seen.append(rows(conn, "select source_id, audience, chunks from knowledge.list_sources()"))
        seen.append(rows(conn, "select chunks from knowledge.get_source('wiki', 'a')"))
        seen.append(rows(conn, "select documents, chunks, unembedded from knowledge.stats()"))
        seen.append(sorted(conn.execute("select body from knowledge.chunks").fetchall()))
        seen.append(rows(conn, "select knowledge.prune_versions(0)"))
        seen.append(rows(conn, "select chunks from knowledge.delete_source('wiki', 'b')"))
        seen.append(rows(conn, "select chunks from knowledge.delete_by_scope(dry_run => true)"))
        seen.append(rows(conn, "select chunks from knowledge.delete_by_scope(dry_run => false)"))
        seen.append(rows(conn, "select * from knowledge.verify_audit_log()"))
        conn.execute("select knowledge.register_model(%s, 3, %s)", (org, org))
    with as_context(conn, org):
        query = "select chunks from knowledge.delete_by_scope(false, entire_org => true)"
        seen.append(rows(conn, query))
    token = rows(conn, "select knowledge.issue_token('other', '{}') as token")[0]["token"]
    with conn.transaction():
        conn.execute("select knowledge.use_token(%s)", (token,))
        seen.append(rows(conn, "select org_id from knowledge.current_context()"))
    seen.append(rows(conn, "select knowledge.version()"))
    return seen


def test_no_function_steps_into_a_trap(db: Database) -> None:
    """A cycle of publish, search and erase in a session full of traps answers as in a clean one."""
    root = db.superuser()
    root.execute(f"grant create, usage on schema public to {db.role('app_backend')}")
    register(db.connect("app_backend"))
    expected = whole_cycle(db.connect("app_backend"), root, "clean")
    assert any(expected[1:7])

    caller = db.connect("app_backend", prepare_threshold=None)
    made = {"public": 0, "pg_temp": 0}
    prepared = {schema: traps(root, schema) for schema in made}
    for schema, statements in prepared.items():
        for statement in statements:
            made[schema] += code_of_keeping(caller, statement) is None
    assert min(made.values()) > 400
    caller.execute("set search_path = public, pg_temp, pg_catalog, extensions")
    for armed in ("select lower('x')", "select 1 = 2", "select sha256('')", "select 'x'::text"):
        assert code_of(caller, armed) in ("P0001", "23514")
    assert code_of(caller, "select relname from pg_class") == "42703"

    assert whole_cycle(caller, root, "trapped") == expected


def test_language_of_a_session_is_refused(world: Database) -> None:
    """A temporary text search configuration is no language: the org could not be searched later."""
    backend = world.connect("app_backend")
    with undone(backend):
        backend.execute("create text search configuration pg_temp.mine (copy = english)")
        backend.execute("select knowledge.set_context('acme', '{}')")
        for call in (
            "set_language('mine')",
            "begin_version('wiki', 'x', 'h', 1, '{everyone}', language => 'mine')",
            "search_scoped('x', options => '{\"language\": \"mine\"}')",
        ):
            assert code_of(backend, f"select knowledge.{call}") == "KB005"
