"""The option boost: a bounded factor on the score, by metadata and by age, alike everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.bulk import Document, publish_all
from support.knowledge import FINGERPRINT, register, rows, search, toy_vector

NOW = datetime.now(UTC)
MODES = ["vector", "keyword", "hybrid"]
METADATA: list[dict[str, Any]] = [
    {"kind": "policy", "tags": ["hr", "law"], "year": 2024, "date": str(NOW)},
    {"kind": "mail", "tags": ["law"], "year": 2025, "date": str(NOW - timedelta(days=30))},
    {"kind": ["policy"], "date": "not a date"},
    {"kind": {"policy": 1}, "date": 7},
    {"kind": None, "date": "infinity"},
    {},
]
WORDS = ["fox", "lamp", "bird", "tree", "moon"]
BOOSTS: list[dict[str, Any]] = [
    {},
    {"metadata": {}},
    {"metadata": {"kind": {"policy": 3}}},
    {"metadata": {"kind": {"policy": 3, "mail": 0.5}, "tags": {"law": 2, "hr": 1000}}},
    {"metadata": {"year": {"2024": 0.001}}},
    {"recency": {"half_life_days": 10, "weight": 1}},
    {"recency": {"half_life_days": 30, "weight": 0.2, "key": "date"}},
    {
        "recency": {"half_life_days": 1, "weight": 5, "key": "none"},
        "metadata": {"kind": {"mail": 9}},
    },
]


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    """Twelve documents of 30 chunks, the older the later; every other one for the staff."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        with as_context(conn, "acme"):
            conn.execute("select knowledge.define_tag('staff')")
            conn.execute("select knowledge.define_audience('staff', '{staff}')")
            for n in range(12):
                bodies = [
                    " ".join(WORDS[(n + i * step) % 5] for step in (1, 2, 3)) + f" n{n}x{i}"
                    for i in range(30)
                ]
                publish_all(
                    conn,
                    FINGERPRINT,
                    [
                        Document(
                            f"doc {n}",
                            bodies,
                            [toy_vector(body) for body in bodies],
                            audience=[["everyone"], ["staff"]][n % 2],
                            metadata=METADATA[n % 6],
                        )
                    ],
                )
        db.superuser().execute(
            "update knowledge.documents set updated_at = now() - 10 * interval '1 day'"
            " * (substr(source_id, 5)::integer - 1)"
        )
        yield db


