"""explain_search says why search_scoped answers what it does, and nothing of what is forbidden."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.knowledge import (
    FINGERPRINT,
    promote,
    publish,
    register,
    rows,
    search,
    toy_vector,
    vector_text,
)

FOX = {"embedding": vector_text(toy_vector("fox lamp")), "fingerprint": FINGERPRINT}
WORDS = ["fox", "lamp", "bird", "tree", "moon", "fish", "gold"]
MODES = ["vector", "keyword", "hybrid"]


def bodies_of(seed: int, count: int) -> list[str]:
    return [
        " ".join(WORDS[(seed + i * step + i // 5) % 7] for step in (1, 2, 4, 4)) + f" n{seed}x{i}"
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    """Documents for staff and for the board, mail and wiki, drafts; a promoted org beside."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        for org in ("acme", "indexed"):
            with as_context(conn, org):
                for name in ("staff", "board"):
                    conn.execute("select knowledge.define_tag(%s)", (name,))
                    conn.execute("select knowledge.define_audience(%s, %s)", (name, [name]))
                for n in range(8):
                    publish(
                        conn,
                        f"doc {n}",
                        bodies_of(n, 30),
                        audience=[["staff", "board"][n % 4 == 3]],
                        source_type=["wiki", "mail"][n % 2],
                        visibility=["org", "draft"][n == 6],
                        metadata={"n": n},
                    )
        promote(db.superuser(), "indexed")
        yield db


def explain(conn: psycopg.Connection[Any], query: str | None, **given: Any) -> dict[str, Any]:
    (found,) = search(conn, query, "explain_search", **given)
    return dict(found["explain_search"])


def timeless(value: Any) -> Any:
    """Without what a clock says."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "ms" and not k.endswith("_ms")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


REQUESTS: list[dict[str, Any]] = [
    {},
    {"mode": "vector", **FOX},
    {"mode": "keyword"},
    {"k": 3},
    {"k": 300},
    {"source_types": ["mail"]},
    {"visibility": ["draft", "org"]},
    {"metadata": {"n": {"$lt": 2}}},
    {"options": {"per_document": 2, "min_score": 0.01}},
    {"options": {"rrf_k": 60, "keyword_weight": 3, "language": "simple"}},
    {"options": {"plan": "exact"}},
    {"query": 'fo* \'moon -bird "gold fox" lamp lamp'},
    {"query": "the of"},
    {"query": "nowhere"},
    {"query": None, **FOX},
    {"source_types": []},
    {"visibility": ["none"]},
]


@pytest.mark.parametrize("given", REQUESTS, ids=lambda given: str(given)[:50])
@pytest.mark.parametrize("grants", [["staff"], ["staff", "board"], []], ids=str)
def test_it_agrees_with_the_search(
    shelf: Database, given: dict[str, Any], grants: list[str]
) -> None:
    """Rows, ranks, scores and legs are those of search_scoped with the same arguments."""
    given = {"query": "fox moon n1x3", **given}
    query = given.pop("query")
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", grants):
        found = search(conn, query, **given)
        explained = explain(conn, query, **given)
    columns = ("rank", "score", "vector_rank", "vector_distance", "keyword_rank", "keyword_score")
    assert [[r[c] for c in columns] for r in found] == [
        [r[c] for c in columns] for r in explained["rows"]
    ]
    assert [str(r["chunk_id"]) for r in found] == [r["chunk_id"] for r in explained["rows"]]
    assert all(r["legs"] == explained["legs"] for r in found)
    top = {"legs", "compartments", "permitted_chunks", "prepare_ms", "settings", "search_ms"}
    assert explained.keys() == top | {"rows"} | {*explained["legs"]}
    legs = {
        "vector": {"rows", "ms", "plan"},
        "keyword": {"rows", "ms", "terms"},
    }
    for leg in explained["legs"]:
        assert explained[leg].keys() == legs[leg]
    for r in explained["rows"]:
        assert r.keys() == {*columns, "chunk_id", "matched", "boost"}
    if "keyword" in explained["legs"]:
        for term in explained["keyword"]["terms"]:
            names = {"lexeme", "prefix", "repeats", "chunks", "counted_as", "idf"}
            assert term.keys() == names
    deciding = {"exact_rows", "index_share", "scanned_chunks", "candidates", "long_list"}
    deciding |= {"enough_weight", "paired_candidates"}
    assert explained["settings"].keys() == deciding
    timings = [explained["prepare_ms"], explained["search_ms"]]
    timings += [explained[leg]["ms"] for leg in explained["legs"]]
    assert all(0 <= t < 60_000 for t in timings)


@pytest.mark.parametrize("grants", [["staff"], ["staff", "board"]], ids=str)
@pytest.mark.parametrize("given", [{}, {"source_types": ["wiki"]}, {"visibility": ["draft"]}])
def test_its_counts_are_those_of_what_is_permitted(
    shelf: Database, grants: list[str], given: dict[str, Any]
) -> None:
    """A recount under row-level security gives the same chunks, frequencies and idf."""
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", grants):
        explained = explain(conn, "fox fox n1* moon nowhere", mode="keyword", k=1000, **given)
        seen = rows(
            conn,
            "select c.chunk_id, c.body, c.compartment_id from knowledge.chunks as c "
            "inner join knowledge.compartments as m on m.compartment_id = c.compartment_id "
            "where m.visibility = any (%s) and (%s::text[] is null or m.source_type = any (%s))",
            given.get("visibility", ["org"]),
            given.get("source_types"),
            given.get("source_types"),
        )
    words = {str(r["chunk_id"]): Counter(r["body"].split()) for r in seen}
    assert explained["permitted_chunks"] == len(words)
    assert explained["compartments"] == len({r["compartment_id"] for r in seen})
    terms = {(t["lexeme"], t["prefix"]): t for t in explained["keyword"]["terms"]}
    expected = [("fox", False, 2), ("moon", False, 1), ("n1", True, 1), ("nowher", False, 1)]
    assert [(*key, t["repeats"]) for key, t in terms.items()] == expected
    for (lexeme, prefix), term in terms.items():
        with_it = sum(
            any(w.startswith(lexeme) if prefix else w == lexeme for w in c) for c in words.values()
        )
        assert term["chunks"] == with_it
        idf = math.log(1 + (len(words) - with_it + 0.5) / (with_it + 0.5))
        assert math.isclose(term["idf"], idf, rel_tol=1e-12)
    for r in explained["rows"]:
        assert r["matched"] == {
            w: n
            for w, n in words[r["chunk_id"]].items()
            if w in ("fox", "moon") or w.startswith("n1")
        }
    assert len(explained["rows"]) == min(1000, explained["keyword"]["rows"])


def test_the_rows_of_a_leg_are_before_the_cut(shelf: Database) -> None:
    """Each leg's rows, with the filter applied, whatever k is; the plan is named."""
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", ["staff"]):
        explained = explain(conn, "fox", k=1, metadata={"n": 2})
        keyword = search(conn, "fox", mode="keyword", k=200, metadata={"n": 2})
    assert explained["vector"]["rows"] == 30
    assert explained["keyword"]["rows"] == len(keyword)
    assert len(explained["rows"]) == 1
    assert explained["vector"]["plan"] == "exact"


