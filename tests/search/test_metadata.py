"""Metadata filters against a model in plain Python, and the options that shorten an answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.bulk import Document, publish_all
from support.knowledge import (
    FINGERPRINT,
    publish,
    register,
    rows,
    search,
    toy_vector,
    vector_text,
)

FOX = {"embedding": vector_text(toy_vector("fox")), "fingerprint": FINGERPRINT}
MODES = ["vector", "keyword", "hybrid"]
QUICK = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


# -- The model: what a filter means.


def kind(value: Any) -> str:
    """The type of a json value."""
    if value is None or isinstance(value, bool):
        return {None: "null"}.get(value, "boolean")
    return {str: "string", list: "array", dict: "object"}.get(type(value), "number")


def same(one: Any, other: Any) -> bool:
    """Equal as json: 1 is 1.0, and neither is true."""
    if kind(one) != kind(other):
        return False
    if kind(one) == "array":
        return len(one) == len(other) and all(map(same, one, other))
    if kind(one) == "object":
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(Decimal(str(one)) == Decimal(str(other)) if kind(one) == "number" else one == other)


def contains(whole: Any, part: Any) -> bool:
    """What @> says of two values of one kind."""
    if kind(whole) != kind(part):
        return False
    if kind(whole) == "object":
        return all(k in whole and contains(whole[k], v) for k, v in part.items())
    if kind(whole) == "array":
        return all(any(contains(item, wanted) for item in whole) for wanted in part)
    return same(whole, part)


def passes_test(metadata: dict[str, Any], key: str, operator: str, wanted: Any) -> bool:
    if operator == "$exists":
        return (key in metadata) == wanted
    if key not in metadata:
        return False
    value = metadata[key]
    if operator in ("$eq", "$ne"):
        return same(value, wanted) == (operator == "$eq")
    if operator in ("$in", "$nin"):
        return any(same(value, one) for one in wanted) == (operator == "$in")
    if kind(value) != kind(wanted):
        return False
    one, other = (x if kind(x) == "string" else Decimal(str(x)) for x in (value, wanted))
    return {"$gt": one > other, "$gte": one >= other, "$lt": one < other, "$lte": one <= other}[
        operator
    ]


def passes(metadata: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a document with metadata passes the filter wanted."""
    for key, value in wanted.items():
        if key == "$and":
            good = all(passes(metadata, one) for one in value)
        elif key == "$or":
            good = any(passes(metadata, one) for one in value)
        elif key == "$not":
            good = not passes(metadata, value)
        elif kind(value) == "object" and any(k.startswith("$") for k in value):
            good = all(passes_test(metadata, key, *test) for test in value.items())
        else:
            good = contains(metadata, {key: value})
        if not good:
            return False
    return True


# Words that every collation orders alike.
KEYS = ["a", "b", "team name", "it's", 'q"q', "a.b", "100%", "%s", "x$1", "c\\d", "ключ", "", "🦊"]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, -1.5, 1.0, 10**20, 1e-7]),
    st.sampled_from(["", "a", "ab", "b", "2024-01-31", "2024-02-01", "1", "true", "null"]),
    st.sampled_from(["it's", 'q"q', "%L %s", "\\", "'; drop table x; --", "$eq", "狐", "{}"]),
)
keys = st.sampled_from(KEYS)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=2)),
    max_leaves=4,
)
metadatas = st.dictionaries(keys, values, max_size=4)
ordered = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.5, 10**20, 1e-7]),
    st.sampled_from(["", "a", "ab", "b", "2024-01-31", "1"]),
)
tests = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne"]), values),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(values, max_size=3)),
    st.tuples(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), ordered),
    st.tuples(st.just("$exists"), st.booleans()),
)
conditions = st.one_of(values, st.lists(tests, min_size=1, max_size=2).map(dict))
filters = st.recursive(
    st.dictionaries(keys, conditions, max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda f, plain: {"$not": f, **plain}, inner, st.just({})),
        st.builds(
            lambda operator, fs: {operator: fs},
            st.sampled_from(["$and", "$or"]),
            st.lists(inner, max_size=3),
        ),
        st.builds(lambda one, other: one | other, inner, inner),
    ),
    max_leaves=4,
)