def ask(conn: psycopg.Connection[Any], boost: Any, function: str = "search_scoped", **given: Any):
    options = {**given.pop("options", {}), **({} if boost is None else {"boost": boost})}
    return search(conn, given.pop("query", "fox moon bird"), function, options=options, **given)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_it_is_as_specified(shelf: Database, boost: dict[str, Any], mode: str) -> None:
    """search_exact gives the same; k = 10 is a prefix of k = 1000; both are permitted."""
    with shelf.connect("app_trusted") as conn:
        for grants, permitted in ((["staff"], 360), ([], 180)):
            with as_context(conn, "acme", grants):
                found = ask(conn, boost, mode=mode, k=1000)
                exact = ask(conn, boost, "search_exact", mode=mode, k=1000)
                for k in (1, 10, 201):
                    few = ask(conn, boost, mode=mode, k=k)
                    same = ("rank", "score", "chunk_id")  # k is how deep a leg is known
                    assert [[r[c] for c in same] for r in few] == [
                        [r[c] for c in same] for r in found[:k]
                    ]
            columns = ("rank", "score", "chunk_id", "vector_rank", "keyword_rank")
            assert [[r[c] for c in columns] for r in found] == [
                [r[c] for c in columns] for r in exact
            ]
            assert len(found) <= permitted
            scores = [r["score"] for r in found]
            assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("boost", BOOSTS, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_the_score_is_multiplied(shelf: Database, boost: dict[str, Any], mode: str) -> None:
    """The same chunks with the score times boost_factor, which explain_search shows."""
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", ["staff"]):
        plain = {r["chunk_id"]: r for r in ask(conn, None, mode=mode, k=1000)}
        found = ask(conn, boost, mode=mode, k=1000)
        (row,) = ask(conn, boost, "explain_search", mode=mode, k=1000)
        factors = {
            r["chunk_id"]: r["factor"]
            for r in rows(
                conn,
                "select c.chunk_id, knowledge.boost_factor(%s, d.metadata, d.updated_at) as factor"
                " from knowledge.chunks as c"
                " inner join knowledge.documents as d on d.document_id = c.document_id",
                Jsonb(boost),
            )
        }
    explained = row["explain_search"]["rows"]
    assert {r["chunk_id"] for r in found} == plain.keys()
    for one, shown in zip(found, explained, strict=True):
        before = plain[one["chunk_id"]]
        assert one["score"] == before["score"] * factors[one["chunk_id"]]
        assert shown["boost"] == factors[one["chunk_id"]]
        assert all(one[c] == before[c] for c in ("vector_rank", "keyword_rank", "keyword_score"))


def test_what_no_leg_ranks_high_stays_behind(shelf: Database) -> None:
    """Rows beyond the first 200 of each leg keep their order, whatever their boost is."""
    boost = {"metadata": {"kind": {"policy": 0.001, "mail": 1000}}}
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", ["staff"]):
        plain = ask(conn, None, mode="vector", k=1000)
        found = ask(conn, boost, mode="vector", k=1000)
    assert len(found) == 360
    assert [r["chunk_id"] for r in found[200:]] == [r["chunk_id"] for r in plain[200:]]
    kinds = [r["document_metadata"].get("kind") for r in found[:200]]
    assert kinds.index("mail") == 0
    assert {str(kind) for kind in kinds[-10:]} <= {"policy", "['policy']"}


def test_it_goes_with_the_other_options(shelf: Database) -> None:
    """per_document takes the best of each document after the boost; min_score is about it too."""
    boost = {"metadata": {"kind": {"mail": 1000}}}
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme", ["staff"]):
        found = ask(conn, boost, k=4, options={"per_document": 1})
        assert len({r["document_id"] for r in found}) == 4
        assert [r["document_metadata"].get("kind") for r in found[:2]] == ["mail", "mail"]
        high = ask(conn, boost, k=1000, options={"min_score": 2})
    assert high
    assert {r["document_metadata"]["kind"] for r in high} == {"mail"}
    assert min(r["score"] for r in high) >= 2


DAY = {"half_life_days": 1, "weight": 1}
DATE = {**DAY, "key": "date"}
FACTORS = [
    ({}, {}, 0, 1),
    ({"metadata": {"a": {"x": 2}}}, {"a": "x"}, 0, 2),
    ({"metadata": {"a": {"x": 2}}}, {"a": ["y", "x"]}, 0, 2),
    ({"metadata": {"a": {"x": 2}}}, {"a": {"x": 1}}, 0, 1),
    ({"metadata": {"a": {"x": 2}}}, {"b": "x"}, 0, 1),
    ({"metadata": {"a": {"x": 2, "y": 3}}}, {"a": ["y", "x"]}, 0, 6),
    ({"metadata": {"a": {"5": 2}, "b": {"true": 3}}}, {"a": [5], "b": True}, 0, 6),
    ({"metadata": {"a": {"x": 1000}, "b": {"x": 1000}}}, {"a": "x", "b": "x"}, 0, 1000),
    ({"metadata": {"a": {"x": 0.001}, "b": {"x": 0.1}}}, {"a": "x", "b": "x"}, 0, 0.001),
    ({"recency": DAY}, {}, 0, 2),
    ({"recency": DAY}, {}, 1, 1.5),
    ({"recency": DAY}, {}, 2, 1.25),
    ({"recency": DAY}, {}, -9, 2),
    ({"recency": DAY}, {}, 36500, 1),
    ({"recency": {"half_life_days": 0.001, "weight": 1000}}, {}, 0, 1000),
    ({"recency": DATE}, {"date": (NOW - timedelta(days=1)).isoformat()}, 0, 1.5),
    ({"recency": DATE}, {"date": "1970-01-01"}, 0, 1),
    ({"recency": DATE}, {"date": "infinity"}, 9, 2),
    ({"recency": DATE}, {"date": "-infinity"}, 0, 1),
    ({"recency": DATE}, {"date": "soon"}, 0, 1),
    ({"recency": DATE}, {"date": None}, 0, 1),
    ({"recency": DATE}, {"date": [1]}, 0, 1),
    ({"recency": DATE}, {}, 0, 1),
    ({"recency": DAY, "metadata": {"a": {"x": 2}}}, {"a": "x"}, 1, 3),
]


@pytest.mark.parametrize(("boost", "metadata", "days", "factor"), FACTORS, ids=str)
def test_the_factor(
    shelf: Database, boost: dict[str, Any], metadata: dict[str, Any], days: int, factor: float
) -> None:
    """By hand; whatever is in the metadata, it is a number from 0.001 to 1000."""
    (found,) = rows(
        shelf.connect("app_reader"),
        "select knowledge.boost_factor(%s, %s, now() - %s * interval '1 day') as factor",
        Jsonb(boost),
        Jsonb(metadata),
        days,
    )
    assert math.isclose(found["factor"], factor, rel_tol=1e-2)


@pytest.mark.parametrize(
    "boost",
    [
        None,
        [],
        "recency",
        1,
        {"age": {}},
        {"recency": None},
        {"recency": {}},
        {"recency": {"half_life_days": 1}},
        {"recency": {"weight": 1}},
        {"recency": {"half_life_days": 0, "weight": 1}},
        {"recency": {"half_life_days": "1", "weight": 1}},
        {"recency": {"half_life_days": 1, "weight": -1}},
        {"recency": {"half_life_days": 1, "weight": 1001}},
        {"recency": {"half_life_days": 1, "weight": 1, "key": 1}},
        {"recency": {"half_life_days": 1, "weight": 1, "key": None}},
        {"recency": {"half_life_days": 1, "weight": 1, "column": "x"}},
        {"metadata": None},
        {"metadata": []},
        {"metadata": {"a": 1}},
        {"metadata": {"a": {"x": "1"}}},
        {"metadata": {"a": {"x": 0}}},
        {"metadata": {"a": {"x": 1e999}}},
        {"metadata": {"a": {"x": None}}},
        {"metadata": {"a": {"x": {"y": 1}}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("function", ["search_scoped", "search_exact", "explain_search"])
def test_a_malformed_boost_is_refused(shelf: Database, function: str, boost: Any) -> None:
    """KB005."""
    if "inf" in str(boost):
        boost = {"metadata": {"a": {"x": 10**400}}}
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme"):
        with pytest.raises(psycopg.Error) as error, conn.transaction():
            search(conn, "fox", function, options={"boost": boost})
        assert error.value.sqlstate == "KB005"
