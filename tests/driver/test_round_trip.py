"""Documents in, answers out, and gone: over a connection and a pool, typed and frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row
from psycopg_pool import ConnectionPool

from pg_knowledge import (
    Chunk,
    Context,
    Deletion,
    Erasure,
    Hit,
    IngestReport,
    Knowledge,
    SearchResult,
    Source,
    SourceStats,
    chunk_text,
)
from pg_knowledge.errors import InvalidArgument, NotFound, Offboarded, UnknownVocabulary
from support import Database
from support.embedder import ToyEmbedder

TEXT = "# Leave\n\nThirty days off a year.\n\n# Travel\n\nTrains, second class.\n"


@pytest.fixture(
    params=["connection", "transactional connection", "pool", "dict rows", "own cursors"]
)
def source(request: pytest.FixtureRequest, shared: Database, org: str) -> Iterator[Any]:
    """What a program may give to Knowledge."""
    if request.param == "pool":
        with ConnectionPool(shared.uri("app_backend"), min_size=1, max_size=2) as pool:
            yield pool
    elif request.param == "transactional connection":
        yield shared.connect("app_backend", autocommit=False)
    elif request.param == "dict rows":
        yield shared.connect("app_backend", row_factory=dict_row)
    elif request.param == "own cursors":
        conn = shared.connect("app_backend", row_factory=namedtuple_row)
        conn.cursor_factory = psycopg.RawCursor
        yield conn
    else:
        yield shared.connect("app_backend")


def test_whole_life(source: Any, org: str, embedder: ToyEmbedder) -> None:
    """ingest, search, list, get, prune, stats, delete, delete_by_scope: each typed answer."""
    kb = Knowledge(source, Context(org, ["hr"]), embedder=embedder)
    kb.define_tag("hr", "people of HR")
    assert kb.define_audience("staff", ["hr"]) == 0
    kb.set_language("english")
    report = kb.ingest(
        "wiki",
        "handbook",
        TEXT,
        audience=["staff"],
        title="Handbook",
        uri="https://example.org/handbook",
        metadata={"year": 2026, "nested": {"a": [1, None]}},
        source_version="1",
    )
    assert isinstance(report, IngestReport)
    assert isinstance(report.document_id, UUID)
    counts = (report.chunks, report.embedded, report.reused, report.skipped)
    assert counts == (2, 2, 0, 0)
    assert (report.quarantined, report.rejected, report.complete, report.live) == (0, 0, True, True)

    found = kb.search("how many days off?", k=1)
    assert isinstance(found, SearchResult)
    assert (len(found), found.legs) == (1, ("vector", "keyword"))
    (hit,) = found
    assert isinstance(hit, Hit)
    assert hit.body == TEXT[hit.char_start : hit.char_end] == "# Leave\n\nThirty days off a year."
    assert (hit.rank, hit.ordinal, hit.source_type, hit.source_id) == (1, 0, "wiki", "handbook")
    assert (hit.title, hit.uri) == ("Handbook", "https://example.org/handbook")
    assert (hit.heading, hit.source_version, hit.visibility_label) == ("Leave", "1", "org")
    assert hit.document_metadata == {"year": 2026, "nested": {"a": [1, None]}}
    assert hit.keyword_rank == 1
    assert isinstance(hit.chunk_id, UUID)
    assert (found[0], found[:1]) == (hit, (hit,))
    for narrowed in ({"source_types": []}, {"metadata": {"year": 2025}}, {"visibility": ["x"]}):
        assert list(kb.search("days off", **narrowed)) == []  # type: ignore[arg-type]
    assert len(kb.search("days off", metadata={"year": 2026}, source_types=["wiki"])) == 2

    (listed,) = kb.list_sources()
    assert isinstance(listed, Source)
    assert listed == kb.get_source("wiki", "handbook")
    assert (listed.audience, listed.chunks, listed.language) == (
        ("staff",),
        2,
        "pg_catalog.english",
    )
    assert isinstance(listed.created_at, datetime)
    (stats,) = kb.stats()
    assert isinstance(stats, SourceStats)
    assert (stats.source_type, stats.documents, stats.chunks, stats.unembedded) == ("wiki", 1, 2, 0)
    stranger = kb.as_context(Context(org))
    assert (len(stranger.search("days")), list(stranger.list_sources()), stranger.stats()) == (
        0,
        [],
        [],
    )

    kb.ingest("wiki", "handbook", TEXT + "\nAnd buses.\n")
    assert (kb.prune(keep=0), kb.prune(keep=0)) == (1, 0)
    assert kb.get_source("wiki", "handbook").audience == ("staff",)
    gone = kb.delete_source("wiki", "handbook")
    assert isinstance(gone, Deletion)
    assert (gone.chunks, gone.versions, len(gone.receipt)) == (2, 1, 64)
    for call in (kb.get_source, kb.delete_source):
        with pytest.raises(NotFound):
            call("wiki", "handbook")

    kb.ingest("wiki", "again", TEXT, audience=["everyone"])
    plan = kb.delete_by_scope()
    assert isinstance(plan, Erasure)
    assert (plan.dry_run_only, plan.documents, plan.chunks, plan.receipt) == (True, 1, 2, None)
    assert len(kb.search("days")) == 2
    assert kb.delete_by_scope(source_types=[], dry_run=False).documents == 0
    done = kb.delete_by_scope(dry_run=False, entire_org=True)
    assert (done.documents, done.vectors, done.dry_run_only) == (1, 2, False)
    assert done.receipt
    with pytest.raises(Offboarded):
        kb.search("days")


def test_results_are_frozen(kb: Knowledge) -> None:
    """A result says what the database said; nothing can be written into it."""
    report = kb.ingest("wiki", "a", TEXT, audience=["everyone"])
    results: list[Any] = [
        report,
        kb.search("days"),
        kb.search("days")[0],
        kb.get_source("wiki", "a"),
    ]
    results += [kb.stats()[0], kb.delete_by_scope(), kb.delete_source("wiki", "a"), Context("x")]
    for result in results:
        name = dataclasses.fields(result)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, name, None)


def test_list_sources_pages(kb: Knowledge) -> None:
    """Every document once, in order, whatever the size of a page."""
    names = [f"doc {n}" for n in range(7)]
    for name in names:
        kb.ingest("wiki", name, name, audience=["everyone"])
    for size in (1, 2, 3, 6, 7, 8):
        assert [source.source_id for source in kb.list_sources(page_size=size)] == names


def test_same_text_again(kb: Knowledge, embedder: ToyEmbedder) -> None:
    """Nothing is embedded, nothing is written: all is skipped."""
    first = kb.ingest("wiki", "a", TEXT, audience=["everyone"], title="A")
    embedder.calls.clear()
    again = kb.ingest("wiki", "a", TEXT, title="A")
    assert embedder.calls == []
    assert (again.skipped, again.embedded, again.reused, again.live) == (2, 0, 0, True)
    assert again.version_id == first.version_id


def test_described_anew(kb: Knowledge, embedder: ToyEmbedder) -> None:
    """Another title or audience of the same text is published without a call to the embedder."""
    kb.ingest("wiki", "a", TEXT, audience=["everyone"], title="A")
    embedder.calls.clear()
    report = kb.ingest("wiki", "a", TEXT, title="B")
    assert (report.skipped, embedder.calls) == (2, [])
    assert kb.search("days")[0].title == "B"


def test_one_edited_paragraph(kb: Knowledge, embedder: ToyEmbedder) -> None:
    """Of fifty sections one is edited: one text is embedded, the other rows stay."""
    sections = [f"# Section {n}\n\nParagraph {n} says {n * n}.\n" for n in range(50)]
    kb.ingest("wiki", "a", "\n".join(sections), audience=["everyone"])
    embedder.calls.clear()
    sections[20] = "# Section 20\n\nParagraph 20 is edited.\n"
    report = kb.ingest("wiki", "a", "\n".join(sections))
    assert embedder.texts == ["Section 20\n# Section 20\n\nParagraph 20 is edited."]
    assert (report.embedded, report.skipped, report.chunks) == (1, 49, 50)


def test_same_paragraph_elsewhere(kb: Knowledge, embedder: ToyEmbedder) -> None:
    """A text that another document of the org has is not embedded again."""
    kb.ingest("wiki", "a", TEXT, audience=["everyone"])
    embedder.calls.clear()
    report = kb.ingest("wiki", "b", TEXT, audience=["everyone"])
    assert (report.reused, report.embedded, embedder.calls) == (2, 0, [])


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000])
def test_batches(kb: Knowledge, embedder: ToyEmbedder, size: int) -> None:
    """No batch is larger than batch_size; progress is told after each, up to the total."""
    text = "\n".join(f"# S{n}\n\ntext {n}\n" for n in range(4))
    told: list[tuple[int, int]] = []
    kb.ingest(
        "wiki",
        "a",
        text,
        audience=["everyone"],
        batch_size=size,
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert [len(call) for call in embedder.calls] == [
        min(size, 4 - first) for first in range(0, 4, size)
    ]
    assert told == [(min(first + size, 4), 4) for first in range(0, 4, size)]


@pytest.mark.parametrize("size", [0, -1])
def test_impossible_batches(kb: Knowledge, size: int) -> None:
    with pytest.raises(InvalidArgument):
        kb.ingest("wiki", "a", TEXT, audience=["everyone"], batch_size=size)


def test_own_split(kb: Knowledge) -> None:
    """chunks= replaces the split; ordinals must be 0, 1, 2 …"""
    chunks = [Chunk(0, "", "left half", 0, 9, 2), Chunk(1, "H", "right half", 10, 20, 2)]
    kb.ingest("wiki", "a", "left half right half", chunks=chunks, audience=["everyone"])
    hits = sorted(kb.search("half"), key=lambda hit: hit.ordinal)
    assert [(hit.heading, hit.body) for hit in hits] == [("", "left half"), ("H", "right half")]
    for wrong in ([], chunks[1:], [chunks[0], chunks[0]], chunks[::-1]):
        with pytest.raises(InvalidArgument):
            kb.ingest("wiki", "a", "left half right half", chunks=wrong)
    assert len(kb.search("half")) == 2


@pytest.mark.parametrize("text", ["", " \n\t ", "\u2003\n"])
def test_no_text(kb: Knowledge, text: str) -> None:
    with pytest.raises(InvalidArgument):
        kb.ingest("wiki", "a", text, audience=["everyone"])
    assert list(kb.list_sources()) == []


IMPOSSIBLE = ["nul \0 here", "surrogate \ud800 here"]


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_text_that_postgres_cannot_hold(kb: Knowledge, embedder: ToyEmbedder, text: str) -> None:
    """NUL and lone surrogates are refused wherever they stand, before anything is done."""
    given: dict[str, Any] = {"audience": ["everyone"]}
    for attempt in (
        lambda: kb.ingest("wiki", "a", "# Fine\n\nfine\n\n# Not\n\n" + text, **given),
        lambda: kb.ingest("wiki", text, "fine", **given),
        lambda: kb.ingest("wiki", "a", "fine", title=text, **given),
        lambda: kb.ingest("wiki", "a", "fine", metadata={"a": [{text: 1}]}, **given),
        lambda: kb.ingest("wiki", "a", "fine", metadata={"a": [{"b": text}]}, **given),
        lambda: kb.ingest("wiki", "a", "fine", audience=[text]),
        lambda: kb.search(text),
        lambda: kb.search("fine", metadata={"a": text}),
        lambda: kb.search("fine", source_types=[text]),
        lambda: kb.get_source("wiki", text),
        lambda: kb.delete_source(text, "a"),
        lambda: kb.define_tag("a", text),
        lambda: kb.as_context(Context(text)).stats(),
        lambda: kb.as_context(Context("a", [text])).stats(),
    ):
        with pytest.raises(InvalidArgument):
            attempt()
    assert embedder.calls == []
    assert list(kb.list_sources()) == []


def test_what_only_looks_like_nul_is_text(kb: Knowledge) -> None:
    r"""A backslash and "u0000", as documents about JSON have them."""
    text = r"owls write \u0000 and \\u0000 for NUL"
    kb.ingest("wiki", "json", text, audience=["everyone"], metadata={r"a \u0000": r"\\u0000"})
    (hit,) = kb.search("owls")
    assert (hit.body, hit.document_metadata) == (text, {r"a \u0000": r"\\u0000"})


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {"a": [float("nan")]}], ids=["nan", "inf", "nested"]
)
def test_metadata_that_json_cannot_hold(kb: Knowledge, value: Any) -> None:
    with pytest.raises(InvalidArgument):
        kb.ingest("wiki", "a", TEXT, audience=["everyone"], metadata={"x": value})


def test_numbers_out_of_range(kb: Knowledge) -> None:
    """Too large a number is an argument's fault, also where PostgreSQL would see another type."""
    for number in (-1, 1001, 2**31, 2**70):
        for attempt in (
            lambda number=number: kb.search("x", k=number),
            lambda number=number: list(kb.list_sources(page_size=number * 1000)),
            lambda number=number: kb.prune(keep=-abs(number)),
        ):
            with pytest.raises(InvalidArgument):
                attempt()
    kb.ingest("wiki", "a", TEXT, audience=["everyone"], metadata={"big": 2**70})
    assert kb.search("days")[0].document_metadata == {"big": 2**70}