def derived(metadata: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Filters about values that metadata has, so that many match."""
    if not metadata:
        return filters
    operators = st.sampled_from(["", "$eq", "$in", "$gte", "$lte", "$ne", "$exists"])

    def build(key: str, operator: str) -> dict[str, Any]:
        value = metadata[key]
        if operator in ("$gte", "$lte") and kind(value) not in ("number", "string"):
            operator = ""
        wanted: Any = {"$in": [None, value], "$exists": True}.get(operator, value)
        if not operator and kind(value) == "object" and any(k[:1] == "$" for k in value):
            operator = "$eq"
        return {key: {operator: wanted} if operator else wanted}

    one = st.builds(build, st.sampled_from(sorted(metadata)), operators)
    return st.one_of(one, st.builds(lambda a, b: {"$and": [a, b]}, one, filters), filters)


@pytest.fixture(scope="module")
def asker(server: Server) -> Iterator[psycopg.Connection[Any]]:
    """app_reader, without a context: metadata_matches needs none."""
    with server.database() as db:
        yield db.connect("app_reader")


def check_model(conn: psycopg.Connection[Any], examples: int, **profile: Any) -> None:
    @settings(QUICK, max_examples=examples, **profile)
    @given(metadatas.flatmap(lambda m: st.tuples(st.just(m), derived(m))))
    def check(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
        query = "select knowledge.metadata_matches(%s, %s) as answer"
        (found,) = rows(conn, query, Jsonb(case[0]), Jsonb(case[1]))
        assert found["answer"] is passes(*case)

    check()


def test_metadata_matches_is_the_model(asker: psycopg.Connection[Any]) -> None:
    """Any metadata, any filter: true or false, as the operators say."""
    check_model(asker, 400)


@pytest.mark.soak
def test_metadata_matches_is_the_model_for_long(asker: psycopg.Connection[Any]) -> None:
    """The same promise, over many random filters."""
    check_model(asker, 10_000, derandomize=False)


@pytest.mark.parametrize(
    ("metadata", "wanted", "answer"),
    [
        ({"n": 5}, {"n": {"$gt": 4}}, True),
        ({"n": 5}, {"n": {"$gt": 4, "$lt": 5}}, False),
        ({"n": 5}, {"n": {"$gt": "4"}}, False),
        ({"n": "5"}, {"n": {"$gt": 4}}, False),
        ({"n": 10}, {"n": {"$gt": 9}}, True),
        ({"n": "10"}, {"n": {"$gt": "9"}}, False),
        ({"n": True}, {"n": {"$lt": 9}}, False),
        ({"n": None}, {"n": {"$lte": 9}}, False),
        ({"n": [5]}, {"n": {"$gte": 5}}, False),
        ({"n": 1}, {"n": {"$eq": 1.0}}, True),
        ({"n": 1}, {"n": {"$eq": True}}, False),
        ({"n": [1, 2]}, {"n": [2]}, True),
        ({"n": [1, 2]}, {"n": 2}, False),
        ({"n": [1, 2]}, {"n": {"$eq": [2]}}, False),
        ({"n": [1, 2]}, {"n": {"$in": [2, [1, 2]]}}, True),
        ({"n": {"a": 1, "b": 2}}, {"n": {"a": 1}}, True),
        ({"n": {"a": 1, "b": 2}}, {"n": {"$eq": {"a": 1}}}, False),
        ({"n": {"a": 1}}, {"n": {}}, True),
        ({"n": 1}, {"n": {}}, False),
        ({}, {"n": {"$ne": 1}}, False),
        ({}, {"n": {"$nin": [1]}}, False),
        ({}, {"n": {"$nin": []}}, False),
        ({"n": 1}, {"n": {"$nin": []}}, True),
        ({"n": 1}, {"n": {"$in": []}}, False),
        ({}, {"n": {"$exists": False}}, True),
        ({"n": None}, {"n": {"$exists": True}}, True),
        ({"n": None}, {"n": {"$eq": None}}, True),
        ({}, {"n": {"$eq": None}}, False),
        ({}, {"n": None}, False),
        ({}, {"$not": {"n": 1}}, True),
        ({}, {"$not": {"n": {"$eq": 1}}}, True),
        ({}, {"$not": {"n": {"$gt": 1}}}, True),
        ({}, {"$not": {"n": {"$in": [1]}}}, True),
        ({}, {"$not": {"$not": {"n": {"$lt": 1}}}}, False),
        ({}, {"$or": [{"n": {"$gt": 1}}, {"n": {"$exists": False}}]}, True),
        ({"n": 1}, {"$and": []}, True),
        ({"n": 1}, {"$or": []}, False),
        ({"n": 1}, {}, True),
        ({"n": 1}, {"$not": {}}, False),
        ({"n": 1}, {"n": 1, "$or": [{"m": 1}]}, False),
        ({"a.b": 1, "a": {"b": 2}}, {"a.b": 1}, True),
        ({"a": {"b": 2}}, {"a.b": 2}, False),
        (None, {"n": {"$exists": False}}, True),
    ],
    ids=str,
)
def test_what_each_operator_means(
    asker: psycopg.Connection[Any], metadata: Any, wanted: Any, answer: bool
) -> None:
    """Numbers with numbers, strings with strings; all but $exists want the key to be there."""
    assert passes(metadata or {}, wanted) is answer
    given = metadata if metadata is None else Jsonb(metadata)
    query = "select knowledge.metadata_matches(%s::jsonb, %s) as answer"
    assert rows(asker, query, given, Jsonb(wanted)) == [{"answer": answer}]


# -- In a search.


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    """Sixty documents of two chunks, and a document of another org that would match anything."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        for org, count in (("acme", 60), ("other", 1)):
            with as_context(conn, org):
                for n in range(count):
                    metadata = {
                        "n": n,
                        "team": ["x", "y", "z"][n % 3],
                        "tags": [n % 2, n % 5],
                        "who": {"it's": n % 4},
                        **({"rare %s $1": None} if n % 7 == 0 else {}),
                    }
                    bodies = [f"fox {n}", f"lamp fox {n}"]
                    publish(conn, f"{org} {n}", bodies, metadata=metadata)
        yield db


@pytest.fixture
def reader(shelf: Database) -> Iterator[psycopg.Connection[Any]]:
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme"):
        yield conn


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        ({"n": {"$gte": 57}}, 3),
        ({"n": 41}, 1),
        ({"n": {"$in": [3, 50, 77, "4"]}}, 2),
        ({"n": {"$lt": 30}, "team": "x"}, 10),
        ({"n": {"$lt": 30}, "team": {"$ne": "x"}}, 20),
        ({"$or": [{"n": 1}, {"who": {"it's": 3}, "n": {"$lte": 7}}]}, 3),
        ({"$not": {"team": {"$in": ["x", "y"]}}}, 20),
        ({"$not": {"absent": {"$gt": 1}}}, 60),
        ({"tags": [4]}, 12),
        ({"rare %s $1": {"$exists": True}}, 9),
        ({"rare %s $1": None}, 9),
        ({"absent": {"$ne": 1}}, 0),
        ({}, 60),
    ],
    ids=str,
)
def test_a_filter_comes_before_the_ranking(
    reader: psycopg.Connection[Any], mode: str, wanted: dict[str, Any], matching: int
) -> None:
    """Case 1: min(k, matches) rows, all of them matching, as search_exact says."""
    for k in (1, 7, 200):
        found = search(reader, "fox lamp", mode=mode, metadata=wanted, k=k)
        assert len(found) == min(k, 2 * matching)
        assert all(passes(r["document_metadata"], wanted) for r in found)
        assert all(r["source_id"].startswith("acme ") for r in found)
        exact = search(reader, "fox lamp", "search_exact", mode=mode, metadata=wanted, k=k)
        assert [r["chunk_id"] for r in found] == [r["chunk_id"] for r in exact]


