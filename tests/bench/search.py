"""The search benchmark: ``make bench-search``; what is measured, and numbers: README.md.

Every method of a comparison answers a question before the next question is asked, so that noise
of the machine falls on all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "search")]

import corpus as made  # noqa: E402
import test_relevance as judged  # noqa: E402

from pg_knowledge.embedded import EmbeddedServer  # noqa: E402
from support import Database, LocalServer, as_context  # noqa: E402
from support.knowledge import vector_text  # noqa: E402

try:
    import lancedb
    import pyarrow as pa
except ImportError:
    lancedb = None

SERVER = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "8GB",
    "autovacuum": "off",
}
SECTIONS = ("shares", "relevance", "keyword", "overhead", "compartments", "others", "million")
BY_HAND = ("others", "million")
K = 10
TARGETS = (50000, 20000, 10000, 5000, 2000, 1000, 300, 100, 30, 10)  # permitted chunks
SCOPED = (
    "select * from knowledge.search_scoped("
    "query => %s, embedding => %s, fingerprint => %s, mode => %s, k => %s)"
)
Answer = list[int]  # places of chunks in the corpus, best first


@dataclass
class Question:
    vector: made.Array
    text: str  # of the vector


@dataclass
class Options:
    rows: int
    queries: int
    sweep: bool
    million: tuple[int, int] = (1_000_000, 10_000)  # chunks, orgs


# -- measuring


def say(*parts: object) -> None:
    print(f"[{time.strftime('%H:%M:%S')}]", *parts, flush=True)


def run(
    methods: Mapping[str, Callable[[Any], Answer]], questions: Sequence[Any]
) -> tuple[dict[str, list[float]], dict[str, list[Answer]]]:
    """Milliseconds and answers of each method, by question; the first three warm up as well.

    The methods come in another order each time: one reads what another has just read.
    """
    times: dict[str, list[float]] = {name: [] for name in methods}
    answers: dict[str, list[Answer]] = {name: [] for name in methods}
    order, choose = list(methods), random.Random(0)
    gc.collect()
    gc.freeze()
    for turn, question in enumerate([*questions[:3], *questions]):
        choose.shuffle(order)
        for name in order:
            method = methods[name]
            started = time.perf_counter()
            answer = method(question)
            if turn >= len(questions[:3]):
                times[name].append(1000 * (time.perf_counter() - started))
                answers[name].append(answer)
    return times, answers


def spread(times: Sequence[float]) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(times, p)), 3) for p in (50, 95)}


def overlap(found: Sequence[Answer], wanted: Sequence[Answer]) -> float:
    """Mean share of the wanted that was found."""
    pairs = list(zip(found, wanted, strict=True))
    return float(np.mean([len(set(f) & set(w)) / max(1, len(w)) for f, w in pairs]))


def exact(
    corpus: made.Corpus, permitted: made.Array, questions: Sequence[Question]
) -> list[set[int]]:
    """Per question the 10 nearest that are permitted, and what is as near as the tenth."""
    assert corpus.vectors is not None
    # Rounded to half they are not quite of unit length; to pgvector's cosine that matters nothing.
    vectors, k = made.units(corpus.vectors[permitted].astype(np.float32)), min(K, len(permitted))
    found = []
    for question in questions:
        near = vectors @ made.half(question.vector)
        found.append(set(permitted[near >= np.partition(near, -k)[-k] - 1e-5].tolist()))
    return found


def recall(found: Sequence[Answer], wanted: Sequence[set[int]]) -> float:
    """Mean recall@10."""
    shares = []
    for answer, good in zip(found, wanted, strict=True):
        k = min(K, len(good))
        shares.append(min(k, len(good.intersection(answer))) / k)
    return round(float(np.mean(shares)), 4)


# -- the server


@contextmanager
def database(server: LocalServer) -> Iterator[tuple[Database, int]]:
    """A database with the model registered, and a role for SQL written by hand."""
    with server.database() as db:
        backend = db.connect("app_backend")
        query = "select knowledge.register_model('bench', %s, %s)"
        found = backend.execute(query, (made.DIMENSIONS, made.FINGERPRINT)).fetchone()
        assert found
        superuser = db.superuser()
        superuser.execute(
            "do $$ begin if to_regrole('bench_direct') is null then "
            "create role bench_direct login nosuperuser bypassrls; end if; end $$;"
            "grant knowledge_reader to bench_direct;"
            "grant select on all tables in schema knowledge to bench_direct"
        )
        yield db, int(found[0])


def direct(server: LocalServer, db: Database) -> psycopg.Connection[Any]:
    return psycopg.connect(server.embedded.uri(db.name, "bench_direct"), autocommit=True)


def promote(superuser: psycopg.Connection[Any]) -> None:
    """Run what index_plan says, as the owner."""
    superuser.execute("set role knowledge_owner")
    for (statement,) in superuser.execute("select statement from knowledge.index_plan()"):
        say(statement)
        superuser.execute(statement)
    superuser.execute("reset role")


def setting(superuser: psycopg.Connection[Any], **values: float) -> None:
    for name, value in values.items():
        update = sql.SQL("update knowledge_private.settings set {} = %s")
        superuser.execute(update.format(sql.Identifier(name)), (value,))
    superuser.execute("vacuum knowledge_private.settings")


# -- methods


def scoped(conn: psycopg.Connection[Any], plan: str = "auto") -> Callable[[Question], Answer]:
    """search_scoped by vector; conn is in a transaction with a context."""
    statement = SCOPED if plan == "auto" else SCOPED[:-1] + """, options => '{"plan": "exact"}')"""

    def ask(question: Question) -> Answer:
        arguments = (None, question.text, made.FINGERPRINT, "vector", K)
        return [made.chunk_number(row[2]) for row in conn.execute(statement, arguments)]

    return ask


NEAREST = """
select n.chunk_id, n.distance, {columns} from (
    select t.chunk_id, t.document_id, {distance} as distance from {table} as t
    where t.org_id = {org} and t.compartment_id = any ({compartments}::integer[])
    order by {order} limit 10
) as n
cross join lateral (
    select * from knowledge.chunks as c
    where c.org_id = {org} and c.chunk_id = n.chunk_id offset 0) as c
