"""Every plan gives the same answer: exact, an org's own index, each way to write the permission."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from support import Database, Server, as_context
from support.bulk import Document, publish_all
from support.knowledge import promote, rows, search, vector_text

DIMENSIONS = 32
FINGERPRINT = "random:32"
SIZES = {"a0": 2400, "a1": 1200, "a2": 500, "a3": 250, "a4": 45, "a5": 5}
EXACT_ROWS = 300


def vectors(seed: int, count: int) -> np.ndarray:
    """Unit vectors around forty centres."""
    numbers = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(40, DIMENSIONS))
    found = centres[numbers.integers(40, size=count)]
    found = found + 0.5 * numbers.normal(size=found.shape)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def documents(seed: int, audience: str, count: int) -> Iterator[Document]:
    """Documents of 50 chunks; half of them mail, every third on page 3."""
    every = vectors(seed, count)
    for n, first in enumerate(range(0, count, 50)):
        part = every[first : first + 50]
        yield Document(
            f"{audience}/{n}",
            [f"text {audience} number {first + i}" for i in range(len(part))],
            part,
            source_type="mail" if n % 2 else "wiki",
            audience=[audience],
            metadata={"page": n % 3},
        )


@pytest.fixture(scope="module")
def plans(server: Server) -> Iterator[Database]:
    """An org of some thousand vectors with an index of its own, used from 300 rows on."""
    with server.database() as db:
        db.superuser().execute(
            "update knowledge_private.settings set exact_rows = %s, index_share = 0.05",
            (EXACT_ROWS,),
        )
        conn = db.connect("app_backend")
        conn.execute("select knowledge.register_model('random', %s, %s)", (DIMENSIONS, FINGERPRINT))
        for org in ("big", "other"):
            with as_context(conn, org):
                for n, (audience, size) in enumerate(SIZES.items()):
                    conn.execute("select knowledge.define_tag(%s)", (audience,))
                    conn.execute("select knowledge.define_audience(%s, %s)", (audience, [audience]))
                    size = size if org == "big" else 100
                    publish_all(conn, FINGERPRINT, documents(n, audience, size))
        promote(db.superuser(), "big")
        db.superuser().execute("analyze")
        yield db


@pytest.fixture
def set_setting(plans: Database) -> Iterator[Callable[..., None]]:
    """set_setting(name=value) until the end of the test."""
    conn = plans.superuser()
    before = rows(conn, "select * from knowledge_private.settings")[0]

    def change(**given: Any) -> None:
        for name, value in given.items():
            conn.execute(f"update knowledge_private.settings set {name} = %s", (value,))

    yield change
    change(**{name: before[name] for name in ("exact_rows", "index_share", "long_list")})


def ask(conn: psycopg.Connection[Any], vector: Any, function: str = "search_scoped", **given: Any):
    given = {"mode": "vector", **given}
    return search(
        conn, None, function, embedding=vector_text(vector), fingerprint=FINGERPRINT, **given
    )


def ids(answer: list[dict[str, Any]]) -> list[Any]:
    return [r["chunk_id"] for r in answer]


def backend(plans: Database) -> psycopg.Connection[Any]:
    """A connection whose planner takes the org's index wherever it may.

    Reading all of some thousand short vectors is cheaper, as the planner knows.
    """
    conn = plans.connect("app_backend")
    conn.execute("select '[1]'::extensions.vector")  # so that the settings of pgvector are known
    conn.execute("set enable_sort = off")
    return conn


def index_scans(conn: psycopg.Connection[Any]) -> int:
    """How often the org's index was scanned, by what the superuser's statistics say."""
    query = "select sum(idx_scan) from pg_stat_user_indexes where indexrelname like %s"
    (found,) = conn.execute(query, ("vectors\\_1\\_of\\_%",)).fetchone()
    return int(found)


def counted(plans: Database, conn: psycopg.Connection[Any], call: Callable[[], Any]) -> int:
    """How many scans of the org's index call makes on conn."""
    with plans.server.connect(plans.name) as superuser:
        before = index_scans(superuser)
        call()
        conn.execute("select pg_stat_force_next_flush()")
        conn.execute("select")
        return index_scans(superuser) - before