def test_common_words_are_marked(shelf: Database) -> None:
    """counted_as is what maintain() counted of a common lexeme; null where it did not count."""
    superuser = shelf.superuser()
    with shelf.connect("app_trusted") as conn:
        with as_context(conn, "acme", ["staff"]):
            before = explain(conn, "fox nowhere", mode="keyword")
        superuser.execute(
            "update knowledge_private.settings set candidates = 10, paired_candidates = 0"
        )
        superuser.execute("select from knowledge.maintain()")
        with as_context(conn, "acme", ["staff"]):
            after = explain(conn, "fox nowhere", mode="keyword")
        superuser.execute(
            "update knowledge_private.settings set candidates = 2000, paired_candidates = 5000"
        )
        superuser.execute("delete from knowledge_private.lexeme_counts")
        superuser.execute("update knowledge.compartments set counted_chunks = 0")
    assert [t["counted_as"] for t in before["keyword"]["terms"]] == [None, None]
    counted = [t["counted_as"] for t in after["keyword"]["terms"]]
    assert counted == [after["keyword"]["terms"][0]["chunks"], None]


def test_nothing_in_it_is_about_what_is_forbidden(db: Database) -> None:
    """What others publish, in the org and beside it, changes not a number of it."""
    conn = db.connect("app_backend")
    register(conn)

    def ask() -> list[Any]:
        with as_context(conn, "acme", ["staff"]):
            return [
                timeless(explain(conn, query, mode=mode, k=k, **(FOX if mode == "vector" else {})))
                for query, mode, k in itertools.product(
                    ["fox moon", "fo* secret", '"fox" -bird'], MODES, [2, 300]
                )
            ]

    with as_context(conn, "acme"):
        for name in ("staff", "board"):
            conn.execute("select knowledge.define_tag(%s)", (name,))
            conn.execute("select knowledge.define_audience(%s, %s)", (name, [name]))
        publish(conn, "own", bodies_of(1, 25), audience=["staff"])
        publish(conn, "all", bodies_of(2, 5))
    before = ask()
    secret = [f"fox secret moon fowl {i}" for i in range(40)]
    with as_context(conn, "acme"):
        publish(conn, "board", secret, audience=["board"])
        publish(conn, "letter", secret, audience=["board"], source_type="mail", language="german")
    with as_context(conn, "acme", org_scope="a"):
        publish(conn, "scoped", secret)
    with as_context(conn, "other"):
        publish(conn, "foreign", secret)
    assert ask() == before
    with as_context(conn, "acme", ["board"]):
        assert "fowl" in str(explain(conn, "fo*", mode="keyword", k=300))