cross join lateral (
    select * from knowledge.documents as d
    where d.org_id = {org} and d.document_id = n.document_id offset 0) as d
{joins} order by n.distance + 0, n.chunk_id
"""
TEXT = "c.heading, c.body, d.title, d.uri"
CITATION = (  # what search_scoped gives
    f"{TEXT}, d.document_id, d.source_type, d.source_id, d.org_scope, d.metadata, p.place,"
    " p.char_start, p.char_end, p.locator, v.source_version, m.visibility"
)
JOINS = """
cross join lateral (
    select * from knowledge.places as p
    where p.org_id = {org} and p.chunk_id = n.chunk_id offset 0) as p
cross join lateral (
    select * from knowledge.versions as v
    where v.org_id = {org} and v.version_id = d.live_version offset 0) as v
cross join lateral (
    select * from knowledge.compartments as m
    where m.org_id = {org} and m.compartment_id = c.compartment_id offset 0) as m
"""


def by_hand(
    conn: psycopg.Connection[Any],
    org: str,
    compartments: Sequence[int],
    table: str,
    index: bool,
    settings: Mapping[str, str] | None = None,
    cited: bool = True,
) -> Callable[[Question], Answer]:
    """A search with literals, as one would write it for this very caller.

    With the citation that search_scoped gives, or only text, title and uri.
    """
    for name, value in (settings or {}).items():
        conn.execute("select set_config(%s, %s, false)", (name, value))

    def ask(question: Question) -> Answer:
        near = f"t.embedding operator(extensions.<=>) '{question.text}'"
        statement = NEAREST.format(
            table=table,
            org=f"'{org}'",
            columns=CITATION if cited else TEXT,
            joins=JOINS.format(org=f"'{org}'") if cited else "",
            compartments="'{" + ",".join(map(str, compartments)) + "}'",
            distance=near if index else f"({near}) + 0",
            order=near if index else "distance, t.chunk_id",
        )
        return [made.chunk_number(row[0]) for row in conn.execute(statement, prepare=False)]

    return ask


class Lance:
    """LanceDB as its documentation suggests: HNSW_SQ, refined, filtered before the search."""

    def __init__(self, folder: str, corpus: made.Corpus) -> None:
        assert corpus.vectors is not None
        flat = pa.array(corpus.vectors.astype(np.float32).reshape(-1))
        content = pa.table(
            {
                "n": pa.array(np.arange(len(corpus.org))),
                "org": pa.array([corpus.orgs[i] for i in corpus.org]),
                "audience": pa.array(corpus.compartment.astype(np.int32)),
                "body": pa.array([corpus.bodies[i][1] for i in corpus.body]),
                "vector": pa.FixedSizeListArray.from_arrays(flat, made.DIMENSIONS),
            }
        )
        self.table = lancedb.connect(folder).create_table("chunks", content)
        self.table.create_index(
            metric="cosine", num_partitions=1, index_type="IVF_HNSW_SQ", vector_column_name="vector"
        )
        self.table.create_scalar_index("org", index_type="BITMAP")
        self.table.create_scalar_index("audience", index_type="BITMAP")

    def search(self, org: str, compartments: Sequence[int]) -> Callable[[Question], Answer]:
        where = f"org = '{org}' AND audience IN ({', '.join(map(str, compartments))})"

        def ask(question: Question) -> Answer:
            found = self.table.search(question.vector).distance_type("cosine")
            found = found.where(where, prefilter=True).refine_factor(10).limit(K)
            return [row["n"] for row in found.select(["n", "body", "_distance"]).to_list()]

        return ask


# -- 1. permitted share


@dataclass
class Caller:
    org: str
    compartments: list[int]
    permitted: made.Array

    @property
    def grants(self) -> list[str]:
        return [f"team-{c}" for c in self.compartments]


def topical_orgs(options: Options) -> made.Corpus:
    sizes = made.zipf(options.rows, min(200, options.rows // 50), 1.25)
    return made.topical(sizes.tolist(), seed=1)


def callers(corpus: made.Corpus, targets: Sequence[int]) -> list[Caller]:
    """For each size, a part of the largest org, and of others what comes closest to it."""
    counts = np.zeros((len(corpus.orgs), made.AUDIENCES + 1), dtype=int)
    np.add.at(counts, (corpus.org, corpus.compartment), 1)
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for target in targets:
        part, size = [], 0
        for c in np.argsort(-counts[0]):
            if 0 < counts[0, c] <= target * 1.05 - size:
                part.append(int(c))
                size += counts[0, c]
        if part and size > target / 2:
            found[0, tuple(sorted(part))] = None
        totals = counts.sum(axis=1)[1:]
        org = 1 + int(np.argmin(abs(totals - target)))
        if abs(totals[org - 1] - target) < target / 3:
            found[org, tuple(int(c) for c in np.flatnonzero(counts[org]))] = None
        else:
            few = np.where(counts[1:] > 0, abs(counts[1:] - target), 10**9)
            org, c = np.unravel_index(np.argmin(few), few.shape)
            if few[org, c] < target / 2:
                found[int(org) + 1, (int(c),)] = None
    return [
        Caller(
            corpus.orgs[o],
            list(cs),
            np.flatnonzero((corpus.org == o) & np.isin(corpus.compartment, cs)),
        )
        for o, cs in found
    ]


def near_own(corpus: made.Corpus, permitted: made.Array, count: int, seed: int) -> list[Question]:
    """Questions about what the caller may read: a chunk of it, and a good deal of noise."""
    assert corpus.vectors is not None
    rng = np.random.default_rng(seed)
    start = corpus.vectors[rng.choice(permitted, count)].astype(np.float32)
    noise = made.units(rng.standard_normal(start.shape, dtype=np.float32))
    return [Question(v, vector_text(v)) for v in made.units(start + 0.4 * noise)]


def shares(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    table: list[dict[str, Any]] = []
    corpus = topical_orgs(options)
    with database(server) as (db, model), tempfile.TemporaryDirectory() as folder:
        superuser, backend = db.superuser(), db.connect("app_backend")
        made.load(superuser, corpus, model, say)
        promote(superuser)
        lance = Lance(folder, corpus) if lancedb else None
        say("LanceDB indexed" if lance else "LanceDB is not installed: left out")
        vectors = f"knowledge.vectors_{model}"
        superuser.execute(
            f"create table naive as select org_id, chunk_id, document_id, compartment_id, embedding"
            f" from {vectors}; alter table naive alter embedding set storage plain;"
            "create index on naive using hnsw (embedding extensions.halfvec_cosine_ops);"
            "grant select on naive to bench_direct"
        )
        superuser.execute("vacuum analyze naive")
        say("naive shared index made")
        promoted = {
            name.split("'")[1]
            for (name,) in superuser.execute(
                "select pg_get_indexdef(indexrelid) from pg_index where indrelid = %s::regclass"
                " and indpred is not null",
                (vectors,),
            )
        }
        for caller in callers(corpus, TARGETS):
            questions = near_own(corpus, caller.permitted, 4 * options.queries, len(table))
            whom = (caller.org, caller.compartments)
            walk = {"hnsw.iterative_scan": "relaxed_order", "hnsw.max_scan_tuples": "2000000"}
            walk["hnsw.scan_mem_multiplier"] = "16"
            index = {"enable_sort": "off", "enable_seqscan": "off", **walk}
            with as_context(backend, caller.org, caller.grants):
                methods: dict[str, Callable[[Any], Answer]] = {"search_scoped": scoped(backend)}
                methods["by hand: exact"] = by_hand(direct(server, db), *whom, vectors, False)
                methods["by hand: exact, text only"] = by_hand(
                    direct(server, db), *whom, vectors, False, cited=False
                )
                for ef in ("100", "200", "400") if caller.org in promoted else ():
                    methods[f"by hand: partial HNSW, ef {ef}"] = by_hand(
                        direct(server, db), *whom, vectors, True, {**index, "hnsw.ef_search": ef}
                    )
                if lance:
                    methods["LanceDB"] = lance.search(*whom)
                methods["naive HNSW + WHERE"] = by_hand(direct(server, db), *whom, "naive", True)
                methods["naive HNSW, iterative"] = by_hand(
                    direct(server, db), *whom, "naive", True, walk
                )
                first, rest = questions[: options.queries], questions[options.queries :]
                times, answers = run(methods, first)
                if options.sweep and caller.org in promoted:
                    sweep_plans(superuser, backend, first, times, answers)
                # What is compared to a tenth of a millisecond is asked more.
                ours = {n: m for n, m in methods.items() if n.startswith(("search", "by hand"))}
                more_times, more_answers = run(ours, rest)
                for name in ours:
                    times[name] += more_times[name]
                    answers[name] += more_answers[name]
            table.append(share_row(corpus, caller, questions, times, answers))
    share_figures(table, figures)
    plot_shares(table)
    return table


def share_row(
    corpus: made.Corpus,
    caller: Caller,
    questions: Sequence[Question],
    times: Mapping[str, Sequence[float]],
    answers: Mapping[str, Sequence[Answer]],
) -> dict[str, Any]:
    wanted = exact(corpus, caller.permitted, questions)
    methods = {
        name: {
            **spread(times[name]),
            "recall": recall(answers[name], wanted[: len(answers[name])]),
            "rows": min(map(len, answers[name])) / min(K, len(caller.permitted)),
        }
        for name in times
    }
    size = int((corpus.org == corpus.orgs.index(caller.org)).sum())
    say(f"{len(caller.permitted)} of {size}, in {len(caller.compartments)} compartments")
    for name, m in methods.items():
        print(f"    {name:32}", *(f"{k} {v:<8.4g}" for k, v in m.items()))
    return {"org": caller.org, "of": size, "permitted": len(caller.permitted), "methods": methods}


def sweep_plans(
    superuser: psycopg.Connection[Any],
    backend: psycopg.Connection[Any],
    questions: Sequence[Question],
    times: dict[str, list[float]],
    answers: dict[str, list[Answer]],
) -> None:
    """search_scoped with its index whatever the share, and without, for the two thresholds."""
    query = "select exact_rows, index_share from knowledge_private.settings"
    before = superuser.execute(query).fetchone()
    assert before
    setting(superuser, exact_rows=0, index_share=0)
    plans = {"scoped, index": scoped(backend), "scoped, exact": scoped(backend, "exact")}
    more_times, more_answers = run(plans, questions)
    setting(superuser, exact_rows=before[0], index_share=before[1])
    times |= more_times
    answers |= more_answers


def share_figures(table: Sequence[Any], figures: dict[str, float]) -> None:
    own = [row["methods"]["search_scoped"] for row in table]
    figures["min_recall"] = min(m["recall"] for m in own)
    figures["min_rows_share"] = min(m["rows"] for m in own)
    ratios = []
    for row in table:
        good = [
            m["p95"]
            for name, m in row["methods"].items()
            if name.startswith("by hand") and "text only" not in name and m["recall"] >= 0.99
        ]
        row["vs_best_plan"] = row["methods"]["search_scoped"]["p95"] / min(good)
        row["excess_ms"] = row["methods"]["search_scoped"]["p95"] - min(good)
        ratios.append(row["vs_best_plan"])
    figures["max_p95_vs_best_plan"] = max(ratios)
    if "LanceDB" in table[0]["methods"]:
        figures["max_p95_vs_lancedb"] = max(
            row["methods"]["search_scoped"]["p95"] / row["methods"]["LanceDB"]["p95"]
            for row in table
        )


def plot_shares(table: Sequence[Any]) -> None:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        return say("matplotlib is not installed: no plots")
    figure, axes = plt.subplots(2, 1, figsize=(9, 9), sharex=True)
    shown = sorted(table, key=lambda row: row["permitted"])
    for name in shown[0]["methods"]:
        points = [(r["permitted"], r["methods"][name]) for r in shown if name in r["methods"]]
        for axis, measure in zip(axes, ("p95", "recall"), strict=True):
            axis.plot([n for n, _ in points], [m[measure] for _, m in points], "o-", label=name)
    axes[0].set(yscale="log", ylabel="p95, ms", xscale="log")
    axes[1].set(ylabel="recall@10", xlabel="permitted chunks")
    axes[0].legend()
    figure.savefig(HERE / "results" / "shares.png", dpi=120)


def others(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    """The callers of shares again, and peers that take long to fill."""
    import peers

    table: list[dict[str, Any]] = []
    corpus = topical_orgs(options)
    with database(server) as (db, model), tempfile.TemporaryDirectory() as folder:
        superuser, backend = db.superuser(), db.connect("app_backend")
        made.load(superuser, corpus, model, say)
        promote(superuser)
        superuser.execute(
            "alter role bench_direct set search_path = public, extensions;"
            "grant create, usage on schema public to bench_direct"
        )
        uri = server.embedded.uri(db.name, "bench_direct")
        vectors = f"knowledge.vectors_{model}"
        found = dict(peers.installed(superuser, uri, vectors, folder, corpus, say))
        for caller in callers(corpus, TARGETS):
            questions = near_own(corpus, caller.permitted, options.queries, len(table))
            methods: dict[str, Callable[[Any], Answer]] = {"search_scoped": scoped(backend)}
            for name, peer in found.items():
                methods[name] = by_vector(peer.search(caller.org, caller.compartments))
            with as_context(backend, caller.org, caller.grants):
                times, answers = run(methods, questions)
            table.append(share_row(corpus, caller, questions, times, answers))
    return table


def by_vector(search: Callable[[made.Array], Answer]) -> Callable[[Question], Answer]:
    return lambda question: search(question.vector)


# -- 2. relevance


def relevance(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    table: dict[str, Any] = {}
    for name in ("scifact", "cranfield", "cisi"):
        if not (judged.DATA / name).is_dir():
            say(f"no {judged.DATA / name}: left out")
            continue
        collection = judged.load(name)
        with server.database() as db:
            conn = db.connect("app_backend")
            conn.execute(
                "select knowledge.register_model('minilm', 384, %s)", (judged.FINGERPRINT,)
            )
            judged.publish_collection(conn, collection)
            db.superuser().execute("vacuum analyze")
            for leg, mode in (("bm25", "keyword"), ("vector", "vector"), ("hybrid", "hybrid")):
                gains, recalls, times = [], [], []
                for query, text, vector in collection.queries:
                    grades = collection.judged[query]
                    arguments = (text, vector_text(vector), judged.FINGERPRINT, mode, 100)
                    with as_context(conn, "library"):
                        started = time.perf_counter()
                        cursor = conn.execute(
                            SCOPED.replace("*", "document_metadata -> 'ids' ->> ordinal"), arguments
                        )
                        found = [row[0] for row in cursor.fetchall()]
                        times.append(1000 * (time.perf_counter() - started))
                    gains.append(judged.ndcg(found, grades))
                    recalls.append(len(set(found) & set(grades)) / len(grades))
                row = {
                    "ndcg@10": round(float(np.mean(gains)), 4),
                    "recall@100": round(float(np.mean(recalls)), 4),
                    **spread(times),
                }
                table.setdefault(name, {})[leg] = row
                figures[f"ndcg_{leg}_{name}"] = row["ndcg@10"]
                say(name, leg, row)
    return table


# -- 3. keywords


def shuffled(collection: judged.Collection, count: int) -> list[tuple[str, str]]:
    """Texts like the abstracts: the title of one, sentences of three in any order."""
    random.seed(3)
    texts = [
        (d["title"], re.split(r"(?<=[.?!])\s+", d["text"].strip())) for d in collection.documents
    ]
    found = []
    for i in range(count):
        parts = [texts[i % len(texts)], *random.choices(texts, k=2)]
        sentences = [s for _, p in parts for s in random.sample(p, min(3, len(p))) if s]
        random.shuffle(sentences)
        found.append((parts[0][0], " ".join(sentences) or parts[0][0]))
    return found


def keyword(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    if not (judged.DATA / "scifact").is_dir():
        return say("no SciFact: left out")
    collection = judged.load("scifact")
    count = min(100_000, options.rows)
    numbers = np.arange(count)
    corpus = made.Corpus(
        ["library"],
        np.zeros(count, dtype=int),
        numbers // 100,
        numbers % 100,
        numbers // 100 % made.AUDIENCES + 1,
        None,
        {("library", a + 1): ["everyone", f"team-{a + 1}"] for a in range(made.AUDIENCES)},
        shuffled(collection, count),
        numbers,
    )
    questions = [text for _, text, _ in collection.queries][: options.queries]
    with database(server) as (db, model), tempfile.TemporaryDirectory() as folder:
        superuser, backend = db.superuser(), db.connect("app_backend")
        made.load(superuser, corpus, model, say)
        started = time.perf_counter()
        superuser.execute("set role knowledge_owner")
        superuser.execute("select * from knowledge.maintain()")
        superuser.execute("reset role")
        say(f"maintain() took {time.perf_counter() - started:.1f} s")
        superuser.execute("vacuum analyze")

        def ask(text: str) -> Answer:
            found = backend.execute(SCOPED, (text, None, None, "keyword", K))
            return [made.chunk_number(row[2]) for row in found]

        names = ("candidates", "paired_candidates", "enough_weight")
        query = f"select {', '.join(names)} from knowledge_private.settings"
        default = superuser.execute(query).fetchone()
        assert default
        bounds = {"bounded": default, "unbounded": (2_000_000_000, 0, 1)}
        if options.sweep:
            for n, pairs in ((1000, 5000), (1000, 10000), (2000, 0), (2000, 10000), (7000, 0)):
                bounds[f"candidates {n} and {pairs}"] = (n, pairs, default[2])
            bounds |= {f"enough_weight {w}": (*default[:2], w) for w in (0.5, 0.55, 0.7, 1)}
        times: dict[str, list[float]] = {name: [] for name in bounds}
        answers: dict[str, list[Answer]] = {name: [] for name in bounds}
        with as_context(backend, "library"):
            for question in questions:
                for name, values in bounds.items():
                    setting(superuser, **dict(zip(names, values, strict=True)))
                    t, a = run({name: ask}, [question])
                    times[name] += t[name]
                    answers[name] += a[name]
        setting(superuser, **dict(zip(names, default, strict=True)))
        if lancedb:
            times |= run({"LanceDB full text": lance_words(folder, corpus)}, questions)[0]
        table: dict[str, Any] = {name: spread(t) for name, t in times.items()}
        for name, found in answers.items():
            table[name]["overlap"] = round(overlap(found, answers["unbounded"]), 4)
        if options.sweep:
            table["scanned_chunks"] = sweep_scans(superuser, backend, questions)
    for name, row in table.items():
        say(name, row)
    figures["keyword_speedup_100k"] = table["unbounded"]["p95"] / table["bounded"]["p95"]
    figures["keyword_top10_overlap_100k"] = table["bounded"]["overlap"]
    return table


def lance_words(folder: str, corpus: made.Corpus) -> Callable[[str], Answer]:
    texts = [f"{heading} {body}" for heading, body in corpus.bodies]
    content = pa.table({"n": pa.array(range(len(texts))), "body": pa.array(texts)})
    table = lancedb.connect(folder).create_table("words", content)
    table.create_fts_index("body", use_tantivy=False)

    def ask(text: str) -> Answer:
        found = table.search(text, query_type="fts").limit(K).select(["n", "body", "_score"])
        return [row["n"] for row in found.to_list()]

    return ask


def sweep_scans(
    superuser: psycopg.Connection[Any], backend: psycopg.Connection[Any], questions: Sequence[str]
) -> dict[str, Any]:
    """p50 and p95 of reading permitted chunks one by one, and by the index of lexemes."""
    table: dict[str, Any] = {}
    superuser.execute("update knowledge.compartments set acl = audience[2:] ")  # no everyone
    for teams in (1, 2, 4):
        grants = [f"team-{i + 1}" for i in range(teams)]
        for name, scanned in (("scan", 10**9), ("lexemes", 0)):
            setting(superuser, scanned_chunks=scanned)
            with as_context(backend, "library", grants):
                times, _ = run(
                    {
                        name: lambda text: [
                            made.chunk_number(row[2])
                            for row in backend.execute(SCOPED, (text, None, None, "keyword", K))
                        ]
                    },
                    questions,
                )
            table[f"{teams} of {made.AUDIENCES}, {name}"] = spread(times[name])
    return table


# -- 4. overhead


def overhead(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    sizes = [min(size, options.rows) for size in (1000, 19000, *[2000] * 20)]
    corpus = made.topical(sizes, seed=4)
    table: dict[str, Any] = {}
    with database(server) as (db, model):
        backend = db.connect("app_backend")
        made.load(db.superuser(), corpus, model, say)
        for place, name in enumerate(("small", "large")):
            permitted = np.flatnonzero(corpus.org == place)
            numbers = np.unique(corpus.compartment[permitted]).tolist()
            conn = direct(server, db)
            questions = near_own(corpus, permitted, 3 * options.queries, 40 + place)
            with as_context(backend, corpus.orgs[place], [f"team-{c}" for c in numbers]):
                whom = (corpus.orgs[place], numbers, f"knowledge.vectors_{model}", False)
                methods = {"search_scoped": scoped(backend), "hand": by_hand(conn, *whom)}
                methods["hand, text only"] = by_hand(conn, *whom, cited=False)
                times, answers = run(methods, questions)
            assert overlap(answers["search_scoped"], answers["hand"]) > 0.999
            table[name] = {
                "permitted": len(permitted),
                **{method: spread(t) for method, t in times.items()},
            }
            say(name, table[name])
    small, large = table["small"], table["large"]
    figures["overhead_ms"] = small["search_scoped"]["p50"] - small["hand"]["p50"]
    figures["overhead_ratio"] = large["search_scoped"]["p50"] / large["hand"]["p50"]
    return table


# -- 5. many compartments


def compartments(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    count = min(100_000, options.rows)
    opens = {"one": 1, "thousand": min(1000, count // 4), "half": count // 2, "all": count}
    rng = np.random.default_rng(5)
    vectors = made.topical_vectors(rng, rng.integers(0, 20, count))
    place = rng.permutation(count)  # who may open a chunk says nothing about where it lies

    def groups(rank: int) -> list[str]:
        return [name for name, size in opens.items() if rank < size]

    numbers = np.arange(count)
    few = np.array([len(groups(rank)) for rank in place])
    corpus = made.Corpus(
        ["shared", "plain"],
        np.repeat([0, 1], count),
        np.arange(2 * count),
        np.zeros(2 * count, dtype=int),
        np.concatenate([numbers + 1, few]),
        np.concatenate([vectors, vectors]),
        {("shared", int(i) + 1): [f"page-{i}", *groups(place[i])] for i in numbers}
        | {("plain", len(g)): g for g in map(groups, place)},
        [("Report", f"Part {i} of the report on subject {i % 97}.") for i in range(1000)],
        np.arange(2 * count) % 1000,
    )
    table: dict[str, Any] = {}
    with database(server) as (db, model):
        superuser = db.superuser()
        made.load(superuser, corpus, model, say)
        promote(superuser)
        backends = {org: db.connect("app_backend") for org in corpus.orgs}
        lists = {"": None} | ({"list": 10**9, "look-up": 0} if options.sweep else {})
        default = superuser.execute("select long_list from knowledge_private.settings").fetchone()
        assert default
        for grant, size in opens.items():
            permitted = {
                o: np.flatnonzero((corpus.org == o) & (np.tile(place, 2) < size)) for o in (0, 1)
            }
            questions = near_own(corpus, permitted[0], options.queries, size)
            row: dict[str, Any] = {"permitted": size}
            for form, long_list in lists.items():
                if long_list is not None:
                    setting(superuser, long_list=long_list)
                with (
                    as_context(backends["shared"], "shared", [grant]),
                    as_context(backends["plain"], "plain", [grant]),
                ):
                    methods = {org: scoped(conn) for org, conn in backends.items()}
                    times, answers = run(methods, questions)
                if form:
                    row[f"shared, {form}"] = spread(times["shared"])
                    continue
                for o, org in enumerate(corpus.orgs):
                    row[org] = {
                        **spread(times[org]),
                        "recall": recall(answers[org], exact(corpus, permitted[o], questions)),
                        "rows": min(map(len, answers[org])) / min(K, size),
                    }
            if options.sweep:
                setting(superuser, long_list=default[0])
            for name in ("recall", "rows"):
                figure = {"recall": "min_recall", "rows": "min_rows_share"}[name]
                figures[figure] = min(figures.get(figure, 1), row["shared"][name])
            table[grant] = row
            say(grant, row)
    return table


# -- 7. a million


def million(server: LocalServer, options: Options, figures: dict[str, float]) -> Any:
    from million import measure

    return measure(server, *options.million, options.queries, figures)


# -- all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="vectors: 200,000; of million 1,000,000")
    parser.add_argument("--orgs", type=int, default=10_000, help="of million")
    parser.add_argument("--queries", type=int, default=60, help="questions a measurement")
    default = ",".join(name for name in SECTIONS if name not in BY_HAND)
    parser.add_argument("--only", default=default, help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--sweep", action="store_true", help="try other settings as well")
    given = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)  # LanceDB renames its functions
    wanted = given.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    options = Options(
        given.rows or 200_000, given.queries, given.sweep, (given.rows or 1_000_000, given.orgs)
    )
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    figures: dict[str, float] = {}
    with LocalServer(EmbeddedServer(settings=SERVER)) as server:
        for name in wanted:
            say("section", name)
            table = globals()[name](server, options, figures)
            (results / f"{name}.json").write_text(json.dumps(table, indent=1))
    for name, value in figures.items():
        print(f"figure {name} {value:.4g}")


if __name__ == "__main__":
    main()