FILTERS: list[dict[str, Any]] = [
    {},
    {"source_types": ["mail"]},
    {"metadata": {"page": 2}},
    {"source_types": ["wiki"], "metadata": {"page": 0}},
]


@pytest.mark.parametrize("long_list", [1000, 0])
def test_complete_and_nearly_exact(
    plans: Database, set_setting: Callable[..., None], long_list: int
) -> None:
    """min(k, permitted) rows, nearest first; recall at least 0.99, exact for few permitted."""
    set_setting(long_list=long_list)
    conn = backend(plans)
    choose = random.Random(5)
    queries = vectors(99, 30)
    hits = wanted = 0
    for n, query in enumerate(queries):
        grants = choose.sample([*SIZES], choose.randint(1, 6))
        given = FILTERS[n % len(FILTERS)]
        k = choose.choice([1, 10, 10, 60, 300])
        with as_context(conn, "big", grants):
            found = ask(conn, query, k=k, **given)
            exact = ask(conn, query, "search_exact", k=1000, **given)
        permitted = len(exact)
        assert len(found) == min(k, permitted)
        assert len(set(ids(found))) == len(found)
        distances = [r["vector_distance"] for r in found]
        assert distances == sorted(distances)
        assert [r["rank"] for r in found] == [r["vector_rank"] for r in found]
        if permitted <= EXACT_ROWS:
            assert ids(found) == ids(exact)[:k]
        hits += len({*ids(found)} & {*ids(exact)[:k]})
        wanted += min(k, permitted)
    assert hits / wanted >= 0.99


def test_the_index_is_used_when_it_should_be(plans: Database) -> None:
    """By auto for many permitted rows; not for few, not by plan exact, not in another org."""
    conn = backend(plans)
    (query,) = vectors(7, 1)

    def scans(org: str, grants: list[str], **given: Any) -> int:
        def call() -> None:
            with as_context(conn, org, grants):
                assert ask(conn, query, **given)

        return counted(plans, conn, call)

    everything = [*SIZES]
    assert scans("big", everything) == 1
    assert scans("big", ["a0", "a1"], k=500) == 1
    assert scans("big", everything, options={"plan": "exact"}) == 0
    assert scans("big", ["a3", "a5"]) == 0
    assert scans("other", everything) == 0


@pytest.mark.parametrize(
    "grants", [[*SIZES], ["a2", "a4"], ["a3", "a5"]], ids=["all", "some", "few"]
)
@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_any_k(plans: Database, grants: list[str], mode: str) -> None:
    """Cases 1, 3, 4: from 1 to 1000, below and above every search width, k rows if so many are
    permitted; up to 200 each is a prefix of the next, beyond that nearly all are the nearest."""
    conn = backend(plans)
    permitted = sum(SIZES[grant] for grant in grants)
    given = {"query": "text number 7", "mode": mode} if mode == "hybrid" else {"mode": mode}
    (query,) = vectors(31, 1)
    vector = {"embedding": vector_text(query), "fingerprint": FINGERPRINT}
    with as_context(conn, "big", grants):
        answers = {
            k: search(conn, given.get("query"), k=k, mode=mode, **vector)
            for k in (1, 2, 9, 10, 11, 40, 41, 99, 100, 101, 199, 200, 201, 399, 400, 999, 1000)
        }
        exact = ids(search(conn, given.get("query"), "search_exact", k=1000, mode=mode, **vector))
    for k, found in answers.items():
        assert len(found) == len({*ids(found)}) == min(k, permitted)
        assert [r["rank"] for r in found] == list(range(1, len(found) + 1))
        if k <= 200:
            assert ids(found) == ids(answers[200])[:k]
        assert len({*ids(found)} & {*exact[:k]}) >= 0.98 * len(found)
    with pytest.raises(psycopg.Error) as refused, as_context(conn, "big", grants):
        search(conn, given.get("query"), k=1001, mode=mode, **vector)
    assert refused.value.sqlstate == "KB005"


