"""passages: what a search found, with what stands around it, and only what the caller may read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from support import Database, Server, as_context
from support.knowledge import begin, embed, finalize, publish, register, rows, search

SIZES = {"long": 12, "short": 3, "one": 1}
Span = tuple[str, int, int]  # source_id, first and last ordinal


def text_of(source_id: str, count: int) -> list[str]:
    """Bodies of one document; each names its place."""
    return [f"fox {source_id}{i}" + " lamp" * (i % 3) for i in range(count)]


def publish_spans(
    conn: psycopg.Connection[Any], source_id: str, bodies: Sequence[str], **given: Any
) -> None:
    """A document whose chunks have headings and their place in bodies joined by blank lines."""
    version = begin(conn, source_id, bodies, title=f"On {source_id}", uri=f"x:{source_id}", **given)
    ends = list(itertools.accumulate(len(body) + 2 for body in bodies))
    chunks = [
        {
            "ordinal": i,
            "body": body,
            "heading": f"H{i}",
            "char_start": end - 2 - len(body),
            "char_end": end - 2,
        }
        for i, (body, end) in enumerate(zip(bodies, ends, strict=True))
    ]
    query = "select * from knowledge.stage_chunks(%s, %s, %s)"
    staged = rows(conn, query, version["version_id"], version["lease"], Jsonb(chunks))
    embed(conn, version, bodies, [r["ordinal"] for r in staged if r["needs_embedding"]])
    finalize(conn, version)


def passages(
    conn: psycopg.Connection[Any], ids: Sequence[UUID | None] | None, neighbours: int | None = 1
) -> list[dict[str, Any]]:
    return rows(conn, "select * from knowledge.passages(%s::uuid[], %s)", ids, neighbours)


def spans(found: list[dict[str, Any]]) -> list[Span]:
    return [(r["source_id"], r["first_ordinal"], r["last_ordinal"]) for r in found]


def chunks_of(conn: psycopg.Connection[Any]) -> dict[tuple[str, int], UUID]:
    """(source_id, ordinal) -> chunk_id, of all that the context may read."""
    query = (
        "select d.source_id, p.ordinal, p.chunk_id from knowledge.positions as p "
        "inner join knowledge.documents as d on d.document_id = p.document_id"
    )
    return {(r["source_id"], r["ordinal"]): r["chunk_id"] for r in rows(conn, query)}


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    """Documents for everyone, one for the board, one of scope a, and one of another org."""
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        with as_context(conn, "acme"):
            for name, size in SIZES.items():
                publish_spans(conn, name, text_of(name, size))
            conn.execute("select knowledge.define_tag('board')")
            conn.execute("select knowledge.define_audience('board', '{board}')")
            publish_spans(conn, "secret", text_of("secret", 4), audience=["board"])
        with as_context(conn, "acme", org_scope="a"):
            publish_spans(conn, "scoped", text_of("scoped", 4))
        with as_context(conn, "other"):
            publish_spans(conn, "foreign", text_of("foreign", 4))
        yield db


@pytest.fixture
def reader(shelf: Database) -> Iterator[psycopg.Connection[Any]]:
    """app_reader with a token of acme, no grants, no scope, in a transaction."""
    with shelf.connect("app_trusted") as issuer:
        (token,) = issuer.execute("select knowledge.issue_token('acme', '{}')").fetchone()
    with shelf.connect("app_reader") as conn, conn.transaction():
        conn.execute("select knowledge.use_token(%s)", (token,))
        yield conn


@pytest.mark.parametrize(
    ("hits", "neighbours", "expected"),
    [
        ([("long", 5)], 0, [("long", 5, 5)]),
        ([("long", 5)], 1, [("long", 4, 6)]),
        ([("long", 5)], 100, [("long", 0, 11)]),
        ([("long", 0)], 2, [("long", 0, 2)]),
        ([("long", 11)], 2, [("long", 9, 11)]),
        ([("one", 0)], 3, [("one", 0, 0)]),
        # Overlapping, touching, and with a gap of one.
        ([("long", 2), ("long", 4)], 1, [("long", 1, 5)]),
        ([("long", 2), ("long", 5)], 1, [("long", 1, 6)]),
        ([("long", 2), ("long", 6)], 1, [("long", 1, 3), ("long", 5, 7)]),
        ([("long", 3), ("long", 4)], 0, [("long", 3, 4)]),
        # In the order of the best, whatever the ordinals.
        (
            [("long", 9), ("short", 1), ("long", 1)],
            1,
            [("long", 8, 10), ("short", 0, 2), ("long", 0, 2)],
        ),
        (
            [("short", 2), ("long", 1), ("short", 0)],
            0,
            [("short", 2, 2), ("long", 1, 1), ("short", 0, 0)],
        ),
        ([("long", 8), ("one", 0), ("long", 6)], 1, [("long", 5, 9), ("one", 0, 0)]),
        ([("long", 8), ("long", 8)], 0, [("long", 8, 8)]),
        ([], 1, []),
    ],
    ids=str,
)
def test_neighbours_are_stitched(
    reader: psycopg.Connection[Any],
    hits: list[tuple[str, int]],
    neighbours: int,
    expected: list[Span],
) -> None:
    """Within a document, merged where nothing is between them, never across documents."""
    at = chunks_of(reader)
    found = passages(reader, [at[hit] for hit in hits], neighbours)
    assert spans(found) == expected
    assert [r["place"] for r in found] == list(range(1, len(expected) + 1))


def check_row(row: dict[str, Any], at: dict[tuple[str, int], UUID]) -> None:
    """The row says what stands from its first to its last ordinal, and where that is."""
    name, first, last = row["source_id"], row["first_ordinal"], row["last_ordinal"]
    bodies = text_of(name, SIZES[name])
    assert row["body"] == "\n\n".join(bodies[first : last + 1])
    assert "\n\n".join(bodies)[row["char_start"] : row["char_end"]] == row["body"]
    assert row["chunks"] == [at[name, i] for i in range(first, last + 1)]
    assert (row["source_type"], row["title"], row["uri"]) == ("wiki", f"On {name}", f"x:{name}")


def test_any_hits_give_what_a_model_gives(reader: psycopg.Connection[Any]) -> None:
    """Spans, texts, headings and order, for any hits and any number of neighbours."""
    at = chunks_of(reader)
    hits_of = st.lists(st.sampled_from(sorted(at)), max_size=8)

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(hits_of, st.integers(0, 4))
    def check(hits: list[tuple[str, int]], n: int) -> None:
        wide = sorted(
            {
                (name, i)
                for name, hit in hits
                for i in range(max(0, hit - n), min(SIZES[name], hit + n + 1))
            }
        )
        runs: list[list[tuple[str, int]]] = []
        for name, i in wide:
            if runs and runs[-1][-1] == (name, i - 1):
                runs[-1].append((name, i))
            else:
                runs.append([(name, i)])
        runs.sort(key=lambda run: min(hits.index(hit) for hit in run if hit in hits))
        found = passages(reader, [at[hit] for hit in hits], n)
        assert spans(found) == [(run[0][0], run[0][1], run[-1][1]) for run in runs]
        for row, run in zip(found, runs, strict=True):
            best = min((hit for hit in run if hit in hits), key=hits.index)
            assert row["heading"] == f"H{best[1]}"
            check_row(row, at)

    check()


def test_a_search_is_widened_in_one_statement(reader: psycopg.Connection[Any]) -> None:
    """The ids of search_scoped go in, in their order."""
    found = rows(
        reader,
        "select p.* from knowledge.passages(array(select s.chunk_id "
        "from knowledge.search_scoped('long7 short0', mode => 'keyword', k => 2) as s "
        "order by s.rank)) as p",
    )
    best = search(reader, "long7 short0", mode="keyword", k=2)
    assert [r["source_id"] for r in found] == [r["source_id"] for r in best]
    assert {*spans(found)} == {("long", 6, 8), ("short", 0, 1)}


def test_what_is_not_there_or_not_permitted_is_left_out(shelf: Database) -> None:
    """Another org's, another scope's, another audience's and a missing id answer alike: nothing."""
    conn = shelf.connect("app_trusted")
    claims = [("acme", ["board"], None), ("acme", [], "a"), ("other", [], None)]
    own: dict[tuple[Any, ...], dict[tuple[str, int], UUID]] = {}
    for org, grants, scope in claims:
        with as_context(conn, org, grants, scope):
            own[org, tuple(grants), scope] = chunks_of(conn)
    hidden = [chunk for at in own.values() for (name, _), chunk in at.items() if name not in SIZES]
    assert len(hidden) == 12
    with as_context(conn, "acme"):
        at = chunks_of(conn)
        assert not {*hidden} & {*at.values()}
        assert passages(conn, [*hidden, uuid4(), None], 100) == []
        among = [hidden[0], at["long", 3], None, hidden[5], uuid4(), at["short", 0], hidden[-1]]
        assert passages(conn, among, 2) == passages(conn, [at["long", 3], at["short", 0]], 2)
    for (org, grants, scope), at in own.items():
        with as_context(conn, org, grants, scope):
            found = passages(conn, hidden, 1)
            names = {name for name, _ in at} - {*SIZES}
            assert {r["source_id"] for r in found} == names
            assert all(r["last_ordinal"] - r["first_ordinal"] == 3 for r in found)


