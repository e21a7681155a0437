"""Never half-published, and cheap change: begin, stage, embed, finalize, whatever goes wrong."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from support import Database, Server, as_context, wait_until
from support.invariants import check_invariants
from support.knowledge import (
    DIMENSIONS,
    FINGERPRINT,
    begin,
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

VECTORS = "knowledge.vectors_1"
TEXT = ["alpha text", "beta text", "gamma text", "delta text"]
_orgs = itertools.count(1)


@dataclass
class Writer:
    """Somebody at work in an org: each call is one step in a transaction of its own."""

    conn: psycopg.Connection[Any]
    org: str
    scope: str | None = None
    grants: tuple[str, ...] = ()

    def __call__(self, step: Callable[..., Any], *args: Any, **given: Any) -> Any:
        with as_context(self.conn, self.org, self.grants, self.scope):
            return step(self.conn, *args, **given)

    def sql(self, query: str, *args: Any) -> list[dict[str, Any]]:
        return list(self(rows, query, *args))

    def live(self, source_id: str) -> list[str]:
        """The bodies of a document in their order, read directly under row-level security."""
        return [
            row["body"]
            for row in self.sql(
                "select c.body from knowledge.chunks as c join knowledge.positions as p"
                " using (org_id, chunk_id) join knowledge.documents as d"
                " on d.org_id = p.org_id and d.document_id = p.document_id"
                " where d.source_id = %s order by p.ordinal",
                source_id,
            )
        ]


@pytest.fixture(scope="module")
def kb(server: Server) -> Iterator[Database]:
    """One database for the tests of this file that keep to an org of their own."""
    with server.database() as database:
        register(database.connect("app_admin"))
        yield database


@pytest.fixture
def w(kb: Database) -> Iterator[Writer]:
    """A writer in a new org; what must always hold is checked when the test is over."""
    with kb.connect("app_backend") as conn:
        writer = Writer(conn, f"org {next(_orgs)}")
        yield writer
    with kb.superuser() as conn:
        check_invariants(conn, [writer.org])


@pytest.fixture
def root(kb: Database) -> Iterator[psycopg.Connection[Any]]:
    """The superuser, to look with."""
    with kb.superuser() as conn:
        yield conn


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    with pytest.raises(psycopg.Error) as caught:
        yield
    assert caught.value.sqlstate == code, caught.value
    for word in words:
        assert word in str(caught.value)


def layout(root: psycopg.Connection[Any], org: str, source_id: str) -> list[dict[str, Any]]:
    """The live chunks of a document in order, with where their vector row lies."""
    return rows(
        root,
        "select p.ordinal, c.chunk_id, c.body, v.ctid::text, v.xmin::text,"
        " c.xmin::text as chunk_xmin"
        " from knowledge.documents as d join knowledge.positions as p using (org_id, document_id)"
        " join knowledge.chunks as c on c.org_id = p.org_id and c.chunk_id = p.chunk_id"
        f" left join {VECTORS} as v on v.org_id = c.org_id and v.chunk_id = c.chunk_id"
        " where d.org_id = %s and d.source_id = %s order by p.ordinal",
        org,
        source_id,
    )


def staged(root: psycopg.Connection[Any], version: dict[str, Any]) -> list[dict[str, Any]]:
    return rows(
        root,
        "select ordinal, body, e.embedding is not null as embedded"
        " from knowledge_private.staged_chunks left join knowledge_private.staged_vectors as e"
        " using (org_id, version_id, ordinal) where version_id = %s order by ordinal",
        version["version_id"],
    )


def state(root: psycopg.Connection[Any], version: dict[str, Any]) -> str | None:
    found = rows(
        root, "select state from knowledge.versions where version_id = %s", version["version_id"]
    )
    return found[0]["state"] if found else None


def move_clock(root: psycopg.Connection[Any], interval: str) -> None:
    root.execute(
        "update knowledge_private.settings set clock_offset = clock_offset + %s::interval",
        (interval,),
    )


# -- states, resuming, replaying


def test_states(w: Writer, root: psycopg.Connection[Any]) -> None:
    """ingesting -> live -> superseded, or ingesting -> aborted; at most one live."""
    first = w(begin, "doc", TEXT)
    assert (first["state"], state(root, first)) == ("ingesting", "ingesting")
    w(stage, first, TEXT)
    w(embed, first, TEXT, range(4))
    report = w(finalize, first)
    assert report["live"]
    assert report["complete"]
    assert state(root, first) == "live"
    second = w(begin, "doc", ["alpha text"])
    assert state(root, first) == "live"
    w(stage, second, ["alpha text"])
    w(finalize, second)
    assert (state(root, first), state(root, second)) == ("superseded", "live")
    third = w(begin, "doc", ["other"])
    assert w.sql("select knowledge.abort_version(%s) as done", third["version_id"]) == [
        {"done": True}
    ]
    assert (state(root, second), state(root, third)) == ("live", "aborted")
    assert w.live("doc") == ["alpha text"]


def test_resume(w: Writer, root: psycopg.Connection[Any]) -> None:
    """The same begin answers what is staged and what wants a vector; the rest finishes the job."""
    holder = Jsonb({"lease_holder": "worker"})
    version = w(begin, "doc", TEXT, options=holder)
    assert (version["staged"], version["unembedded"], version["lease"]) == ([], [], 1)
    w(stage, version, TEXT[:3])
    w(embed, version, TEXT, [1])
    again = w(begin, "doc", TEXT, options=holder)
    assert again["version_id"] == version["version_id"]
    assert (again["staged"], again["unembedded"], again["lease"]) == ([0, 1, 2], [0, 2], 2)
    with refused("KB009"):
        w(finalize, version)
    w(stage, again, TEXT[3:], 3)
    w(embed, again, TEXT, [0, 2, 3])
    assert w(finalize, again)["chunks"] == 4
    assert w.live("doc") == TEXT
    done = w(begin, "doc", TEXT, options=holder)
    assert (done["state"], done["version_id"]) == ("live", version["version_id"])
    assert (done["staged"], done["unembedded"], done["lease"]) == ([], [], None)


def test_replay(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Every batch may be sent twice, and finalize repeats its report (case 36)."""
    version = w(begin, "doc", TEXT)
    for _ in range(2):
        assert [r["needs_embedding"] for r in w(stage, version, TEXT[:2])] == [True, True]
        w(stage, version, TEXT[2:], 2)
    for _ in range(2):
        w(embed, version, TEXT, [0, 1])
        w(embed, version, TEXT, [3, 2])
    assert [r["needs_embedding"] for r in w(stage, version, TEXT)] == [False] * 4
    report = w(finalize, version)
    before = layout(root, w.org, "doc")
    assert w(finalize, version) == report
    assert report == {
        "chunks": 4,
        "embedded": 4,
        "reused": 0,
        "skipped": 0,
        "quarantined": 0,
        "rejected": 0,
        "complete": True,
        "live": True,
    }
    assert layout(root, w.org, "doc") == before
    with refused("KB008"):
        w(stage, version, TEXT)
    with refused("KB008"):
        w(embed, version, TEXT, [0])


