"""A writer that stops before each call of an SQL function until it is told to go on.

``python -m support.writer URI ORG NAME TEXT`` runs one ingest in a process of its own, which may
be stopped or killed. It writes the name of the step and reads a line before each step.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import psycopg

from pg_knowledge import Context, IngestReport, Knowledge, KnowledgeError
from pg_knowledge.chunking import chunk_text
from support.embedder import ToyEmbedder

BATCH = 2


def document(words: str) -> str:
    """A text of as many sections as words, each one chunk; 'common' stands in all of them."""
    sections = (f"# Section {n}\n\ncommon {word}\n" for n, word in enumerate(words.split()))
    return "\n".join(sections)


OLD = document("ant bee cat dog elk")
# Edited, kept, edited, edited, edited, added: three batches, and each needs the embedder.
NEW = document("ape bee cow doe eel fox")
# What ingesting NEW over OLD does, call by call.
STEPS = [
    "begin_version",
    "stage_unchanged",
    *["stage_chunks", "store_embeddings"] * 3,
    "finalize_version",
    "done",
]


class Stepwise(Knowledge):
    """Calls ``watch`` with the name of each SQL function before its transaction begins."""

    def __init__(self, *args: Any, watch: Callable[[str], object], **given: Any) -> None:
        super().__init__(*args, **given)
        self._watch = watch

    def _call(self, statement: str, /, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        found = re.search(r"knowledge\.(\w+)\(", statement)
        assert found
        self._watch(found[1])
        return super()._call(statement, *args, **kwargs)


def ingest(kb: Knowledge, text: str, **given: Any) -> IngestReport:
    """Publishes text, OLD or NEW, as the one document of these tests."""
    given = {"audience": ["everyone"], "batch_size": BATCH, **given}
    return kb.ingest("wiki", "doc", text, source_version=version_of(text), **given)


def version_of(text: str) -> str:
    """The source_version that text is ingested with."""
    return "old" if text == OLD else "new"


def check_served(kb: Knowledge, text: str) -> None:
    """The one document is text, whole: found by words and by meaning, listed and counted so."""
    bodies = [chunk.body for chunk in chunk_text(text)]
    source = kb.get_source("wiki", "doc")
    assert (source.source_version, source.chunks) == (version_of(text), len(bodies))
    for mode in ("keyword", "vector", "hybrid"):
        hits = kb.search("common", k=100, mode=mode)  # type: ignore[arg-type]
        assert sorted((hit.ordinal, hit.body) for hit in hits) == list(enumerate(bodies)), mode
        assert {hit.source_version for hit in hits} == {version_of(text)}
    (stats,) = kb.stats()
    assert (stats.documents, stats.chunks, stats.unembedded) == (1, len(bodies), 0)


def main(uri: str, org: str, name: str, text: str) -> None:
    """One ingest of text as writer ``name`` ('' for none), step by step; ends with a verdict."""

    def watch(step: str) -> None:
        print(step, flush=True)
        sys.stdin.readline()

    with psycopg.connect(uri, autocommit=True) as conn:
        context = Context(org)
        embedder = ToyEmbedder()
        kb = Stepwise(conn, context, embedder=embedder, writer=name or None, watch=watch)
        try:
            ingest(kb, text)
        except KnowledgeError as error:
            watch(type(error).__name__)
        else:
            watch("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