_orgs = itertools.count(1)


def test_a_search_returns_what_the_model_passes(shelf: Database) -> None:
    """Random metadata and filters: every document that passes, and no other, in every mode."""
    conn = shelf.connect("app_backend")

    @settings(QUICK, max_examples=25)
    @given(
        st.lists(metadatas, min_size=1, max_size=5).flatmap(
            lambda many: st.tuples(
                st.just(many),
                st.lists(st.sampled_from(many).flatmap(derived), min_size=2, max_size=4),
            )
        )
    )
    def check(case: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        many, asked = case
        with as_context(conn, f"org {next(_orgs)}"):
            for n, metadata in enumerate(many):
                publish(conn, str(n), ["fox", f"fox {n}"], metadata=metadata)
            for wanted, mode in itertools.product(asked, MODES):
                expected = sorted(
                    (str(n), i) for n, m in enumerate(many) if passes(m, wanted) for i in (0, 1)
                )
                found = search(conn, "fox", mode=mode, metadata=wanted, k=100)
                assert sorted((r["source_id"], r["ordinal"]) for r in found) == expected
                assert len(search(conn, "fox", mode=mode, metadata=wanted, k=3)) == min(
                    3, len(expected)
                )

    check()


BAD: list[Any] = [
    {"n": {"$regex": "x"}},
    {"n": {"$": 1}},
    {"n": {"$GT": 1}},
    {"n": {"gt": 1, "$gt": 1}},
    {"n": {"$gt": 1, "$regex": "x"}},
    {"n": {"$gt": None}},
    {"n": {"$gt": True}},
    {"n": {"$lt": [1]}},
    {"n": {"$gte": {}}},
    {"n": {"$in": 1}},
    {"n": {"$in": "x"}},
    {"n": {"$in": None}},
    {"n": {"$nin": {}}},
    {"n": {"$exists": 1}},
    {"n": {"$exists": "true"}},
    {"n": {"$exists": None}},
    {"n": {"$not": {"$eq": 1}}},
    {"n": {"$and": []}},
    {"$nor": []},
    {"$eq": 1},
    {"$": {}},
    {"$where": "true"},
    {"$and": {}},
    {"$and": None},
    {"$or": "x"},
    {"$or": [1]},
    {"$or": [{}, None]},
    {"$or": [{"n": 1}, []]},
    {"$and": [{"n": {"$regex": 1}}]},
    {"$not": []},
    {"$not": None},
    {"$not": True},
    {"$not": {"$not": {"$nor": []}}},
    {"$or": [{}, {"n": {"$x": 1}}]},
    [],
    "n",
    1,
    None,
    True,
]


@pytest.mark.parametrize("wanted", BAD, ids=str)
def test_a_malformed_filter_is_refused(reader: psycopg.Connection[Any], wanted: Any) -> None:
    """Case 18: KB005 from each function that takes one, never a wider answer."""
    for statement in (
        "select from knowledge.metadata_matches('{}', %s)",
        "select from knowledge.search_scoped('fox', mode => 'keyword', metadata => %s)",
        "select from knowledge.search_exact('fox', mode => 'keyword', metadata => %s)",
        "select from knowledge.explain_search('fox', mode => 'keyword', metadata => %s)",
    ):
        with pytest.raises(psycopg.Error) as error, reader.transaction():
            reader.execute(statement, (Jsonb(wanted),))
        assert error.value.sqlstate == "KB005", statement


INJECTIONS = [
    "'",
    "''",
    "' or true --",
    "x') or true; --",
    "\\' or true --",
    "\\",
    "x$1",
    "%s%L%I",
    "d.metadata",
    "') in (select 1)) or ('",
    '"',
    "}'::jsonb or true",
    "\u2019 or 1=1",
    "\t\n\x01",
]


@pytest.mark.parametrize("text", INJECTIONS, ids=ascii)
def test_keys_and_values_are_data(reader: psycopg.Connection[Any], text: str) -> None:
    """Whatever is in a key or a value, it is compared and not run."""
    for wanted, count in (
        ({text: 1}, 0),
        ({text: {"$eq": 1}}, 0),
        ({text: {"$gt": text}}, 0),
        ({text: {"$in": [1, text]}}, 0),
        ({text: {"$exists": True}}, 0),
        ({text: {"$exists": False}}, 120),
        ({"team": text}, 0),
        ({"team": {"$eq": text}}, 0),
        ({"team": {"$in": [text]}}, 0),
        ({"team": {"$nin": [text]}}, 120),
        ({"who": {text: text}}, 0),
        ({"$not": {text: {"$lt": text}}}, 120),
        ({"$or": [{text: text}, {"team": "x"}]}, 40),
    ):
        for mode in MODES:
            assert len(search(reader, "fox", mode=mode, metadata=wanted, k=1000)) == count
    with reader.transaction(force_rollback=True):
        query = "select knowledge.metadata_matches(%s, %s) as answer"
        for wanted in ({text: text}, {text: {"$eq": text}}, {text: {"$gte": text, "$lte": text}}):
            assert rows(reader, query, Jsonb({text: text}), Jsonb(wanted)) == [{"answer": True}]


# -- Options that shorten an answer.

SIZES = {"big": 500, "small": 12, "tiny": 3, "one": 1}


@pytest.fixture(scope="module")
def crowd(server: Server) -> Iterator[Database]:
    """One document of 500 nearly equal chunks, nearer than all others, and three small ones."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        with as_context(conn, "acme"):
            documents = []
            for name, size in SIZES.items():
                extra = "" if name == "big" else " moon tree"
                bodies = [f"fox lamp{extra} {name}{i}" for i in range(size)]
                vectors = [toy_vector(f"fox lamp{extra}") for _ in bodies]
                documents.append(Document(name, bodies, vectors))
            publish_all(conn, FINGERPRINT, documents)
        yield db


@pytest.fixture
def crowded(crowd: Database) -> Iterator[psycopg.Connection[Any]]:
    with crowd.connect("app_trusted") as conn, as_context(conn, "acme"):
        yield conn


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [1, 2, 5, 400, 1000, 999_999_999])
def test_at_most_so_many_chunks_of_a_document(
    crowded: psycopg.Connection[Any], mode: str, limit: int
) -> None:
    """Still min(k, what is left) rows, the first of each document, in the order without it."""
    plain = search(crowded, "fox lamp", mode=mode, k=1000)
    left: list[Any] = []
    for r in plain:
        if sum(r["document_id"] == document for document, _ in left) < limit:
            left.append((r["document_id"], r["chunk_id"]))
    assert len(left) == sum(min(size, limit) for size in SIZES.values())
    for k in (1, 2, 4, 10, 150, 201, 1000):
        given = {"mode": mode, "k": k, "options": {"per_document": limit}}
        found = search(crowded, "fox lamp", **given)
        assert [r["chunk_id"] for r in found] == [chunk for _, chunk in left][:k]
        assert [r["rank"] for r in found] == list(range(1, len(found) + 1))


def test_fewer_of_a_document_is_a_prefix_too(db: Database) -> None:
    """Case 3: the legs go deeper for a larger k; what stood before stays where it was.

    The document of 1,000 is first in both legs, 300 deep in one of them; then each has its own.
    """
    conn = db.connect("app_backend")
    register(conn)
    near, far = [1.0] + [0.0] * 7, [0.0] * 7 + [1.0]
    with as_context(conn, "acme"):
        bodies = [f"{'fox ' * 10 if i < 300 else 'lamp '}{i}" for i in range(1000)]
        documents = [Document("big", bodies, [near] * 1000)]
        for n in range(30):
            documents.append(Document(f"meaning {n}", [f"moon {n}"], [[1.0, 0.1] + [0.0] * 6]))
            documents.append(Document(f"words {n}", [f"fox tree bird gold {n}"], [far]))
        publish_all(conn, FINGERPRINT, documents)
        given = {"embedding": vector_text(near), "options": {"per_document": 1}}
        answers = [search(conn, "fox", k=k, **given, fingerprint=FINGERPRINT) for k in (2, 20, 61)]
    ids = [[r["chunk_id"] for r in answer] for answer in answers]
    assert [len(answer) for answer in ids] == [2, 20, 61]
    assert ids[0] == ids[2][:2]
    assert ids[1] == ids[2][:20]


@pytest.mark.parametrize("mode", MODES)
def test_a_least_score(crowded: psycopg.Connection[Any], mode: str) -> None:
    """min_score takes away what scores less, and nothing else."""
    plain = search(crowded, "fox moon", mode=mode, k=300)
    scores = [r["score"] for r in plain]
    for least in (0, 0.000001, scores[250], scores[40], scores[1], scores[0], 1000000):
        found = search(crowded, "fox moon", mode=mode, k=300, options={"min_score": least})
        assert found == [r for r in plain if r["score"] >= least]
    both = {"min_score": scores[40], "per_document": 2}
    found = search(crowded, "fox moon", mode=mode, k=300, options=both)
    one = search(crowded, "fox moon", mode=mode, k=300, options={"per_document": 2})
    assert found == [r for r in one if r["score"] >= scores[40]]


@pytest.mark.parametrize("function", ["search_scoped", "search_exact", "explain_search"])
@pytest.mark.parametrize(
    "options",
    [
        *({"per_document": bad} for bad in (0, -1, 1.5, "1", None, True, [1], 10**9, 1e30)),
        *({"min_score": bad} for bad in (-0.1, "0", None, False, [], {}, 1e7, 1e-9)),
    ],
    ids=str,
)
def test_bad_options_are_refused(
    crowded: psycopg.Connection[Any], function: str, options: dict[str, Any]
) -> None:
    """KB005, from each function that takes options."""
    with pytest.raises(psycopg.Error) as error, crowded.transaction():
        search(crowded, "fox", function, options=options, **FOX)
    assert error.value.sqlstate == "KB005"
