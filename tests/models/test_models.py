"""Vectors of different models never meet, also when their dimensions agree."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support import Database, Server, as_context, wait_until
from support.knowledge import (
    FINGERPRINT,
    begin,
    embed,
    finalize,
    publish,
    register,
    rows,
    search,
    stage,
    toy_vector,
    vector_text,
)

TEXT = ["alpha text", "beta text"]
GOOD = vector_text(toy_vector("alpha"))
STORE = "select knowledge.store_embeddings(%s, %s, %s, %s, %s)"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def kb(server: Server) -> Iterator[Database]:
    """One database with the toy model, and another one of the same dimensions."""
    with server.database() as database:
        admin = database.connect("app_admin")
        register(admin)
        admin.execute("select knowledge.register_model('swapped', 8, 'swapped:8')")
        yield database


@pytest.fixture
def admin(kb: Database) -> Iterator[psycopg.Connection[Any]]:
    with kb.connect("app_admin") as conn:
        yield conn


@pytest.fixture
def backend(kb: Database) -> Iterator[psycopg.Connection[Any]]:
    with kb.connect("app_backend") as conn:
        yield conn


@pytest.fixture
def root(kb: Database) -> Iterator[psycopg.Connection[Any]]:
    """The superuser, to look with."""
    with kb.superuser() as conn:
        yield conn


@pytest.fixture
def org() -> str:
    return f"org {next(_numbers)}"


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value


def register_as(conn: psycopg.Connection[Any], name: Any, dimensions: Any, fingerprint: Any) -> int:
    query = "select knowledge.register_model(%s, %s, %s) as id"
    return int(rows(conn, query, name, dimensions, fingerprint)[0]["id"])


def waiting(root: psycopg.Connection[Any], conn: psycopg.Connection[Any]) -> bool:
    query = "select from pg_locks where pid = %s and not granted"
    return bool(root.execute(query, (conn.info.backend_pid,)).rowcount)


def count(conn: psycopg.Connection[Any]) -> tuple[int, int]:
    (row,) = rows(
        conn,
        "select (select count(*) from knowledge.models) as m, (select count(*) from pg_class"
        " where relname ~ '^vectors_[0-9]+$') as t",
    )
    return row["m"], row["t"]


# -- registering


def test_register_again(admin: psycopg.Connection[Any], root: psycopg.Connection[Any]) -> None:
    """The same call answers the same model and makes nothing."""
    before = count(root)
    first = register_as(admin, "again", 3, "again:3")
    assert count(root) == (before[0] + 1, before[1] + 1)
    assert register_as(admin, "again", 3, "again:3") == first
    assert count(root) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(
    "given",
    [
        ("toy", 8, "new:8"),
        ("toy", 9, FINGERPRINT),
        ("new", 8, FINGERPRINT),
        ("toy", 8, "swapped:8"),
        ("swapped", 8, FINGERPRINT),
    ],
)
def test_conflicts(
    admin: psycopg.Connection[Any], root: psycopg.Connection[Any], given: tuple[Any, ...]
) -> None:
    """A name or fingerprint that is taken with other values: KB007, nothing is changed."""
    before = rows(root, "select * from knowledge.models order by 1"), count(root)
    with refused("KB007"):
        register_as(admin, *given)
    assert (rows(root, "select * from knowledge.models order by 1"), count(root)) == before


@pytest.mark.parametrize(
    "given",
    [
        ("m", 0, "f"),
        ("m", -1, "f"),
        ("m", 4001, "f"),
        ("m", None, "f"),
        ("", 8, "f"),
        (" ", 8, "f"),
        (None, 8, "f"),
        ("m", 8, ""),
        ("m", 8, None),
        ("m\n", 8, "f"),
    ],
)
def test_malformed(
    admin: psycopg.Connection[Any], root: psycopg.Connection[Any], given: tuple[Any, ...]
) -> None:
    """KB005, and nothing is made."""
    before = count(root)
    with refused("KB005"):
        register_as(admin, *given)
    assert count(root) == before


@pytest.mark.parametrize("dimensions", [1, 4000])
def test_smallest_and_largest(
    admin: psycopg.Connection[Any],
    backend: psycopg.Connection[Any],
    org: str,
    dimensions: int,
) -> None:
    """Models of 1 and of 4000 dimensions are published and searched like any other."""
    fingerprint = f"size:{dimensions}"
    register_as(admin, f"size {dimensions}", dimensions, fingerprint)
    vector = vector_text([0.5] * dimensions)
    with as_context(backend, org):
        version = begin(backend, "doc", TEXT, fingerprint=fingerprint)
        stage(backend, version, TEXT)
        backend.execute(
            STORE, (version["version_id"], version["lease"], fingerprint, [0, 1], [vector] * 2)
        )
        assert finalize(backend, version)["complete"]
        found = search(backend, None, embedding=vector, fingerprint=fingerprint)
    assert len(found) == 2
    assert found[0]["vector_distance"] == pytest.approx(0, abs=1e-3)


def test_quotes_in_a_name(admin: psycopg.Connection[Any], root: psycopg.Connection[Any]) -> None:
    """A name with quotes is a name: it reaches the comment of the table as it is."""
    name = """it's "a" %I $$ model; drop table x --"""
    model = register_as(admin, name, 3, name)
    (row,) = rows(root, "select obj_description(%s::regclass) as c", f"knowledge.vectors_{model}")
    assert name in row["c"]