def index_scans(db: Database) -> int:
    query = "select sum(idx_scan) from pg_stat_user_indexes where indexrelname like %s"
    with db.server.connect(db.name) as superuser:
        (found,) = superuser.execute(query, ("vectors\\_1\\_of\\_%",)).fetchone()
    return int(found)


def test_the_plan_is_the_one_that_runs(shelf: Database) -> None:
    """index in an org with an index of its own, from exact_rows on; exact where that is asked."""
    superuser = shelf.superuser()

    def plan(org: str, **given: Any) -> tuple[str, bool]:
        """The plan it names, and whether a search scans the index."""
        with shelf.connect("app_trusted") as conn:
            with as_context(conn, org, ["staff", "board"]):
                named = explain(conn, "fox", **given)["vector"]["plan"]
            conn.execute("select pg_stat_force_next_flush()")
            before = index_scans(shelf)
            with as_context(conn, org, ["staff", "board"]):
                assert search(conn, "fox", **given)
            conn.execute("select pg_stat_force_next_flush()")
            conn.execute("select")
            return named, index_scans(shelf) > before

    assert plan("indexed") == ("exact", False)
    superuser.execute("update knowledge_private.settings set exact_rows = 0, index_share = 0")
    try:
        assert plan("indexed") == ("index", True)
        assert plan("indexed", options={"plan": "exact"}) == ("exact", False)
        assert plan("acme") == ("exact", False)
    finally:
        superuser.execute("update knowledge_private.settings set exact_rows = 10000")
        superuser.execute("update knowledge_private.settings set index_share = 0.1")


@pytest.mark.parametrize(
    "given",
    [
        {"k": 0},
        {"k": None},
        {"mode": "x"},
        {"query": "x" * 10_001},
        {"query": ""},
        {"query": None},
        {"options": None},
        {"options": Jsonb([])},
        {"options": {"limit": 3}},
        {"options": {"language": "klingon"}},
        {"metadata": Jsonb("x")},
        {"metadata": {"$nor": []}},
        {"embedding": vector_text([0] * 8), "fingerprint": FINGERPRINT},
        {"embedding": vector_text([1] * 7), "fingerprint": FINGERPRINT},
        {"embedding": vector_text([1] * 8)},
        {"embedding": vector_text([1] * 8), "fingerprint": "other"},
    ],
    ids=lambda given: str(given)[:40],
)
def test_it_refuses_what_a_search_refuses(shelf: Database, given: dict[str, Any]) -> None:
    """With the same code and the same words."""
    given = {"query": "fox", "embedding": None, **given}
    told = []
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme"):
        for function in ("search_scoped", "explain_search"):
            with pytest.raises(psycopg.Error) as error, conn.transaction():
                search(conn, function=function, **given)
            diag = error.value.diag
            told.append((diag.sqlstate, diag.message_primary, diag.message_detail))
    assert told[0] == told[1]
    assert told[0][0].startswith("KB")


def test_it_needs_a_context_and_a_live_org(shelf: Database, db: Database) -> None:
    """KB001 without a context, KB011 after offboarding, empty in an org that nobody used."""
    for role, code in (("app_reader", "KB001"), ("app_nobody", "42501")):
        with pytest.raises(psycopg.Error) as error:
            explain(shelf.connect(role), "fox", k=0)
        assert error.value.sqlstate == code
    conn = db.connect("app_backend")
    with as_context(conn, "nobody"):
        explained = explain(conn, "fox", mode="keyword")
        assert (explained["legs"], explained["rows"], explained["permitted_chunks"]) == ([], [], 0)
    with as_context(conn, "acme"):
        conn.execute("select knowledge.define_tag('staff')")
        conn.execute("select from knowledge.delete_by_scope(false, true)")
        with pytest.raises(psycopg.Error) as error, conn.transaction():
            explain(conn, "fox", mode="keyword")
        assert error.value.sqlstate == "KB011"
