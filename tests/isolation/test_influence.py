"""Promise 1: what a caller may not read changes no row, rank, score, count or error for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support import Database, as_context
from support.hostile import error_of
from support.knowledge import (
    begin,
    embed,
    promote,
    publish,
    rows,
    search,
    stage,
    toy_vector,
    vector_text,
)

OWN = {
    "apples": ["red apple on a tree", "green apple under a tree", "an apple a day"],
    "pears": ["yellow pear", "a pear and an apple", "two pears on the tree"],
    "stones": ["grey stone", "a stone on the road"],
}
# The same words, the same texts, and many more of them.
FOREIGN = [text for bodies in OWN.values() for text in bodies] + [
    f"apple apple pear tree number {i}" for i in range(40)
]
QUERIES = ("apple pear tree", '"red apple" stone', "pear -yellow", "zebra")


def vocabulary(conn: psycopg.Connection[Any]) -> None:
    for tag in ("mine", "theirs"):
        conn.execute("select knowledge.define_tag(%s)", (tag,))
        conn.execute("select knowledge.define_audience(%s, %s)", (tag, [tag]))


def measure(conn: psycopg.Connection[Any], org: str, listings: bool = True) -> dict[str, Any]:
    """Everything that a caller of the org with the tag mine can learn."""
    seen: dict[str, Any] = {}
    with as_context(conn, org, ["mine"], "north"):
        for query in QUERIES:
            for mode in ("hybrid", "vector", "keyword"):
                seen[f"{query}, {mode}, 50"] = search(conn, query, mode=mode, k=50)
                exact = search(conn, query, mode=mode, k=50, options={"plan": "exact"})
                seen[f"{query}, {mode}, compared"] = exact
                specified = search(conn, query, "search_exact", mode=mode, k=50)
                seen[f"{query}, {mode}, specified"] = specified
            narrow = {"source_types": ["wiki"], "metadata": {"kind": "fruit"}}
            seen[f"{query}, narrowed"] = search(conn, query, k=50, **narrow)
        for name in ("get_source('wiki', 'foreign')", "get_source('wiki', 'apples')"):
            call = f"select * from knowledge.{name}"
            refused = error_of(conn, call)
            seen[name] = refused and (refused.sqlstate, refused.message_primary)
        vector = vector_text(toy_vector("apple"))
        for arguments in (
            (None, vector, "another model"),
            ("apple", vector_text([1.0]), "toy:8"),
            ("apple", vector_text([0.0] * 8), "toy:8"),
        ):
            call = "select knowledge.search_scoped(%s, %s, fingerprint => %s)"
            refused = error_of(conn, call, arguments)
            assert refused is not None
            seen[f"error of {arguments}"] = (
                refused.sqlstate,
                refused.message_primary,
                refused.message_detail,
                refused.message_hint,
            )
        if listings:
            seen["stats"] = rows(conn, "select * from knowledge.stats()")
            seen["sources"] = rows(conn, "select * from knowledge.list_sources()")
            for name in ("compartments", "documents", "chunks", "places", "positions", "vectors_1"):
                query = sql.SQL("select t::text as row from knowledge.{} as t order by 1")
                seen[name] = conn.execute(query.format(sql.Identifier(name))).fetchall()
    return seen


def plant(conn: psycopg.Connection[Any], org: str, kind: str) -> list[tuple[str, str | None]]:
    """Documents that the caller of measure may not read, or did not ask for; where they are."""
    given: dict[str, Any] = {"metadata": {"kind": "fruit"}}
    places: list[tuple[str, str | None]] = [(org, "north")]
    if kind == "other org":
        places = [(f"{org}-too", None), (f"{org}-too", "north")]
    elif kind == "other scope":
        places = [(org, "south"), (org, "nort")]
    elif kind == "other audience":
        given["audience"] = ["theirs"]
        places = [(org, None), (org, "north")]
    else:
        given["visibility"] = "draft"
    for name, scope in places:
        with as_context(conn, name, ["mine", "theirs"], scope):
            for i in range(3):
                publish(conn, f"foreign {i}", FOREIGN, **given)
    return places


def erase(conn: psycopg.Connection[Any], places: list[tuple[str, str | None]]) -> None:
    """Take back what plant made."""
    for name, scope in places:
        with as_context(conn, name, [], scope):
            for i in range(3):
                conn.execute("select knowledge.delete_source('wiki', %s)", (f"foreign {i}",))


@pytest.fixture
def settings(shared: Database) -> Iterator[Callable[[str], None]]:
    """Changes the settings of the database; back at the end."""
    names = ("exact_rows", "index_share", "candidates", "paired_candidates", "long_list")
    query = f"select {', '.join(names)} from knowledge_private.settings"
    before = shared.superuser().execute(query).fetchone()

    def change(assignments: str) -> None:
        shared.superuser().execute(f"update knowledge_private.settings set {assignments}")

    yield change
    change(", ".join(f"{name} = {value}" for name, value in zip(names, before, strict=True)))


def maintain(db: Database) -> None:
    """Count the common lexemes of compartments, as the DBA does now and then."""
    owner = db.installer()
    owner.execute("set role knowledge_owner")
    owner.execute("select knowledge.maintain()")


def index_was_used(conn: psycopg.Connection[Any], org: str, index: str) -> bool:
    """Whether a search of the org goes through its index."""
    count = "select pg_stat_get_xact_numscans(to_regclass('knowledge.' || quote_ident(%s)))"
    with as_context(conn, org, ["mine"], "north"):
        before = conn.execute(count, (index,)).fetchone()
        search(conn, "apple", mode="vector")
        return conn.execute(count, (index,)).fetchone() != before


@pytest.mark.parametrize("kind", ["other org", "other scope", "other audience", "other label"])
@pytest.mark.parametrize("way", ["compared", "indexed", "counted"])
def test_foreign_documents_change_nothing(
    shared: Database, org: str, settings: Callable[[str], None], kind: str, way: str
) -> None:
    """Forbidden documents with the same words and vectors leave every answer as it was."""
    backend = shared.connect("app_backend")
    for name in (org, f"{org}-too"):
        with as_context(backend, name):
            vocabulary(backend)
    given = {"metadata": {"kind": "fruit"}}
    with as_context(backend, org, ["mine"], "north"):
        publish(backend, "pears", OWN["pears"], audience=["mine"], **given)
    with as_context(backend, org, ["mine"]):
        publish(backend, "apples", OWN["apples"], **given)
        publish(backend, "stones", OWN["stones"])
    if way == "counted":
        settings("candidates = 10, paired_candidates = 30")
        maintain(shared)
    if way == "indexed":
        settings("exact_rows = 0, index_share = 0")
        # So few rows that the planner would rather sort them.
        backend.execute("set enable_sort = off; set enable_bitmapscan = off")
        backend.execute("set enable_seqscan = off")
        index = promote(shared.superuser(), org)
        assert index_was_used(backend, org, index)
    listings = kind != "other label"  # they may be read, and are listed; a search must ask for them

    before = measure(backend, org, listings)
    assert len(before["apple pear tree, hybrid, 50"]) == 8
    assert before["zebra, keyword, 50"] == []
    places = plant(backend, org, kind)
    assert measure(backend, org, listings) == before
    if way == "counted":
        maintain(shared)
        assert measure(backend, org, listings) == before
    if way == "indexed":
        for name in {org, *(name for name, _ in places)}:
            promote(shared.superuser(), name)
        assert index_was_used(backend, org, index)
        assert measure(backend, org, listings) == before
    erase(backend, places)
    assert measure(backend, org, listings) == before


def test_own_documents_change_something(shared: Database, org: str) -> None:
    """The test above could fail: readable documents with the same words do change the scores."""
    backend = shared.connect("app_backend")
    with as_context(backend, org, ["mine"], "north"):
        publish(backend, "apples", OWN["apples"])
        publish(backend, "stones", OWN["stones"])
    before = measure(backend, org)
    with as_context(backend, org, ["mine"], "north"):
        publish(backend, "foreign 0", FOREIGN)
    after = measure(backend, org)
    unchanged = [key for key in before if before[key] == after[key]]
    same = ("error of", "get_source('wiki', 'foreign')", "get_source('wiki', 'apples')", "zebra")
    assert [key for key in unchanged if not key.startswith(same) and "narrowed" not in key] == []


def test_an_unfinished_ingest_changes_nothing(shared: Database, org: str) -> None:
    """What is being ingested is neither found nor counted, not even for its writer."""
    backend = shared.connect("app_backend")
    with as_context(backend, org, ["mine"], "north"):
        publish(backend, "apples", OWN["apples"])
    before = measure(backend, org)
    with as_context(backend, org, ["mine"], "north"):
        for source in ("apples", "foreign"):
            version = begin(backend, source, FOREIGN)
            stage(backend, version, FOREIGN)
            embed(backend, version, FOREIGN, range(10))
    assert measure(backend, org) == before


def test_compartment_lists_of_any_length_permit_the_same(
    shared: Database, org: str, settings: Callable[[str], None]
) -> None:
    """The permitted compartments are the same as a literal list and as what a long one becomes."""
    backend = shared.connect("app_backend")
    with as_context(backend, org):
        vocabulary(backend)
        for i in range(6):
            audience = ["mine"] if i % 2 else ["theirs"]
            given = {"audience": audience, "source_type": f"type {i}"}
            publish(backend, f"d{i}", [f"apple number {i}"], **given)
    found = {}
    for length in (1000, 0):
        settings(f"long_list = {length}")
        for grants in ([], ["mine"], ["theirs"], ["mine", "theirs"]):
            with as_context(backend, org, grants):
                found[length, *grants] = search(backend, "apple number", k=50)
    sizes = {key: len(value) for key, value in found.items()}
    assert set(sizes.values()) == {0, 3, 6}
    for key, value in found.items():
        assert value == found[1000, *key[1:]]
