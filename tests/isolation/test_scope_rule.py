"""Rule A: reads see org-wide rows and those of exactly the caller's scope; writes are exact."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from support import Database, as_context
from support.hostile import error_of, undone
from support.knowledge import begin, publish, rows, search

SCOPES = (None, "a", "b")
VISIBLE = {None: {None}, "a": {None, "a"}, "b": {None, "b"}}


def body(scope: str | None) -> str:
    return f"common text of {scope}"


@pytest.fixture(scope="module")
def scopes(shared: Database) -> str:
    """An org, and another like it, with the same source in each scope, in two versions."""
    backend = shared.connect("app_backend")
    for org in ("scoped", "likewise"):
        for scope in SCOPES:
            with as_context(backend, org, ["t"], scope):
                publish(backend, "plan", ["an older text"])
                publish(backend, "plan", [body(scope)])
                publish(backend, f"note-{scope}", [f"note of {scope}"], source_type="note")
    return "scoped"


def state(conn: psycopg.Connection[Any], org: str) -> dict[str | None, Any]:
    """What each scope itself holds, as a caller of that scope sees it."""
    held = {}
    for scope in SCOPES:
        with undone(conn):
            conn.execute("select knowledge.set_context(%s, '{t}', %s)", (org, scope))
            held[scope] = [
                (row["source_id"], row["content_hash"], row["chunks"])
                for row in rows(conn, "select * from knowledge.list_sources()")
                if row["org_scope"] == scope
            ]
    return held


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_search_follows_rule_a(
    shared: Database, scopes: str, scope: str | None, function: str, mode: str
) -> None:
    """Org-wide rows and those of exactly the own scope; without a scope, org-wide rows only."""
    caller = shared.connect("app_backend")
    with as_context(caller, scopes, [], scope):
        found = search(caller, "common text", function, mode=mode, k=50)
        texts = dict(caller.execute("select chunk_id, body from knowledge.chunks").fetchall())
    seen = {texts[row["chunk_id"]] for row in found}
    expected = {body(s) for s in VISIBLE[scope]}
    assert {text for text in seen if text.startswith("common")} == expected
    assert {text.split()[-1] for text in seen} <= {str(s) for s in VISIBLE[scope]}


@pytest.mark.parametrize("scope", SCOPES)
def test_tables_follow_rule_a(shared: Database, scopes: str, scope: str | None) -> None:
    """A direct SELECT on each table that belongs to a compartment shows the same rows."""
    caller = shared.connect("app_backend")
    everything = rows(
        shared.superuser(),
        "select c.org_id, c.compartment_id, c.org_scope from knowledge.compartments as c",
    )
    opened = {
        (row["org_id"], row["compartment_id"])
        for row in everything
        if row["org_id"] == scopes and row["org_scope"] in VISIBLE[scope]
    }
    for name in ("compartments", "documents", "chunks", "places", "positions", "vectors_1"):
        query = sql.SQL("select org_id, compartment_id from knowledge.{}")
        with as_context(caller, scopes, [], scope):
            seen = caller.execute(query.format(sql.Identifier(name))).fetchall()
        assert set(seen) == opened
        assert len(seen) == 2 * len(VISIBLE[scope])


@pytest.mark.parametrize("scope", SCOPES)
def test_listing_follows_rule_a(shared: Database, scopes: str, scope: str | None) -> None:
    """list_sources and stats follow the same rule; get_source prefers the own scope."""
    caller = shared.connect("app_trusted")
    with as_context(caller, scopes, [], scope):
        listed = rows(caller, "select * from knowledge.list_sources()")
        assert {row["org_scope"] for row in listed} == VISIBLE[scope]
        assert len(listed) == 2 * len(VISIBLE[scope])
        got = rows(caller, "select * from knowledge.get_source('wiki', 'plan')")
        assert [row["org_scope"] for row in got] == [scope]
        stats = rows(caller, "select sum(documents) as n from knowledge.stats()")
        assert stats == [{"n": len(listed)}]
        for other in SCOPES:
            query = "select * from knowledge.get_source('note', %s)"
            refused = error_of(caller, query, (f"note-{other}",))
            assert (refused is None) == (other in VISIBLE[scope])


@pytest.mark.parametrize("scope", SCOPES)
def test_live_version_is_of_exactly_the_scope(
    shared: Database, scopes: str, scope: str | None
) -> None:
    """A writer looks only where it would write: neither at the org-wide document nor at others."""
    caller = shared.connect("app_backend")
    query = "select document_id from knowledge.live_version('note', %s)"
    for org in (scopes, "another org"):
        with as_context(caller, org, [], scope):
            for other in SCOPES:
                found = rows(caller, query, f"note-{other}")
                assert len(found) == (org == scopes and other == scope)


@pytest.mark.parametrize("scope", SCOPES)
def test_begin_version_writes_exactly_its_scope(
    shared: Database, scopes: str, scope: str | None
) -> None:
    """Publishing the same source_id touches the document of the caller's scope and no other."""
    backend = shared.connect("app_backend")
    with undone(backend):
        before, foreign = state(backend, scopes), state(backend, "likewise")
        with as_context(backend, scopes, ["t"], scope):
            publish(backend, "plan", ["a newer text", "in two chunks"])
        after = state(backend, scopes)
        assert state(backend, "likewise") == foreign
    changed = {s for s in SCOPES if before[s] != after[s]}
    assert changed == {scope}
    assert {len(held) for held in after.values()} == {2}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("owner", SCOPES)
