"""Publishing many chunks with vectors of any model: one statement a document, in a pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from support.knowledge import content_hash, vector_text

# Each step names the one before, so that no planner may reorder them.
PUBLISH = """
select f.* from knowledge.begin_version(
    source_type => %(source_type)s, source_id => %(source_id)s,
    content_hash => %(content_hash)s, chunk_count => %(chunk_count)s, audience => %(audience)s,
    visibility => %(visibility)s, metadata => %(metadata)s, fingerprint => %(fingerprint)s) as b
cross join lateral (
    select count(*) as n from knowledge.stage_chunks(b.version_id, b.lease, %(chunks)s)) as s
cross join lateral knowledge.store_embeddings(
    b.version_id, b.lease + 0 * s.n, %(fingerprint)s, %(ordinals)s, %(embeddings)s) as e
cross join lateral knowledge.finalize_version(b.version_id, b.lease + 0 * e) as f
"""


@dataclass
class Document:
    """One document; headings, if any, one for each body."""

    source_id: str
    bodies: Sequence[str]
    vectors: Sequence[Iterable[float]]
    headings: Sequence[str] | None = None
    source_type: str = "wiki"
    audience: Sequence[str] = ("everyone",)
    visibility: str | None = None
    metadata: Mapping[str, Any] | None = None


def publish_all(
    conn: psycopg.Connection[Any], fingerprint: str, documents: Iterable[Document]
) -> None:
    """Publish documents in the transaction and context of conn."""
    with conn.cursor() as cursor:
        cursor.executemany(PUBLISH, [_arguments(fingerprint, d) for d in documents])


def _arguments(fingerprint: str, document: Document) -> dict[str, Any]:
    headings = document.headings or [""] * len(document.bodies)
    chunks = [
        {"ordinal": i, "heading": heading, "body": body}
        for i, (heading, body) in enumerate(zip(headings, document.bodies, strict=True))
    ]
    return {
        "source_type": document.source_type,
        "source_id": document.source_id,
        "content_hash": content_hash([*headings, *document.bodies]),
        "chunk_count": len(chunks),
        "audience": list(document.audience),
        "visibility": document.visibility,
        "metadata": None if document.metadata is None else Jsonb(document.metadata),
        "fingerprint": fingerprint,
        "chunks": Jsonb(chunks),
        "ordinals": list(range(len(chunks))),
        "embeddings": [vector_text(v) for v in document.vectors],
    }