def test_one_string_is_no_list_of_names(kb: Knowledge, org: str) -> None:
    """'hr' is not the tags h and r."""
    for attempt in (
        lambda: kb.ingest("wiki", "a", TEXT, audience="everyone"),
        lambda: kb.search("days", source_types="wiki"),
        lambda: kb.search("days", visibility="org"),
        lambda: list(kb.list_sources("wiki")),
        lambda: kb.delete_by_scope(source_types="wiki"),
        lambda: kb.define_audience("staff", "hr"),
        lambda: kb.as_context(Context(org, "hr")).stats(),
    ):
        with pytest.raises(InvalidArgument, match="list of strings"):
            attempt()


def test_omitted_stays(kb: Knowledge) -> None:
    """A new document needs an audience; an old one keeps what is not given."""
    with pytest.raises(UnknownVocabulary):
        kb.ingest("wiki", "a", TEXT)
    assert list(kb.list_sources()) == []
    kb.ingest(
        "wiki",
        "a",
        TEXT,
        audience=["everyone"],
        title="T",
        uri="u",
        metadata={"m": 1},
        visibility="v",
    )
    before = kb.get_source("wiki", "a")
    kb.ingest("wiki", "a", TEXT + "\nmore\n")
    after = kb.get_source("wiki", "a")
    for name in ("audience", "title", "uri", "metadata", "visibility"):
        assert getattr(after, name) == getattr(before, name)