def test_a_small_topical_tenant_beside_a_large_one(plans: Database) -> None:
    """Case 7: texts that are alike, in a corner that another tenant's crowd surrounds: exact."""
    conn = backend(plans)
    centre = vectors(0, 1)[0]
    part = centre + 0.02 * vectors(41, 60)
    with as_context(conn, "topical"):
        publish_all(conn, FINGERPRINT, [Document("d", [f"alike {i}" for i in range(60)], part)])
    for query in (centre, *part[:5], *vectors(42, 5)):
        nearest = np.argsort(-(part / np.linalg.norm(part, axis=1, keepdims=True)) @ query)
        with as_context(conn, "topical"):
            found = ask(conn, query, k=10)
            assert ids(found) == ids(ask(conn, query, "search_exact", k=10))
        bodies = [int(r["body"].split()[1]) for r in found]
        assert len({*bodies} & {*nearest[:10].tolist()}) >= 9  # halfvec rounds


def test_dead_rows_leave_no_answer_short(plans: Database) -> None:
    """Every vector replaced twice and nothing vacuumed: the index is full of rows that are dead."""
    conn = backend(plans)
    superuser = plans.superuser()
    superuser.execute("alter table knowledge.vectors_1 set (autovacuum_enabled = false)")
    superuser.execute("alter table knowledge.chunks set (autovacuum_enabled = false)")
    count = 1000

    def publish(edition: int) -> None:
        with as_context(conn, "renewed"):
            part = vectors(50 + edition, count)
            bodies = [f"edition {edition} number {i}" for i in range(count)]
            publish_all(
                conn,
                FINGERPRINT,
                (
                    Document(f"d{n}", bodies[n::10], part[n::10], metadata={"page": n})
                    for n in range(10)
                ),
            )

    publish(0)
    promote(superuser, "renewed")
    publish(1)
    publish(2)

    def scans() -> None:
        hits = wanted = 0
        for query in vectors(60, 20):
            for k, given in ((10, {}), (500, {}), (1000, {}), (10, {"metadata": {"page": 3}})):
                with as_context(conn, "renewed"):
                    found = ask(conn, query, k=k, **given)
                    exact = ask(conn, query, "search_exact", k=k, **given)
                assert len(found) == len(exact) == k
                assert all(r["body"].startswith("edition 2 ") for r in found)
                hits += len({*ids(found)} & {*ids(exact)})
                wanted += k
        assert hits / wanted >= 0.99

    assert counted(plans, conn, scans) >= 20  # it is the index that was asked


def test_explain_shows_the_partial_index(plans: Database) -> None:
    """A predicate with the org as a literal implies the index; "+ 0" keeps every index out."""
    conn = plans.superuser()
    (query,) = vectors(8, 1)
    (numbers,) = conn.execute(
        "select array_agg(compartment_id)::text from knowledge.compartments where org_id = 'big'"
    ).fetchone()
    predicate = f"t.org_id = 'big' and t.compartment_id = any ('{numbers}'::integer[])"
    conn.execute("set hnsw.iterative_scan = relaxed_order; set enable_sort = off")
    distance = f"t.embedding operator(extensions.<=>) '{vector_text(query)}'::extensions.halfvec"
    plan = {}
    for order in (distance, f"({distance}) + 0"):
        explained = conn.execute(
            f"explain select t.chunk_id from knowledge.vectors_1 as t where {predicate} "
            f"order by {order} limit 200"
        ).fetchall()
        plan[order] = "\n".join(line for (line,) in explained)
    assert "Index Scan using vectors_1_of_" in plan[distance]
    assert "vectors_1_of_" not in plan[f"({distance}) + 0"]


@pytest.mark.parametrize("compartments", [[*SIZES], ["a0", "a2"]])
def test_many_compartments_are_looked_up_by_key(plans: Database, compartments: list[str]) -> None:
    """The rows that the index gives are checked one by one: no list, no join with all permitted."""
    conn = plans.superuser()
    (query,) = vectors(9, 1)
    claim = f"row('big', null, array{compartments}, null)::knowledge_private.claim"
    (predicate,) = conn.execute(
        f"select knowledge_private.compartment_look_up({claim}, null, '{{org}}')"
    ).fetchone()
    conn.execute("set hnsw.iterative_scan = relaxed_order; set enable_sort = off")
    conn.execute("set enable_seqscan = off; set enable_bitmapscan = off")  # there are only twelve
    explained = conn.execute(
        f"explain select t.chunk_id from knowledge.vectors_1 as t where {predicate} order by "
        f"t.embedding operator(extensions.<=>) '{vector_text(query)}'::extensions.halfvec limit 200"
    ).fetchall()
    plan = "\n".join(line for (line,) in explained)
    assert "Index Scan using vectors_1_of_" in plan
    assert "Index Scan using compartments_pkey" in plan
    assert "compartment_id = t.compartment_id" in plan
    assert "Join" not in plan


