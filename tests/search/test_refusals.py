"""What a search refuses, with which code, and what odd questions do: an answer or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.knowledge import FINGERPRINT, publish, register, rows, search, toy_vector, vector_text

BODIES = ["fox lamp", "bird o'clock", "moon \\ tree", "gold wolf"]
FOX = {"embedding": vector_text(toy_vector("fox")), "fingerprint": FINGERPRINT}
FUNCTIONS = ["search_scoped", "search_exact"]


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        with as_context(conn, "acme"):
            publish(conn, "doc", BODIES)
        yield db


@pytest.fixture
def reader(shelf: Database) -> Iterator[psycopg.Connection[Any]]:
    """app_reader with a token, in a transaction."""
    with shelf.connect("app_trusted") as issuer:
        (token,) = issuer.execute("select knowledge.issue_token('acme', '{}')").fetchone()
    with shelf.connect("app_reader") as conn, conn.transaction():
        conn.execute("select knowledge.use_token(%s)", (token,))
        yield conn


def refusal(conn: psycopg.Connection[Any], **given: Any) -> str:
    """The SQLSTATE that a search fails with; the connection can be used on."""
    with pytest.raises(psycopg.Error) as error, conn.transaction():  # a savepoint
        search(conn, given.pop("query", "fox"), **given)
    return error.value.sqlstate or ""


@pytest.mark.parametrize(
    "given",
    [
        {"k": 0},
        {"k": -1},
        {"k": None},
        {"k": 1001},
        {"mode": "fuzzy"},
        {"mode": ""},
        {"mode": None},
        {"mode": "Hybrid"},
        {"query": "x" * 10001},
        {"query": None},
        {"query": "", "embedding": None},
        {"query": " \n\t", "embedding": None},
        {"query": None, "mode": "keyword"},
        {"query": "", "mode": "keyword", **FOX},
        {"query": "fox", "mode": "vector", "embedding": None},
        {"query": None, "mode": "vector"},
        {"options": None},
        {"options": Jsonb([])},
        {"options": Jsonb("plan")},
        {"options": {"plan": "fast"}},
        {"options": {"plan": 1}},
        {"options": {"plan": None}},
        {"options": {"Plan": "auto"}},
        {"options": {"limit": 3}},
        {"options": {"rrf_k": "10"}},
        {"options": {"rrf_k": -1}},
        {"options": {"rrf_k": 1e7}},
        {"options": {"rrf_k": None}},
        {"options": {"vector_weight": True}},
        {"options": {"keyword_weight": -0.1}},
        {"options": {"keyword_weight": [1]}},
        {"options": {"language": "klingon"}},
        {"options": {"language": 7}},
        {"options": {"language": ""}},
        {"options": {"language": None}},
        {"metadata": Jsonb([])},
        {"metadata": Jsonb("team")},
        {"metadata": Jsonb(None)},
    ],
    ids=lambda given: str(given)[:60],
)
def test_a_malformed_request_is_refused(
    reader: psycopg.Connection[Any], given: dict[str, Any]
) -> None:
    """KB005 for what makes no sense (case 18): never a wider search, never another error."""
    assert refusal(reader, **given) == "KB005"


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({"embedding": vector_text([0] * 8)}, {"KB005"}),
        ({"embedding": "[0,0,0,-0,0,0,0,0]"}, {"KB005"}),
        ({"embedding": vector_text([1] * 7)}, {"KB007"}),
        ({"embedding": vector_text([1] * 9)}, {"KB007"}),
        ({"embedding": "[NaN,1,1,1,1,1,1,1]"}, {"22P02", "22003", "22000", "KB005"}),
        ({"embedding": "[Infinity,1,1,1,1,1,1,1]"}, {"22P02", "22003", "22000", "KB005"}),
        ({"embedding": "[]"}, {"22P02", "22000", "KB007"}),
        ({"embedding": "fox"}, {"22P02"}),
        ({"fingerprint": None}, {"KB007"}),
        ({"fingerprint": ""}, {"KB007"}),
        ({"fingerprint": "toy:9"}, {"KB007"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_a_bad_query_vector_is_refused(
    reader: psycopg.Connection[Any], given: dict[str, Any], codes: set[str], mode: str
) -> None:
    """Case 14: zero, NaN, of another length or model: refused, never rows."""
    assert refusal(reader, mode=mode, **FOX | given) in codes


@pytest.mark.parametrize("factor", [1e-30, 1e-9, 1e-3, 1e3, 1e9, 1e30])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_length_of_the_query_vector_does_not_matter(
    reader: psycopg.Connection[Any], function: str, factor: float
) -> None:
    """Case 14: only its direction; a very short or long one is neither zero nor too large."""
    expected = search(reader, None, function, mode="vector", **FOX)
    scaled = vector_text(x * factor for x in toy_vector("fox"))
    found = search(reader, None, function, mode="vector", **FOX | {"embedding": scaled})
    assert [r["chunk_id"] for r in found] == [r["chunk_id"] for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert abs(one["vector_distance"] - other["vector_distance"]) < 1e-3


ODD = [
    "the of and",
    "-",
    "--",
    '""',
    '"',
    '-""',
    '-"',
    '"the"',
    '-"the of"',
    "-the",
    "&|!():*",
    "!",
    "( ) & |",
    "<->",
    "a:*",
    "'",
    "''",
    "\\",
    "\\'",
    "%s %(x)s {} $1",
    "; drop table knowledge.chunks; --",
    "\u0001\u007f",
    "🦊",
    "?",
    "* % _",
    "()",
    "-()",
    '"&" -"|"',
]


@pytest.mark.parametrize("question", ODD, ids=repr)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_question_without_words_finds_nothing_by_words(
    reader: psycopg.Connection[Any], function: str, question: str
) -> None:
    """Stop words, punctuation, quotes and operators are text; the vector leg answers alone."""
    found = search(reader, question, function, mode="keyword")
    assert found == [] or "drop" in question
    found = search(reader, question, function, **FOX)
    assert len(found) == len(BODIES)
    assert found[0]["vector_rank"] == 1


@pytest.mark.parametrize(
    ("question", "bodies"),
    [
        ("fox & bird", {BODIES[0], BODIES[1]}),
        ("fox !bird", {BODIES[0], BODIES[1]}),
        ("fox:*", {BODIES[0]}),
        ("fox'); select", {BODIES[0]}),
        ("o'clock", {BODIES[1]}),
        ('fox "', {BODIES[0]}),
        ("fox -", {BODIES[0]}),
        ("fox \\", {BODIES[0]}),
        ('fox ""', {BODIES[0]}),
        ("FOX the the the", {BODIES[0]}),
        ("fox - lamp", {BODIES[0]}),
    ],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_operators_are_text(
    reader: psycopg.Connection[Any], function: str, question: str, bodies: set[str]
) -> None:
    """Beside words, the operators of tsquery and of SQL change nothing."""
    found = search(reader, question, function, mode="keyword")
    ids = [r["chunk_id"] for r in found]
    named = rows(reader, "select body from knowledge.chunks where chunk_id = any (%s)", ids)
    assert {r["body"] for r in named} == bodies


@pytest.mark.parametrize("word", ["fox ", "x", "-fox ", '"fox" ', "fox bird moon ", "🦊"])
def test_a_question_of_10000_characters(reader: psycopg.Connection[Any], word: str) -> None:
    """As long as it may be; one character more is refused."""
    question = (word * 10000)[:10000]
    for mode in ("keyword", "hybrid"):
        assert len(search(reader, question, mode=mode, **FOX)) <= len(BODIES)
    assert refusal(reader, query=question + "x") == "KB005"


def test_an_org_that_nobody_used_has_no_answers(shelf: Database) -> None:
    """An org that does not exist is an empty one; it does not come to be by being asked."""
    with shelf.connect("app_trusted") as conn, as_context(conn, "nobody"):
        assert search(conn, "fox", mode="keyword") == []
        assert search(conn, "fox", **FOX) == []
        assert search(conn, "fox", "search_exact", **FOX) == []
    orgs = shelf.superuser().execute("select org_id from knowledge.orgs").fetchall()
    assert orgs == [("acme",)]


def test_a_search_without_a_context_is_refused(shelf: Database) -> None:
    """KB001, whatever else is wrong with the request."""
    conn = shelf.connect("app_reader")
    assert refusal(conn) == "KB001"
    assert refusal(conn, function="search_exact") == "KB001"
    assert refusal(conn, k=0) == "KB001"