def test_many_register_at_once(kb: Database, root: psycopg.Connection[Any]) -> None:
    """Eight sessions that register the same model get one."""

    def work(_: int) -> int:
        with kb.server.connect(kb.name, "app_admin") as conn:
            return register_as(conn, "at once", 3, "at once:3")

    before = count(root)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8)))) == 1
    assert count(root) == (before[0] + 1, before[1] + 1)


def test_registering_waits(kb: Database, root: psycopg.Connection[Any]) -> None:
    """Who registers what another is just registering waits, and answers the same model."""
    with (
        kb.connect("app_admin", autocommit=False) as first,
        kb.connect("app_admin") as second,
        ThreadPoolExecutor(1) as pool,
    ):
        model = register_as(first, "waits", 3, "waits:3")
        late = pool.submit(register_as, second, "waits", 3, "waits:3")
        wait_until(lambda: waiting(root, second))
        first.commit()
        assert late.result() == model


def test_only_an_admin_registers(kb: Database) -> None:
    for role in ("app_reader", "app_writer", "app_trusted", "app_nobody"):
        with kb.connect(role) as conn, refused("42501"):
            register_as(conn, "mine", 8, "mine:8")


def test_the_vector_table(admin: psycopg.Connection[Any], root: psycopg.Connection[Any]) -> None:
    """Narrow, plain, room for nothing in place; the owner's, under row-level security."""
    table = f"knowledge.vectors_{register_as(admin, 'shape', 5, 'shape:5')}"
    (row,) = rows(
        root,
        "select c.relrowsecurity, c.reloptions, pg_get_userbyid(c.relowner) as owner,"
        " array(select a::text from unnest(c.relacl) as a order by 1) as acl"
        " from pg_class as c where oid = %s::regclass",
        table,
    )
    assert row == {
        "relrowsecurity": True,
        "reloptions": ["fillfactor=90"],
        "owner": "knowledge_owner",
        "acl": [
            "knowledge_owner=arwdDxtm/knowledge_owner"
            if root.info.server_version >= 170000
            else "knowledge_owner=arwdDxt/knowledge_owner",
            "knowledge_reader=r/knowledge_owner",
        ],
    }
    columns = rows(
        root,
        "select attname, format_type(atttypid, atttypmod) as type, attstorage::text, attnotnull"
        " from pg_attribute where attrelid = %s::regclass and attnum > 0 order by attnum",
        table,
    )
    assert [c["attname"] for c in columns] == [
        "org_id",
        "chunk_id",
        "document_id",
        "compartment_id",
        "embedding",
    ]
    assert columns[-1]["type"] == "extensions.halfvec(5)"
    assert columns[-1]["attstorage"] == "p"
    assert all(c["attnotnull"] for c in columns)
    # No vector index is shared between orgs.
    methods = rows(
        root,
        "select distinct m.amname from pg_index as i join pg_class as c on c.oid = i.indexrelid"
        " join pg_am as m on m.oid = c.relam where i.indrelid = %s::regclass",
        table,
    )
    assert methods == [{"amname": "btree"}]


def test_the_vector_table_is_read_under_a_context(
    backend: psycopg.Connection[Any], kb: Database, org: str
) -> None:
    """Direct SELECT: without a context an error, with one the permitted rows; no writing."""
    other = f"org {next(_numbers)}"
    for name in (org, other):
        with as_context(backend, name):
            publish(backend, "doc", TEXT)
    with kb.connect("app_trusted") as conn:
        query = "select org_id from knowledge.vectors_1"
        with refused("KB001"):
            conn.execute(query)
        with as_context(conn, org):
            assert rows(conn, query) == [{"org_id": org}] * 2
        for statement in (
            "delete from knowledge.vectors_1",
            "update knowledge.vectors_1 set compartment_id = 1",
            "insert into knowledge.vectors_1 select * from knowledge.vectors_1",
            "truncate knowledge.vectors_1",
        ):
            with refused("42501"), as_context(conn, org):
                conn.execute(statement)