def test_a_changed_batch_forgets_its_vector(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A chunk that is staged again with another text wants another vector."""
    version = w(begin, "doc", TEXT[:2])
    w(stage, version, TEXT[:2])
    w(embed, version, TEXT, [0, 1])
    assert [r["needs_embedding"] for r in w(stage, version, ["alpha text", "new"])] == [False, True]
    with refused("KB008"):
        w(finalize, version)


@pytest.mark.parametrize("lacking", ["ordinal", "vector"])
def test_incomplete_is_refused(w: Writer, root: psycopg.Connection[Any], lacking: str) -> None:
    """One ordinal or one vector short: KB008, and the old text is what is found (case 29)."""
    w(publish, "doc", ["old text"])
    version = w(begin, "doc", TEXT)
    some = [0, 1, 3]
    for ordinal in some if lacking == "ordinal" else range(4):
        w(stage, version, [TEXT[ordinal]], ordinal)
    w(embed, version, TEXT, some)
    with refused("KB008", "4 of 4" if lacking == "vector" else "3 of 4"):
        w(finalize, version)
    if lacking == "ordinal":
        with refused("KB008"):
            w(finalize, version, allow_unembedded=True)
    assert w.live("doc") == ["old text"]
    assert [r["body"] for r in w(search, "text", k=100)] == ["old text"]
    w(stage, version, [TEXT[2]], 2)
    w(embed, version, TEXT, [2])
    w(finalize, version)
    assert w.live("doc") == TEXT


def test_allow_unembedded(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Published for words at once, by meaning when the vectors are there; no chunk changes."""
    version = w(begin, "doc", TEXT)
    w(stage, version, TEXT)
    w(embed, version, TEXT, [0])
    report = w(finalize, version, allow_unembedded=True)
    assert (report["complete"], report["embedded"], report["chunks"]) == (False, 1, 4)
    assert [r["body"] for r in w(search, "gamma", mode="keyword")] == ["gamma text"]
    assert [r["body"] for r in w(search, "gamma", mode="vector")] == ["alpha text"]
    assert w.sql("select unembedded from knowledge.stats()") == [{"unembedded": 3}]
    ids = [r["chunk_id"] for r in layout(root, w.org, "doc")]
    report = w(publish, "doc", TEXT)
    assert (report["complete"], report["embedded"], report["skipped"]) == (True, 3, 4)
    assert [r["chunk_id"] for r in layout(root, w.org, "doc")] == ids
    assert len(w(search, "gamma", mode="vector")) == 4


# -- vectors that must not come in

GOOD = vector_text(toy_vector("alpha"))
BAD_VECTORS: dict[str, tuple[str, str, list[int | None], list[str]]] = {
    "fewer": ("KB005", FINGERPRINT, [0, 1, 2, 3], [GOOD] * 3),
    "more": ("KB005", FINGERPRINT, [0, 1, 2], [GOOD] * 4),
    "duplicate ordinal": ("KB005", FINGERPRINT, [0, 1, 1], [GOOD] * 3),
    "null ordinal": ("KB005", FINGERPRINT, [0, None], [GOOD] * 2),
    "unstaged ordinal": ("KB005", FINGERPRINT, [0, 4], [GOOD] * 2),
    "negative ordinal": ("KB005", FINGERPRINT, [0, -1], [GOOD] * 2),
    "zero": ("KB005", FINGERPRINT, [0, 1], [GOOD, vector_text([0] * DIMENSIONS)]),
    "short": ("KB007", FINGERPRINT, [0, 1], [GOOD, "[1,0]"]),
    "long": ("KB007", FINGERPRINT, [0, 1], [GOOD, vector_text([1] * 9)]),
    "foreign": ("KB007", "foreign:8", [0, 1], [GOOD] * 2),
    "unregistered": ("KB007", "who:8", [0, 1], [GOOD] * 2),
    "not a number": ("22000", FINGERPRINT, [0, 1], [GOOD, vector_text([float("nan")] * 8)]),
}


@pytest.mark.parametrize("what", BAD_VECTORS)
def test_bad_vectors(w: Writer, root: psycopg.Connection[Any], what: str) -> None:
    """A batch with one bad vector is refused whole, nothing of it is stored (cases 30, 43)."""
    code, fingerprint, ordinals, vectors = BAD_VECTORS[what]
    w.sql("select knowledge.register_model('foreign', 8, 'foreign:8')")
    version = w(begin, "doc", [*TEXT, "never staged"])
    w(stage, version, TEXT)
    with refused(code):
        w.sql(
            "select knowledge.store_embeddings(%s, %s, %s, %s, %s::text[]::extensions.vector[])",
            version["version_id"],
            version["lease"],
            fingerprint,
            ordinals,
            vectors,
        )
    assert [r["embedded"] for r in staged(root, version)] == [False] * 4


def test_null_vector(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A null among the vectors is refused, too."""
    version = w(begin, "doc", TEXT)
    w(stage, version, TEXT)
    with refused("KB007"):
        w.sql(
            "select knowledge.store_embeddings(%s, 1, %s, '{0,1}', array[%s, null]::"
            "extensions.vector[])",
            version["version_id"],
            FINGERPRINT,
            GOOD,
        )
    assert [r["embedded"] for r in staged(root, version)] == [False] * 4


def test_vectors_are_normalised(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Whatever length an embedder gives, what is kept has length 1: huge and tiny ones, too."""
    bodies = ["huge", "tiny"]
    version = w(begin, "doc", bodies)
    w(stage, version, bodies)
    w.sql(
        "select knowledge.store_embeddings(%s, 1, %s, '{0,1}', %s::text[]::extensions.vector[])",
        version["version_id"],
        FINGERPRINT,
        [vector_text([1e37] * 8), vector_text([1e-37] * 8)],
    )
    w(finalize, version)
    norms = rows(
        root, f"select extensions.l2_norm(embedding) as n from {VECTORS} where org_id = %s", w.org
    )
    assert [r["n"] for r in norms] == pytest.approx([1, 1], abs=1e-3)


# -- the difference

CHANGES = {
    "edit": ["alpha text", "beta text edited", "gamma text", "delta text"],
    "shrink": TEXT[:2],
    "shrink from the front": TEXT[2:],
    "grow": [*TEXT, "epsilon text", "zeta text"],
    "grow in front": ["first", *TEXT],
    "reorder": TEXT[::-1],
    "rotate": [*TEXT[1:], TEXT[0]],
    "duplicate": ["alpha text", "alpha text", *TEXT, "alpha text"],
    "all new": ["one", "two", "three"],
    "one of all": ["all in one"],
    "mixed": ["delta text", "new", "alpha text", "delta text"],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("backwards", [False, True], ids=["there", "back"])
def test_difference(w: Writer, root: psycopg.Connection[Any], change: str, backwards: bool) -> None:
    """Exactly the new chunks stay; one with an old text keeps its id and its vector's row."""
    old, new = (CHANGES[change], TEXT) if backwards else (TEXT, CHANGES[change])
    w(publish, "doc", old)
    before = layout(root, w.org, "doc")
    report = w(publish, "doc", new)
    after = layout(root, w.org, "doc")
    assert [(r["ordinal"], r["body"]) for r in after] == list(enumerate(new))
    kept = sum((Counter(old) & Counter(new)).values())
    where = ("chunk_id", "body", "ctid", "xmin", "chunk_xmin")
    same = {tuple(r[c] for c in where) for r in before} & {
        tuple(r[c] for c in where) for r in after
    }
    assert len(same) == kept == report["skipped"]
    assert report["chunks"] == len(new)
    assert report["embedded"] + report["reused"] == len(new) - kept
    assert all(r["ctid"] for r in after)
    assert [r["body"] for r in w(search, None, embedding=GOOD, fingerprint=FINGERPRINT, k=100)]
    assert w.sql("select count(*) as n from knowledge.chunks") == [{"n": len(new)}]


def test_one_edited_paragraph(w: Writer, root: psycopg.Connection[Any]) -> None:
    """One of 200 paragraphs edited: one chunk to embed, one vector row written, none rewritten."""
    text = [f"paragraph number {i}" for i in range(200)]
    w(publish, "doc", text)
    before = {(r["chunk_id"], r["ctid"], r["xmin"]) for r in layout(root, w.org, "doc")}
    text[77] = "an edited paragraph"
    version = w(begin, "doc", text)
    need = [r["ordinal"] for r in w(stage, version, text) if r["needs_embedding"]]
    assert need == [77]
    w(embed, version, text, need)
    assert w(finalize, version)["embedded"] == 1
    after = {(r["chunk_id"], r["ctid"], r["xmin"]) for r in layout(root, w.org, "doc")}
    assert len(after - before) == 1
    assert len(before - after) == 1


def test_three_ingests(w: Writer, root: psycopg.Connection[Any]) -> None:
    """The same file three times, also when the source calls it new: the same chunks (case 32)."""
    for number in range(3):
        w(publish, "doc", TEXT, source_version=str(number))
        w(publish, "doc", TEXT)
        assert w.live("doc") == TEXT
    assert w.sql("select chunks, documents from knowledge.stats()") == [
        {"chunks": 4, "documents": 1}
    ]
    # Chunked otherwise, with the same digest: still only the new ones.
    version = w(begin, "doc", TEXT[:2], content_hash="same")
    w(stage, version, TEXT[:2])
    w(finalize, version)
    assert w.live("doc") == TEXT[:2]


def test_positions_follow(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A chunk that moved in the source is cited where it is now, without a new row or vector."""
    for start in (0, 100):
        version = w(begin, "doc", ["text"], source_version=str(start))
        chunk = {"ordinal": 0, "body": "text", "char_start": start, "char_end": start + 4}
        w.sql(
            "select * from knowledge.stage_chunks(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            Jsonb([chunk]),
        )
        if start == 0:
            w(embed, version, ["text"], [0])
        w(finalize, version)
        (found,) = w(search, "text")
        assert (found["char_start"], found["char_end"]) == (start, start + 4)


def test_hash_counts_only_when_live(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A text whose ingest was broken off is not "already there" (case 34)."""
    version = w(begin, "doc", TEXT)
    w(stage, version, TEXT[:2])
    w.sql("select knowledge.abort_version(%s)", version["version_id"])
    again = w(begin, "doc", TEXT)
    assert (again["state"], again["staged"]) == ("ingesting", [])
    w.sql("select knowledge.abort_version(%s)", again["version_id"])
    assert w(publish, "doc", TEXT)["chunks"] == 4
    w(publish, "doc", ["other"])
    back = w(begin, "doc", TEXT)
    assert back["state"] == "ingesting"
    w(stage, back, TEXT)
    with refused("KB008"):
        w(finalize, back)


def test_vectors_are_reused_inside_the_org(w: Writer, root: psycopg.Connection[Any]) -> None:
    """The same text in another document of the org takes its vector, whatever else differs; other
    text, or the same in another org, does not (case 35)."""
    w(publish, "first", TEXT)
    version = w(begin, "second", [*TEXT, "own text"])
    answer = w(stage, version, [*TEXT, "own text"])
    assert [r["needs_embedding"] for r in answer] == [False] * 4 + [True]
    w(embed, version, [*TEXT, "own text"], [4])
    report = w(finalize, version)
    assert (report["reused"], report["embedded"], report["complete"]) == (4, 1, True)
    other = Writer(w.conn, f"org {next(_orgs)}")
    foreign = other(begin, "first", TEXT)
    assert [r["needs_embedding"] for r in other(stage, foreign, TEXT)] == [True] * 4
    # A heading is embedded with its text, so another heading is another text.
    third = w(begin, "third", TEXT[:1])
    headed = [{"ordinal": 0, "body": TEXT[0], "heading": "Heading"}]
    stage_sql = "select needs_embedding from knowledge.stage_chunks(%s, %s, %s)"
    assert w.sql(stage_sql, third["version_id"], third["lease"], Jsonb(headed)) == [
        {"needs_embedding": True}
    ]


def test_reuse_for_kept_chunks_is_counted(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A chunk published for words takes another document's vector later: reused, not embedded."""
    version = w(begin, "words", ["shared text"])
    w(stage, version, ["shared text"])
    w(finalize, version, allow_unembedded=True)
    w(publish, "vectors", ["shared text"])
    report = w(publish, "words", ["shared text"])
    assert (report["embedded"], report["reused"], report["skipped"]) == (0, 1, 1)
    assert report["complete"]


def test_report_counts_rows(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Every number of the report is what the database holds (cases 29, 31)."""
    w(publish, "other", ["shared one", "shared two"])
    w(publish, "doc", ["kept", "gone"])
    before = {r["chunk_id"] for r in layout(root, w.org, "doc")}
    text = ["shared one", "new one", "kept", "shared two", "new two", "new three"]
    report = w(publish, "doc", text)
    after = layout(root, w.org, "doc")
    new = [r for r in after if r["chunk_id"] not in before]
    assert report["chunks"] == len(after) == 6
    assert report["skipped"] == len(after) - len(new) == 1
    assert report["reused"] == 2
    assert report["embedded"] == len(new) - report["reused"] == 3
    assert report["complete"] == all(r["ctid"] for r in after)
    assert (report["quarantined"], report["rejected"]) == (0, 0)
    (kept,) = rows(
        root,
        "select v.report from knowledge.versions as v join knowledge.documents as d"
        " on d.org_id = v.org_id and d.live_version = v.version_id"
        " where d.org_id = %s and d.source_id = 'doc'",
        w.org,
    )
    assert kept["report"] == report


# -- what describes a document

DESCRIPTIONS = {
    "title": "A title",
    "uri": "https://example.com/x",
    "metadata": {"team": "x"},
    "source_version": "v2",
    "visibility": "draft",
    "audience": ["team"],
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_description_changes(w: Writer, root: psycopg.Connection[Any], name: str) -> None:
    """Another title, label or audience is published without a vector, and only it changes."""
    w.grants = ("t",)
    w.sql("select knowledge.define_tag('t')")
    w.sql("select knowledge.define_audience('team', '{t}')")
    given = {"title": "T", "uri": "u", "metadata": {"a": 1}, "source_version": "v1"}
    w(publish, "stays", ["other text"])
    w(publish, "doc", TEXT, **given)
    (before,) = w.sql("select * from knowledge.get_source('wiki', 'doc')")
    ids = [r["chunk_id"] for r in layout(root, w.org, "doc")]
    version = w(begin, "doc", TEXT, **{"audience": None, name: DESCRIPTIONS[name]})
    assert version["state"] == "ingesting"
    assert not any(r["needs_embedding"] for r in w(stage, version, TEXT))
    report = w(finalize, version)
    assert (report["skipped"], report["embedded"], report["reused"]) == (4, 0, 0)
    (after,) = w.sql("select * from knowledge.get_source('wiki', 'doc')")
    assert after[name] == DESCRIPTIONS[name]
    assert {k for k in before if before[k] != after[k]} == {name, "updated_at"}
    assert [r["chunk_id"] for r in layout(root, w.org, "doc")] == ids
    assert w(begin, "doc", TEXT, audience=None)["state"] == "live"
    counters = rows(
        root,
        "select visibility, audience, chunks from knowledge.compartments"
        " where org_id = %s and chunks > 0 order by chunks",
        w.org,
    )
    if name in ("visibility", "audience"):
        assert [c["chunks"] for c in counters] == [1, 4]
        assert counters[1][name] == DESCRIPTIONS[name]
    else:
        assert [c["chunks"] for c in counters] == [5]
    seen = len(w(search, "text", k=100))
    assert seen == (1 if name == "visibility" else 5)
    assert len(w(search, "text", k=100, visibility=["org", "draft"])) == 5
    w.grants = ()
    assert len(w(search, "text", k=100, visibility=["org", "draft"])) == (
        1 if name == "audience" else 5
    )


def test_omitted_is_kept(w: Writer, root: psycopg.Connection[Any]) -> None:
    """New text without an audience, label or title: the old ones stay (case 25)."""
    w.sql("select knowledge.define_tag('t')")
    w.sql("select knowledge.define_audience('team', '{t}')")
    given = {"title": "T", "uri": "u", "metadata": {"a": 1}, "visibility": "draft"}
    w(publish, "doc", TEXT, audience=["team"], **given)
    w(publish, "doc", ["new text"], audience=None)
    assert w.live("doc") == []
    w.grants = ("t",)
    (source,) = w.sql("select * from knowledge.get_source('wiki', 'doc')")
    assert source["audience"] == ["team"]
    assert {name: source[name] for name in given} == given
    with refused("KB006"):
        w(publish, "doc", ["new text"], audience=[])
    with refused("KB006"):
        w(publish, "another", ["new text"], audience=None)


def test_language_change(w: Writer, root: psycopg.Connection[Any]) -> None:
    """The same text in another language is indexed anew; nothing is embedded, and ids stay."""
    text = ["die Häuser am See", "viele Häuser"]
    w(publish, "doc", text)
    assert w(search, "Häuser", mode="keyword", options={"language": "german"}) == []
    before = layout(root, w.org, "doc")
    report = w(publish, "doc", text, language="german")
    assert (report["skipped"], report["embedded"], report["reused"]) == (2, 0, 0)
    found = w(search, "Häuser", mode="keyword", options={"language": "german"})
    assert {r["body"] for r in found} == set(text)
    after = layout(root, w.org, "doc")
    assert [r["chunk_id"] for r in after] == [r["chunk_id"] for r in before]
    assert w(begin, "doc", text)["state"] == "live"  # the language is kept, too


# -- leases


def test_changed_text_wins(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A newer text ends the unfinished older version at once; its writer is told at every step."""
    old = w(begin, "doc", TEXT)
    w(stage, old, TEXT)
    w(embed, old, TEXT, [0])
    new = w(begin, "doc", ["newer text"])
    assert new["version_id"] != old["version_id"]
    assert state(root, old) == "aborted"
    assert staged(root, old) == []
    with refused("KB009"):
        w(stage, old, TEXT)
    with refused("KB009"):
        w(embed, old, TEXT, [1])
    with refused("KB009"):
        w(finalize, old)
    w(stage, new, ["newer text"])
    w(embed, new, ["newer text"], [0])
    w(finalize, new)
    assert w.live("doc") == ["newer text"]


def test_text_that_is_live_again(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Going back to the live text ends the unfinished other one."""
    w(publish, "doc", TEXT)
    other = w(begin, "doc", ["other"])
    assert w(begin, "doc", TEXT)["state"] == "live"
    assert state(root, other) == "aborted"
    with refused("KB009"):
        w(stage, other, ["other"])


def test_lease_and_fencing(db: Database) -> None:
    """The same text waits for the lease (KB010); then it is taken over and the zombie refused."""
    register(db.connect("app_admin"))
    root = db.superuser()
    slow = Writer(db.connect("app_backend"), "org")
    quick = Writer(db.connect("app_backend"), "org")
    old = slow(begin, "doc", TEXT)
    slow(stage, old, TEXT[:2])
    with refused("KB010"):
        quick(begin, "doc", TEXT)
    move_clock(root, "110 s")
    slow(embed, old, TEXT, [0])  # every step renews the lease
    move_clock(root, "110 s")
    with refused("KB010"):
        quick(begin, "doc", TEXT)
    move_clock(root, "11 s")
    new = quick(begin, "doc", TEXT)
    assert new["version_id"] == old["version_id"]
    assert (new["staged"], new["unembedded"]) == ([0, 1], [1])
    for step, *args in ((stage, TEXT), (embed, TEXT, [1]), (finalize,)):
        with refused("KB009"):
            slow(step, old, *args)
    assert [r["embedded"] for r in staged(root, old)] == [True, False]
    quick(stage, new, TEXT[2:], 2)
    quick(embed, new, TEXT, [1, 2, 3])
    quick(finalize, new)
    with refused("KB009"):
        slow(finalize, old)
    assert slow(begin, "doc", TEXT)["state"] == "live"
    check_invariants(root)


def test_an_expired_lease_nobody_took(db: Database) -> None:
    """A slow writer whom nobody replaced goes on."""
    register(db.connect("app_admin"))
    w = Writer(db.connect("app_backend"), "org")
    version = w(begin, "doc", TEXT)
    move_clock(db.superuser(), "1 day")
    w(stage, version, TEXT)
    w(embed, version, TEXT, range(4))
    assert w(finalize, version)["live"]


def test_lease_holder(w: Writer, root: psycopg.Connection[Any]) -> None:
    """A writer that names itself resumes at once; another name, or none, waits."""
    mine = {"options": {"lease_holder": "me"}}
    version = w(begin, "doc", TEXT, **mine)
    assert w(begin, "doc", TEXT, **mine)["lease"] == version["lease"] + 1
    with refused("KB010"):
        w(begin, "doc", TEXT, options={"lease_holder": "you"})
    with refused("KB010"):
        w(begin, "doc", TEXT)


def test_abort_version(w: Writer, root: psycopg.Connection[Any]) -> None:
    """Aborting forgets what was staged and a document that never was live; live stays live."""
    abort = "select knowledge.abort_version(%s) as done"
    version = w(begin, "doc", TEXT)
    w(stage, version, TEXT)
    scoped = Writer(w.conn, w.org, scope="eu")
    stranger = Writer(w.conn, f"org {next(_orgs)}")
    for other in (scoped, stranger):
        with refused("KB004"):
            other.sql(abort, version["version_id"])
        with refused("KB004"):
            other(stage, version, TEXT)
        with refused("KB004"):
            other(finalize, version)
    assert w.sql(abort, version["version_id"]) == [{"done": True}]
    assert staged(root, version) == []
    assert rows(root, "select from knowledge.documents where org_id = %s", w.org) == []
    for step, *args in ((stage, TEXT), (embed, TEXT, [0]), (finalize,)):
        with refused("KB004"):
            w(step, version, *args)
    w(publish, "doc", TEXT)
    next_one = w(begin, "doc", ["other"])
    assert w.sql(abort, next_one["version_id"]) == [{"done": True}]
    assert w.sql(abort, next_one["version_id"]) == [{"done": False}]
    with refused("KB009"):
        w(stage, next_one, ["other"])
    (live,) = rows(root, "select live_version from knowledge.documents where org_id = %s", w.org)
    assert w.sql(abort, live["live_version"]) == [{"done": False}]
    assert w.live("doc") == TEXT


# -- readers and other writers


def test_readers_never_see_half(w: Writer, kb: Database) -> None:
    """All the while, tables and search show one text whole: the old, then the new (case 38)."""
    old = [f"common old {i}" for i in range(30)]
    new = [f"common new {i}" for i in range(20)] + old[:5]
    w(publish, "doc", old)
    seen: list[tuple[frozenset[str], frozenset[str]]] = []
    stop = threading.Event()

    def watch() -> None:
        with kb.server.connect(kb.name, "app_trusted") as conn:
            reader = Writer(conn, w.org)
            while not stop.is_set():
                found = reader(search, "common", k=1000)
                seen.append((frozenset(reader.live("doc")), frozenset(r["body"] for r in found)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        wait_until(lambda: len(seen) > 2)
        version = w(begin, "doc", new)
        for first in range(0, 25, 5):
            need = w(stage, version, new[first : first + 5], first)
            if wanted := [r["ordinal"] for r in need if r["needs_embedding"]]:
                w(embed, version, new, wanted)
        with as_context(w.conn, w.org):
            finalize(w.conn, version)
            before = len(seen)
            wait_until(lambda: len(seen) > before + 2)
            # Published, not committed: all that was seen so far is the old text.
            assert {text for pair in seen for text in pair} == {frozenset(old)}
        after = len(seen)
        wait_until(lambda: len(seen) > after + 2)
    finally:
        stop.set()
        watcher.join()
    assert {text for pair in seen for text in pair} == {frozenset(old), frozenset(new)}
    assert seen[-1] == (frozenset(new), frozenset(new))
    found = [pair[1] == frozenset(new) for pair in seen]
    assert found == sorted(found)


def test_two_finalize_the_same_version(w: Writer, kb: Database) -> None:
    """The second waits for the first and repeats its report."""
    version = w(begin, "doc", TEXT)
    w(stage, version, TEXT)
    w(embed, version, TEXT, range(4))
    with kb.connect("app_backend") as conn, ThreadPoolExecutor(1) as pool, kb.superuser() as root:
        other = Writer(conn, w.org)
        with as_context(w.conn, w.org):
            report = finalize(w.conn, version)
            waiting = pool.submit(other, finalize, version)
            wait_until(
                lambda: (
                    root.execute(
                        "select from pg_locks where pid = %s and not granted",
                        (conn.info.backend_pid,),
                    ).rowcount
                )
            )
        assert waiting.result() == report
    assert w.live("doc") == TEXT


def test_a_reused_vector_goes(w: Writer, kb: Database) -> None:
    """The document that has the vector is deleted while finalize waits: KB008, not half a text."""
    w(publish, "has it", ["shared text"])
    holder = {"options": {"lease_holder": "me"}}
    version = w(begin, "takes it", ["shared text"], **holder)
    assert not w(stage, version, ["shared text"])[0]["needs_embedding"]
    with kb.connect("app_backend") as conn, ThreadPoolExecutor(1) as pool, kb.superuser() as root:
        other = Writer(conn, w.org)
        with as_context(w.conn, w.org):
            rows(w.conn, "select * from knowledge.delete_source('wiki', 'has it')")
            waiting = pool.submit(other, finalize, version)
            wait_until(
                lambda: (
                    root.execute(
                        "select from pg_locks where pid = %s and not granted",
                        (conn.info.backend_pid,),
                    ).rowcount
                )
            )
        with refused("KB008"):
            waiting.result()
    assert w.live("takes it") == []
    again = w(begin, "takes it", ["shared text"], **holder)
    assert again["unembedded"] == [0]
    w(embed, again, ["shared text"], [0])
    assert w(finalize, again)["complete"]


def test_many_writers(w: Writer, kb: Database) -> None:
    """16 writers at 5 documents: no deadlock, one live version each, none of them mixed (33)."""
    texts = [[f"text {n} part {i}" for i in range(3 + n)] + ["shared part"] for n in range(4)]
    w.sql("select knowledge.define_tag('t')")
    w.sql("select knowledge.define_audience('team', '{t}')")
    # KB008: the document whose vector was to be reused has gone meanwhile.
    allowed = {"KB004", "KB008", "KB009", "KB010"}
    start = threading.Barrier(16)
    codes: list[str] = []
    done: list[int] = []

    def work(number: int) -> None:
        choice = random.Random(number)
        with kb.server.connect(kb.name, "app_backend") as conn:
            writer = Writer(conn, w.org)
            start.wait()
            for turn in range(12):
                doc = f"doc {choice.randrange(5)}"
                text = choice.choice(texts)
                audience = choice.choice([["everyone"], ["team"], ["everyone", "team"], None])
                try:
                    if number == 0 and turn % 4 == 3:
                        writer.sql("select knowledge.delete_source('wiki', %s)", doc)
                    elif number == 1 and turn % 4 == 3:
                        tags = choice.choice([["t"], ["everyone"]])
                        writer.sql("select knowledge.define_audience('team', %s)", tags)
                    else:
                        step_by_step(writer, doc, text, audience)
                        done.append(number)
                except psycopg.Error as error:
                    codes.append(error.sqlstate or str(error))

    def step_by_step(writer: Writer, doc: str, text: Sequence[str], audience: Any) -> None:
        version = writer(begin, doc, text, audience=audience or ["everyone"])
        if version["state"] == "live":
            return
        need = [r["ordinal"] for r in writer(stage, version, text) if r["needs_embedding"]]
        if need:
            writer(embed, version, text, need)
        writer(finalize, version)

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(work, number) for number in range(16)]:
            future.result()
    assert set(codes) <= allowed, Counter(codes)
    assert done
    w.grants = ("t",)
    for doc in range(5):
        live = w.live(f"doc {doc}")
        assert live in ([], *texts)
    # Nobody holds on to anything: a last text goes through everywhere.
    for doc in range(5):
        assert w(publish, f"doc {doc}", ["last"])["live"]


def test_first_use_of_an_org_by_many(w: Writer, kb: Database) -> None:
    """Eight writers begin in an org that does not exist yet; all of them publish."""
    start = threading.Barrier(8)

    def work(number: int) -> dict[str, Any]:
        with kb.server.connect(kb.name, "app_backend") as conn:
            start.wait()
            report: dict[str, Any] = Writer(conn, w.org)(publish, f"doc {number}", TEXT)
            return report

    with ThreadPoolExecutor(8) as pool:
        assert all(report["live"] for report in pool.map(work, range(8)))
    assert w.sql("select chunks from knowledge.stats()") == [{"chunks": 32}]
    compartments = w.sql("select compartment_id from knowledge.compartments")
    assert compartments == [{"compartment_id": 1}]


def test_unpublished_rows_count_nowhere(w: Writer, root: psycopg.Connection[Any]) -> None:
    """What is staged changes no score, statistic, list or neighbour (case 37)."""

    def answers() -> list[Any]:
        return [
            w(search, "alpha text", k=100),
            w(search, "alpha text", function="search_exact", k=100),
            w.sql("select * from knowledge.stats()"),
            w.sql("select * from knowledge.list_sources()"),
            w.sql("select * from knowledge.compartments"),
            w.sql("select ordinal, chunk_id from knowledge.positions order by 1, 2"),
        ]

    w(publish, "doc", TEXT)
    before = answers()
    version = w(begin, "doc", ["alpha text"] * 20)
    w(stage, version, ["alpha text"] * 20)
    other = w(begin, "other", ["alpha beta"] * 5)
    w(stage, other, ["alpha beta"] * 5)
    w(embed, other, ["alpha beta"] * 5, range(5))
    assert answers() == before
    w.sql("select knowledge.abort_version(%s)", version["version_id"])
    assert answers() == before


# -- malformed input

FINE = {"ordinal": 0, "body": "fine"}
BAD_CHUNKS: dict[str, Any] = {
    "not an object": "text",
    "null": None,
    "a list": [FINE],
    "no ordinal": {"body": "x"},
    "ordinal null": {"ordinal": None, "body": "x"},
    "ordinal text": {"ordinal": "1", "body": "x"},
    "ordinal negative": {"ordinal": -1, "body": "x"},
    "ordinal fraction": {"ordinal": 1.5, "body": "x"},
    "ordinal huge": {"ordinal": 10**30, "body": "x"},
    "ordinal beyond": {"ordinal": 3, "body": "x"},
    "no body": {"ordinal": 1},
    "body null": {"ordinal": 1, "body": None},
    "body number": {"ordinal": 1, "body": 5},
    "verdict unknown": {"ordinal": 1, "body": "x", "verdict": "perhaps"},
    "verdict number": {"ordinal": 1, "body": "x", "verdict": 1},
    "locator number": {"ordinal": 1, "body": "x", "locator": 3},
    "reason huge": {"ordinal": 1, "body": "x", "reason": "r" * 501},
    "body huge": {"ordinal": 1, "body": "x" * 100_001},
    "heading number": {"ordinal": 1, "body": "x", "heading": 5},
    "heading list": {"ordinal": 1, "body": "x", "heading": ["a"]},
    "heading huge": {"ordinal": 1, "body": "x", "heading": "h" * 10_001},
    "char_start negative": {"ordinal": 1, "body": "x", "char_start": -1},
    "char_end text": {"ordinal": 1, "body": "x", "char_end": "4"},
    "tokens fraction": {"ordinal": 1, "body": "x", "tokens": 0.5},
    "range backwards": {"ordinal": 1, "body": "x", "char_start": 4, "char_end": 3},
    "unknown key": {"ordinal": 1, "body": "x", "embedding": [1]},
}


@pytest.mark.parametrize("what", BAD_CHUNKS)
def test_bad_chunk(w: Writer, root: psycopg.Connection[Any], what: str) -> None:
    """KB005 that says which chunk of the batch it is; nothing of the batch is staged."""
    version = w(begin, "doc", TEXT[:3])
    with refused("KB005", "chunk 2 of the batch"):
        send(w, version, [FINE, BAD_CHUNKS[what], {"ordinal": 2, "body": "fine"}])
    assert staged(root, version) == []


@pytest.mark.parametrize("batch", [{}, "text", 5, None, {"ordinal": 0, "body": "x"}])
def test_bad_batch(w: Writer, root: psycopg.Connection[Any], batch: Any) -> None:
    """What is no list is no batch."""
    version = w(begin, "doc", TEXT)
    with refused("KB005"):
        send(w, version, batch)
    with refused("KB005"):
        w.sql("select knowledge.stage_chunks(%s, 1, null)", version["version_id"])


def test_ordinal_twice(w: Writer, root: psycopg.Connection[Any]) -> None:
    """An ordinal that stands twice in a batch is refused, however it is written."""
    version = w(begin, "doc", TEXT)
    with refused("KB005", "twice"):
        send(w, version, [FINE, FINE])
    text = '[{"ordinal": 1, "body": "x"}, {"ordinal": 1e0, "body": "y"}]'
    with refused("KB005", "twice"):
        w.sql("select knowledge.stage_chunks(%s, 1, %s::jsonb)", version["version_id"], text)
    assert staged(root, version) == []
    assert send(w, version, []) == []


@pytest.mark.parametrize("what", ["body", "heading"])
def test_nul(w: Writer, root: psycopg.Connection[Any], what: str) -> None:
    """A NUL character is in no PostgreSQL text: the json itself is refused, nothing is staged."""
    version = w(begin, "doc", TEXT)
    with refused("22P05"):
        send(w, version, [FINE, {"ordinal": 1, "body": "x", what: "a\0b"}])
    assert staged(root, version) == []


def test_long_and_strange_text(w: Writer, root: psycopg.Connection[Any]) -> None:
    """The longest body, one long word, and any script or emoji are staged and found."""
    bodies = ["word " * 4_000, "x" * 20_000, "日本語のテキスト 🙂", "a\u200bb ﷽", "'\"\\<&"]
    assert w(publish, "doc", bodies)["chunks"] == 5
    assert w.live("doc") == bodies
    assert w(search, "word", mode="keyword")[0]["ordinal"] == 0


def send(w: Writer, version: dict[str, Any], batch: Any) -> list[dict[str, Any]]:
    return w.sql(
        "select * from knowledge.stage_chunks(%s, %s, %s)",
        version["version_id"],
        version["lease"],
        Jsonb(batch),
    )


BAD_BEGIN: dict[str, tuple[str, dict[str, Any]]] = {
    "chunk_count 0": ("KB005", {"chunk_count": 0}),
    "chunk_count null": ("KB005", {"chunk_count": None}),
    "blank source_id": ("KB005", {"source_id": " "}),
    "null source_id": ("KB005", {"source_id": None}),
    "long source_id": ("KB005", {"source_id": "x" * 4001}),
    "long source_type": ("KB005", {"source_type": "x" * 501}),
    "control character": ("KB005", {"source_type": "a\x1bb"}),
    "null content_hash": ("KB005", {"content_hash": None}),
    "metadata list": ("KB005", {"metadata": Jsonb([1])}),
    "unknown option": ("KB005", {"options": {"force": True}}),
    "options null": ("KB005", {"options": None}),
    "reserved label": ("KB005", {"visibility": "_system"}),
    "unknown language": ("KB005", {"language": "klingon"}),
    "unknown audience": ("KB006", {"audience": ["nobody"]}),
    "empty audience": ("KB006", {"audience": []}),
    "null audience": ("KB006", {"audience": ["everyone", None]}),
    "unknown model": ("KB007", {"fingerprint": "who:8"}),
}


@pytest.mark.parametrize("what", BAD_BEGIN)
def test_bad_begin(w: Writer, root: psycopg.Connection[Any], what: str) -> None:
    """A refused begin leaves neither a document nor a version."""
    code, given = BAD_BEGIN[what]
    arguments = {"source_id": "doc", "bodies": TEXT, **given}
    with refused(code):
        w(begin, arguments.pop("source_id"), arguments.pop("bodies"), **arguments)
    assert rows(root, "select from knowledge.documents where org_id = %s", w.org) == []


@pytest.mark.parametrize(
    "name", ["source_type", "source_id", "org_scope", "visibility", "audiences", "all"]
)
def test_long_names_fit(w: Writer, root: psycopg.Connection[Any], name: str) -> None:
    """Names of the allowed length fit into every index they stand in, all of them together."""
    noise = random.Random(name)

    def word(size: int) -> str:
        """Four bytes a character, and nothing to compress."""
        return "".join(chr(noise.randrange(0x20000, 0x2A000)) for _ in range(size // 4))

    w.org = word(500)
    given: dict[str, Any] = {}
    if name in ("org_scope", "all"):
        w.scope = word(500)
    if name in ("source_type", "all"):
        given["source_type"] = word(500)
    if name in ("visibility", "all"):
        given["visibility"] = word(500)
    if name in ("audiences", "all"):
        given["audience"] = [f"{noise.getrandbits(128):032x}" for _ in range(200)]
        w.sql("select knowledge.define_tag('t')")
        for audience in given["audience"]:
            w.sql("select knowledge.define_audience(%s, '{t}')", audience)
    report = w(publish, word(4000) if name in ("source_id", "all") else "doc", TEXT, **given)
    assert report["live"]