def test_delete_source_deletes_exactly_its_scope(
    shared: Database, scopes: str, scope: str | None, owner: str | None
) -> None:
    """An org-wide document is visible in a scope, but deleted only without one."""
    backend = shared.connect("app_backend")
    with undone(backend):
        before = state(backend, scopes)
        with as_context(backend, scopes, ["t"], scope):
            query = "select chunks from knowledge.delete_source('note', %s)"
            refused = error_of(backend, query, (f"note-{owner}",))
            if refused is None:
                backend.execute(query, (f"note-{owner}",))
        after = state(backend, scopes)
    assert (refused and refused.sqlstate) == (None if owner == scope else "KB004")
    assert {s for s in SCOPES if before[s] != after[s]} == ({scope} if owner == scope else set())


@pytest.mark.parametrize("scope", SCOPES)
def test_prune_versions_prunes_exactly_its_scope(
    shared: Database, scopes: str, scope: str | None
) -> None:
    """Ended versions of other scopes stay: each scope has one to prune, whoever pruned before."""
    backend = shared.connect("app_backend")
    prune = "select knowledge.prune_versions(0)"
    with undone(backend):
        with as_context(backend, scopes, [], scope):
            assert backend.execute(prune).fetchone() == (1,)
            assert backend.execute(prune).fetchone() == (0,)
        for org in (scopes, "likewise"):
            for other in SCOPES:
                with as_context(backend, org, [], other):
                    left = backend.execute(prune).fetchone()
                assert left == (0 if (org, other) == (scopes, scope) else 1,)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("source_types", [None, [], ["wiki"]])
def test_delete_by_scope_erases_exactly_its_scope(
    shared: Database, scopes: str, scope: str | None, source_types: list[str] | None
) -> None:
    """Without a scope it erases org-wide rows only; an empty list of types erases nothing."""
    backend = shared.connect("app_backend")
    query = "select documents from knowledge.delete_by_scope(%s, source_types => %s)"
    with undone(backend):
        before, foreign = state(backend, scopes), state(backend, "likewise")
        with as_context(backend, scopes, [], scope):
            counted = backend.execute(query, (True, source_types)).fetchone()
            assert state(backend, scopes) == before
        with as_context(backend, scopes, [], scope):
            erased = backend.execute(query, (False, source_types)).fetchone()
        after = state(backend, scopes)
        assert state(backend, "likewise") == foreign
    expected = {None: 2, "wiki": 1}.get(source_types[0] if source_types else None, 0)
    expected = 0 if source_types == [] else expected
    assert (counted, erased) == ((expected,), (expected,))
    assert {s: len(before[s]) - len(after[s]) for s in SCOPES} == {
        s: expected if s == scope else 0 for s in SCOPES
    }


def test_entire_org_spares_other_orgs(shared: Database, scopes: str) -> None:
    """Case 39: erasing a whole org takes all its scopes and nothing of anybody else."""
    backend = shared.connect("app_backend")
    query = "select documents from knowledge.delete_by_scope(false, entire_org => true)"
    with undone(backend):
        foreign = state(backend, "likewise")
        with as_context(backend, scopes):
            assert backend.execute(query).fetchone() == (6,)
        assert state(backend, "likewise") == foreign
        with as_context(backend, scopes, ["t"], "a"):
            refused = error_of(backend, "select knowledge.search_scoped('common')")
    assert refused is not None
    assert refused.sqlstate == "KB011"


@pytest.mark.parametrize("scope", SCOPES)
def test_a_version_belongs_to_its_scope(shared: Database, scopes: str, scope: str | None) -> None:
    """Only a caller of exactly the scope that began a version may go on with it."""
    backend = shared.connect("app_backend")
    with undone(backend):
        with as_context(backend, scopes, ["t"], scope):
            version = begin(backend, "unfinished", ["x"])
        codes = {}
        for other in SCOPES:
            with as_context(backend, scopes, ["t"], other):
                refused = error_of(
                    backend, "select knowledge.abort_version(%s)", (version["version_id"],)
                )
                codes[other] = refused and refused.sqlstate
    assert codes == {s: None if s == scope else "KB004" for s in SCOPES}


def test_scopes_match_exactly(shared: Database, org: str) -> None:
    """A scope is a name: no prefix, no pattern, no case folding."""
    backend = shared.connect("app_backend")
    with as_context(backend, org, [], "North"):
        publish(backend, "d", ["a text of the north"])
    for other in (None, "north", "Nort", "North ", "%", "N%", "*", "North/East", "NULL"):
        with as_context(backend, org, [], other):
            assert search(backend, "text north") == []
            assert rows(backend, "select * from knowledge.chunks") == []
    with as_context(backend, org, [], "North"):
        assert len(search(backend, "text north")) == 1


def test_orgs_match_exactly(shared: Database, org: str) -> None:
    """So is an org."""
    backend = shared.connect("app_backend")
    with as_context(backend, f"{org}-X"):
        publish(backend, "d", ["a text of x"])
    for other in (org, f"{org}-x", f"{org}-X ", f"{org}-_", "%", f"{org}-X\u200b"):
        with as_context(backend, other):
            assert search(backend, "text x") == []
            assert rows(backend, "select * from knowledge.chunks") == []
    with as_context(backend, f"{org}-X"):
        assert len(search(backend, "text x")) == 1