# -- keeping them apart


def test_another_model_at_ingest(backend: psycopg.Connection[Any], org: str) -> None:
    """An org has one model: begin and store refuse another of the same dimensions (case 43)."""
    with as_context(backend, org):
        publish(backend, "doc", TEXT)
    with refused("KB007"), as_context(backend, org):
        begin(backend, "doc", ["new"], fingerprint="swapped:8")
    with refused("KB007"), as_context(backend, org):
        begin(backend, "doc", TEXT, fingerprint="swapped:8")  # also for the text that is live
    with as_context(backend, org):
        version = begin(backend, "doc", ["new"])
        stage(backend, version, ["new"])
    for fingerprint in ("swapped:8", "nobody:8", "", None, FINGERPRINT.upper()):
        with refused("KB007"), as_context(backend, org):
            backend.execute(
                STORE, (version["version_id"], version["lease"], fingerprint, [0], [GOOD])
            )
    with refused("KB008"), as_context(backend, org):
        finalize(backend, version)
    with as_context(backend, org):
        assert [r["body"] for r in search(backend, "alpha")] == TEXT


@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
@pytest.mark.parametrize("fingerprint", ["swapped:8", "nobody:8", "", None])
def test_another_model_at_query(
    backend: psycopg.Connection[Any], org: str, fingerprint: str | None, function: str
) -> None:
    """A question that is not of the org's model, or does not say, is refused (case 43)."""
    with as_context(backend, org):
        publish(backend, "doc", TEXT)
    for mode in ("hybrid", "vector", "keyword"):
        with refused("KB007"), as_context(backend, org):
            search(backend, "alpha", function, embedding=GOOD, fingerprint=fingerprint, mode=mode)
    with refused("KB007"), as_context(backend, org):
        search(backend, None, function, embedding=GOOD)


def test_bad_question_vectors(backend: psycopg.Connection[Any], org: str) -> None:
    """Wrong length KB007, zero KB005 (case 14); not a number is no vector at all."""
    with as_context(backend, org):
        publish(backend, "doc", TEXT)
    for vector, code in (
        ("[1,2]", "KB007"),
        (vector_text([1] * 9), "KB007"),
        (vector_text([0] * 8), "KB005"),
        (vector_text([float("nan")] * 8), "22000"),
    ):
        with refused(code), as_context(backend, org):
            search(backend, "alpha", embedding=vector, fingerprint=FINGERPRINT)


def test_two_orgs_with_different_models(
    admin: psycopg.Connection[Any],
    backend: psycopg.Connection[Any],
    root: psycopg.Connection[Any],
    org: str,
) -> None:
    """Side by side, each with its own dimensions; neither takes the other's vectors."""
    register_as(admin, "three", 3, "three:3")
    other = f"org {next(_numbers)}"
    with as_context(backend, org):
        publish(backend, "doc", TEXT)
    with as_context(backend, other):
        version = begin(backend, "doc", TEXT, fingerprint="three:3")
        assert all(r["needs_embedding"] for r in stage(backend, version, TEXT))
        backend.execute(
            STORE,
            (version["version_id"], version["lease"], "three:3", [0, 1], ["[1,0,0]", "[0,1,0]"]),
        )
        finalize(backend, version)
    with as_context(backend, other):
        found = search(backend, None, embedding="[0,5,0]", fingerprint="three:3")
        assert [r["body"] for r in found] == ["beta text", "alpha text"]
        assert [r["vector_distance"] for r in found] == pytest.approx([0, 1], abs=1e-3)
    with refused("KB007"), as_context(backend, other):
        search(backend, "alpha")
    with as_context(backend, org):
        assert search(backend, "alpha")[0]["body"] == "alpha text"
    with refused("KB007"), as_context(backend, org):
        search(backend, None, embedding="[0,5,0]", fingerprint="three:3")
    states = rows(root, "select name, state from knowledge.models where name in ('toy', 'three')")
    assert {r["state"] for r in states} == {"active"}
    # The model that only one of them has is not the other's to ingest with.
    with refused("KB007"), as_context(backend, org):
        begin(backend, "other", TEXT, fingerprint="three:3")


