"""Errors are told apart by SQLSTATE alone, and what the driver cannot name passes as it is."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pg_knowledge import Context, Knowledge, KnowledgeError, Token, errors
from pg_knowledge.errors import (
    ContextRefused,
    InstallationError,
    InvalidArgument,
    ModelMismatch,
    NotFound,
    NotPermitted,
    Offboarded,
    UnknownVocabulary,
    database_errors,
)
from pg_knowledge.migrate import version
from support import Database
from support.embedder import ToyEmbedder
from support.knowledge import begin, stage

CODES = {
    "KB001": errors.NoContext,
    "KB002": errors.ContextRefused,
    "KB003": errors.NotPermitted,
    "KB004": errors.NotFound,
    "KB005": errors.InvalidArgument,
    "KB006": errors.UnknownVocabulary,
    "KB007": errors.ModelMismatch,
    "KB008": errors.IncompleteVersion,
    "KB009": errors.LeaseLost,
    "KB010": errors.Conflict,
    "KB011": errors.Offboarded,
    "KB012": errors.QuotaExceeded,
    "KB013": errors.InstallationError,
}


def raise_in_database(
    conn: psycopg.Connection[Any], code: str, message: str = "m", detail: str = "", hint: str = ""
) -> None:
    statement = sql.SQL(
        "do $$ begin raise exception using"
        " errcode = {}, message = {}, detail = {}, hint = {}; end $$"
    )
    with database_errors():
        conn.execute(statement.format(*map(sql.Literal, (code, message, detail, hint))))


def test_every_code_has_a_class() -> None:
    """The table of the design and the classes are the same, one to one."""
    assert {k.code: k for k in KnowledgeError.__subclasses__() if k.code} == CODES


@pytest.mark.parametrize("code", CODES)
def test_code_decides(conn: psycopg.Connection[Any], code: str) -> None:
    """The class comes from the code, whatever the text says; detail and hint come along."""
    detail = {"unknown": ["ä", 1], "n": {"x": None}}
    misleading = "KB999 permission denied, duplicate key"
    with pytest.raises(KnowledgeError) as caught:
        raise_in_database(conn, code, misleading, json.dumps(detail), "do this")
    assert type(caught.value) is CODES[code]
    assert (str(caught.value), caught.value.detail, caught.value.hint) == (
        misleading,
        detail,
        "do this",
    )
    assert isinstance(caught.value.__cause__, psycopg.Error)
    assert caught.value.__cause__.sqlstate == code


@pytest.mark.parametrize("detail", ["", "not json", "5", '"text"', "[1]", "null", "{"])
def test_any_detail(conn: psycopg.Connection[Any], detail: str) -> None:
    """A detail that is not a JSON object is kept as text, and never hides the error."""
    with pytest.raises(NotPermitted) as caught:
        raise_in_database(conn, "42501", detail=detail)
    assert caught.value.detail == ({"detail": detail} if detail else {})


@pytest.mark.parametrize("code", ["KB000", "KB014", "23505", "40001", "40P01", "22012", "57014"])
def test_other_codes_pass(conn: psycopg.Connection[Any], code: str) -> None:
    """What has no class here stays the psycopg error it is."""
    with pytest.raises(psycopg.Error) as caught:
        raise_in_database(conn, code, "KB004 not found", "{}")
    assert caught.value.sqlstate == code


def test_errors_of_python_pass() -> None:
    with pytest.raises(ZeroDivisionError), database_errors():
        raise ZeroDivisionError


def test_invalid_arguments_are_value_errors() -> None:
    assert issubclass(InvalidArgument, ValueError)


def test_real_errors(kb: Knowledge, shared: Database, org: str) -> None:
    """Each kind that a caller can bring about, with what it says to programs."""
    with pytest.raises(UnknownVocabulary) as unknown:
        kb.ingest("wiki", "a", "text", audience=["nobody-said"])
    assert unknown.value.detail == {"unknown": ["nobody-said"]}
    assert "define_audience" in unknown.value.hint
    with pytest.raises(InvalidArgument) as invalid:
        kb.search("x", options={"limit": 1})
    assert invalid.value.detail["unknown"] == ["limit"]
    with pytest.raises(NotFound):
        kb.get_source("wiki", "missing")
    with pytest.raises(InvalidArgument):
        kb.as_context(Context("")).stats()
    with pytest.raises(ContextRefused):
        kb.as_context(Token("forged")).stats()
    gone = kb.as_context(Context(org + " gone"))
    gone.delete_by_scope(entire_org=True, dry_run=False)
    for call in (
        lambda: gone.search("x"),
        lambda: gone.ingest("wiki", "a", "text", audience=["everyone"]),
    ):
        with pytest.raises(Offboarded):
            call()


def test_roles(kb: Knowledge, shared: Database, org: str) -> None:
    """A role may do what it was granted, and is told when it is not: NotPermitted (42501)."""
    kb.ingest("wiki", "a", "some text", audience=["everyone"])
    trusted = Knowledge(shared.connect("app_trusted"), Context(org))
    assert len(trusted.search("text")) == 1
    for call in (
        lambda: trusted.ingest("wiki", "a", "other text"),
        lambda: trusted.delete_source("wiki", "a"),
        lambda: trusted.define_tag("t"),
        lambda: trusted.delete_by_scope(),
        lambda: trusted.prune(),
        lambda: Knowledge(shared.connect("app_admin"), Context(org)).search("text"),
    ):
        with pytest.raises(NotPermitted) as refused:
            call()
        cause = refused.value.__cause__
        assert isinstance(cause, psycopg.Error)
        assert cause.sqlstate == "42501"
    assert kb.search("text")[0].body == "some text"


def test_model_mismatch_before_the_embedder(kb: Knowledge, someone: Any) -> None:
    """Another fingerprint of the same dimensions is refused; its embedder is not even asked."""
    kb.ingest("wiki", "a", "some text", audience=["everyone"])
    for different in ({"fingerprint": "toy:8:new"}, {"fingerprint": "x", "dimensions": 3}):
        other = ToyEmbedder(**different)
        stranger = someone(embedder=other)
        for call in (
            lambda stranger=stranger: stranger.ingest("wiki", "a", "new text"),
            lambda stranger=stranger: stranger.search("text"),
            lambda stranger=stranger: stranger.search("text", mode="vector"),
        ):
            with pytest.raises(ModelMismatch) as mismatch:
                call()
            assert mismatch.value.detail["fingerprint"] == different["fingerprint"]
        assert other.calls == []
        assert len(stranger.search("text", mode="keyword")) == 1
    assert kb.search("text")[0].body == "some text"


def test_unregistered_model(shared: Database, org: str, conn: psycopg.Connection[Any]) -> None:
    """The first ingest of an org with a model that nobody registered: refused, with the way out."""
    embedder = ToyEmbedder(fingerprint="nobody registered this")
    kb = Knowledge(conn, Context(org), embedder=embedder)
    with pytest.raises(ModelMismatch) as refused:
        kb.ingest("wiki", "a", "text", audience=["everyone"])
    assert "register_model" in refused.value.hint
    assert embedder.calls == []


def test_token(kb: Knowledge, shared: Database, org: str) -> None:
    """A reader that was handed a token sees what its context may see, until it expires."""
    kb.define_tag("hr")
    kb.define_audience("staff", ["hr"])
    kb.ingest("wiki", "open", "some text", audience=["everyone"])
    kb.ingest("wiki", "closed", "secret text", audience=["staff"])
    trusted = shared.connect("app_trusted")

    def issue(*grants: str) -> Token:
        query = "select knowledge.issue_token(%s, %s)"
        row = trusted.execute(query, (org, list(grants))).fetchone()
        assert row
        return Token(row[0])

    reader = Knowledge(shared.connect("app_reader"), issue(), embedder=ToyEmbedder())
    holder = reader.as_context(issue("hr"))
    assert [hit.source_id for hit in reader.search("text")] == ["open"]
    assert {hit.source_id for hit in holder.search("text")} == {"open", "closed"}
    assert {source.source_id for source in holder.list_sources()} == {"open", "closed"}
    with pytest.raises(NotFound):
        reader.get_source("wiki", "closed")
    with pytest.raises(NotPermitted):
        reader.ingest("wiki", "open", "other")
    with pytest.raises(NotPermitted):
        reader.as_context(Context(org, ["hr"])).search("text")
    root = shared.superuser()
    move = "update knowledge_private.settings set clock_offset = %s"
    root.execute(move, ("301 s",))
    try:
        with pytest.raises(ContextRefused, match="expired"):
            holder.search("text")
    finally:
        root.execute(move, ("0",))
    assert len(holder.search("text")) == 2


def test_not_installed(shared: Database) -> None:
    """An empty database, and a role that may not look: InstallationError, before anything else."""
    with shared.server.database(prepared=False) as empty:
        kb = Knowledge(empty.superuser(), Context("acme"), embedder=ToyEmbedder())
        for call in (kb.stats, lambda: kb.search("x")):
            with pytest.raises(InstallationError) as refused:
                call()
            assert "migrate" in refused.value.hint
    nobody = Knowledge(shared.connect("app_nobody"), Context("acme"))
    with pytest.raises(InstallationError, match="not granted"):
        nobody.stats()


@pytest.mark.parametrize(
    ("other", "works"), [("0.1.7", True), ("0.2.0", False), ("1.1.0", False), ("0.10.0", False)]
)
def test_other_version(db: Database, other: str, works: bool) -> None:
    """The driver works with its own minor version and refuses any other, by name."""
    assert version().startswith("0.1.")
    db.superuser().execute("update knowledge.migrations set version = %s", (other,))
    kb = Knowledge(db.connect("app_backend"), Context("acme"))
    if works:
        assert kb.stats() == []
    else:
        with pytest.raises(InstallationError, match=other):
            kb.stats()


def test_lease_lost_and_incomplete_reach_the_caller(
    kb: Knowledge, conn: psycopg.Connection[Any], org: str
) -> None:
    """A version that was taken over while the embedder worked: LeaseLost, and the heir wins."""

    def steal(call: int, vectors: Any) -> Any:
        with conn.transaction():
            conn.execute("select knowledge.set_context(%s, '{}')", (org,))
            heir = begin(conn, "a", ["other text"])
            stage(conn, heir, ["other text"])
        return vectors

    thief = Knowledge(conn, Context(org), embedder=ToyEmbedder(steal))
    with pytest.raises(errors.LeaseLost) as lost:
        thief.ingest("wiki", "a", "some text", audience=["everyone"])
    assert lost.value.detail["state"] == "aborted"
    assert list(kb.list_sources()) == []
