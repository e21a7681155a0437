"""keyword_score is BM25 (k1 1.2, b 0.75, the idf of Lucene) over the permitted compartments."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from support import Database, as_context
from support.knowledge import publish, register, rows, search

WORDS = ["fox", "lamp", "bird", "tree", "moon", "fish", "gold", "wolf"]


@pytest.fixture
def org(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """app_backend in the context of an org of its own, in one transaction."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme"):
        for audience in ("staff", "board"):
            conn.execute("select knowledge.define_tag(%s)", (audience,))
            conn.execute("select knowledge.define_audience(%s, %s)", (audience, [audience]))
        yield conn


def bm25(texts: Sequence[str], question: str) -> dict[str, float]:
    """text -> score, of the texts that share a word with the question; no word is an inflection."""
    counts = [Counter(text.split()) for text in texts]
    average = sum(c.total() for c in counts) / len(counts)
    scores: dict[str, float] = {}
    for word, repeats in Counter(question.split()).items():
        df = sum(word in c for c in counts)
        idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
        for text, c in zip(texts, counts, strict=True):
            if tf := c[word]:
                norm = 1.2 * (1 - 0.75 + 0.75 * c.total() / average)
                scores[text] = scores.get(text, 0) + repeats * idf * tf * 2.2 / (tf + norm)
    return scores


def scores(conn: psycopg.Connection[Any], question: str, **given: Any) -> dict[str, float]:
    found = search(conn, question, mode="keyword", k=1000, **given)
    return {r["body"]: r["keyword_score"] for r in found}


def same(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(
        math.isclose(one[text], other[text], rel_tol=1e-9) for text in one
    )


def as_app(
    conn: psycopg.Connection[Any], grants: list[str], org: str = "acme"
) -> psycopg.Connection[Any]:
    conn.execute("select knowledge.set_context(%s, %s)", (org, grants))
    return conn


def test_an_example_by_hand(org: psycopg.Connection[Any]) -> None:
    """Three chunks of 2, 3 and 4 words: N = 3, average 3; fox in two, moon in one."""
    publish(org, "doc", ["fox lamp", "bird fox fox", "moon tree fish gold"])
    found = scores(org, "fox moon")
    fox = math.log(1 + 1.5 / 2.5)  # (3 - 2 + 0.5) / (2 + 0.5)
    moon = math.log(1 + 2.5 / 1.5)
    by_hand = {
        "fox lamp": fox * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)),
        "bird fox fox": fox * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 3)),
        "moon tree fish gold": moon * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 4 / 3)),
    }
    assert same(found, by_hand)
    assert math.isclose(found["fox lamp"], 0.5442150, rel_tol=1e-6)


def test_random_texts_score_as_in_python(org: psycopg.Connection[Any]) -> None:
    """Every score of every question, over texts of many lengths and repetitions."""
    choose = random.Random(8)
    texts: list[str] = []
    for n in range(12):
        bodies = [
            f"text{n}x{i} "
            + " ".join(
                choose.choices(WORDS, weights=range(1, 9), k=choose.choice([1, 2, 5, 20, 90]))
            )
            for i in range(8)
        ]
        texts += bodies
        publish(org, f"doc {n}", bodies)
    for _ in range(40):
        question = " ".join(choose.choices([*WORDS, "absent"], k=choose.randint(1, 7)))
        assert same(scores(org, question), bm25(texts, question)), question


def test_a_repeated_word_counts_repeatedly(org: psycopg.Connection[Any]) -> None:
    """Twice in the question is twice the score of that word."""
    publish(org, "doc", ["fox lamp", "bird moon fox", "moon"])
    once, twice = scores(org, "fox"), scores(org, "fox fox")
    assert same(twice, {text: 2 * score for text, score in once.items()})
    assert same(
        scores(org, "fox moon fox"), bm25(["fox lamp", "bird moon fox", "moon"], "fox moon fox")
    )