def test_a_model_is_only_as_active_as_its_use(
    admin: psycopg.Connection[Any], root: psycopg.Connection[Any]
) -> None:
    """Until an org ingests with it a model is building."""
    model = register_as(admin, "unused", 3, "unused:3")
    (row,) = rows(root, "select state from knowledge.models where model_id = %s", model)
    assert row["state"] == "building"


def test_an_org_without_a_model(
    backend: psycopg.Connection[Any], root: psycopg.Connection[Any], org: str
) -> None:
    """Words only: published with allow_unembedded, found by keyword, ready for a model later."""
    with as_context(backend, org):
        version = begin(backend, "doc", TEXT, fingerprint=None)
        assert all(r["needs_embedding"] for r in stage(backend, version, TEXT))
    with refused("KB007"), as_context(backend, org):
        embed(backend, version, TEXT, [0])
    with refused("KB008"), as_context(backend, org):
        finalize(backend, version)
    with as_context(backend, org):
        report = finalize(backend, version, allow_unembedded=True)
    assert (report["complete"], report["live"], report["embedded"]) == (False, True, 0)
    with as_context(backend, org):
        found = search(backend, "beta", mode="keyword")
        assert [r["body"] for r in found] == ["beta text"]
        assert found[0]["legs"] == ["keyword"]
        assert search(backend, "beta", "search_exact", mode="keyword")
        assert begin(backend, "doc", TEXT, fingerprint=None)["state"] == "live"
        (stats,) = rows(backend, "select chunks, unembedded from knowledge.stats()")
        assert stats == {"chunks": 2, "unembedded": 2}
    plan = "select statement from knowledge.index_plan() where statement like %s"
    assert rows(root, plan, f"%{org}%") == []
    ids = rows(root, "select chunk_id from knowledge.chunks where org_id = %s order by 1", org)
    # The first embedder that comes is the org's.
    with as_context(backend, org):
        report = publish(backend, "doc", TEXT)
    assert (report["embedded"], report["skipped"], report["complete"]) == (2, 2, True)
    with as_context(backend, org):
        assert search(backend, "beta")[0]["legs"] == ["vector", "keyword"]
    after = rows(root, "select chunk_id from knowledge.chunks where org_id = %s order by 1", org)
    assert after == ids


def test_two_first_models_at_once(kb: Database, root: psycopg.Connection[Any], org: str) -> None:
    """Writers with different models in a new org: one model wins, the others get KB007."""

    def work(number: int) -> str:
        fingerprint = (FINGERPRINT, "swapped:8")[number % 2]
        with kb.server.connect(kb.name, "app_backend") as conn:
            try:
                with as_context(conn, org):
                    begin(conn, f"doc {number}", TEXT, fingerprint=fingerprint)
            except psycopg.Error as error:
                return str(error.sqlstate)
            return fingerprint

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert answers.count("KB007") == 4
    assert len(set(answers)) == 2
    versions = rows(root, "select model_id from knowledge.versions where org_id = %s", org)
    assert len(versions) == 4
    assert len({r["model_id"] for r in versions}) == 1


def test_the_first_model_stays(kb: Database, root: psycopg.Connection[Any], org: str) -> None:
    """A writer that comes with another model while the first one begins waits and gets KB007."""
    with (
        kb.connect("app_backend") as first,
        kb.connect("app_backend") as second,
        ThreadPoolExecutor(1) as pool,
    ):
        with as_context(first, org):  # the org is there, without a model
            finalize(first, words_only(first), allow_unembedded=True)

        def swap() -> None:
            with as_context(second, org):
                begin(second, "other", TEXT, fingerprint="swapped:8")

        with as_context(first, org):
            begin(first, "doc", TEXT)
            late = pool.submit(swap)
            wait_until(lambda: waiting(root, second))
        with refused("KB007"):
            late.result()
    (row,) = rows(
        root,
        "select m.name from knowledge.orgs as o join knowledge.models as m"
        " on m.model_id = o.active_model where o.org_id = %s",
        org,
    )
    assert row["name"] == "toy"


def words_only(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    version = begin(conn, "words", TEXT, fingerprint=None)
    stage(conn, version, TEXT)
    return version


def test_models_are_read_only(admin: psycopg.Connection[Any]) -> None:
    """A reader sees which models there are, and nobody but the owner changes them."""
    (row,) = rows(admin, "select count(*) as n from knowledge.models where name = 'toy'")
    assert row["n"] == 1
    for statement in ("delete from {}", "update {} set fingerprint = 'x'", "drop table {}"):
        with refused("42501"):
            admin.execute(sql.SQL(statement).format(sql.SQL("knowledge.models")))