def test_a_list_that_is_the_whole_org_is_not_written(plans: Database) -> None:
    """More than long_list compartments: nothing but the org, only if they are all of its own."""
    conn = plans.superuser()
    (numbers,) = conn.execute(
        "select array_agg(compartment_id) from knowledge.compartments where org_id = 'big'"
    ).fetchone()
    for long_list, given, whole in (
        (len(numbers) - 1, numbers, True),
        (len(numbers), numbers, False),
        (0, numbers[1:], False),
    ):
        (predicate,) = conn.execute(
            "select knowledge_private.compartment_predicate('big', %s, %s, true)",
            (given, long_list),
        ).fetchone()
        listed = f" and t.compartment_id = any ('{{{','.join(map(str, given))}}}'::integer[])"
        assert predicate == "t.org_id = 'big'" + ("" if whole else listed)


@pytest.mark.parametrize("long_list", [1000, 0])
def test_a_search_that_stopped_counting_is_complete(
    plans: Database, set_setting: Callable[..., None], long_list: int
) -> None:
    """With more compartments than tell that the index is worth while, none is left out."""
    set_setting(exact_rows=0, index_share=0, long_list=long_list)
    conn = backend(plans)
    hits = wanted = 0
    for n, query in enumerate(vectors(77, 12)):
        for grants in ([*SIZES], ["a0", "a3"], ["a4", "a5"], []):
            for given in ({}, FILTERS[1 + n % 3], {"options": {"per_document": 1}}):
                k = [1, 10, 60, 300][n % 4]
                with as_context(conn, "big", grants):
                    found = ask(conn, query, k=k, **given)
                    exact = ask(conn, query, k=1000, **given | {"options": {"plan": "exact"}})
                    (shown,) = ask(conn, query, "explain_search", k=1, **given)
                    readable = rows(conn, "select chunk_id from knowledge.chunks")
                assert {*ids(found)} <= {*ids(readable)}
                if "options" not in given:
                    assert len(found) == min(k, len(exact))
                    hits += len({*ids(found)} & {*ids(exact)[:k]})
                    wanted += len(found)
                    assert shown["explain_search"]["permitted_chunks"] >= len(exact)
                    if not given:
                        assert shown["explain_search"]["permitted_chunks"] == sum(
                            SIZES[grant] for grant in grants
                        )
    assert hits / wanted >= 0.99


@pytest.mark.parametrize("grants", [[*SIZES], ["a1", "a2"], ["a5"], []])
def test_every_form_of_the_permission_answers_alike(
    plans: Database, set_setting: Callable[..., None], grants: list[str]
) -> None:
    """A literal list, all of the org and a look-up by row are three ways to write one thing."""
    conn = backend(plans)
    queries = vectors(11, 3)
    answers = []
    for long_list in (1000, 0):
        set_setting(long_list=long_list)
        with as_context(conn, "big", grants):
            answers.append(
                [
                    search(
                        conn,
                        "text number 7 a1",
                        embedding=vector_text(query),
                        fingerprint=FINGERPRINT,
                        mode=mode,
                        k=40,
                        options={"plan": "exact"},
                        **given,
                    )
                    for query in queries
                    for mode in ("vector", "keyword", "hybrid")
                    for given in FILTERS
                ]
            )
    assert answers[0] == answers[1]
    assert any(answers[0]) == bool(grants)


def planner_settings(conn: psycopg.Connection[Any]) -> dict[str, str]:
    return dict(
        conn.execute(
            "select name, setting from pg_settings where name not like 'knowledge.%' "
            "and name not like 'plpgsql.%'"  # which are not known before plpgsql is first called
        ).fetchall()
    )