@pytest.mark.parametrize("heading", ["", "fox", "fox fox lamp"])
def test_the_term_frequency_is_read_back(org: psycopg.Connection[Any], heading: str) -> None:
    """tf is the number of positions, up to 255 and where PostgreSQL stops counting."""
    counts = [*range(1, 20), 63, 64, 127, 128, 200, 253, 254, 255, 256, 300, 1000]
    bodies = ["fox " * n + f"text{n}" for n in counts]
    for n, body in zip(counts, bodies, strict=True):
        version_of(org, f"doc {n}", body, heading)
    found = search(org, "fox", mode="keyword", k=1000)
    exact = search(org, "fox", "search_exact", mode="keyword", k=1000)
    chunks = {
        r["chunk_id"]: (r["tf"], r["words"])
        for r in rows(
            org,
            "select c.chunk_id, cardinality(u.positions) as tf, c.words "
            "from knowledge.chunks as c cross join unnest(c.tsv) as u where u.lexeme = 'fox'",
        )
    }
    assert len(found) == len(counts) == len(chunks)
    average = sum(words for _, words in chunks.values()) / len(chunks)
    idf = math.log(1 + 0.5 / (len(chunks) + 0.5))
    for r in found:
        tf, words = chunks[r["chunk_id"]]
        assert tf == min(255 + bool(heading), heading.count("fox") + r["body"].count("fox"))
        score = idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * words / average))
        assert math.isclose(r["keyword_score"], score, rel_tol=1e-9), (tf, words)
    assert [r["chunk_id"] for r in found] == [r["chunk_id"] for r in exact]


def version_of(conn: psycopg.Connection[Any], source_id: str, body: str, heading: str) -> None:
    """Publish one chunk with a heading and no vector."""
    conn.execute(
        "select f.* from knowledge.begin_version('wiki', %(id)s, 'hash', 1, '{everyone}') as b "
        "cross join lateral (select count(*) as n "
        "from knowledge.stage_chunks(b.version_id, b.lease, "
        "jsonb_build_array(jsonb_build_object('ordinal', 0, 'body', %(body)s::text, "
        "'heading', %(heading)s::text)))) as s "
        "cross join lateral knowledge.finalize_version(b.version_id, b.lease + 0 * s.n, true) as f",
        {"id": source_id, "body": body, "heading": heading},
    )


def test_statistics_are_of_the_permitted_alone(org: psycopg.Connection[Any]) -> None:
    """What a caller may not read moves no score: not idf, not the average length, not by a bit."""
    staff = ["fox lamp", "bird fox fox", "moon tree"]
    publish(org, "staff", staff, audience=["staff"])
    before = scores(as_app(org, ["staff"]), "fox moon")
    assert same(before, bm25(staff, "fox moon"))
    board = ["fox fox fox fox", "moon " * 50, "gold"]
    publish(org, "board", board, audience=["board"])
    publish(org, "mail", board, audience=["staff"], source_type="mail")
    publish(org, "draft", board, audience=["staff"], visibility="draft")
    publish(as_app(org, [], "other"), "other", board)
    assert scores(as_app(org, ["staff"]), "fox moon", source_types=["wiki"]) == before
    # And what a caller may read does: the grants and the filters on compartments choose it.
    for grants, given, texts in (
        (["staff", "board"], {"source_types": ["wiki"]}, staff + board),
        (["board"], {}, board),
        (["staff"], {"source_types": ["mail"]}, board),
        (["staff"], {"visibility": ["draft"]}, board),
    ):
        found = scores(as_app(org, grants), "fox moon", **given)
        assert same(found, bm25(texts, "fox moon")), (grants, given)


def test_a_changed_rule_changes_the_statistics_at_once(org: psycopg.Connection[Any]) -> None:
    """define_audience moves compartments in and out of what is counted."""
    publish(org, "staff", ["fox lamp", "bird"], audience=["staff"])
    publish(org, "board", ["fox moon moon"], audience=["board"])
    assert same(scores(as_app(org, ["staff"]), "fox"), bm25(["fox lamp", "bird"], "fox"))
    org.execute("select knowledge.define_audience('board', '{board,staff}')")
    assert same(scores(org, "fox"), bm25(["fox lamp", "bird", "fox moon moon"], "fox"))