def test_a_revoked_grant_ends_at_once(db: Database) -> None:
    """Case 24: in the same session, the rule of the audience decides."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme", ["staff"]):
        for tag in ("staff", "board"):
            conn.execute("select knowledge.define_tag(%s)", (tag,))
        conn.execute("select knowledge.define_audience('staff', '{staff}')")
        publish(conn, "doc", ["fox", "lamp"], audience=["staff"])
        ids = [*chunks_of(conn).values()]
        assert len(passages(conn, ids)) == 1
        conn.execute("select knowledge.define_audience('staff', '{board}')")
        assert passages(conn, ids) == []


def test_a_label_is_no_permission(db: Database) -> None:
    """What a search finds under another visibility can be widened; without spans they are null."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme"):
        publish(conn, "doc", ["fox", "lamp"], visibility="draft")
        ids = [r["chunk_id"] for r in search(conn, "fox", k=1, visibility=["draft"])]
        (found,) = passages(conn, ids)
        assert (found["body"], found["heading"]) == ("fox\n\nlamp", "")
        assert found["char_start"] is found["char_end"] is None


def test_positions_follow_the_live_version(db: Database) -> None:
    """Case 37: after a re-ingest neighbours are the new ones; what is gone or staged is nowhere."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme"):
        old = ["fox a", "fox b", "fox c", "fox d"]
        publish(conn, "doc", old)
        before = {r["body"]: r["chunk_id"] for r in rows(conn, "select * from knowledge.chunks")}
        new = ["fox new", "fox c", "fox a", "fox e"]
        version = begin(conn, "doc", new)
        chunks = [{"ordinal": i, "body": body} for i, body in enumerate(new)]
        query = "select from knowledge.stage_chunks(%s, %s, %s)"
        conn.execute(query, (version["version_id"], version["lease"], Jsonb(chunks)))
        ids = [before["fox b"], before["fox d"]]
        assert [r["body"] for r in passages(conn, ids, 1)] == ["\n\n".join(old)]
        embed(conn, version, new, range(4))
        finalize(conn, version)
        assert passages(conn, ids, 1) == []
        kept = [r["chunk_id"] for r in search(conn, "fox a", mode="keyword", k=10)]
        assert [r["body"] for r in passages(conn, kept, 0)] == ["\n\n".join(new)]
        c = before["fox c"]  # its text is unchanged, and so it is the same chunk
        assert [r["body"] for r in passages(conn, [c], 1)] == ["\n\n".join(new[:3])]
        rows(conn, "select * from knowledge.delete_source('wiki', 'doc')")
        assert passages(conn, kept, 1) == []


def test_limits(reader: psycopg.Connection[Any]) -> None:
    """KB005 beyond 1,000 ids or 100 neighbours; up to there, an answer."""
    at = [*chunks_of(reader).values()]
    ids = (at * 1000)[:1000]
    assert len(passages(reader, ids, 100)) == len(SIZES)
    assert len(passages(reader, [uuid4() for _ in range(999)] + at[:1], 0)) == 1
    for asked, neighbours in (
        (None, 1),
        ([*ids, at[0]], 1),
        (at, None),
        (at, -1),
        (at, 101),
        ([], 101),
        (None, None),
    ):
        with pytest.raises(psycopg.Error) as error, reader.transaction():
            passages(reader, asked, neighbours)
        assert error.value.sqlstate == "KB005"


def test_no_context_no_passages(shelf: Database) -> None:
    """KB001, whatever else is wrong; 42501 for who is no reader."""
    for role, code in (("app_reader", "KB001"), ("app_nobody", "42501")):
        conn = shelf.connect(role)
        for asked in ([uuid4()], None):
            with pytest.raises(psycopg.Error) as error:
                passages(conn, asked)
            assert error.value.sqlstate == code
