"""Case 27: a policy asks for the context once a statement, not once a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support import Database, as_context
from support.knowledge import publish

ORG_ONLY = {"orgs", "tags", "audiences", "audit_log"}
ASKING = ("current_org()", "readable_compartments()")


@pytest.fixture(scope="module")
def filled(shared: Database) -> Database:
    """An org with many chunks, and another."""
    backend = shared.connect("app_backend")
    for org in ("planned", "other"):
        with as_context(backend, org, ["hr"]):
            backend.execute("select knowledge.define_tag('hr')")
            backend.execute("select knowledge.define_audience('staff', '{hr}')")
            for i in range(4):
                bodies = [f"text {i} number {n}" for n in range(50)]
                publish(backend, f"d{i}", bodies, audience=[["staff"], ["everyone"]][i % 2])
    shared.superuser().execute("analyze")
    return shared


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan node and all below it."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def protected(db: Database) -> list[str]:
    """Tables of schema knowledge with a policy."""
    query = "select distinct tablename from pg_policies where schemaname = 'knowledge' order by 1"
    return [name for (name,) in db.superuser().execute(query)]


def explained(conn: psycopg.Connection[Any], query: sql.Composed) -> list[dict[str, Any]]:
    """The nodes of the plan, with what was done."""
    explain = sql.SQL("explain (analyze, verbose, costs off, timing off, format json) ") + query
    answer = conn.execute(explain).fetchone()[0]
    answer = json.loads(answer) if isinstance(answer, str) else answer
    return list(nodes(answer[0]["Plan"]))


@pytest.mark.parametrize("scans", ["any", "sequential"])
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_policies_are_initplans(filled: Database, scans: str, mode: str) -> None:
    """On every table each policy function is called once, in an InitPlan, whatever the plan."""
    admin = filled.connect("app_backend")
    admin.execute(f"set plan_cache_mode = {mode}")
    if scans == "sequential":
        admin.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    tables = protected(filled)
    assert {"chunks", "documents", "vectors_1", *ORG_ONLY} <= set(tables)
    for name in tables:
        with as_context(admin, "planned", ["hr"]):
            query = sql.SQL("select * from knowledge.{}").format(sql.Identifier(name))
            found = explained(admin, query)
        calls = []
        for node in found:
            asked = [f for f in ASKING if any(f in text for text in node.get("Output", ()))]
            if node.get("Parent Relationship") == "InitPlan":
                calls += asked
                assert node["Actual Loops"] == 1
            else:
                conditions = [v for k, v in node.items() if "Cond" in k or k == "Filter"]
                assert [c for c in conditions if "knowledge_private" in str(c)] == []
                assert asked == []
        wanted = ASKING[:1] if name in ORG_ONLY else ASKING
        assert sorted(calls) == sorted(wanted), name


def test_policy_functions_are_called_once(filled: Database) -> None:
    """The same, counted: a SELECT over 200 rows calls each policy function once."""
    root = filled.superuser()
    root.execute("set track_functions = 'all'")
    count = "select funcname, calls from pg_stat_xact_user_functions"
    with root.transaction():
        # The superuser counts, as the reader that it has become.
        role = sql.Identifier(filled.role("app_trusted"))
        root.execute(sql.SQL("set local role {}").format(role))
        root.execute("select knowledge.set_context('planned', '{hr}')")
        before = dict(root.execute(count).fetchall())
        assert root.execute("select body from knowledge.chunks").rowcount == 200
        after = dict(root.execute(count).fetchall())
    assert after["current_org"] - before.get("current_org", 0) == 1
    assert after["readable_compartments"] - before.get("readable_compartments", 0) == 1
    root.execute("reset track_functions")


def test_policies_can_use_an_index(filled: Database) -> None:
    """The comparisons of a policy are leakproof: on every table an index can serve them."""
    backend = filled.connect("app_backend")
    with as_context(backend, "divided"):
        # So many compartments, with so much in them, that the planner likes to look some up.
        for i in range(50):
            bodies = [f"text {n} of type {i}" for n in range(50)]
            publish(backend, f"d{i}", bodies, source_type=f"type {i}")
    filled.superuser().execute("analyze")
    backend.execute("set enable_seqscan = off")
    for name in protected(filled):
        with as_context(backend, "divided"):
            query = sql.SQL("select * from knowledge.{}").format(sql.Identifier(name))
            found = explained(backend, query)
        conditions = " ".join(str(node.get("Index Cond", "")) for node in found)
        # The two that are large and indexed by compartment; the planner may take either elsewhere.
        if name in ("chunks", "vectors_1"):
            assert "compartment_id = ANY" in conditions, name
        else:
            assert "org_id = " in conditions or "compartment_id = ANY" in conditions, name