def test_metadata_filters_rows_not_statistics(org: psycopg.Connection[Any]) -> None:
    """Metadata is no permission: a narrower answer keeps the scores of the wider one."""
    publish(org, "a", ["fox lamp", "bird"], metadata={"team": "x"})
    publish(org, "b", ["fox fox moon"], metadata={"team": "y"})
    every = scores(org, "fox")
    assert scores(org, "fox", metadata={"team": "y"}) == {"fox fox moon": every["fox fox moon"]}


@pytest.fixture
def large(db: Database) -> Database:
    """3,000 chunks, their lexemes counted: delta 250, epsilon 280 (thrice), zeta 290, omega half.

    20 chunks have epsilon and zeta, none has delta and one of these.
    """
    conn = db.connect("app_backend")
    register(conn)
    parts = {"delta": (0, 250), "epsilon epsilon epsilon": (300, 580), "zeta": (560, 850)}
    parts["omega"] = (0, 1500)
    bodies = [
        " ".join(["stone", *(w for w, (first, end) in parts.items() if first <= i < end)])
        for i in range(3000)
    ]
    with as_context(conn, "acme"):
        for first in range(0, len(bodies), 300):
            publish(conn, f"doc {first}", bodies[first : first + 300])
    db.superuser().execute("select from knowledge.maintain()")
    return db


def classes(db: Database, question: str, **settings: float) -> Counter[str]:
    """Which of delta, epsilon and zeta the best 200 chunks have, and how many of each kind."""
    for name, value in settings.items():
        db.superuser().execute(f"update knowledge_private.settings set {name} = %s", (value,))
    with db.connect("app_trusted") as conn, as_context(conn, "acme"):
        found = search(conn, question, mode="keyword", k=200)
    kinds = [" ".join(sorted({*r["body"].split()} - {"stone", "omega"})) for r in found]
    return Counter(kinds)


def test_enough_weight_ends_the_candidates(large: Database) -> None:
    """A common word adds no candidates once those before it are that share of the idf.

    delta, epsilon and omega weigh 2.5, 2.4 and 0.7: delta alone is 0.45 of it. Nearly all of the
    best 200 have epsilon, which is left out when that is enough.
    """
    ask = ("delta epsilon omega",)
    bounds = {"candidates": 3000, "paired_candidates": 0}
    assert classes(large, *ask, enough_weight=0.4, **bounds) == {"delta": 200}
    for enough in (0.5, 1):
        found = classes(large, *ask, enough_weight=enough, **bounds)
        assert found.keys() == {"epsilon"} or found["epsilon"] + found["epsilon zeta"] == 200


def test_beyond_the_rarest_words_it_takes_two(large: Database) -> None:
    """Past candidates, a chunk is scored only with two of the words, neither in every tenth."""
    ask = "delta epsilon zeta"
    bounds = {"candidates": 250, "enough_weight": 1}
    assert classes(large, ask, paired_candidates=0, **bounds) == {"delta": 200}
    assert classes(large, ask, paired_candidates=1000, **bounds) == {
        "epsilon zeta": 20,
        "delta": 180,
    }
    everything = classes(large, ask, candidates=3000)
    assert everything["epsilon zeta"] == 20
    assert everything["epsilon"] == 180
    # omega is in every other chunk: what stands with it is not more telling.
    assert classes(large, "delta epsilon omega", paired_candidates=1000, **bounds) == {"delta": 200}


@pytest.mark.parametrize(("scanned", "looks"), [(20_000, 0), (0, 1)])
def test_a_small_org_is_not_looked_up_in_the_index_of_all(
    large: Database, scanned: int, looks: int
) -> None:
    """The index of lexemes holds every org's words: it is asked only for many permitted chunks."""
    watch = large.superuser()
    looked = "select idx_scan from pg_stat_user_indexes where indexrelname = 'chunks_tsv'"

    def looked_up() -> int:
        conn.execute("select pg_stat_force_next_flush()")
        (row,) = rows(watch, looked)
        return int(row["idx_scan"])

    watch.execute("update knowledge_private.settings set scanned_chunks = %s", (scanned,))
    watch.execute("vacuum analyze knowledge.chunks")
    conn = large.connect("app_backend")
    conn.execute("set enable_seqscan = off")
    before = looked_up()
    with as_context(conn, "acme"):
        assert search(conn, "delta", mode="keyword")
    assert looked_up() - before == looks
