"""The driver: chunks, embeds, and calls the SQL functions. Each call is one or a few short
transactions; no transaction is open while an embedder works, and nothing stays open between calls.
"""

from __future__ import annotations

import json
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from . import migrate
from .chunking import Chunk
from .embedding import Embedder, retry_after, stored_vectors
from .errors import (
    Conflict,
    EmbedderError,
    IncompleteVersion,
    InstallationError,
    InvalidArgument,
    KnowledgeError,
    LeaseLost,
    ModelMismatch,
    database_errors,
    encoded_text,
    error_text,
)
from .staging import Outline, Split, embedded_text, outline_of
from .types import (
    Context,
    Deletion,
    Erasure,
    Held,
    Hit,
    IngestOutcome,
    IngestReport,
    IngestStatus,
    LiveVersion,
    Mode,
    Passage,
    QueueState,
    SearchResult,
    Source,
    SourceStats,
    Token,
    Verdict,
    from_row,
)

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool
from .vectors import Vectors, vector_dumper

__all__ = ["Knowledge"]

Row = dict[str, Any]
Progress = Callable[[int, int], None]
Reranker = Callable[[str, Sequence[str]], Sequence[float]]
Admission = Callable[[Chunk], "Verdict | None"]
# How often a document is completed again because vectors it reused went away before it was live.
_REPEATS = 5
# From how many characters on it is quicker to ask for the outline of what is live before splitting.
_LONG_TEXT = 100_000
# How often one batch is given to an embedder that asks for time, and how long it may ask for.
_ATTEMPTS = 4
_LONGEST_PAUSE = 60.0
_JSON_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class Knowledge:
    """A knowledge base, as one caller sees it.

    source: a psycopg connection or a psycopg_pool.ConnectionPool. It stays yours: it is never
        closed here, and no setting of it outlives a transaction. Give a connection of its own to
        each thread, or a pool.
    context: who is asking. A Context needs a role in knowledge_trusted, a Token does not.
    embedder: turns chunks and questions into vectors; without one, words are all there is.
    writer: a name by which this writer may resume, at once, an ingest that it left behind. Two
        writers at work at the same time must not share a name.
    admit: your own check of each new chunk, beside the org's rules: a Verdict, or None to admit it.

    Every method raises the errors of ``pg_knowledge.errors``; an error leaves nothing half done.
    """

    def __init__(
        self,
        source: psycopg.Connection[Any] | ConnectionPool[Any],
        context: Context | Token,
        *,
        embedder: Embedder | None = None,
        writer: str | None = None,
        admit: Admission | None = None,
    ) -> None:
        self._source = source
        self._context = context
        self._embedder = embedder
        self._writer = writer
        self._admit = admit
        self._vectors: type[psycopg.adapt.Dumper] | None = None

    @property
    def embedder(self) -> Embedder | None:
        """What turns chunks and questions into vectors."""
        return self._embedder

    def as_context(self, context: Context | Token) -> Knowledge:
        """The same knowledge base for another caller."""
        other = Knowledge(
            self._source,
            context,
            embedder=self._embedder,
            writer=self._writer,
            admit=self._admit,
        )
        other._vectors = self._vectors
        return other

    # -- documents in

    def ingest(
        self,
        source_type: str,
        source_id: str,
        text: str,
        *,
        audience: Sequence[str] | None = None,
        visibility: str | None = None,
        title: str | None = None,
        uri: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source_version: str | None = None,
        language: str | None = None,
        format: Literal["markdown", "text"] = "markdown",
        chunks: Sequence[Chunk] | None = None,
        batch_size: int = 128,
        max_batches: int | None = None,
        concurrency: int = 1,
        resume: bool = True,
        allow_unembedded: bool = False,
        wait: float = 0,
        on_progress: Progress | None = None,
    ) -> IngestReport:
        """Publishes a document, or what has changed of it, in one step.

        The same call after a crash does the rest. What is omitted stays as it was; a new document
        needs an audience ('everyone' is the whole org). Chunks whose text is live in the document
        already are neither sent nor embedded.

        chunks: your own split of text instead of ``chunk_text``'s.
        batch_size: chunks that are staged and embedded at a time.
        max_batches: at most so many batches now; a report with complete=False, live=False says
            that the same call goes on from there.
        concurrency: calls of the embedder at a time, each in a thread of its own when more than 1.
        resume: False begins anew instead of with what an interrupted call left behind.
        allow_unembedded: publish for words at once, without calling the embedder; workers
            (``pg_knowledge.worker``) make the vectors. So it is without an embedder, too.
        wait: seconds to wait for another writer of the same text before Conflict.
        on_progress(done, total): called after each batch with numbers of chunks.
        """
        if batch_size < 1 or concurrency < 1 or (max_batches is not None and max_batches < 1):
            raise InvalidArgument("batch_size, concurrency and max_batches must be at least 1")
        parts: Sequence[Chunk]
        if chunks is None:
            long = len(text) >= _LONG_TEXT
            live = self._live_outline(source_type, source_id) if long else Outline()
            split = Split(text, format, live.counts())
            parts, outline = split, split.outline
        else:
            parts, outline = chunks, outline_of(chunks)
        if not parts:
            raise InvalidArgument("the document has no text")
        embedder = None if allow_unembedded else self._embedder
        fingerprint = self._embedder.fingerprint if self._embedder else None
        options: dict[str, Any] = {"lease_holder": self._writer} if self._writer else {}
        if allow_unembedded:
            options["allow_unembedded"] = True
        if not resume:
            options["resume"] = False
        version = self._begin(
            wait,
            source_type=source_type,
            source_id=source_id,
            content_hash=outline.digest,
            chunk_count=len(parts),
            outline=outline.data,
            audience=_names("audience", audience),
            visibility=visibility,
            title=title,
            uri=uri,
            metadata=None if metadata is None else _json(dict(metadata)),
            source_version=source_version,
            language=language,
            fingerprint=fingerprint,
            options=_json(options),
        )
        if version["state"] == "live":
            return _report(version, parts, complete=not version["unembedded"], live=True)
        with self._held(version):
            todo = self._todo(version, parts, outline)
            ordinals = sorted(todo | set(version["unembedded"]))
            batches = [ordinals[n : n + batch_size] for n in range(0, len(ordinals), batch_size)]
            done = len(parts) - len(ordinals)
            transfer = _Transfer(self, version, embedder, concurrency)
            for batch in transfer.run([parts[n] for n in batch] for batch in batches[:max_batches]):
                done += len(batch)
                if on_progress:
                    on_progress(done, len(parts))
            if max_batches is not None and len(batches) > max_batches:
                self._release(version)
                return _report(version, parts, complete=False, live=False, new=transfer.embedded)
            if not batches and on_progress:
                on_progress(done, len(parts))
            for _ in range(_REPEATS):
                with suppress(IncompleteVersion):
                    return self._finalize(version, embedder is None)
                # What was to be reused has gone since: a vector, or a chunk with the same text.
                again = (
                    [parts[n] for n in range(start, min(start + batch_size, len(parts)))]
                    for start in range(0, len(parts), batch_size)
                )
                anew = version | {"staged": [], "unembedded": []}
                for _batch in _Transfer(self, anew, embedder, concurrency).run(again):
                    pass
            return self._finalize(version, embedder is None)

    def ingest_many(
        self, documents: Iterable[Mapping[str, Any]], *, threads: int = 1, **common: Any
    ) -> Iterator[IngestOutcome]:
        """Ingests documents, each a mapping of ``ingest``'s arguments; common holds for all.

        Yields what became of each as soon as it is known: a document that fails does not stop the
        others. documents is read as it is needed, threads + 1 of them at a time. threads: more
        than 1 needs a pool with as many connections. InvalidArgument for more threads on a
        connection.
        """
        if threads < 1 or (threads > 1 and isinstance(self._source, psycopg.Connection)):
            raise InvalidArgument("threads must be at least 1, and more than 1 need a pool")

        def one(document: Mapping[str, Any]) -> IngestOutcome:
            given = {**common, **document}
            name = (str(given.get("source_type", "")), str(given.get("source_id", "")))
            try:
                return IngestOutcome(*name, self.ingest(**given), None)
            except KnowledgeError as error:
                return IngestOutcome(*name, None, error)

        if threads == 1:
            yield from map(one, documents)
            return
        with ThreadPoolExecutor(threads, "pg-knowledge-ingest") as pool:
            pending: set[Future[IngestOutcome]] = set()
            for document in documents:
                pending.add(pool.submit(one, document))
                if len(pending) > threads:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in finished)
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)

    def ingest_status(self) -> list[IngestStatus]:
        """The versions of exactly the caller's scope that are being ingested, oldest first."""
        return [
            from_row(IngestStatus, row)
            for row in self._call("select * from knowledge.ingest_status()")
        ]

    def live_version(self, source_type: str, source_id: str) -> LiveVersion | None:
        """What was published last as this document of exactly the caller's scope, also when the
        caller may not read it; None when nothing is live."""
        query = "select * from knowledge.live_version(%s, %s)"
        rows = self._call(query, source_type, source_id)
        return from_row(LiveVersion, rows[0]) if rows else None

    def _live_outline(self, source_type: str, source_id: str) -> Outline:
        query = "select v.outline from knowledge.live_version(%s, %s) as v"
        rows = self._call(query, source_type, source_id)
        return Outline(rows[0]["outline"] if rows else None)

    def _begin(self, wait: float, **arguments: Any) -> Row:
        given = {name: value for name, value in arguments.items() if value is not None}
        query = _named_call("begin_version", given)
        deadline = time.monotonic() + wait
        pause = 0.05
        while True:
            try:
                (row,) = self._call(query, **given)
                return row
            except Conflict:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    @contextmanager
    def _held(self, version: Row) -> Iterator[None]:
        """Gives up the lease, and says why, when what is done with the version fails."""
        try:
            yield
        except LeaseLost:
            raise
        except BaseException as error:
            with suppress(Exception):
                self._release(version, f"{type(error).__name__}: {error}")
            raise

    def _release(self, version: Row, error: str | None = None) -> None:
        self._call(
            "select knowledge.release_version(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            None if error is None else error_text(error),
        )

    def _todo(self, version: Row, parts: Sequence[Chunk], outline: Outline) -> set[int]:
        """The ordinals whose text is to be staged; what is live in the document is not."""
        todo = set(range(len(parts))).difference(version["staged"])
        runs = outline.unchanged(Outline(version["live_outline"]))
        if runs:
            (row,) = self._call(
                "select knowledge.stage_unchanged(%s, %s, %s, %s, %s, %s) as unknown",
                version["version_id"],
                version["lease"],
                *map(list, zip(*runs, strict=True)),
            )
            for run in runs:
                todo.difference_update(range(run.ordinal, run.ordinal + run.chunks))
            todo.update(row["unknown"])
        return todo

    def _finalize(self, version: Row, allow_unembedded: bool) -> IngestReport:
        (report,) = self._call(
            "select * from knowledge.finalize_version(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            allow_unembedded,
        )
        return from_row(IngestReport, report | version)

    def _stage(self, version: Row, batch: Sequence[Chunk]) -> set[int]:
        """Stages chunks; the ordinals that need a vector."""
        rows = self._call(
            "select * from knowledge.stage_chunks(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            _json([self._staged(chunk) for chunk in batch]),
        )
        return {row["ordinal"] for row in rows if row["needs_embedding"]}

    def _staged(self, chunk: Chunk) -> dict[str, Any]:
        staged = {
            "ordinal": chunk.ordinal,
            "heading": chunk.heading,
            "body": chunk.body,
            "char_start": chunk.char_start,
            "char_end": chunk.char_end,
            "tokens": chunk.tokens,
            "locator": chunk.locator,
        }
        verdict = self._admit(chunk) if self._admit else None
        return (
            staged | {"verdict": verdict.verdict, "reason": verdict.reason} if verdict else staged
        )

    def _store(self, version: Row, ordinals: Sequence[int], vectors: list[array[float]]) -> None:
        assert self._embedder is not None  # noqa: S101
        self._call(
            "select knowledge.store_embeddings(%s, %s, %s, %s, %s)",
            version["version_id"],
            version["lease"],
            self._embedder.fingerprint,
            list(ordinals),
            Vectors(vectors),
        )

    # -- what was held back

    def list_quarantine(self, *, page_size: int = 1000) -> Iterator[Held]:
        """The chunks that wait for a decision, longest first; fetched page by page. For people:
        their text is suspicious."""
        after: UUID | None = None
        while True:
            rows = self._call("select * from knowledge.list_quarantine(%s, %s)", page_size, after)
            for row in rows:
                yield from_row(Held, row)
            if len(rows) < page_size:
                return
            after = rows[-1]["chunk_id"]

    def release_chunk(self, chunk_id: UUID, reason: str | None = None) -> str:
        """Publishes a quarantined chunk into the live version of its document; the receipt."""
        (row,) = self._call("select * from knowledge.release_chunk(%s, %s)", chunk_id, reason)
        return str(row["receipt"])

    def reject_chunk(self, chunk_id: UUID, reason: str | None = None) -> str:
        """Forgets a quarantined chunk for good; the receipt."""
        (row,) = self._call("select * from knowledge.reject_chunk(%s, %s)", chunk_id, reason)
        return str(row["receipt"])

    def define_admission_rule(
        self,
        rule: str,
        verdict: str,
        *,
        reason: str | None = None,
        pattern: str | None = None,
        longest: int | None = None,
    ) -> None:
        """Defines a rule for new chunks of the org; see ``knowledge.define_admission_rule``."""
        self._call(
            "select knowledge.define_admission_rule(%s, %s, %s, %s, %s)",
            rule,
            verdict,
            reason,
            pattern,
            longest,
        )

    # -- chunks that are live without a vector

    def embedding_queue(self) -> list[QueueState]:
        """What waits for a vector, counted by model, state and reason."""
        return [
            from_row(QueueState, row)
            for row in self._call("select * from knowledge.embedding_queue()")
        ]

    def retry_embeddings(self) -> int:
        """Gives the dead letters another chance; how many there were."""
        (row,) = self._call("select knowledge.retry_embeddings() as revived")
        return int(row["revived"])

    # -- questions

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        mode: Mode = "hybrid",
        source_types: Sequence[str] | None = None,
        visibility: Sequence[str] = ("org",),
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        rerank: Reranker | None = None,
        candidates: int = 50,
    ) -> SearchResult:
        """The k best chunks that the caller may read, best first: min(k, matches) of them.

        query: words or a question; "quoted phrases" must stand in what the words find, -excluded
        words in nothing. mode: hybrid needs an embedder for its vector leg and does without it;
        vector requires one. source_types: None is any, an empty list is none. visibility: the
        labels to see. metadata: a filter, {"year": {"$gte": 2025}}; see
        ``knowledge.metadata_matches``. options: see ``knowledge.search_scoped``. rerank: gives
        the bodies of the first candidates hits a score each, from the query; the best k by that
        score are the result.
        """
        wanted = k if rerank is None else max(k, candidates)
        asked = self._asked(query, wanted, mode, source_types, visibility, metadata, options)
        rows = self._call(_named_call("search_scoped", asked), **asked)
        hits = tuple(from_row(Hit, row) for row in rows)
        return SearchResult(hits if rerank is None else _reranked(query, hits, rerank)[:k])

    def explain(
        self,
        query: str,
        *,
        k: int = 10,
        mode: Mode = "hybrid",
        source_types: Sequence[str] | None = None,
        visibility: Sequence[str] = ("org",),
        metadata: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Why ``search`` answers what it does: legs, plan, times, terms, and each row's ranks.

        Arguments as there; the keys are those of ``knowledge.explain_search``.
        """
        asked = self._asked(query, k, mode, source_types, visibility, metadata, options)
        (row,) = self._call(_named_call("explain_search", asked), **asked)
        return dict(row["explain_search"])

    def passages(self, hits: Iterable[Hit | UUID], neighbours: int = 1) -> list[Passage]:
        """Hits widened by up to neighbours chunks on either side; what touches is one passage."""
        chunk_ids = [hit.chunk_id if isinstance(hit, Hit) else hit for hit in hits]
        rows = self._call("select * from knowledge.passages(%s, %s)", chunk_ids, neighbours)
        return [from_row(Passage, row) for row in rows]

    def _asked(
        self,
        query: str,
        k: int,
        mode: Mode,
        source_types: Sequence[str] | None,
        visibility: Sequence[str],
        metadata: Mapping[str, Any] | None,
        options: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """The arguments of a search by name, with the embedding of query where one is wanted."""
        given: dict[str, Any] = {
            "query": query,
            "k": k,
            "mode": mode,
            "visibility": _names("visibility", visibility),
            "options": _json(dict(options or {})),
        }
        if source_types is not None:
            given["source_types"] = _names("source_types", source_types)
        if metadata is not None:
            given["metadata"] = _json(dict(metadata))
        _check_values(given)
        if self._embedder and mode != "keyword" and query.strip():
            self._check_model(self._embedder)
            (vector,) = embed(self._embedder, [query])
            given |= {"embedding": _vector(vector), "fingerprint": self._embedder.fingerprint}
        return given

    def _check_model(self, embedder: Embedder) -> None:
        """Refuses an embedder that is not the org's model before it is asked for anything."""
        rows = self._call(
            "select m.name, m.fingerprint from knowledge.orgs as o"
            " inner join knowledge.models as m on m.model_id = o.active_model"
        )
        if rows and rows[0]["fingerprint"] != embedder.fingerprint:
            raise ModelMismatch(
                f"the embedder {embedder.name} is not the model of the org",
                {"fingerprint": embedder.fingerprint, "model": rows[0]["name"]},
            )

    # -- what there is, and its end

    def list_sources(
        self, source_types: Sequence[str] | None = None, *, page_size: int = 1000
    ) -> Iterator[Source]:
        """The documents that the caller may read, oldest first; fetched page by page."""
        after: UUID | None = None
        while True:
            rows = self._call(
                "select * from knowledge.list_sources(%s, %s, %s)",
                _names("source_types", source_types),
                page_size,
                after,
            )
            for row in rows:
                yield from_row(Source, row)
            if len(rows) < page_size:
                return
            after = rows[-1]["document_id"]

    def get_source(self, source_type: str, source_id: str) -> Source:
        """The document of this identity; NotFound when there is none for this caller."""
        (row,) = self._call("select * from knowledge.get_source(%s, %s)", source_type, source_id)
        return from_row(Source, row, source_type=source_type, source_id=source_id)

    def delete_source(self, source_type: str, source_id: str) -> Deletion:
        """Erases one document of exactly the caller's scope; NotFound when there is none."""
        (row,) = self._call("select * from knowledge.delete_source(%s, %s)", source_type, source_id)
        return from_row(Deletion, row)

    def prune(self, keep: int = 10) -> int:
        """Forgets all but the newest ended versions of each document; how many were forgotten."""
        (row,) = self._call("select knowledge.prune_versions(%s) as pruned", keep)
        return int(row["pruned"])

    def stats(self) -> list[SourceStats]:
        """Counts of what the caller may read, by source type and visibility."""
        return [from_row(SourceStats, row) for row in self._call("select * from knowledge.stats()")]

    def delete_by_scope(
        self,
        *,
        dry_run: bool = True,
        entire_org: bool = False,
        source_types: Sequence[str] | None = None,
    ) -> Erasure:
        """Erases every document of exactly the caller's scope, or the entire org for good.

        dry_run, the default, only counts. See ``knowledge.delete_by_scope``.
        """
        (row,) = self._call(
            "select * from knowledge.delete_by_scope(%s, %s, %s)",
            dry_run,
            entire_org,
            _names("source_types", source_types),
        )
        return from_row(Erasure, row)

    # -- vocabulary and model

    def define_tag(self, tag: str, description: str = "") -> None:
        """Adds a tag to the org's vocabulary."""
        self._call("select knowledge.define_tag(%s, %s)", tag, description)

    def define_audience(self, audience: str, tags: Sequence[str]) -> int:
        """Says which tags open an audience; how many compartments changed."""
        (row,) = self._call(
            "select knowledge.define_audience(%s, %s) as changed", audience, _names("tags", tags)
        )
        return int(row["changed"])

    def set_language(self, language: str) -> None:
        """The text search configuration of documents and questions that name none."""
        self._call("select knowledge.set_language(%s)", language)

    def register_model(self) -> int:
        """Registers the embedder's model with the database; its model_id."""
        if self._embedder is None:
            raise InvalidArgument("there is no embedder to register")
        (row,) = self._call(
            "select knowledge.register_model(%s, %s, %s) as model_id",
            self._embedder.name,
            self._embedder.dimensions,
            self._embedder.fingerprint,
        )
        return int(row["model_id"])

    # -- one transaction

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if isinstance(self._source, psycopg.Connection):
            yield self._source
        else:
            with self._source.connection() as conn:
                yield conn

    def _call(self, statement: str, /, *args: Any, **kwargs: Any) -> list[Row]:
        """The rows of one statement, in a transaction of its own with the context set."""
        who: tuple[Any, ...]
        if isinstance(self._context, Token):
            setting, who = "select knowledge.use_token(%s)", (self._context.token,)
        else:
            setting = "select knowledge.set_context(%s, %s, %s)"
            grants = _names("grants", self._context.grants)
            who = (self._context.org_id, grants, self._context.org_scope)
        _check_values([who, args, kwargs])
        with database_errors(), self._connection() as conn:
            if self._vectors is None:
                self._vectors = self._check_version(conn)
            # Not conn.cursor(): its class and its rows are the caller's choice.
            with conn.transaction(), psycopg.Cursor(conn, row_factory=dict_row) as cursor:
                cursor.adapters.register_dumper(Vectors, self._vectors)
                cursor.execute(setting, who)
                cursor.execute(statement, kwargs or args)
                return cursor.fetchall()

    def _check_version(self, conn: psycopg.Connection[Any]) -> type[psycopg.adapt.Dumper]:
        """How vectors are sent to this database, which has the right version."""
        installed, ours = migrate.installed_version(conn), migrate.version()
        if installed is None:
            raise InstallationError(
                "pg_knowledge is not installed in this database, or not granted to this role",
                hint="pg-knowledge migrate installs it; grant knowledge_reader to the role.",
            )
        if installed.split(".")[:2] != ours.split(".")[:2]:
            raise InstallationError(f"the database has pg_knowledge {installed}, the driver {ours}")
        return vector_dumper(conn)


def _reranked(query: str, hits: Sequence[Hit], rerank: Reranker) -> tuple[Hit, ...]:
    """The hits in the order of the re-ranker's scores; equal scores stay as they were."""
    if not hits:
        return ()
    scores = [float(score) for score in rerank(query, [hit.body for hit in hits])]
    if len(scores) != len(hits):
        raise InvalidArgument(f"the re-ranker gave {len(scores)} scores for {len(hits)} texts")
    order = sorted(zip(scores, hits, strict=True), key=lambda pair: -pair[0])
    return tuple(
        replace(hit, rank=place, rerank_score=score)
        for place, (score, hit) in enumerate(order, start=1)
    )


def _named_call(function: str, given: Mapping[str, Any]) -> str:
    """A call of an SQL function with arguments by name; the names are ours, never a caller's."""
    named = ", ".join(f"{name} => %({name})s" for name in given)
    return f"select * from knowledge.{function}({named})"  # noqa: S608


class _Transfer:
    """Stages batches of chunks of a version and stores their vectors."""

    def __init__(
        self, knowledge: Knowledge, version: Row, embedder: Embedder | None, concurrency: int
    ) -> None:
        self._knowledge = knowledge
        self._version = version
        self._embedder = embedder
        self._concurrency = concurrency
        self._staged = set(version["staged"])
        self._unembedded = set(version["unembedded"])
        self.embedded = 0

    def run(self, batches: Iterable[Sequence[Chunk]]) -> Iterator[Sequence[Chunk]]:
        """Each batch when it is stored. What begin_version called staged is not staged again. With
        more than one call of the embedder at a time the calls are made in threads, and the lease
        is renewed while they are waited for."""
        if self._concurrency == 1 or self._embedder is None:
            for batch in batches:
                texts = self._stage(batch)
                if texts:
                    self._store(texts, embed(self._embedder, list(texts.values())))
                yield batch
            return
        pending: dict[Future[list[array[float]]], tuple[Sequence[Chunk], dict[int, str]]] = {}
        pool = ThreadPoolExecutor(self._concurrency, "pg-knowledge-embedder")
        try:
            for batch in batches:
                texts = self._stage(batch)
                if not texts:
                    yield batch
                    continue
                pending[pool.submit(embed, self._embedder, list(texts.values()))] = batch, texts
                while len(pending) >= self._concurrency:
                    yield from self._finished(pending)
            while pending:
                yield from self._finished(pending)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _finished(
        self, pending: dict[Future[list[array[float]]], tuple[Sequence[Chunk], dict[int, str]]]
    ) -> Iterator[Sequence[Chunk]]:
        done, _ = wait(pending, timeout=20, return_when=FIRST_COMPLETED)
        if not done:
            self._knowledge._call(
                "select knowledge.renew_lease(%s, %s)",
                self._version["version_id"],
                self._version["lease"],
            )
        for future in done:
            batch, texts = pending.pop(future)
            self._store(texts, future.result())
            yield batch

    def _stage(self, batch: Sequence[Chunk]) -> dict[int, str]:
        """Stages what is not staged; the texts to embed, by ordinal."""
        new = [chunk for chunk in batch if chunk.ordinal not in self._staged]
        need = self._unembedded | (self._knowledge._stage(self._version, new) if new else set())
        if self._embedder is None:
            return {}
        return {
            chunk.ordinal: embedded_text(chunk.heading, chunk.body)
            for chunk in batch
            if chunk.ordinal in need
        }

    def _store(self, texts: Mapping[int, str], vectors: list[array[float]]) -> None:
        self._knowledge._store(self._version, list(texts), vectors)
        self.embedded += len(vectors)


def _report(
    version: Row, parts: Sequence[Chunk], *, complete: bool, live: bool, new: int = 0
) -> IngestReport:
    """Of an ingest that published nothing: it is live already, or not yet."""
    return from_row(
        IngestReport,
        version,
        chunks=len(parts),
        embedded=new,
        reused=0,
        skipped=len(parts) if live else 0,
        quarantined=0,
        rejected=0,
        complete=complete,
        live=live,
    )


def embed(embedder: Embedder | None, texts: Sequence[str]) -> list[array[float]]:
    """The vectors of texts, in single precision. An embedder that says when to come back (429 and
    Retry-After) is asked again then, a few times. EmbedderError when it fails, or answers anything
    but one vector of its model per text."""
    if embedder is None:
        raise EmbedderError("there is no embedder")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return stored_vectors(embedder, texts, embedder.embed(texts))
        except Exception as error:
            pause = retry_after(error)
            if pause is None or pause > _LONGEST_PAUSE or attempt == _ATTEMPTS:
                if isinstance(error, EmbedderError):
                    raise
                raise EmbedderError(f"{embedder.name} failed: {error}") from error
        time.sleep(pause)
    raise AssertionError("unreachable")


def _names(argument: str, names: Sequence[str] | None) -> list[str] | None:
    """A list of names; a single string is refused, it would be taken for its letters."""
    if isinstance(names, str):
        raise InvalidArgument(f"{argument} must be a list of strings, not one string")
    return None if names is None else list(names)


def _check_values(value: object) -> None:
    """InvalidArgument for what PostgreSQL cannot take: text with NUL or a lone surrogate, integers
    of more than 32 bits.
    """
    if isinstance(value, str):
        encoded_text(value)
    elif isinstance(value, int):
        if not -(2**31) <= value < 2**31:
            raise InvalidArgument(f"the number {value} is out of range")
    elif isinstance(value, Mapping):
        _check_values(list(value.values()))
    elif isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if kinds == {int}:
            _check_values(min(value))
            _check_values(max(value))
        elif not kinds <= {bytes, NoneType}:
            for item in value:
                _check_values(item)


def _json(value: object) -> Jsonb:
    """A json parameter; InvalidArgument when it is none that PostgreSQL can take."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidArgument(f"this is no json: {error}") from error
    if "\\u0000" in text and _JSON_NUL.search(text):
        raise InvalidArgument("text must not have NUL characters")
    return Jsonb(encoded_text(text), dumps=_dumped)


def _dumped(text: bytes) -> bytes:
    return text


def _vector(numbers: Sequence[float]) -> str:
    """The text form of pgvector; 7 digits are more than a half-precision number keeps."""
    return "[" + ",".join(f"{number:.7g}" for number in numbers) + "]"
