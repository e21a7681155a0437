"""Answers are complete, fused as promised, the same each time, and only of what is live."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.bulk import Document, publish_all
from support.knowledge import (
    FINGERPRINT,
    begin,
    content_hash,
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

WORDS = ["fox", "lamp", "bird", "tree", "moon", "fish", "gold", "wolf", "rock", "ship"]


@pytest.fixture(scope="module")
def library(server: Server) -> Iterator[Database]:
    """650 chunks for staff and 250 for the board, in two source types; another org beside it."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        for org in ("library", "other"):
            with as_context(conn, org):
                for audience in ("staff", "board"):
                    conn.execute("select knowledge.define_tag(%s)", (audience,))
                    conn.execute("select knowledge.define_audience(%s, %s)", (audience, [audience]))
                publish_all(conn, FINGERPRINT, _documents(org))
        yield db


def _documents(org: str) -> Iterator[Document]:
    for n in range(18 if org == "library" else 4):
        bodies = [_body(50 * n + i) for i in range(50)]
        yield Document(
            f"{org} {n}",
            bodies,
            [toy_vector(body) for body in bodies],
            source_type="mail" if n % 3 == 0 else "wiki",
            audience=["board"] if n % 4 == 0 else ["staff"],
            metadata={"page": n % 2},
        )