@pytest.mark.parametrize("own", [None, "55"])
def test_a_search_leaves_no_setting_behind(plans: Database, own: str | None) -> None:
    """In the transaction, after it and after an error, every setting is as the caller had it."""
    conn = backend(plans)
    (query,) = vectors(12, 1)
    if own:
        conn.execute(f"set hnsw.ef_search = {own}")
    before = planner_settings(conn)

    def check() -> None:
        with as_context(conn, "big", [*SIZES]):
            inside = planner_settings(conn)
            assert ask(conn, query, k=100)
            assert planner_settings(conn) == inside == before

    assert counted(plans, conn, check) == 1
    assert planner_settings(conn) == before
    for broken in ({"k": 0}, {"metadata": {"page": 2}, "options": {"plan": "none"}}):
        with as_context(conn, "big", [*SIZES]):
            ask(conn, query)
            with pytest.raises(psycopg.Error), conn.transaction():
                ask(conn, query, **broken)
            assert planner_settings(conn) == before
    with as_context(conn, "big", [*SIZES]):
        with pytest.raises(psycopg.Error), conn.transaction():
            # The search is done, and its settings set and put back, when this fails.
            conn.execute(
                "select 1 / (count(*) - 10) from knowledge.search_scoped(embedding => %s, "
                "fingerprint => %s, mode => 'vector')",
                (vector_text(query), FINGERPRINT),
            )
        assert planner_settings(conn) == before
    assert planner_settings(conn) == before


def test_a_cached_generic_plan_changes_nothing(plans: Database) -> None:
    """Case 6: prepared, repeated, planned without knowing its parameters, it answers the same."""
    conn = backend(plans)
    queries = vectors(13, 8)
    statement = (
        "select chunk_id from knowledge.search_scoped(embedding => %s, fingerprint => %s, "
        "mode => 'vector', k => 20)"
    )
    for mode in ("auto", "force_generic_plan", "force_custom_plan"):
        conn.execute(f"set plan_cache_mode = {mode}")
        for n, query in enumerate(queries):
            grants = [["a3", "a4"], [*SIZES]][n % 2]
            with as_context(conn, "big", grants):
                given = (vector_text(query), FINGERPRINT)
                found = conn.execute(statement, given, prepare=True).fetchall()
                exact = ask(conn, query, "search_exact", k=20)
            overlap = len({i for (i,) in found} & {*ids(exact)})
            assert len(found) == 20
            assert overlap >= 19 if n % 2 else [i for (i,) in found] == ids(exact)


@pytest.fixture(scope="module")
def island(plans: Database) -> tuple[np.ndarray, np.ndarray]:
    """An org with 700 equal vectors (the first) and 1,500 others: index_plan leaves it alone."""
    conn = plans.connect("app_backend")
    same, rest = vectors(21, 1)[0], vectors(22, 1500)
    alike = Document("same", [f"same {i}" for i in range(700)], [same] * 700)
    others = (
        Document(f"rest/{n}", [f"rest {n} {i}" for i in range(50)], part)
        for n, part in enumerate(np.split(rest, 30))
    )
    with as_context(conn, "island"):
        publish_all(conn, FINGERPRINT, [alike, *others])
    promote(plans.superuser(), "island")
    plans.superuser().execute("analyze")
    return same, rest


def test_identical_vectors_leave_no_answer_short(plans: Database, island: Any) -> None:
    """Case 50: hundreds of equal vectors make an island in the graph: min(k, permitted) rows."""
    conn = backend(plans)
    same, rest = island
    for query in (same, rest[0], -same):
        for k in (10, 400, 1000):
            with as_context(conn, "island"):
                assert len(ask(conn, query, k=k)) == k


def test_identical_vectors_hide_nothing(plans: Database, island: Any) -> None:
    """Case 50: nor does the island keep the nearest of the others, or itself, from being found."""
    conn = backend(plans)
    same, rest = island
    hits = wanted = 0
    for query in (same, *rest[:10], *vectors(23, 10)):
        with as_context(conn, "island"):
            found = ask(conn, query, k=10)
            exact = ask(conn, query, "search_exact", k=10)
        far = exact[-1]["vector_distance"] + 1e-9  # of equal vectors any will do
        hits += sum(r["vector_distance"] <= far for r in found)
        wanted += 10
    assert hits / wanted >= 0.99
