"""No text that a caller gives is ever read as SQL: it comes back as it was, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from support import Database, as_context
from support.hostile import code_of, everything, undone
from support.knowledge import begin, embed, finalize, publish, rows, search, stage

HOSTILE = {
    "drop": "'; drop table knowledge.chunks; --",
    "delete": "x'); delete from knowledge.documents; select ('",
    "format": "%s %I %L %1$s %%",
    "parameter": "$1 $2 $$",
    "dollar quotes": "$mark$; drop schema knowledge cascade; $mark$",
    "backslash": "\\",
    "backslash quote": "\\' or true --",
    "unicode escape": "\\u0027 \\047 \\x27 or true",
    "or true": "' or true or '' = '",
    "comment": "/* */ -- ; x",
    "double quotes": '"; drop table "chunks"; --',
    "identifier": 'knowledge"."chunks',
    "array": "{a,b}",
    "array null": "{NULL}",
    "braces": "{}",
    "null": "null",
    "row": '(globex,,"{hr}",)',
    "json": '{"org": "globex", "a": [1]}',
    "like": "%",
    "underscore": "a_b%",
    "regex": "(.*)+[",
    "tsquery": "a & !b | c:*A <-> d",
    "right quotes": "’ʼ＇ or true",
    "emoji": "🦉 naïve ﷽ 漢字",
    "joiners": "a\u200db\u200e",
    "parent": "../../etc/passwd",
}
SENSIBLE = {"KB004", "KB005", "KB006", "KB007"}


@pytest.fixture(params=HOSTILE.values(), ids=HOSTILE.keys())
def text(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def held(world: Database) -> Mapping[str, list[tuple[Any, ...]]]:
    """All rows, before anything is tried."""
    return everything(world.superuser())


@pytest.fixture
def kept(
    world: Database, held: Mapping[str, list[tuple[Any, ...]]]
) -> Iterator[psycopg.Connection[Any]]:
    """A back end whose test is rolled back; afterwards every row must be as it was."""
    backend = world.connect("app_backend")
    with undone(backend):
        yield backend
    assert everything(world.superuser()) == held


def found_or_refused(
    conn: psycopg.Connection[Any], query: str, **given: Any
) -> list[dict[str, Any]] | None:
    """What a search finds; None when it says that the question is blank."""
    try:
        with conn.transaction():
            return search(conn, query, **given)
    except psycopg.Error as refused:
        if refused.sqlstate != "KB005":
            raise
        return None


def test_text_of_the_context_is_literal(kept: psycopg.Connection[Any], text: str) -> None:
    """org_id, scope and tags round-trip, and open nothing but the org of that name."""
    with as_context(kept, text, [text, f"{text},hr"], text):
        claim = rows(kept, "select * from knowledge.current_context()")[0]
        assert (claim["org_id"], claim["org_scope"], claim["grants"]) == (
            text,
            text,
            [text, f"{text},hr"],
        )
        assert rows(kept, "select * from knowledge.chunks") == []
        assert search(kept, "alpha secret") == []
        publish(kept, "mine", ["alpha secret"])
        found = search(kept, "alpha secret")
        assert [(row["body"], row["org_scope"]) for row in found] == [("alpha secret", text)]
        assert len(rows(kept, "select * from knowledge.chunks")) == 1
    token = kept.execute(
        "select knowledge.issue_token(%s, %s, %s)", (text, [text], text)
    ).fetchone()
    kept.execute("select knowledge.use_token(%s)", token)
    assert rows(kept, "select org_id from knowledge.current_context()") == [{"org_id": text}]


def test_text_of_a_document_is_literal(kept: psycopg.Connection[Any], text: str) -> None:
    """Whatever names and describes a document round-trips through ingest, search and listing."""
    name = text if not text.startswith("_") else f"x{text}"
    with as_context(kept, "acme", [name]):
        kept.execute("select knowledge.define_tag(%s, %s)", (name, text))
        kept.execute("select knowledge.define_audience(%s, %s)", (name, [name]))
        body = f"owl {text}"
        version = begin(
            kept,
            text,
            [body],
            source_type=text,
            content_hash=text,
            audience=[name],
            visibility=name,
            title=text,
            uri=text,
            metadata={text: text},
            source_version=text,
            options={"lease_holder": text},
        )
        rows(
            kept,
            "select * from knowledge.stage_chunks(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            Jsonb([{"ordinal": 0, "body": body, "heading": text}]),
        )
        embed(kept, version, [body], [0])
        assert finalize(kept, version)["live"] is True
        expected = {
            "source_type": text,
            "source_id": text,
            "title": text,
            "uri": text,
            "source_version": text,
        }
        for query in (body, text):
            for mode in ("hybrid", "keyword"):
                narrow = {
                    "mode": mode,
                    "source_types": [text],
                    "visibility": [name],
                    "metadata": {text: text},
                }
                found = found_or_refused(kept, query, **narrow)
                if found is None:
                    continue
                assert len(found) <= 1
                assert found or query == text
                for row in found:
                    assert {key: row[key] for key in expected} == expected
                    assert (row["body"], row["heading"]) == (body, text)
                    assert row["document_metadata"] == {text: text}
                    assert row["visibility_label"] == name
                assert len(search(kept, query, "search_exact", **narrow)) == len(found)
        listed = rows(kept, "select * from knowledge.list_sources(%s)", [text])
        assert [{key: row[key] for key in expected} for row in listed] == [expected]
        assert listed[0]["content_hash"] == text
        assert listed[0]["audience"] == [name]
        source = rows(kept, "select * from knowledge.get_source(%s, %s)", text, text)
        assert source[0]["metadata"] == {text: text}
        assert len(rows(kept, "select * from knowledge.delete_source(%s, %s)", text, text)) == 1
        assert rows(kept, "select intact from knowledge.verify_audit_log()") == [{"intact": True}]
        assert rows(kept, "select intact from knowledge.verify_audit_log(%s)", text) == [
            {"intact": False}
        ]


@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
def test_text_of_a_question_is_literal(
    kept: psycopg.Connection[Any], text: str, function: str
) -> None:
    """A question finds own rows or nothing; other arguments are refused or match nothing."""
    with as_context(kept, "acme"):
        for query in (text, f'"{text}"', f'-"{text}"', f"secret -{text}", f"secret {text}"):
            found = found_or_refused(kept, query, function=function, mode="keyword", k=50)
            own = {row["chunk_id"] for row in rows(kept, "select chunk_id from knowledge.chunks")}
            assert {row["chunk_id"] for row in found or []} <= own
        for narrow in (
            {"source_types": [text]},
            {"visibility": [text]},
            {"metadata": {text: text}},
            {"metadata": {"org": text}},
            {"metadata": {"org": {text: [text]}}},
        ):
            found = found_or_refused(kept, "secret", function=function, mode="keyword", **narrow)
            assert not found
        call = f"select * from knowledge.{function}('secret', %s"
        languages = code_of(kept, f"{call}, options => %s)", (None, Jsonb({"language": text})))
        assert languages == "KB005"
        vector = "[1,0,0,0,0,0,0,0]"
        assert code_of(kept, f"{call}, fingerprint => %s)", (vector, text)) == "KB007"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("search_scoped('secret', mode => %s)", 1),
        ("search_scoped('secret', options => jsonb_build_object(%s, 1))", 1),
        ("search_scoped('secret', options => jsonb_build_object('plan', %s))", 1),
        ("search_scoped('secret', options => jsonb_build_object('rrf_k', %s))", 1),
        ("search_scoped('secret', metadata => to_jsonb(%s))", 1),
        ("parse_query('secret', array[%s])", 1),
        ("set_language(%s)", 1),
        ("begin_version('wiki', 'x', 'h', 1, '{everyone}', language => %s)", 1),
        ("begin_version('wiki', 'x', 'h', 1, '{everyone}', fingerprint => %s)", 1),
        ("begin_version('wiki', 'x', 'h', 1, array[%s])", 1),
        ("begin_version('wiki', 'x', 'h', 1, '{everyone}', metadata => to_jsonb(%s))", 1),
        (
            "begin_version('w', 'x', 'h', 1, '{everyone}', options => jsonb_build_object(%s, 1))",
            1,
        ),
        ("define_audience('staff', array[%s])", 1),
        ("get_source(%s, %s)", 2),
        ("delete_source(%s, %s)", 2),
    ],
)
def test_unknown_names_are_refused(
    kept: psycopg.Connection[Any], call: str, arguments: int
) -> None:
    """What must be one of a list, and is SQL instead, is KB004 to KB007 and no syntax error."""
    statement = sql.SQL("select * from knowledge." + call.replace("%s", "%s::text"))
    with as_context(kept, "acme"):
        codes = {text: code_of(kept, statement, (text,) * arguments) for text in HOSTILE.values()}
    assert set(codes.values()) <= SENSIBLE


def test_text_of_a_model_is_literal(kept: psycopg.Connection[Any], text: str) -> None:
    """register_model makes a table, and the comment on it is text too."""
    query = "select knowledge.register_model(%s, 3, %s) as model_id"
    model = rows(kept, query, text, text)[0]["model_id"]
    found = rows(
        kept,
        "select name, fingerprint, obj_description(('knowledge.vectors_' || model_id)::regclass)"
        " as comment from knowledge.models where model_id = %s",
        model,
    )
    assert (found[0]["name"], found[0]["fingerprint"]) == (text, text)
    assert text in found[0]["comment"]
    with as_context(kept, text):
        publish_words(kept, text)
        assert len(search(kept, "owl", mode="keyword")) == 1


def publish_words(conn: psycopg.Connection[Any], fingerprint: str) -> None:
    """A document whose version is of the model with this fingerprint, without vectors."""
    version = begin(conn, "mine", ["an owl"], fingerprint=fingerprint)
    stage(conn, version, ["an owl"])
    assert finalize(conn, version, allow_unembedded=True)["complete"] is False


@pytest.mark.parametrize("k", ["-1", "0", "null", "2147483647"])
def test_numbers_out_of_range_are_refused(kept: psycopg.Connection[Any], k: str) -> None:
    """Limits are checked, not passed on."""
    with as_context(kept, "acme"):
        assert code_of(kept, f"select knowledge.search_scoped('secret', k => {k})") == "KB005"
        assert code_of(kept, f"select knowledge.list_sources(k => {k})") == "KB005"
