"""The main job from end to end, on a server of its own: pg-knowledge demo."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from .cli import Bar, render_hit
from .client import Knowledge
from .embedded import EmbeddedServer
from .errors import InvalidArgument, KnowledgeError
from .files import Document, find_documents, read_document
from .local import LocalEmbedder
from .migrate import migrate
from .types import Context

__all__ = ["run"]

QUESTIONS = (
    "how is permission checked before anything is ranked?",
    "what happens when an ingest crashes half way?",
    "search_scoped KB007 fingerprint",
)
# Where the project's own documentation is.
OWN_DOCS = ("README.md", "CHANGELOG.md", "sql", "migrations", "python")
# What a DBA does once, as superuser, in an empty database.
PREPARE = """
create extension vector;
create role installer login createrole;
grant create on database demo to installer;
"""
# What a DBA does after the migration: one login role for the service. It may do everything for
# any tenant it names, but it is no superuser and owns nothing.
GRANT = """
create role service login nosuperuser nobypassrls;
grant knowledge_admin, knowledge_trusted to service;
"""


def run(docs: Path | None = None) -> None:
    """Installs, ingests docs for two tenants, asks, shows who sees what, erases one tenant.

    docs: folder of .md and .txt files; None takes the project's own documentation.
    """
    documents = _documents(docs)
    questions: Sequence[str] = QUESTIONS
    if docs is not None:
        questions = [document.title for document in documents[:3]]
    started = time.monotonic()
    with EmbeddedServer() as server:
        with psycopg.connect(server.uri(), autocommit=True) as dba:
            dba.execute("create database demo")
            print(f"PostgreSQL {dba.info.server_version // 10000} started")
        with psycopg.connect(server.uri("demo"), autocommit=True) as dba:
            dba.execute(PREPARE)
            with psycopg.connect(server.uri("demo", "installer"), autocommit=True) as installer:
                print(f"pg_knowledge {migrate(installer)} installed by a role that is no superuser")
            dba.execute(GRANT)
        with psycopg.connect(server.uri("demo", "service"), autocommit=True) as conn:
            _tour(conn, documents, questions)
    print(
        f"\nDone in {time.monotonic() - started:.1f} s; the server is stopped and its files gone."
    )


def _documents(docs: Path | None) -> list[Document]:
    folder = docs or Path(__file__).resolve().parents[2]
    parts = [folder] if docs else [folder / part for part in OWN_DOCS]
    if not all(part.exists() for part in parts):
        raise InvalidArgument("name a folder of documents: pg-knowledge demo --docs FOLDER")
    documents = []
    for path in (found for part in parts for found in find_documents(part)):
        try:
            document = read_document(path)
            documents.append(replace(document, path=path.relative_to(folder)))
        except InvalidArgument as error:
            print(f"{path} is left out: {error}", file=sys.stderr)
    if not documents:
        raise InvalidArgument(f"{docs}: no file with text there")
    return documents


def _tour(
    conn: psycopg.Connection[Any], documents: Sequence[Document], questions: Sequence[str]
) -> None:
    aurora = Knowledge(conn, Context("aurora", ["engineering"]), embedder=LocalEmbedder())
    borealis = aurora.as_context(Context("borealis", ["legal"]))
    aurora.register_model()
    for tenant, tag, audience in (
        (aurora, "engineering", "engineers"),
        (borealis, "legal", "lawyers"),
    ):
        tenant.define_tag(tag)
        tenant.define_audience(audience, [tag])

    half = (len(documents) + 1) // 2
    _heading(f"{len(documents)} documents for two tenants")
    _ingest(aurora, "aurora", documents, "engineers")
    _ingest(borealis, "borealis", documents[:half], "lawyers")

    for question in questions:
        _heading(f"aurora, tag engineering: {question}")
        for hit in aurora.search(question, k=3):
            print(render_hit(hit))

    _heading("The same questions from others")
    others = {
        "aurora without the tag": aurora.as_context(Context("aurora")),
        "borealis with aurora's tag": aurora.as_context(Context("borealis", ["engineering"])),
        "a tenant that has nothing": aurora.as_context(Context("somebody", ["engineering"])),
    }
    for who, caller in others.items():
        found = sum(len(caller.search(question)) for question in questions)
        print(f"{who}: {found} answers, {len(list(caller.list_sources()))} documents")
        if found:
            raise AssertionError(f"{who} must not see anything")
    theirs = borealis.search(questions[0], k=100)
    print(f"borealis with its own tag: {len(theirs)} answers, all from its own copy")

    _heading("Erasing aurora")
    plan = aurora.delete_by_scope(entire_org=True)
    print(f"dry run: {plan.documents} documents, {plan.chunks} chunks, {plan.vectors} vectors")
    done = aurora.delete_by_scope(entire_org=True, dry_run=False)
    print(f"erased:  {done.documents} documents, {done.chunks} chunks, {done.vectors} vectors")
    print(f"receipt: entry {done.audit_entry} of its audit log, {done.receipt}")
    try:
        aurora.search(questions[0])
    except KnowledgeError as error:
        print(f"aurora asks again: {error.code}, {error}")
    print(f"borealis still has {sum(row.chunks for row in borealis.stats())} chunks")


def _ingest(tenant: Knowledge, name: str, documents: Sequence[Document], audience: str) -> None:
    started = time.monotonic()
    bar = Bar(sys.stderr, len(documents))
    chunks = 0
    for document in documents:
        report = tenant.ingest(
            "docs",
            document.path.as_posix(),
            document.text,
            audience=[audience],
            title=document.title,
            chunks=document.chunks(),
            on_progress=bar.part,
        )
        chunks += report.chunks
        bar.step()
    bar.end()
    seconds = time.monotonic() - started
    print(
        f"{name}: {len(documents)} documents, {chunks} chunks, for {audience}, in {seconds:.1f} s"
    )


def _heading(text: str) -> None:
    print(f"\n== {text}")
