"""What goes into the driver and what comes out of it: frozen, typed, made from database rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, overload
from uuid import UUID

from .errors import KnowledgeError

__all__ = [
    "Context",
    "Deletion",
    "Erasure",
    "Held",
    "Hit",
    "IngestOutcome",
    "IngestReport",
    "IngestStatus",
    "Mode",
    "Passage",
    "QueueState",
    "SearchResult",
    "Source",
    "SourceStats",
    "Token",
    "Verdict",
]

Mode = Literal["hybrid", "vector", "keyword"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """Who is asking, said by a back end that has authenticated the caller.

    org_id: the tenant. grants: the tags the caller holds; none means documents for everyone in
    the org. org_scope: the part of the tenant the caller belongs to, if any.
    """

    org_id: str
    grants: Sequence[str] = ()
    org_scope: str | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """Who is asking, in a text that ``knowledge.issue_token`` signed."""

    token: str


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did; the counts are the database's.

    chunks: in the document. embedded: got a vector of their own. reused: took the vector of
    another chunk with the same text. skipped: were there already and stayed. quarantined: are held
    back until release_chunk or reject_chunk. rejected: were left out. complete: every chunk has a
    vector. live: this text is what searches find.
    """

    document_id: UUID
    version_id: UUID
    chunks: int
    embedded: int
    reused: int
    skipped: int
    quarantined: int
    rejected: int
    complete: bool
    live: bool


@dataclass(frozen=True, slots=True)
class IngestOutcome:
    """What became of one document of ``ingest_many``: a report, or the error."""

    source_type: str
    source_id: str
    report: IngestReport | None
    error: KnowledgeError | None


@dataclass(frozen=True, slots=True)
class IngestStatus:
    """A version that is being ingested; see ``knowledge.ingest_status``."""

    version_id: UUID
    document_id: UUID
    source_type: str
    source_id: str
    source_version: str | None
    chunks: int
    staged: int
    unembedded: int
    quarantined: int
    rejected: int
    age: timedelta
    lease_holder: str | None
    lease_expires_at: datetime
    leased: bool
    last_error: str | None
    failed_at: datetime | None


@dataclass(frozen=True, slots=True)
class QueueState:
    """How many chunks wait for a vector in one state; see ``knowledge.embedding_queue``."""

    model: str
    state: Literal["waiting", "claimed", "retrying", "dead"]
    chunks: int
    oldest: timedelta
    due_at: datetime
    attempts: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What your own check says of a chunk: held for review, or left out; and why."""

    verdict: Literal["quarantined", "rejected"]
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """A chunk in quarantine. Its text is suspicious: show it to people, not to a model."""

    chunk_id: UUID
    document_id: UUID
    source_type: str
    source_id: str
    title: str
    ordinal: int
    reason: str
    heading: str
    body: str
    char_start: int | None
    char_end: int | None
    locator: str | None
    held_at: datetime


@dataclass(frozen=True, slots=True)
class Hit:
    """One chunk that was found, and where it stands.

    rank: from 1. score: sum over the legs of weight / (rrf_k + rank), and in a hybrid search less
    for what is far from the leg's best. body:
    source[char_start:char_end], where the writer gave a range; locator: 'page 3', where it
    gave one. vector_rank and keyword_rank: None
    where that leg did not find it; vector_distance: cosine, 0 to 2; keyword_score: BM25.
    rerank_score: what a re-ranker gave it; then rank is the order of these scores.
    """

    rank: int
    score: float
    chunk_id: UUID
    document_id: UUID
    source_type: str
    source_id: str
    source_version: str | None
    org_scope: str | None
    visibility_label: str
    title: str
    uri: str | None
    heading: str
    body: str
    ordinal: int
    char_start: int | None
    char_end: int | None
    locator: str | None
    document_metadata: dict[str, Any]
    vector_rank: int | None
    vector_distance: float | None
    keyword_rank: int | None
    keyword_score: float | None
    legs: tuple[str, ...]
    rerank_score: float | None = None


@dataclass(frozen=True, slots=True)
class Passage:
    """Chunks that follow each other in a document, found ones and their neighbours, as one text.

    place: from 1, in the order of the best hit in it. body: the chunks with a blank line between.
    """

    place: int
    document_id: UUID
    source_type: str
    source_id: str
    title: str
    uri: str | None
    heading: str
    body: str
    first_ordinal: int
    last_ordinal: int
    char_start: int | None
    char_end: int | None
    locator: str | None
    chunks: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class SearchResult(Sequence[Hit]):
    """The hits, best first, as a sequence.

    legs: which legs took part ('vector', 'keyword'); empty when nothing was found.
    """

    hits: tuple[Hit, ...]

    @property
    def legs(self) -> tuple[str, ...]:
        return self.hits[0].legs if self.hits else ()

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)


@dataclass(frozen=True, slots=True)
class Source:
    """A document that has a live version."""

    document_id: UUID
    source_type: str
    source_id: str
    source_version: str | None
    org_scope: str | None
    visibility: str
    audience: tuple[str, ...]
    title: str
    uri: str | None
    metadata: dict[str, Any]
    language: str
    content_hash: str
    chunks: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class LiveVersion:
    """What is live of a document, as its writer sees it."""

    version_id: UUID
    document_id: UUID
    source_version: str | None
    content_hash: str
    visibility: str
    audience: tuple[str, ...]
    language: str
    chunks: int


@dataclass(frozen=True, slots=True)
class SourceStats:
    """Counts of what the caller may read, of one source type and visibility."""

    source_type: str
    visibility: str
    documents: int
    chunks: int
    unembedded: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Deletion:
    """What delete_source erased; receipt is the digest (hex) of its entry in the audit log."""

    chunks: int
    versions: int
    audit_entry: int
    receipt: str


@dataclass(frozen=True, slots=True)
class Erasure:
    """What delete_by_scope erased, or would erase; a dry run has no receipt."""

    dry_run_only: bool
    documents: int
    chunks: int
    vectors: int
    versions: int
    staged_chunks: int
    compartments: int
    audit_entry: int | None
    receipt: str | None


def from_row(kind: type[T], row: Mapping[str, Any], **more: Any) -> T:
    """A ``kind`` from the columns of a row with the names of its fields; lists become tuples."""
    values = {**row, **more}
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    picked = {name: values[name] for name in names if name in values}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in picked.items()})
