"""index_plan: which orgs have a vector index of their own, in statements that run as they are."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from support import Database, as_context
from support.bulk import Document, publish_all
from support.hostile import code_of
from support.knowledge import FINGERPRINT, publish, register, rows, search, toy_vector

PROMOTED = 20
WORDS = ["fox", "lamp", "bird", "tree", "moon", "fish", "gold"]


@pytest.fixture
def owner(db: Database) -> psycopg.Connection[Any]:
    """The role that applied the migration, having become knowledge_owner; autocommit."""
    register(db.connect("app_backend"))
    conn = db.installer()
    conn.execute("set role knowledge_owner")
    limit(conn, promoted_chunks=PROMOTED, promoted_orgs=100)
    return conn


def limit(conn: psycopg.Connection[Any], **given: int) -> None:
    """Changes settings, as the owner may."""
    for name, value in given.items():
        conn.execute(f"update knowledge_private.settings set {name} = %s", (value,))


def fill(db: Database, org: str, *sizes: int) -> None:
    """Gives an org documents named 0, 1, … of so many chunks."""
    documents = [
        Document(
            str(n),
            bodies := [f"{WORDS[(i + n) % 7]} {WORDS[i * 3 % 7]} {n} {i}" for i in range(size)],
            [toy_vector(body) for body in bodies],
        )
        for n, size in enumerate(sizes)
    ]
    with db.connect("app_backend") as conn, as_context(conn, org):
        publish_all(conn, FINGERPRINT, documents)


def plan(conn: psycopg.Connection[Any]) -> list[str]:
    """The statements."""
    return [r["statement"] for r in rows(conn, "select * from knowledge.index_plan()")]


def kinds(statements: list[str]) -> list[str]:
    """drop or create, each with the name of the index."""
    names = [s.removeprefix("create index concurrently ").split(" ")[0] for s in statements]
    return [
        f"drop {s.rpartition('.')[2]}" if s.startswith("drop ") else f"create {name}"
        for s, name in zip(statements, names, strict=True)
    ]


def follow(conn: psycopg.Connection[Any]) -> list[str]:
    """Runs the plan as it is; what it did. After that there is nothing to do."""
    statements = plan(conn)
    for statement in statements:
        conn.execute(statement)
    assert plan(conn) == []
    return kinds(statements)


def name_of(conn: psycopg.Connection[Any], org: str) -> str:
    (found,) = rows(conn, "select knowledge_private.index_name(%s, 1) as name", org)
    return str(found["name"])


def indexes(conn: psycopg.Connection[Any]) -> set[str]:
    """The vector indexes that are there and valid."""
    query = (
        "select c.relname from pg_class as c inner join pg_index as i on i.indexrelid = c.oid "
        "inner join pg_am as m on m.oid = c.relam where m.amname = 'hnsw' and i.indisvalid"
    )
    return {r["relname"] for r in rows(conn, query)}


def test_only_the_owner_may_ask(db: Database, owner: psycopg.Connection[Any]) -> None:
    """It is about all orgs: a role that may become knowledge_owner, and has."""
    for role in ("app_reader", "app_writer", "app_admin", "app_backend", "app_trusted"):
        conn = db.connect(role)
        assert code_of(conn, "select knowledge.index_plan()") == "42501"
    assert code_of(db.connect("app_nobody"), "select knowledge.index_plan()") == "42501"
    assert code_of(db.installer(), "select knowledge.index_plan()") == "42501"
    assert plan(owner) == []
    assert plan(db.superuser()) == []


def test_large_orgs_get_one_the_largest_first(db: Database, owner: psycopg.Connection[Any]) -> None:
    """From promoted_chunks on, not below; over all documents of the org together."""
    for org, sizes in {"a": (21,), "b": (30, 30), "c": (20,), "d": (19,), "e": (5,)}.items():
        fill(db, org, *sizes)
    asked = rows(owner, "select * from knowledge.index_plan()")
    assert [r["reason"] for r in asked] == [f"its org has {n} chunks" for n in (60, 21, 20)]
    assert follow(owner) == [f"create {name_of(owner, org)}" for org in "bac"]
    assert indexes(owner) == {name_of(owner, org) for org in "bac"}
    predicates = rows(
        owner,
        "select pg_get_expr(i.indpred, i.indrelid) as holds from pg_index as i "
        "inner join pg_class as c on c.oid = i.indexrelid where c.relname = any (%s)",
        [name_of(owner, org) for org in "abc"],
    )
    assert sorted(r["holds"] for r in predicates) == [f"(org_id = '{org}'::text)" for org in "abc"]


def test_not_more_than_promoted_orgs(db: Database, owner: psycopg.Connection[Any]) -> None:
    """A larger org takes the place of a smaller; the order is first drop, then create."""
    for org, size in {"a": 40, "b": 30, "c": 25}.items():
        fill(db, org, size)
    a, b, c, d = (name_of(owner, org) for org in "abcd")
    limit(owner, promoted_orgs=2)
    assert follow(owner) == [f"create {a}", f"create {b}"]
    fill(db, "d", 50)
    assert follow(owner) == [f"drop {b}", f"create {d}"]
    assert indexes(owner) == {a, d}
    limit(owner, promoted_orgs=3)
    assert follow(owner) == [f"create {b}"]
    limit(owner, promoted_orgs=0)
    assert follow(owner) == [f"drop {name}" for name in sorted([a, b, d])]
    assert indexes(owner) == set()
    limit(owner, promoted_orgs=100)
    assert follow(owner) == [f"create {name}" for name in (d, a, b, c)]


def test_the_cap_leaves_room_in_the_lock_table(
    db: Database, owner: psycopg.Connection[Any]
) -> None:
    """Case 51: as installed, so few indexes that many sessions can write, search and erase at once.

    Whoever writes or plans locks every index of the table, and all share one table of locks.
    """
    limit(owner, promoted_chunks=3)
    owner.execute("update knowledge_private.settings set promoted_orgs = default")
    orgs = [f"org {n:03}" for n in range(103)]
    for org in orgs:
        fill(db, org, 3)
    assert follow(owner) == [f"create {name_of(owner, org)}" for org in orgs[:100]]
    (server,) = rows(owner, "select current_setting('max_connections')::integer as connections")
    with ExitStack() as stack:
        for org in orgs[: server["connections"] // 4]:
            conn = stack.enter_context(db.connect("app_backend"))
            stack.enter_context(as_context(conn, org))
            publish(conn, "another", ["fox lamp"])
            assert len(search(conn, "fox", k=10)) == 4
            rows(conn, "select * from knowledge.delete_source('wiki', '0')")


def test_equal_orgs_keep_their_order(db: Database, owner: psycopg.Connection[Any]) -> None:
    """Which of several orgs of one size has the place does not change from call to call."""
    for org in ("m", "k", "l"):
        fill(db, org, 20)
    limit(owner, promoted_orgs=1)
    assert follow(owner) == [f"create {name_of(owner, 'k')}"]
    owner.execute("vacuum knowledge.compartments")
    assert plan(owner) == []


def test_an_org_that_shrinks_loses_it_below_half(
    db: Database, owner: psycopg.Connection[Any]
) -> None:
    """At half it stays, so that an org on the edge does not come and go; and it may come again."""
    fill(db, "a", 10, 9, 1)
    name = name_of(owner, "a")
    assert follow(owner) == [f"create {name}"]
    conn = db.connect("app_backend")
    for source_id, expected in (("1", []), ("2", []), ("0", [f"drop {name}"])):
        with as_context(conn, "a"):
            conn.execute("select from knowledge.delete_source('wiki', %s)", (source_id,))
            if source_id == "2":
                (left,) = rows(conn, "select count(chunk_id) as n from knowledge.chunks")
                assert left["n"] == PROMOTED // 2
        asked = rows(owner, "select * from knowledge.index_plan()")
        assert kinds([r["statement"] for r in asked]) == expected
        assert all(r["reason"] == "its org is too small for it, or gone" for r in asked)
    assert follow(owner) == [f"drop {name}"]
    fill(db, "a", 19)
    assert plan(owner) == []
    fill(db, "a", 20)
    assert follow(owner) == [f"create {name}"]


def test_one_chunk_below_half(db: Database, owner: psycopg.Connection[Any]) -> None:
    """The border is exact, also of an odd number."""
    limit(owner, promoted_chunks=7)
    fill(db, "a", 3, 1, 3)
    name = name_of(owner, "a")
    assert follow(owner) == [f"create {name}"]
    conn = db.connect("app_backend")
    for source_id, expected in (("0", []), ("1", [f"drop {name}"])):
        with as_context(conn, "a"):
            conn.execute("select from knowledge.delete_source('wiki', %s)", (source_id,))
        assert kinds(plan(owner)) == expected


def test_an_org_that_left_leaves_none(db: Database, owner: psycopg.Connection[Any]) -> None:
    """Offboarding drops the index; one that is left over all the same is in the plan."""
    fill(db, "a", 30)
    name = name_of(owner, "a")
    (create,) = plan(owner)
    assert follow(owner) == [f"create {name}"]
    conn = db.connect("app_backend")
    with as_context(conn, "a"):
        conn.execute("select from knowledge.delete_by_scope(false, true)")
    assert indexes(owner) == set()
    assert plan(owner) == []
    owner.execute(create)
    assert follow(owner) == [f"drop {name}"]
    assert indexes(owner) == set()


def test_an_interrupted_build_is_made_anew(db: Database, owner: psycopg.Connection[Any]) -> None:
    """An INVALID index is dropped first, and not searched until then; the answer is right."""
    fill(db, "a", 30)
    fill(db, "b", 5)
    name = name_of(owner, "a")
    follow(owner)
    limit(owner, exact_rows=0)
    superuser = db.superuser()
    superuser.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass",
        (f"knowledge.{name}",),
    )
    assert indexes(owner) == set()
    with db.connect("app_trusted") as conn, as_context(conn, "a"):
        (explained,) = search(conn, "fox lamp", "explain_search", k=7)
        assert explained["explain_search"]["vector"]["plan"] == "exact"
        assert len(search(conn, "fox lamp", k=7)) == 7
    asked = rows(owner, "select * from knowledge.index_plan()")
    assert [r["reason"] for r in asked] == ["its build was interrupted", "its org has 30 chunks"]
    assert follow(owner) == [f"drop {name}", f"create {name}"]
    assert indexes(owner) == {name}
    # And where the org has shrunk meanwhile, it is only dropped.
    superuser.execute(
        "update pg_index set indisvalid = false where indexrelid = %s::regclass",
        (f"knowledge.{name}",),
    )
    limit(owner, promoted_chunks=1000)
    assert follow(owner) == [f"drop {name}"]


@pytest.mark.parametrize("org", ["o'r\"g", "back\\slash", "%s %I $1", "'; drop table x; --", "狐"])
def test_any_name_of_an_org(db: Database, owner: psycopg.Connection[Any], org: str) -> None:
    """The statement is quoted as it must be."""
    fill(db, org, PROMOTED)
    (statement,) = plan(owner)
    with db.connect("app_backend") as conn, as_context(conn, org):
        before = search(conn, "fox", k=PROMOTED)
    owner.execute(statement)
    assert plan(owner) == []
    limit(owner, exact_rows=0)
    with db.connect("app_backend") as conn, as_context(conn, org):
        (explained,) = search(conn, "fox", "explain_search", k=PROMOTED)
        assert explained["explain_search"]["vector"]["plan"] == "index"
        assert search(conn, "fox", k=PROMOTED) == before


def test_equal_vectors_earn_no_index(db: Database, owner: psycopg.Connection[Any]) -> None:
    """Case 50: above alike_vectors of them none is made, and one that is there goes."""
    limit(owner, alike_vectors=10)
    name = name_of(owner, "a")
    conn = db.connect("app_backend")

    def equal(count: int) -> None:
        bodies = [f"fox {i}" for i in range(count)]
        document = Document("equal", bodies, [toy_vector("fox")] * count)
        with as_context(conn, "a"):
            publish_all(conn, FINGERPRINT, [document])

    fill(db, "a", 30)
    equal(11)
    assert plan(owner) == []
    equal(10)
    assert follow(owner) == [f"create {name}"]
    equal(11)
    asked = rows(owner, "select * from knowledge.index_plan()")
    assert [r["reason"] for r in asked] == ["its org has too many equal vectors"]
    assert follow(owner) == [f"drop {name}"]


def test_other_indexes_are_none_of_its_business(
    db: Database, owner: psycopg.Connection[Any]
) -> None:
    """An index of another kind is left alone."""
    owner.execute("create index by_document on knowledge.vectors_1 (document_id)")
    fill(db, "a", 5)
    assert plan(owner) == []


def scans(db: Database) -> int:
    query = "select coalesce(sum(idx_scan), 0) from pg_stat_user_indexes where indexrelname like %s"
    with db.server.connect(db.name) as superuser:
        (found,) = superuser.execute(query, ("vectors\\_1\\_of\\_%",)).fetchone()
    return int(found)


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_a_search_uses_it_and_answers_the_same(
    db: Database, owner: psycopg.Connection[Any], mode: str
) -> None:
    """Rows, ranks and scores before, with, and after the index are equal."""
    fill(db, "a", 150, 100)
    fill(db, "b", 30)
    limit(owner, exact_rows=20)
    conn = db.connect("app_trusted")

    def ask(org: str, **given: Any) -> tuple[list[Any], int]:
        """The answers, and how many scans of an index they took."""
        before = scans(db)
        with as_context(conn, org):
            found = [
                search(conn, query, mode=mode, k=k, **given)
                for query in ("fox lamp", "moon", "tree fish gold")
                for k in (1, 10, 120)
            ]
        conn.execute("select pg_stat_force_next_flush()")
        conn.execute("select")
        return found, scans(db) - before

    expected, used = ask("a")
    assert used == 0
    limit(owner, promoted_chunks=100)
    assert follow(owner) == [f"create {name_of(owner, 'a')}"]
    found, used = ask("a")
    assert used == len(found) == 9
    assert found == expected
    assert ask("a", options={"plan": "exact"}) == (expected, 0)
    assert ask("b")[1] == 0
    limit(owner, promoted_chunks=1000)
    follow(owner)
    assert ask("a") == (expected, 0)
