"""What the driver does with hits: passages around them, another order, an explanation."""

from __future__ import annotations

import pytest

from pg_knowledge import Chunk, Context, Knowledge, render_context
from pg_knowledge.errors import InvalidArgument

TEXT = "alpha one\n\nbeta two\n\ngamma three\n\ndelta four\n\nepsilon five"


def chunks() -> list[Chunk]:
    """One chunk a paragraph."""
    found, start = [], 0
    for ordinal, body in enumerate(TEXT.split("\n\n")):
        found.append(Chunk(ordinal, "", body, start, start + len(body), 2))
        start += len(body) + 2
    return found


@pytest.fixture
def published(kb: Knowledge) -> Knowledge:
    kb.ingest("wiki", "greek", TEXT, audience=["everyone"], chunks=chunks(), title="Greek")
    return kb


def test_passages(published: Knowledge) -> None:
    """Neighbours are stitched to a hit; what touches is one passage, and cites its range."""
    hits = published.search("alpha gamma", mode="keyword")
    assert sorted(hit.ordinal for hit in hits) == [0, 2]
    (passage,) = published.passages(hits, neighbours=1)
    assert (passage.first_ordinal, passage.last_ordinal) == (0, 3)
    assert TEXT[passage.char_start : passage.char_end] == passage.body
    apart = published.passages([hit.chunk_id for hit in hits], neighbours=0)
    assert [p.body for p in apart] == [hit.body for hit in hits]
    assert render_context([passage]).count("</untrusted-") == 2  # the intro names it, too
    assert published.as_context(Context("another org")).passages(hits) == []


def test_rerank(published: Knowledge) -> None:
    """A re-ranker decides the order among the candidates, and the hits say what it gave."""
    asked: list[tuple[str, int]] = []

    def by_length(query: str, texts: list[str]) -> list[float]:
        asked.append((query, len(texts)))
        return [len(text) for text in texts]

    hits = published.search("one two three four five", mode="keyword", k=2, rerank=by_length)
    assert asked == [("one two three four five", 5)]
    assert [(h.rank, h.body, h.rerank_score) for h in hits] == [
        (1, "epsilon five", 12.0),
        (2, "gamma three", 11.0),
    ]
    published.search("one two", mode="keyword", k=1, candidates=2, rerank=by_length)
    assert asked[-1][1] == 2
    assert not published.search("nothing", mode="keyword", rerank=by_length)
    with pytest.raises(InvalidArgument, match="1 scores for 5 texts"):
        published.search("one two three four five", mode="keyword", rerank=lambda q, t: [1.0])


def test_explain(published: Knowledge) -> None:
    """The explanation is about the same rows, in the same order, as the search."""
    hits = published.search("alpha gamma", k=3)
    explained = published.explain("alpha gamma", k=3)
    assert [row["chunk_id"] for row in explained["rows"]] == [str(h.chunk_id) for h in hits]
    assert explained["legs"] == ["vector", "keyword"]
    assert {term["lexeme"] for term in explained["keyword"]["terms"]} == {"alpha", "gamma"}


def test_metadata_operators(published: Knowledge) -> None:
    """Filters with operators go through as they are; an unknown operator is refused."""
    published.ingest("wiki", "dated", "alpha dated", audience=["everyone"], metadata={"year": 2026})
    found = published.search("alpha", mode="keyword", metadata={"year": {"$gte": 2025}})
    assert [hit.source_id for hit in found] == ["dated"]
    with pytest.raises(InvalidArgument, match=r"\$near"):
        published.search("alpha", metadata={"year": {"$near": 2025}})