def _body(i: int) -> str:
    return " ".join(WORDS[(i * step + i // 7) % 10] for step in (1, 3, 7)) + f" item{i}"


def ask(db: Database, question: str | None, grants: list[str], **given: Any) -> list[dict]:
    """A search as app_trusted, who may say who is asking but not write."""
    conn = db.connect("app_trusted")
    with as_context(conn, "library", grants):
        found = search(conn, question, **given)
    conn.close()
    return found


def ids(answer: list[dict[str, Any]]) -> list[Any]:
    return [r["chunk_id"] for r in answer]


def ranking(answer: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["chunk_id"], r["rank"], r["score"]) for r in answer]


MODES = ["vector", "keyword", "hybrid"]
GIVEN: list[dict[str, Any]] = [
    {},
    {"source_types": ["mail"]},
    {"metadata": {"page": 1}},
    {"source_types": ["mail"], "metadata": {"page": 1}},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_min_k_permitted_rows_and_prefixes(
    library: Database, mode: str, given: dict[str, Any]
) -> None:
    """Cases 1, 3, 4: every k, below and above any search width, is a prefix of the whole answer."""
    every = ask(library, "fox lamp", ["staff"], mode=mode, k=1000, **given)
    documents = [d for d in _documents("library") if d.audience == ["staff"]]
    matching = [
        body
        for d in documents
        for body in d.bodies
        if d.source_type in given.get("source_types", ["mail", "wiki"])
        and given.get("metadata", {}).items() <= d.metadata.items()
        and (mode != "keyword" or {"fox", "lamp"} & {*body.split()})
    ]
    assert len(matching) > 40
    assert sorted(r["body"] for r in every) == sorted(matching)
    for k in (1, 10, 41, 200, 201):
        found = ask(library, "fox lamp", ["staff"], mode=mode, k=k, **given)
        assert ranking(found) == ranking(every)[:k]
        assert len(found) == min(k, len(matching))


@pytest.mark.parametrize("mode", MODES)
def test_narrowing_never_adds_rows(library: Database, mode: str) -> None:
    """Cases 2, 17: every further condition is one more, beside permission and the others."""
    everything = {*ids(ask(library, "wolf", ["staff", "board"], mode=mode, k=1000))}
    permitted = {*ids(ask(library, "wolf", ["staff"], mode=mode, k=1000))}
    assert permitted < everything
    sets = [{*ids(ask(library, "wolf", ["staff"], mode=mode, k=1000, **g))} for g in GIVEN]
    assert all(narrow < permitted for narrow in sets[1:])
    assert sets[3] == sets[1] & sets[2]
    for fewer in ({"metadata": {"page": 1, "none": 1}}, {"source_types": ["other"]}):
        assert ask(library, "wolf", ["staff"], mode=mode, **fewer) == []
    assert {*ids(ask(library, "wolf", ["staff"], mode=mode, k=1000, metadata={}))} == permitted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("empty", [{"source_types": []}, {"visibility": []}], ids=str)
def test_an_empty_list_is_nothing(library: Database, mode: str, empty: dict[str, Any]) -> None:
    """Case 16."""
    assert ask(library, "wolf", ["staff"], mode=mode, **empty) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_filter_does_not_reach_beyond_the_tenant(library: Database, mode: str) -> None:
    """Case 17: no metadata, source type or visibility brings another org's rows."""
    for given in (*GIVEN, {"visibility": ["org", "other", "*"]}):
        found = ask(library, "fox", ["staff", "board"], mode=mode, k=1000, **given)
        assert all(r["source_id"].startswith("library ") for r in found)


def test_nearest_first(library: Database) -> None:
    """Case 5: distances ascend, BM25 descends, the fused score descends, ranks count from 1."""
    for mode, measure, sign in (
        ("vector", "vector_distance", 1),
        ("keyword", "keyword_score", -1),
        ("hybrid", "score", -1),
    ):
        found = ask(library, "fox lamp moon", ["staff"], mode=mode, k=300)
        values = [sign * r[measure] for r in found]
        assert values == sorted(values)
        assert [r["rank"] for r in found] == list(range(1, 301))


def test_the_fused_score_is_the_sum(library: Database) -> None:
    """Case 8: weight / (rrf_k + rank), less for what is far from the leg's best; k is respected."""
    query = "fox item7"
    near = [r["vector_distance"] for r in ask(library, query, ["staff"], mode="vector", k=200)]
    best = ask(library, query, ["staff"], mode="keyword", k=1)[0]["keyword_score"]
    for options in ({}, {"rrf_k": 60, "vector_weight": 0.5, "keyword_weight": 2}, {"rrf_k": 0}):
        rrf_k = options.get("rrf_k", 12)
        weights = [options.get("vector_weight", 1), options.get("keyword_weight", 1)]
        found = ask(library, query, ["staff"], k=150, options=options)
        assert len(found) == 150
        for r in found:
            total = 0.0
            if at := r["vector_rank"]:
                share = (near[-1] - r["vector_distance"]) / (near[-1] - near[0])
                total += weights[0] / (rrf_k + at) * min(1, 0.1 + 1.2 * share)
            if at := r["keyword_rank"]:
                share = r["keyword_score"] / best
                total += weights[1] / (rrf_k + at) * min(1, 0.1 + 1.2 * share)
            assert math.isclose(r["score"], total, rel_tol=1e-9)
        assert found[0]["vector_rank"]
        assert any(r["keyword_rank"] for r in found)


def test_the_score_of_a_leg_alone_is_its_rank(library: Database) -> None:
    """Nothing to be weighed against: also with a boost, and where documents are capped."""
    for mode in ("vector", "keyword"):
        found = ask(library, "fox item7", ["staff"], mode=mode, k=5)
        assert [r["score"] for r in found] == [1 / (12 + r["rank"]) for r in found]
        capped = ask(library, "fox item7", ["staff"], mode=mode, k=5, options={"per_document": 99})
        assert [r["score"] for r in capped] == [r["score"] for r in found]


def test_the_farthest_of_a_leg_still_counts(library: Database) -> None:
    """The last of the 200 that count has a tenth of its rank's part, and not nothing."""
    found = ask(library, "fox item7", ["staff"], k=1000)
    (last,) = (r for r in found if r["vector_rank"] == 200)
    assert last["score"] >= 0.1 / (12 + 200)


def test_each_leg_changes_the_ranking(library: Database) -> None:
    """Case 8: without either leg, or with its weight at 0, the answer is another."""
    alone = {mode: ids(ask(library, "fox item7", ["staff"], mode=mode, k=10)) for mode in MODES}
    assert len({tuple(order) for order in alone.values()}) == 3
    without = {
        leg: ids(ask(library, "fox item7", ["staff"], k=10, options={f"{leg}_weight": 0}))
        for leg in ("vector", "keyword")
    }
    assert without["vector"] == alone["keyword"]
    assert without["keyword"] == alone["vector"]
    one = ask(library, "fox item7", ["staff"], k=1000)
    vector, keyword = (
        {r["chunk_id"]: r["rank"] for r in ask(library, "fox item7", ["staff"], mode=m, k=1000)}
        for m in MODES[:2]
    )
    assert {r["chunk_id"]: r["vector_rank"] for r in one if r["vector_rank"]} == vector
    assert {r["chunk_id"]: r["keyword_rank"] for r in one if r["keyword_rank"]} == keyword


def test_the_legs_that_took_part_are_named(library: Database) -> None:
    """Case 8: a leg that is missing is said, not hidden."""
    fox = {"embedding": vector_text(toy_vector("fox")), "fingerprint": FINGERPRINT}
    for question, given, legs in (
        ("fox", fox, ["vector", "keyword"]),
        ("fox", {"embedding": None}, ["keyword"]),
        (None, fox, ["vector"]),
        ("", fox, ["vector"]),
        ("the of", fox, ["vector"]),
        ("fox", fox | {"mode": "vector"}, ["vector"]),
        ("fox", fox | {"mode": "keyword"}, ["keyword"]),
    ):
        found = ask(library, question, ["staff"], **given)
        assert len(found) == 10
        for r in found:
            assert r["legs"] == legs
            assert (r["vector_rank"] is None) <= ("keyword" in legs)
            for leg, measure in (("vector", "vector_distance"), ("keyword", "keyword_score")):
                assert (r[f"{leg}_rank"] is None) == (r[measure] is None)
                assert leg in legs or r[f"{leg}_rank"] is None


def test_one_absent_word_empties_nothing(library: Database) -> None:
    """Case 9."""
    question = "which fox is on the ship at quetzalcoatl"
    found = ask(library, question, ["staff"], mode="keyword", k=1000)
    assert len(found) > 100
    plain = ask(library, "fox ship", ["staff"], mode="keyword", k=1000)
    assert ranking(found) == ranking(plain)


def test_a_rare_identifier_is_found_first(library: Database) -> None:
    """Case 10: two chunks that hold it are in the top 3, whatever else is near in meaning."""
    conn = library.connect("app_backend")
    bodies = ["gold ship QX7731 rock", *(["fox lamp fox lamp"] * 3), "QX7731 moon"]
    with as_context(conn, "library", ["staff"]):
        publish(conn, "identifier", bodies, audience=["staff"])
        for question in ("QX7731", "what is QX7731"):
            found = search(conn, question, k=3)
            assert sum("QX7731" in r["body"] for r in found) == 2, question
        # A chunk that is near and has all other words may stand between them, not before both.
        assert any("QX7731" in r["body"] for r in search(conn, "fox lamp QX7731", k=3))
        rows(conn, "select * from knowledge.delete_source('wiki', 'identifier')")


@pytest.mark.parametrize("mode", MODES)
def test_ties_keep_their_order(library: Database, mode: str) -> None:
    """Case 13: across calls, roles, connections, k, and after every row was written anew."""

    def answer(k: int = 400) -> list[tuple[Any, ...]]:
        return ranking(ask(library, "fox", ["staff"], mode=mode, k=k))

    first = answer()
    if mode != "hybrid":
        measure = {"vector": "vector_distance", "keyword": "keyword_score"}[mode]
        found = ask(library, "fox", ["staff"], mode=mode, k=400)
        assert len({r[measure] for r in found}) < len(found)  # there are ties
    assert answer() == first == answer(401)[:400]
    superuser = library.superuser()
    tables = ("knowledge.chunks", "knowledge.places", "knowledge.vectors_1")
    for table in tables:
        superuser.execute(f"cluster {table} using {table.split('.')[1]}_pkey")
    assert answer() == first
    some = "substr(chunk_id::text, 36) < '8'"  # about half of the rows change places
    superuser.execute(f"update knowledge.chunks set tokens = tokens where {some}")
    superuser.execute(f"update knowledge.vectors_1 set embedding = embedding where {some}")
    assert answer() == first
    superuser.execute("vacuum full knowledge.chunks, knowledge.vectors_1")
    superuser.execute("analyze")
    assert answer() == first


@pytest.mark.parametrize("mode", MODES)
def test_the_same_text_in_many_orgs(db: Database, mode: str) -> None:
    """A thousand identical chunks of five orgs: each has its own two hundred, whatever k is."""
    conn = db.connect("app_backend")
    register(conn)
    body = "the fox and the lamp"
    orgs = [f"org {n}" for n in range(5)]
    for org in orgs:
        with as_context(conn, org):
            document = Document("same", [body] * 200, [toy_vector(body)] * 200)
            publish_all(conn, FINGERPRINT, [document])
    seen: set[Any] = set()
    for org in orgs:
        with as_context(conn, org):
            own = rows(conn, "select chunk_id from knowledge.chunks")
            every = search(conn, "fox lamp", mode=mode, k=1000)
            assert {*ids(every)} == {*ids(own)}
            assert (len(every), len(own)) == (200, 200)
            for k in (1, 10, 199, 200, 201):
                assert ranking(search(conn, "fox lamp", mode=mode, k=k)) == ranking(every)[:k]
        assert not seen & {*ids(every)}
        seen |= {*ids(every)}
    with as_context(conn, orgs[0]):
        rows(conn, "select * from knowledge.delete_source('wiki', 'same')")
        assert search(conn, "fox lamp", mode=mode) == []
    with as_context(conn, orgs[1]):
        assert {*ids(search(conn, "fox lamp", mode=mode, k=1000))} < seen


def test_no_score_is_missing(library: Database) -> None:
    """Case 15: never null or NaN, in any mode."""
    for mode in MODES:
        for r in ask(library, "fox lamp item3", ["staff"], mode=mode, k=1000):
            given = [r["score"], r["vector_distance"], r["keyword_score"]]
            assert r["score"] is not None
            assert all(math.isfinite(x) for x in given if x is not None)
            assert any(x is not None for x in given[1:])


@pytest.fixture
def org(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """app_backend in the context of an org of its own, in one transaction."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme", ["staff"]):
        yield conn


def test_only_what_is_live_is_scored(org: psycopg.Connection[Any]) -> None:
    """Cases 15, 37: what is deleted, replaced, staged or aborted counts in nothing."""
    publish(org, "kept", ["fox lamp", "fox fox bird", "moon"])
    alone = {mode: search(org, "fox moon", mode=mode) for mode in MODES}
    publish(org, "deleted", ["fox moon", "moon moon fish"])
    rows(org, "select * from knowledge.delete_source('wiki', 'deleted')")
    publish(org, "kept", ["fox lamp", "gold fox", "fox fox bird", "moon"])
    publish(org, "kept", ["fox lamp", "fox fox bird", "moon"])
    bodies = ["fox fox fox", "moon moon"]
    version = begin(org, "staged", bodies)
    stage(org, version, bodies)
    embed(org, version, bodies, [0, 1])
    version = begin(org, "aborted", bodies)
    stage(org, version, bodies)
    rows(org, "select knowledge.abort_version(%s)", version["version_id"])
    version = begin(org, "kept", ["moon fox fox"])
    stage(org, version, ["moon fox fox"])
    for mode in MODES:
        found = search(org, "fox moon", mode=mode)
        assert [{**r, "source_version": None} for r in found] == alone[mode]
    listed = rows(org, "select source_id, chunks from knowledge.list_sources()")
    assert listed == [{"source_id": "kept", "chunks": 3}]
    (statistics,) = rows(org, "select documents, chunks, unembedded from knowledge.stats()")
    assert statistics == {"documents": 1, "chunks": 3, "unembedded": 0}


def test_a_chunk_without_a_vector_is_found_by_words(org: psycopg.Connection[Any]) -> None:
    """Published without vectors, a document is in the keyword leg and in no other."""
    bodies = ["fox lamp", "fox bird"]
    version = begin(org, "words", bodies)
    stage(org, version, bodies)
    embed(org, version, bodies, [1])
    assert not finalize(org, version, allow_unembedded=True)["complete"]
    assert [r["ordinal"] for r in search(org, "fox", mode="vector")] == [1]
    assert {r["ordinal"] for r in search(org, "fox", mode="keyword")} == {0, 1}
    found = {r["ordinal"]: r for r in search(org, "fox")}
    assert found[0]["vector_rank"] is None
    assert found[0]["keyword_rank"]
    assert found[1]["vector_rank"] == 1


def test_a_row_cites_its_source(org: psycopg.Connection[Any]) -> None:
    """The body is the source's text from char_start to char_end; the rest says where that is."""
    text = "# Fox\n\nThe fox — 狐 — sleeps.\n\nThe moon does not.\n"
    spans = [(7, 30), (32, 50)]
    bodies = [text[start:end] for start, end in spans]
    given = {
        "source_version": "v7",
        "title": "On foxes",
        "uri": "https://example.org/fox",
        "metadata": {"team": "x"},
    }
    version = begin(org, "fox.md", bodies, **given)
    chunks = [
        {
            "ordinal": i,
            "body": bodies[i],
            "heading": "Fox",
            "char_start": spans[i][0],
            "char_end": spans[i][1],
        }
        for i in range(2)
    ]
    query = "select * from knowledge.stage_chunks(%s, %s, %s)"
    rows(org, query, version["version_id"], version["lease"], Jsonb(chunks))
    embed(org, version, bodies, [0, 1])
    finalize(org, version)
    found = search(org, "fox moon")
    assert len(found) == 2
    for r in found:
        assert r["body"] == text[r["char_start"] : r["char_end"]] == bodies[r["ordinal"]]
        assert (r["heading"], r["title"], r["uri"]) == ("Fox", given["title"], given["uri"])
        assert (r["source_type"], r["source_id"], r["source_version"]) == ("wiki", "fox.md", "v7")
        assert (r["org_scope"], r["visibility_label"]) == (None, "org")
        assert r["document_metadata"] == given["metadata"]
        assert r["document_id"] == version["document_id"]
    (source,) = rows(org, "select * from knowledge.get_source('wiki', 'fox.md')")
    assert source["content_hash"] == content_hash(bodies)
    # The heading is found too.
    assert {r["ordinal"] for r in search(org, "fox", mode="keyword")} == {0, 1}


def test_excluded_words_hold_in_both_legs(org: psycopg.Connection[Any]) -> None:
    """-word and -"phrase" are in no row; a "phrase" is in all that words find."""
    bodies = ["fox lamp", "fox bird", "bird fox tree", "moon", "tree lamp"]
    publish(org, "animals", bodies)

    def found(question: str, mode: str) -> set[str]:
        return {r["body"] for r in search(org, question, mode=mode)}

    assert found("fox -bird", "hybrid") == {"fox lamp", "moon", "tree lamp"}
    assert found("fox -bird", "keyword") == {"fox lamp"}
    assert found('fox -"bird fox"', "hybrid") == {*bodies} - {"bird fox tree"}
    assert found('fox -"bird fox"', "keyword") == {"fox lamp", "fox bird"}
    assert found('"fox bird" lamp', "keyword") == {"fox bird"}
    assert found('"fox" "tree"', "keyword") == {"bird fox tree"}
    assert found('-"bird fox" -moon', "hybrid") == {"fox lamp", "fox bird", "tree lamp"}
    assert found("fox-bird", "keyword") >= {"fox bird", "fox lamp", "bird fox tree"}
    by_words = {r["body"]: r["keyword_rank"] for r in search(org, '"fox bird"')}
    assert by_words == {body: 1 if body == "fox bird" else None for body in bodies}