def test_words_alone(kb: Knowledge, org: str, conn: psycopg.Connection[Any]) -> None:
    """Without an embedder the words are found at once; with one, the same call brings vectors."""
    words = Knowledge(conn, Context(org))
    report = words.ingest("wiki", "a", TEXT, audience=["everyone"])
    assert (report.complete, report.live, report.embedded) == (False, True, 0)
    assert not words.ingest("wiki", "a", TEXT).complete
    found = words.search("days off")
    assert (len(found), found.legs) == (1, ("keyword",))
    with pytest.raises(InvalidArgument):
        words.search("days off", mode="vector")
    with pytest.raises(InvalidArgument):
        words.register_model()
    report = kb.ingest("wiki", "a", TEXT)
    assert (report.complete, report.embedded) == (True, 2)
    assert len(kb.search("days off", mode="vector")) == 2


def test_language_and_format(kb: Knowledge) -> None:
    """A document's own language; a '#' in plain text is no heading."""
    text = "# Häuser\n\nViele Häuser stehen leer.\n"
    kb.ingest("wiki", "a", text, audience=["everyone"], language="german", format="text")
    assert kb.get_source("wiki", "a").language == "pg_catalog.german"
    (hit,) = kb.search("Haus", mode="keyword", options={"language": "german"})
    assert hit.heading == ""
    with pytest.raises(InvalidArgument):
        kb.ingest("wiki", "a", text, language="klingon")
    with pytest.raises(InvalidArgument):
        kb.search("Haus", options={"unknown": 1})


def test_chunks_come_back_as_slices(kb: Knowledge) -> None:
    """Every hit of every chunk is text[char_start:char_end], in any script."""
    text = "# Über\n\nπ ≈ 3\r\n\r\n中文句子。\n\n😀 end\n\n# Zwei\n\nمرحبا\n"
    kb.ingest("wiki", "a", text, audience=["everyone"])
    hits = kb.search("x", k=100, mode="vector")
    assert len(hits) == len(chunk_text(text))
    assert all(text[hit.char_start : hit.char_end] == hit.body for hit in hits)
