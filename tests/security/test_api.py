"""The public API is what api.txt says: names, arguments, defaults, results, grants.

A signature is frozen once it is released. After a change that is meant:

    PG_KNOWLEDGE_WRITE_API=1 make test ARGS=tests/security/test_api.py

and read the diff of api.txt.
"""

from __future__ import annotations

import os
from pathlib import Path

from support import Database
from support.knowledge import rows

GOLDEN = Path(__file__).with_name("api.txt")
FUNCTIONS = """
    select p.proname as name, p.prokind::text as kind, pg_get_function_result(p.oid) as result,
        p.provolatile::text as volatile, p.prosecdef as definer,
        (select array_agg(pg_get_function_arg_default(p.oid, i) order by i)
            from generate_series(1, p.pronargs) as i) as defaults,
        (select array_agg(format_type(t, null) order by i)
            from unnest(p.proargtypes) with ordinality as a (t, i)) as types,
        p.proargnames as names,
        array(
            select a.grantee::regrole::text
            from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
            where a.grantee <> p.proowner order by 1
        ) as callers
    from pg_proc as p where p.pronamespace = 'knowledge'::regnamespace
    order by p.proname, p.oid::regprocedure::text
"""
TABLES = """
    select c.relname as name, c.relkind::text as kind, array(
            select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
            from pg_attribute as a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            order by a.attnum
        ) as columns,
        array(
            select a.grantee::regrole::text from aclexplode(c.relacl) as a
            where a.grantee <> c.relowner order by 1
        ) as readers
    from pg_class as c
    where c.relnamespace = 'knowledge'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
    order by c.relname
"""
VOLATILE = {"i": "immutable", "s": "stable", "v": "volatile"}


def described(db: Database) -> str:
    """The API as text."""
    root = db.superuser()
    root.execute("set search_path = pg_catalog, extensions")
    lines = ["# Written by test_api.py; see there.", ""]
    for row in rows(root, FUNCTIONS):
        kind = {"f": "function", "p": "procedure"}[row["kind"]]
        lines.append(f"{kind} knowledge.{row['name']}")
        types = row["types"] or []
        given = zip(row["names"] or [], types, row["defaults"] or [], strict=False)
        for name, kind_of, default in given:
            lines.append(f"    {name} {kind_of}" + (f" default {default}" if default else ""))
        lines.append(f"  returns {row['result']}")
        rights = "definer" if row["definer"] else "invoker"
        lines.append(f"  {VOLATILE[row['volatile']]}, security {rights}")
        lines += [f"  execute: {', '.join(row['callers']) or 'nobody'}", ""]
    for row in rows(root, TABLES):
        lines.append(f"{'view' if row['kind'] == 'v' else 'table'} knowledge.{row['name']}")
        lines += [f"    {column}" for column in row["columns"]]
        lines += [f"  select: {', '.join(row['readers']) or 'nobody'}", ""]
    return "\n".join(lines)


def test_api_is_as_written_down(world: Database) -> None:
    """Promise to clients: nothing in the API changes unnoticed."""
    found = described(world)
    if os.environ.get("PG_KNOWLEDGE_WRITE_API"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
