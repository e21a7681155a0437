"""Relevance and speed on public judged collections, through the SQL functions alone.

The data are not part of the project: shared/data beside its folder, or nothing is tested.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from support import Database, as_context
from support.bulk import Document, publish_all
from support.knowledge import rows, vector_text

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
FINGERPRINT = "minilm:384"
BATCH = 200
# nDCG@10 that each leg must reach.
FLOORS = {
    "cranfield": {"keyword": 0.355, "vector": 0.37, "hybrid": 0.40},
    "cisi": {"keyword": 0.40, "vector": 0.41, "hybrid": 0.44},
    "scifact": {"keyword": 0.684, "vector": 0.645, "hybrid": 0.725},
}


@dataclass
class Collection:
    documents: list[dict[str, str]]
    vectors: np.ndarray
    queries: list[tuple[str, str, np.ndarray]]  # id, text, vector
    judged: dict[str, dict[str, int]]  # query id -> document id -> grade


def load(name: str) -> Collection:
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"the relevance data are absent: no shared/data/{name} beside the project")
    judged: dict[str, dict[str, int]] = defaultdict(dict)
    for line in (folder / "qrels.tsv").read_text().splitlines()[1:]:
        query, document, grade = line.split("\t")
        if int(grade) > 0:
            judged[query][document] = int(grade)
    asked = [q for q in _lines(folder / "queries.jsonl") if q["_id"] in judged]
    vectors = np.load(folder / "minilm.queries.f16.npy").astype(np.float32)
    return Collection(
        list(_lines(folder / "corpus.jsonl")),
        np.load(folder / "minilm.docs.f16.npy").astype(np.float32),
        # These questions are prose: their quotation marks do not ask for phrases.
        [(q["_id"], q["text"].replace('"', " "), v) for q, v in zip(asked, vectors, strict=True)],
        judged,
    )


def _lines(path: Path) -> Iterator[dict[str, str]]:
    return (json.loads(line) for line in path.read_text().splitlines())


def ndcg(found: list[str], grades: dict[str, int], k: int = 10) -> float:
    """Linear gain, as trec_eval's ndcg_cut has it."""

    def total(gains: list[int]) -> float:
        return sum(gain / math.log2(at + 2) for at, gain in enumerate(gains[:k]))

    ideal = total(sorted(grades.values(), reverse=True))
    return total([grades.get(document, 0) for document in found]) / ideal


def publish_collection(conn: psycopg.Connection[Any], collection: Collection) -> float:
    """Publish what has text, one chunk each, in large documents; chunks a second."""
    chunks = [
        (d["title"], d["text"].strip() or d["title"], vector, d["_id"])
        for d, vector in zip(collection.documents, collection.vectors, strict=True)
        if (d["text"] + d["title"]).strip() and vector.any()
    ]
    started = time.perf_counter()
    for first in range(0, len(chunks), BATCH):
        headings, bodies, vectors, ids = zip(*chunks[first : first + BATCH], strict=True)
        document = Document(f"from {first}", bodies, vectors, headings, metadata={"ids": list(ids)})
        with as_context(conn, "library"):
            publish_all(conn, FINGERPRINT, [document])
    return len(chunks) / (time.perf_counter() - started)


def measure(conn: psycopg.Connection[Any], collection: Collection, mode: str) -> list[float]:
    """Mean nDCG@10, and p50 and p95 of a search in milliseconds."""
    gains, times = [], []
    for query, text, vector in collection.queries:
        with as_context(conn, "library"):
            started = time.perf_counter()
            found = rows(
                conn,
                "select document_metadata -> 'ids' ->> ordinal as id from knowledge.search_scoped("
                "query => %s, embedding => %s, fingerprint => %s, mode => %s)",
                text,
                vector_text(vector),
                FINGERPRINT,
                mode,
            )
            times.append(1000 * (time.perf_counter() - started))
        gains.append(ndcg([r["id"] for r in found], collection.judged[query]))
    return [float(np.mean(gains)), *map(float, np.percentile(times, [50, 95]))]


@pytest.mark.parametrize(
    "name",
    [
        "cranfield",
        pytest.param("cisi", marks=pytest.mark.soak),
        pytest.param("scifact", marks=pytest.mark.soak),
    ],
)
def test_relevance(db: Database, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each leg, and both together, rank as well as was promised; the numbers are printed."""
    collection = load(name)
    conn = db.connect("app_backend")
    conn.execute("select knowledge.register_model('minilm', 384, %s)", (FINGERPRINT,))
    speed = publish_collection(conn, collection)
    found = {m: measure(conn, collection, m) for m in ("keyword", "vector", "hybrid")}
    with capsys.disabled():
        print(f"\n{name}: {speed:.0f} chunks/s", end="")
        for mode, (quality, p50, p95) in found.items():
            print(f"; {mode} nDCG@10 {quality:.4f}, p50 {p50:.1f} ms, p95 {p95:.1f} ms", end="")
        print()
    missed = {m: found[m][0] for m, floor in FLOORS[name].items() if found[m][0] < floor}
    assert not missed
