"""What every object must be, read from the catalog, so that a new one is covered without a word."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support import Database
from support.hostile import SCHEMAS
from support.knowledge import rows

FUNCTIONS = """
    select n.nspname as schema, p.proname as name, p.oid::regprocedure::text as signature,
        p.prosecdef as definer, pg_get_userbyid(p.proowner) as owner, p.proconfig as settings,
        p.prosqlbody is not null as parsed, p.proargnames as arguments,
        coalesce(pg_get_function_sqlbody(p.oid), p.prosrc) as source,
        obj_description(p.oid, 'pg_proc') as comment, array(
            select coalesce(nullif(a.grantee, 0)::regrole::text, 'public')
            from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
            where a.privilege_type = 'EXECUTE' and a.grantee <> p.proowner order by 1
        ) as callers
    from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = any (%s) order by 1, 3
"""
RELATIONS = """
    select n.nspname as schema, c.relname as name, c.oid, c.relkind::text as kind,
        pg_get_userbyid(c.relowner) as owner, c.relrowsecurity as protected,
        c.reloptions as options, obj_description(c.oid, 'pg_class') as comment, exists (
            select from pg_attribute as a
            where a.attrelid = c.oid and a.attname = 'org_id' and not a.attisdropped
        ) as of_an_org
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = any (%s) and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') order by 1, 2
"""
# What policies call, although nobody can name it: there is no USAGE on its schema.
FOR_POLICIES = {"current_org()", "readable_compartments()"}
# What concerns the whole database is granted to nobody: who can become the owner may call it.
OF_THE_DBA = {"rotate_signing_key", "maintain", "index_plan"}
GROUPS = {"knowledge_reader", "knowledge_writer", "knowledge_admin", "knowledge_trusted"}


@pytest.fixture
def functions(world: Database) -> list[dict[str, Any]]:
    return rows(world.superuser(), FUNCTIONS, list(SCHEMAS))


@pytest.fixture
def tables(world: Database) -> list[dict[str, Any]]:
    found = rows(world.superuser(), RELATIONS, list(SCHEMAS))
    return [row for row in found if row["kind"] != "S"]


def names(found: list[dict[str, Any]], key: str = "signature") -> list[str]:
    return [f"{row['schema']}.{row[key]}" for row in found]


def test_no_function_is_open_to_public(functions: list[dict[str, Any]]) -> None:
    """Case 23: EXECUTE is revoked from PUBLIC on every function."""
    assert len(functions) > 60
    assert names([f for f in functions if "public" in f["callers"]]) == []


def test_execute_is_granted_to_groups_only(functions: list[dict[str, Any]]) -> None:
    """Every API function is granted to a group role by name, a helper to none but for policies."""
    wrong = []
    for function in functions:
        callers = set(function["callers"])
        helper = function["signature"].removeprefix("knowledge_private.")
        if function["schema"] == "knowledge":
            open_to_some = callers or function["name"] in OF_THE_DBA
            if not open_to_some or not callers <= GROUPS:
                wrong.append((function["signature"], callers))
        elif callers and not (helper in FOR_POLICIES and callers == {"knowledge_reader"}):
            wrong.append((function["signature"], callers))
    assert wrong == []


def test_only_trusted_makes_contexts(functions: list[dict[str, Any]]) -> None:
    """Promise 4: set_context and issue_token are granted to knowledge_trusted alone."""
    makers = {f["name"]: f["callers"] for f in functions if f["name"] in MAKERS}
    assert makers == {name: ["knowledge_trusted"] for name in MAKERS}


MAKERS = ("set_context", "issue_token")


def test_search_path_is_pinned(functions: list[dict[str, Any]]) -> None:
    """Every function, definer or not, looks in pg_catalog first and in pg_temp last.

    A body in BEGIN ATOMIC is parsed when it is made: it looks nothing up when it runs.
    """
    wrong = []
    for function in functions:
        paths = [s for s in function["settings"] or [] if s.startswith("search_path=")]
        parts = [part.strip() for part in paths[0].split("=", 1)[1].split(",")] if paths else []
        parsed_when_made = function["parsed"] and not function["definer"] and not paths
        if not parsed_when_made and (parts[:1], parts[-1:]) != (["pg_catalog"], ["pg_temp"]):
            wrong.append(function["signature"])
        if not set(parts) <= {"pg_catalog", "pg_temp"}:
            wrong.append(function["signature"])
    assert wrong == []


def test_owner(functions: list[dict[str, Any]], tables: list[dict[str, Any]]) -> None:
    """Everything, and so every SECURITY DEFINER function, belongs to knowledge_owner."""
    assert {f["owner"] for f in functions} == {"knowledge_owner"}
    assert {t["owner"] for t in tables} == {"knowledge_owner"}
    assert sum(f["definer"] for f in functions) > 20


def test_owner_cannot_log_in(world: Database) -> None:
    """No group role can log in, bypass policies, or is a superuser; the owner is in no group."""
    found = rows(
        world.superuser(),
        "select rolname, rolcanlogin, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb"
        " from pg_roles where starts_with(rolname, 'knowledge_')",
    )
    assert {row.pop("rolname") for row in found} == GROUPS | {"knowledge_owner"}
    assert [row for row in found if any(row.values())] == []
    members = rows(
        world.superuser(),
        "select g.rolname as granted, m.rolname as member from pg_auth_members as a"
        " join pg_roles as g on g.oid = a.roleid join pg_roles as m on m.oid = a.member"
        " where starts_with(m.rolname, 'knowledge_')",
    )
    assert sorted((m["member"], m["granted"]) for m in members) == [
        ("knowledge_admin", "knowledge_writer"),
        ("knowledge_writer", "knowledge_reader"),
    ]


def test_row_level_security(tables: list[dict[str, Any]]) -> None:
    """Every table with an org_id has row-level security, vectors of a new model too; the view of
    them reads with the rights of its reader."""
    of_orgs = [t for t in tables if t["of_an_org"] and t["kind"] != "v"]
    views = [t for t in tables if t["kind"] == "v"]
    assert [(t["name"], t["options"]) for t in views] == [("positions", ["security_invoker=true"])]
    assert {"chunks", "vectors_1", "staged_chunks"} <= {t["name"] for t in of_orgs}
    assert [t["kind"] for t in of_orgs if t["kind"] != "r"] == []
    assert names([t for t in of_orgs if not t["protected"]], "name") == []


def test_policies_only_read(world: Database) -> None:
    """Policies are for SELECT, permissive for nobody by name, and compare with initplans."""
    found = rows(
        world.superuser(),
        "select tablename, policyname, cmd, roles, qual, with_check, permissive from pg_policies"
        " where schemaname = any (%s)",
        list(SCHEMAS),
    )
    assert len(found) >= 9
    assert {p["cmd"] for p in found} == {"SELECT"}
    assert {p["with_check"] for p in found} == {None}
    for policy in found:
        bare = re.sub(r"\(\s*SELECT knowledge_private\.\w+\(\) AS \w+\)", "", policy["qual"])
        assert bare != policy["qual"]
        assert "knowledge_private" not in bare
        assert "org_id =" in policy["qual"]
    one_each = [p["tablename"] for p in found]
    assert len(one_each) == len(set(one_each))


def test_no_privilege_but_select(world: Database) -> None:
    """Nobody but the owner may INSERT, UPDATE, DELETE, TRUNCATE, REFERENCE or put a TRIGGER."""
    granted = rows(
        world.superuser(),
        """
        select c.oid::regclass::text as name, c.relkind::text as kind,
            coalesce(nullif(a.grantee, 0)::regrole::text, 'public') as grantee, a.privilege_type
        from pg_class as c
        cross join aclexplode(
            coalesce(c.relacl, acldefault(case c.relkind when 'S' then 's'::"char" else 'r' end,
                c.relowner))) as a
        where c.relnamespace::regnamespace::text = any (%(schemas)s) and a.grantee <> c.relowner
            and c.relkind <> 'i'
        union all
        select c.oid::regclass || '.' || t.attname, 'column',
            coalesce(nullif(a.grantee, 0)::regrole::text, 'public'), a.privilege_type
        from pg_attribute as t
        join pg_class as c on c.oid = t.attrelid cross join aclexplode(t.attacl) as a
        where c.relnamespace::regnamespace::text = any (%(schemas)s)
        """,
        schemas=list(SCHEMAS),
    )
    assert len(granted) > 10
    assert [g for g in granted if g["privilege_type"] != "SELECT"] == []
    assert [g for g in granted if g["grantee"] not in GROUPS] == []
    assert [g for g in granted if g["name"].startswith("knowledge_private.")] == []
    assert [g for g in granted if g["kind"] == "S"] == []


def test_schemas_are_closed(world: Database) -> None:
    """USAGE on knowledge for groups, on knowledge_private for nobody, CREATE on neither."""
    granted = rows(
        world.superuser(),
        "select n.nspname as schema,"
        " coalesce(nullif(a.grantee, 0)::regrole::text, 'public') as who, a.privilege_type as what"
        " from pg_namespace as n cross join aclexplode(n.nspacl) as a"
        " where n.nspname = any (%s) and a.grantee <> n.nspowner",
        list(SCHEMAS),
    )
    assert {(g["schema"], g["what"]) for g in granted} == {("knowledge", "USAGE")}
    assert {g["who"] for g in granted} == {"knowledge_reader", "knowledge_trusted"}
    for role in (*GROUPS, world.role("app_nobody")):
        usable = rows(
            world.superuser(),
            "select has_schema_privilege(%s, 'knowledge_private', 'USAGE, CREATE') as usable",
            role,
        )
        assert usable == [{"usable": False}]


def test_default_privileges_start_closed(world: Database) -> None:
    """A function that knowledge_owner makes later, in any schema, is not open to PUBLIC."""
    granted = rows(
        world.superuser(),
        "select a.grantee::text from pg_default_acl as d cross join aclexplode(d.defaclacl) as a"
        " where d.defaclrole = 'knowledge_owner'::regrole and d.defaclobjtype = 'f'",
    )
    assert len(granted) == 1
    assert granted[0]["grantee"] != "0"


def test_everything_has_a_comment(
    world: Database, functions: list[dict[str, Any]], tables: list[dict[str, Any]]
) -> None:
    """Every schema, table, column, function and type says what it is."""
    assert names([f for f in functions if not (f["comment"] or "").strip()]) == []
    assert names([t for t in tables if not (t["comment"] or "").strip()], "name") == []
    silent = rows(
        world.superuser(),
        """
        select c.oid::regclass || '.' || a.attname as name
        from pg_attribute as a join pg_class as c on c.oid = a.attrelid
        where c.relnamespace::regnamespace::text = any (%(schemas)s) and a.attnum > 0
            and c.relkind in ('r', 'p', 'v', 'm') and not a.attisdropped
            and col_description(c.oid, a.attnum) is null
        union all
        select t.oid::regtype::text
        from pg_type as t left join pg_class as c on c.oid = t.typrelid
        where t.typnamespace::regnamespace::text = any (%(schemas)s) and t.typcategory <> 'A'
            and (c.relkind is null or c.relkind = 'c') and obj_description(t.oid, 'pg_type') is null
        union all
        select n.nspname from pg_namespace as n
        where n.nspname = any (%(schemas)s) and obj_description(n.oid, 'pg_namespace') is null
        """,
        schemas=list(SCHEMAS),
    )
    assert silent == []


def test_comments_name_their_errors(functions: list[dict[str, Any]]) -> None:
    """The comment of an API function names each error that its own text can raise."""
    silent = {}
    for function in functions:
        if function["schema"] != "knowledge":
            continue
        raised = set(re.findall(r"KB0\d\d", function["source"])) - {"KB000"}
        missing = {code for code in raised if code not in function["comment"]}
        if missing:
            silent[function["signature"]] = missing
    assert silent == {}


def test_no_search_has_a_tenant_argument(functions: list[dict[str, Any]]) -> None:
    """Promise 4: no function but those of the trusted takes an org, a scope or grants (case 26)."""
    tenant = re.compile(r"org_id|^org$|tenant|customer|account|scope|grants|user|principal|acl")
    for function in functions:
        if function["schema"] != "knowledge" or function["name"] in MAKERS:
            continue
        given = rows_of_arguments(function)
        found = [name for name in given if tenant.search(name)]
        assert found == [], function["signature"]


def rows_of_arguments(function: dict[str, Any]) -> list[str]:
    """Names of the input arguments; a signature lists only those."""
    types = re.sub(r"\[\]", "", function["signature"].split("(", 1)[1].rstrip(")"))
    count = len(types.split(",")) if types else 0
    return list(function["arguments"] or [])[:count]


def test_no_triggers_on_tables_of_orgs(world: Database) -> None:
    """A table that may be distributed by org_id has no trigger of ours, no rule, no inheritance."""
    root = world.superuser()
    where = "c.relnamespace::regnamespace::text = any (%s)"
    join = "join pg_class as c on c.oid ="
    for query in (
        f"select from pg_trigger as t {join} t.tgrelid where not t.tgisinternal and {where}",
        f"select from pg_rewrite as r {join} r.ev_class where c.relkind <> 'v' and {where}",
        f"select from pg_inherits as i {join} i.inhparent where c.relkind = 'r' and {where}",
    ):
        assert root.execute(query, (list(SCHEMAS),)).rowcount == 0


def test_org_id_is_in_every_key(world: Database) -> None:
    """org_id leads every primary and foreign key of a table of orgs, and is in every unique one."""
    found = rows(
        world.superuser(),
        """
        select c.oid::regclass::text || ' ' || k.relname as name,
            case when i.indisprimary then a.attname else (
                select o.attname from pg_attribute as o
                where o.attrelid = c.oid and o.attnum = any (i.indkey) and o.attname = 'org_id'
            ) end as first
        from pg_index as i
        join pg_class as c on c.oid = i.indrelid join pg_class as k on k.oid = i.indexrelid
        left join pg_attribute as a on a.attrelid = c.oid and a.attnum = i.indkey[0]
        where c.relnamespace::regnamespace::text = any (%(schemas)s) and i.indisunique and exists (
            select from pg_attribute as o where o.attrelid = c.oid and o.attname = 'org_id')
        union all
        select f.conrelid::regclass || ' ' || f.conname, a.attname
        from pg_constraint as f
        join pg_attribute as a on a.attrelid = f.conrelid and a.attnum = f.conkey[1]
        where f.contype = 'f' and f.connamespace::regnamespace::text = any (%(schemas)s)
            and f.confrelid <> 'knowledge.models'::regclass
        """,
        schemas=list(SCHEMAS),
    )
    assert len(found) > 15
    assert [row for row in found if row["first"] != "org_id"] == []


def test_nothing_is_set_for_the_session(functions: list[dict[str, Any]]) -> None:
    """Case 47: set_config is always transaction-local, and SET always LOCAL."""
    calls = 0
    for function in functions:
        source = re.sub(r"--[^\n]*", "", function["source"])
        for match in re.finditer(r"set_config\s*\(", source):
            depth, end = 1, match.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(source[end], 0)
                end += 1
            calls += 1
            assert re.search(r",\s*true\s*\)$", source[match.start() : end]), function["signature"]
        statements = re.findall(r"(?:^|;|begin|then)\s*set\s+(?!local\b)\w+\s*(?:=|to)\s", source)
        assert statements == [], function["signature"]
        assert not re.search(r"\breset\s+\w+\s*;", source)
    assert calls >= 3


def test_dynamic_sql_is_formatted(functions: list[dict[str, Any]]) -> None:
    """EXECUTE is given a format(), a text of literals, or a variable that holds one."""
    for function in functions:
        source = re.sub(r"--[^\n]*", "", function["source"])
        for after in re.findall(r"\bexecute\b\s+([^\s;]+)", source):
            made = re.findall(rf"\b{re.escape(after)}\b[^;\n]*:=\s*(\S+)", source)
            made += re.findall(rf"\bselect (\S+)[^;]*\binto {re.escape(after)}\b", source)
            for first in made or [after]:
                assert first.startswith(("format(", "'")), (function["signature"], first)


def test_random_numbers_count_nothing(world: Database, tables: list[dict[str, Any]]) -> None:
    """No sequence numbers the rows of orgs: an id does not tell how many others there are."""
    sequences = rows(
        world.superuser(),
        "select d.refobjid::regclass::text as name from pg_class as s join pg_depend as d"
        " on d.objid = s.oid and d.classid = 'pg_class'::regclass and d.deptype in ('a', 'i')"
        " where s.relkind = 'S' and s.relnamespace::regnamespace::text = any (%s)",
        list(SCHEMAS),
    )
    of_orgs = {f"{t['schema']}.{t['name']}" for t in tables if t["of_an_org"]}
    assert {s["name"] for s in sequences} & of_orgs == set()
