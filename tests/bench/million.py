"""A million chunks in 10,000 orgs: planning time, p95, sizes, memory.

    make bench-search ARGS="--only million"
    make bench-search ARGS="--only million --rows 50000 --orgs 500 --queries 20"

A section of the search benchmark that is run by hand: loading and indexing a million takes minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpus as made
import numpy as np
import psycopg

import search as bench
from support import Database, LocalServer, as_context

BODIES = 20_000
SIZES = (10**6, 10**5, 10**4, 10**3, 100, 10)  # of the orgs that ask, or what comes closest
MODES = ("vector", "keyword", "hybrid")
Asked = tuple[bench.Question, str]  # a vector, and words


def corpus_of(rows: int, orgs: int) -> made.Corpus:
    """Orgs of Zipf sizes, the largest a tenth of all; paragraphs of made-up words."""
    corpus = made.topical(made.zipf(rows, orgs, 1.0).tolist(), seed=6)
    prose = made.Prose(6)
    bodies = [(" ".join(prose.draw(3)), prose.paragraph()) for _ in range(min(BODIES, rows))]
    corpus.bodies = bodies
    corpus.body = np.random.default_rng(6).integers(0, len(bodies), len(corpus.org))
    return corpus


def callers(corpus: made.Corpus) -> list[bench.Caller]:
    """For each size, an org of about that size, asked by somebody who may read all of it; of the
    largest also somebody in one team."""
    totals = np.bincount(corpus.org, minlength=len(corpus.orgs))
    places = dict.fromkeys(int(np.argmin(abs(np.log(totals / size)))) for size in SIZES)
    found = []
    for place in places:
        own = np.flatnonzero(corpus.org == place)
        teams = np.unique(corpus.compartment[own])
        wanted = [teams, teams[len(teams) // 2 :][:1]] if place == 0 else [teams]
        for part in wanted:
            permitted = own[np.isin(corpus.compartment[own], part)]
            found.append(bench.Caller(corpus.orgs[place], part.tolist(), permitted))
    return found


def questions(corpus: made.Corpus, caller: bench.Caller, count: int) -> list[Asked]:
    """Near what the caller may read, with four words of it."""
    rng = np.random.default_rng(len(caller.permitted))
    near = bench.near_own(corpus, caller.permitted, count, len(caller.permitted))
    texts = [corpus.bodies[corpus.body[i]][1] for i in rng.choice(caller.permitted, count)]
    words = [" ".join(rng.choice(text.replace(".", "").split(), 4)) for text in texts]
    return list(zip(near, words, strict=True))


def asking(conn: psycopg.Connection[Any], mode: str) -> Callable[[Asked], bench.Answer]:
    """search_scoped; conn is in a transaction with a context."""

    def ask(asked: Asked) -> bench.Answer:
        question, words = asked
        text = None if mode == "vector" else words
        vector = (None, None) if mode == "keyword" else (question.text, made.FINGERPRINT)
        arguments = (text, *vector, mode, bench.K)
        return [made.chunk_number(row[2]) for row in conn.execute(bench.SCOPED, arguments)]

    return ask


def private_mb(conn: psycopg.Connection[Any]) -> float | None:
    """Memory of the backend that is shared with no other, where /proc tells."""
    path = Path(f"/proc/{conn.info.backend_pid}/status")
    if not path.exists():
        return None
    status = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return round(int(status["RssAnon"].split()[0]) / 1024, 1)


def answers_of(
    db: Database, corpus: made.Corpus, caller: bench.Caller, count: int
) -> dict[str, Any]:
    """One caller on a new connection: the first question, then many; what its backend grew to."""
    asked = questions(corpus, caller, count)
    row: dict[str, Any] = {"permitted": len(caller.permitted)}
    with db.connect("app_backend") as conn, as_context(conn, caller.org, caller.grants):
        started = time.perf_counter()
        asking(conn, "hybrid")(asked[0])
        row["first_ms"] = round(1000 * (time.perf_counter() - started), 1)
        row["first_mb"] = private_mb(conn)
        times, answers = bench.run({mode: asking(conn, mode) for mode in MODES}, asked)
        row["mb"] = private_mb(conn)
        question = asked[0][0]
        explained = conn.execute(
            "select e -> 'vector' ->> 'plan' from knowledge.explain_search("
            "embedding => %s, fingerprint => %s, mode => 'vector') as e",
            (question.text, made.FINGERPRINT),
        ).fetchone()
        assert explained
        row["plan"] = explained[0]
    row |= {mode: bench.spread(times[mode]) for mode in MODES}
    wanted = bench.exact(corpus, caller.permitted, [question for question, _ in asked])
    row["recall"] = bench.recall(answers["vector"], wanted)
    row["rows"] = min(map(len, answers["vector"])) / min(bench.K, len(caller.permitted))
    return row


def planning(
    server: LocalServer, db: Database, model: int, caller: bench.Caller, vector: str
) -> dict[str, float]:
    """Milliseconds to plan the vector leg: by a new connection, and by one that has planned it."""
    near = f"t.embedding operator(extensions.<=>) '{vector}'"
    statement = bench.NEAREST.format(
        table=f"knowledge.vectors_{model}",
        org=f"'{caller.org}'",
        compartments="'{" + ",".join(map(str, caller.compartments)) + "}'",
        columns=bench.TEXT,
        joins="",
        distance=near,
        order=near,
    )
    first, later = [], []
    for _ in range(5):
        with bench.direct(server, db) as conn:
            for found in (first, *[later] * 10):
                answer = conn.execute(f"explain (summary, format json) {statement}").fetchone()
                assert answer
                found.append(answer[0][0]["Planning Time"])
    return {
        "first": round(float(np.median(first)), 2),
        "later": round(float(np.median(later)), 3),
        "later_p95": round(float(np.percentile(later, 95)), 3),
    }


def sizes(superuser: psycopg.Connection[Any], model: int) -> dict[str, float]:
    """Megabytes of the tables with their TOAST, of each index, of all partial indexes together."""
    found = superuser.execute(
        "select case when m.amname = 'hnsw' then 'vector indexes of orgs' else c.relname end,"
        " count(*), sum(pg_table_size(c.oid)) / 1e6 from pg_class as c"
        " left join pg_am as m on m.oid = c.relam"
        " where c.relnamespace in ('knowledge'::regnamespace, 'knowledge_private'::regnamespace)"
        " and c.relkind in ('r', 'i') group by 1 having sum(pg_table_size(c.oid)) > 1e6"
        " order by 3 desc"
    ).fetchall()
    (total,) = superuser.execute(
        "select pg_database_size(current_database()) / 1e6 as n"
    ).fetchall()
    table = {"database": round(float(total[0]), 1)}
    return table | {
        f"{name} ({n})" if n > 1 else name: round(float(mb), 1) for name, n, mb in found
    }


def timed(table: dict[str, Any], name: str, work: Callable[[], object]) -> None:
    started = time.perf_counter()
    work()
    table[name] = round(time.perf_counter() - started, 1)
    bench.say(name, table[name], "s")


def as_owner(superuser: psycopg.Connection[Any], statement: str) -> None:
    superuser.execute("set role knowledge_owner")
    superuser.execute(statement)
    superuser.execute("reset role")


def largest(rows: Sequence[dict[str, Any]], *path: str) -> float:
    values: list[Any] = list(rows)
    for name in path:
        values = [value[name] for value in values]
    return max(value or 0 for value in values)


def measure(
    server: LocalServer, rows: int, orgs: int, count: int, figures: dict[str, float]
) -> Any:
    """Everything, with the orgs indexed that earn it, then with as many as there may be."""
    corpus = corpus_of(rows, orgs)
    seconds: dict[str, float] = {}
    table: dict[str, Any] = {"chunks": rows, "orgs": orgs, "seconds": seconds}
    asked = callers(corpus)
    with bench.database(server) as (db, model):
        superuser = db.superuser()
        timed(seconds, "load", lambda: made.load(superuser, corpus, model, bench.say))
        maintain = "select * from knowledge.maintain()"
        timed(seconds, "maintain", lambda: as_owner(superuser, maintain))
        superuser.execute("vacuum analyze")
        for stage in ("as installed", "as many indexes as may be"):
            if stage != "as installed":
                bench.setting(superuser, promoted_chunks=max(10, rows // 1000))
            timed(seconds, f"indexes {stage}", lambda: bench.promote(superuser))
            there = superuser.execute(
                "select count(*) from pg_class as c join pg_am as m on m.oid = c.relam"
                " where m.amname = 'hnsw'"
            ).fetchone()
            assert there
            part: dict[str, Any] = {"indexes": there[0], "sizes": sizes(superuser, model)}
            bench.say(stage, json.dumps(part))
            part["callers"] = []
            for caller in asked:
                row = answers_of(db, corpus, caller, count)
                vector = questions(corpus, caller, 1)[0][0].text
                row["planning"] = planning(server, db, model, caller, vector)
                part["callers"].append(row)
                bench.say(row)
            table[stage] = part
    installed = table["as installed"]["callers"]
    figures["million_planning_ms"] = largest(installed, "planning", "later")
    figures["million_first_planning_ms"] = largest(installed, "planning", "first")
    for mode in MODES:
        figures[f"million_p95_{mode}_ms"] = largest(installed, mode, "p95")
    figures["million_min_recall"] = min(row["recall"] for row in installed)
    figures["million_min_rows_share"] = min(row["rows"] for row in installed)
    figures["million_database_mb"] = table["as installed"]["sizes"]["database"]
    figures["million_backend_mb"] = largest(installed, "mb")
    full = table["as many indexes as may be"]["callers"]
    figures["million_planning_ms_at_the_cap"] = largest(full, "planning", "later")
    return table
