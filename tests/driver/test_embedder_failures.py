"""An embedder that fails: an error, the old version, and a next call that does the rest."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from pg_knowledge import Context, Knowledge
from pg_knowledge.embedding import stored_vectors
from pg_knowledge.errors import EmbedderError
from support import wait_until
from support.embedder import ToyEmbedder, wrong_at
from support.writer import NEW, OLD, check_served, ingest

numpy = pytest.importorskip("numpy")


class Unavailable(Exception):
    """What an embedder's client may raise."""


def unavailable(vectors: Any) -> Any:
    raise Unavailable("no GPU")


WRONG: dict[str, Callable[[Any], Any]] = {
    "none": lambda vectors: [],
    "one too few": lambda vectors: vectors[:-1],
    "one too many": lambda vectors: [*vectors, vectors[0]],
    "too short": lambda vectors: [*vectors[:-1], vectors[-1][:-1]],
    "too long": lambda vectors: [*vectors[:-1], [*vectors[-1], 1.0]],
    "empty": lambda vectors: [*vectors[:-1], []],
    "zero": lambda vectors: [*vectors[:-1], [0.0] * 8],
    "NaN": lambda vectors: [*vectors[:-1], [float("nan")] * 8],
    "infinite": lambda vectors: [*vectors[:-1], [float("-inf")] + [1.0] * 7],
    "too large for a float4": lambda vectors: [*vectors[:-1], [1e39] + [1.0] * 7],
    "zero as a float4": lambda vectors: [*vectors[:-1], [1e-60] * 8],
    "NaN in an array": lambda vectors: [*vectors[:-1], array("d", [float("nan")] * 8)],
    "both infinities in an array": lambda vectors: [
        *vectors[:-1],
        array("f", [float("inf"), float("-inf")] * 4),
    ],
    "too large in an array": lambda vectors: [*vectors[:-1], array("d", [1e39] * 8)],
    "zero in an array": lambda vectors: [*vectors[:-1], array("d", [1e-60] * 8)],
    "too short in an array": lambda vectors: numpy.array(vectors, dtype="float32")[:, 1:],
    "flags in an array": lambda vectors: [*vectors[:-1], numpy.array([True] * 8)],
    "no numbers": lambda vectors: [*vectors[:-1], ["1"] * 8],
    "None": lambda vectors: None,
    "None within": lambda vectors: [*vectors[:-1], None],
    "raised": unavailable,
    "generator": lambda vectors: (vector for vector in vectors),
}


@pytest.mark.parametrize(
    ("kind", "batch"), [*((kind, 2) for kind in WRONG), ("one too few", 1), ("one too many", 3)]
)
def test_wrong_vectors(
    kb: Knowledge, someone: Callable[..., Knowledge], kind: str, batch: int
) -> None:
    """Refused at the n-th batch: nothing of it is stored, nothing before it is lost."""
    ingest(kb, OLD)
    broken = wrong_at(batch, WRONG[kind])
    with pytest.raises(EmbedderError):
        ingest(someone(embedder=broken, writer="w"), NEW)
    check_served(kb, OLD)
    healthy = ToyEmbedder()
    report = ingest(someone(embedder=healthy, writer="w"), NEW)
    assert (report.embedded, report.complete) == (5, True)
    assert healthy.calls == broken.calls[batch - 1 : batch] + healthy.calls[1:]
    assert len(healthy.calls) == 4 - batch
    check_served(kb, NEW)


FORMS: dict[str, Callable[[Any], Any]] = {
    "rows of single precision": lambda vectors: [array("f", vector) for vector in vectors],
    "rows of double precision": lambda vectors: [array("d", vector) for vector in vectors],
    "tuples": lambda vectors: tuple(map(tuple, vectors)),
    **{
        f"{order} {dtype}": lambda vectors, dtype=dtype, order=order: numpy.array(
            vectors, dtype=dtype, order=order
        )
        for dtype in ("float16", "float32", "float64", ">f4", "longdouble")
        for order in ("C", "F")
    },
    "every other": lambda vectors: numpy.repeat(numpy.array(vectors), 2, axis=1)[:, ::2],
    "rows of numpy": lambda vectors: list(numpy.array(vectors, dtype="float32")),
}


@pytest.mark.parametrize("form", FORMS)
def test_vectors_of_any_form(form: str) -> None:
    """Lists, tuples, and arrays of any layout are the same vectors."""
    embedder = ToyEmbedder()
    texts = ["an owl", "two toads"]
    plain = [[round(number, 1) for number in vector] for vector in embedder.embed(texts)]
    stored = stored_vectors(embedder, texts, FORMS[form](plain))
    for vector, expected in zip(stored, plain, strict=True):
        assert vector.typecode == "f"
        assert list(vector) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_raising(kb: Knowledge, someone: Callable[..., Knowledge], batch: int) -> None:
    """Its own exception is the cause of ours; the next call embeds only the rest."""
    ingest(kb, OLD)
    with pytest.raises(EmbedderError, match="toy failed: no GPU") as failed:
        ingest(someone(embedder=wrong_at(batch, unavailable), writer="w"), NEW)
    assert isinstance(failed.value.__cause__, Unavailable)
    check_served(kb, OLD)
    healthy = ToyEmbedder()
    ingest(someone(embedder=healthy, writer="w"), NEW)
    assert len(healthy.calls) == 4 - batch
    check_served(kb, NEW)


def test_new_document_is_invisible_until_whole(
    kb: Knowledge, someone: Callable[..., Knowledge]
) -> None:
    """A first ingest that failed has left nothing to find, list or count."""
    with pytest.raises(EmbedderError):
        ingest(someone(embedder=wrong_at(3, unavailable), writer="w"), NEW)
    assert (len(kb.search("common")), list(kb.list_sources()), kb.stats()) == (0, [], [])
    ingest(someone(writer="w"), NEW)
    check_served(kb, NEW)


def test_progress_that_raises(kb: Knowledge, someone: Callable[..., Knowledge]) -> None:
    """A caller that gives up in on_progress finds what was stored at the next call."""

    def give_up(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    ingest(kb, OLD)
    with pytest.raises(KeyboardInterrupt):
        ingest(someone(writer="w"), NEW, on_progress=give_up)
    check_served(kb, OLD)
    embedder = ToyEmbedder()
    ingest(someone(embedder=embedder, writer="w"), NEW)
    assert len(embedder.texts) == 3
    check_served(kb, NEW)


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_vector_of_a_question(
    kb: Knowledge, someone: Callable[..., Knowledge], kind: str
) -> None:
    """No search with a vector that is none; words still answer."""
    ingest(kb, OLD)
    broken = someone(embedder=wrong_at(1, WRONG[kind]))
    with pytest.raises(EmbedderError):
        broken.search("common")
    assert len(broken.search("common", mode="keyword")) == 5


@pytest.mark.parametrize("scale", [1e-20, 1e-5, 1e20, 3e38])
def test_only_the_direction_counts(
    kb: Knowledge, someone: Callable[..., Knowledge], scale: float
) -> None:
    """Vectors of any length that a float4 can hold are stored as unit vectors."""

    def scaled(call: int, vectors: list[list[float]]) -> list[list[float]]:
        return [[x / max(map(abs, v)) * scale for x in v] for v in vectors]

    ingest(someone(embedder=ToyEmbedder(scaled)), OLD)
    check_served(kb, OLD)
    assert kb.search("common ant", mode="vector")[0].vector_distance == pytest.approx(
        someone(embedder=ToyEmbedder(scaled))
        .search("common ant", mode="vector")[0]
        .vector_distance,
        abs=1e-3,
    )


def test_no_transaction_while_the_embedder_hangs(
    kb: Knowledge, conn: psycopg.Connection[Any], org: str, someone: Callable[..., Knowledge]
) -> None:
    """A hanging embedder holds no transaction, no lock: others search and write meanwhile."""
    ingest(kb, OLD)
    hangs, ends = threading.Event(), threading.Event()

    def hang(call: int, vectors: Any) -> Any:
        hangs.set()
        assert ends.wait(30)
        return vectors

    slow = Knowledge(conn, Context(org), embedder=ToyEmbedder(hang))
    thread = threading.Thread(target=lambda: ingest(slow, NEW))
    thread.start()
    try:
        wait_until(hangs.is_set)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        other = someone()
        check_served(other, OLD)
        other.ingest("wiki", "other", "text", audience=["everyone"])
        other.delete_source("wiki", "other")
    finally:
        ends.set()
        thread.join(30)
    check_served(kb, NEW)
