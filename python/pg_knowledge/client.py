"""The driver: chunks, embeds, and calls the SQL functions. Each call is one or a few short
transactions; no transaction is open while an embedder works, and nothing stays open between calls.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from . import migrate
from .chunking import Chunk, chunk_text
from .embedding import Embedder, check_vectors
from .errors import (
    Conflict,
    EmbedderError,
    IncompleteVersion,
    InstallationError,
    InvalidArgument,
    ModelMismatch,
    database_errors,
)
from .types import (
    Context,
    Deletion,
    Erasure,
    Hit,
    IngestReport,
    Mode,
    Passage,
    SearchResult,
    Source,
    SourceStats,
    Token,
    from_row,
)

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["Knowledge"]

Row = dict[str, Any]
Progress = Callable[[int, int], None]
Reranker = Callable[[str, Sequence[str]], Sequence[float]]
# How often a document is completed again because vectors it reused went away before it was live.
_REPEATS = 5


class Knowledge:
    """A knowledge base, as one caller sees it.

    source: a psycopg connection or a psycopg_pool.ConnectionPool. It stays yours: it is never
        closed here, and no setting of it outlives a transaction. Give a connection of its own to
        each thread, or a pool.
    context: who is asking. A Context needs a role in knowledge_trusted, a Token does not.
    embedder: turns chunks and questions into vectors; without one, words are all there is.
    writer: a name by which this writer may resume, at once, an ingest that it left behind. Two
        writers at work at the same time must not share a name.

    Every method raises the errors of ``pg_knowledge.errors``; an error leaves nothing half done.
    """

    def __init__(
        self,
        source: psycopg.Connection[Any] | ConnectionPool[Any],
        context: Context | Token,
        *,
        embedder: Embedder | None = None,
        writer: str | None = None,
    ) -> None:
        self._source = source
        self._context = context
        self._embedder = embedder
        self._writer = writer
        self._checked = False

    @property
    def embedder(self) -> Embedder | None:
        """What turns chunks and questions into vectors."""
        return self._embedder

    def as_context(self, context: Context | Token) -> Knowledge:
        """The same knowledge base for another caller."""
        other = Knowledge(self._source, context, embedder=self._embedder, writer=self._writer)
        other._checked = self._checked
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
        batch_size: int = 64,
        wait: float = 0,
        on_progress: Progress | None = None,
    ) -> IngestReport:
        """Publishes a document, or what has changed of it, in one step.

        The same call after a crash does the rest. What is omitted stays as it was; a new document
        needs an audience ('everyone' is the whole org). chunks: your own split of text instead of
        ``chunk_text``'s. wait: seconds to wait for another writer of the same text before
        Conflict. on_progress(done, total): called after each batch with numbers of chunks.
        Without an embedder the chunks are published for words only.
        """
        if batch_size < 1:
            raise InvalidArgument("batch_size must be at least 1")
        parts = list(chunk_text(text, format=format) if chunks is None else chunks)
        if not parts:
            raise InvalidArgument("the document has no text")
        if [part.ordinal for part in parts] != list(range(len(parts))):
            raise InvalidArgument("chunks must have the ordinals 0, 1, 2 … in order")
        _check_values([(part.heading, part.body) for part in parts])
        version = self._begin(
            wait,
            source_type=source_type,
            source_id=source_id,
            content_hash=_digest(parts),
            chunk_count=len(parts),
            audience=_names("audience", audience),
            visibility=visibility,
            title=title,
            uri=uri,
            metadata=None if metadata is None else Jsonb(dict(metadata)),
            source_version=source_version,
            language=language,
            fingerprint=self._embedder.fingerprint if self._embedder else None,
            options=Jsonb({"lease_holder": self._writer} if self._writer else {}),
        )
        if version["state"] == "live":
            return from_row(
                IngestReport,
                version,
                chunks=len(parts),
                embedded=0,
                reused=0,
                skipped=len(parts),
                quarantined=0,
                rejected=0,
                complete=not version["unembedded"],
                live=True,
            )
        batches = [parts[n : n + batch_size] for n in range(0, len(parts), batch_size)]
        staged, unembedded = set(version["staged"]), set(version["unembedded"])
        for batch in batches:
            self._store(version, batch, staged, unembedded)
            if on_progress:
                on_progress(batch[-1].ordinal + 1, len(parts))
        for _ in range(_REPEATS):
            with suppress(IncompleteVersion):
                return self._finalize(version)
            # A vector that was to be reused has gone with its chunk since; staging says which.
            for batch in batches:
                self._store(version, batch, set(), set())
        return self._finalize(version)

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

    def _store(
        self, version: Row, batch: Sequence[Chunk], staged: set[int], unembedded: set[int]
    ) -> None:
        """Stages the chunks that are not staged, and embeds those that need a vector."""
        new = [part for part in batch if part.ordinal not in staged]
        if new:
            unembedded = unembedded | self._stage(version, new)
        self._embed(version, [part for part in batch if part.ordinal in unembedded])

    def _finalize(self, version: Row) -> IngestReport:
        (report,) = self._call(
            "select * from knowledge.finalize_version(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            self._embedder is None,
        )
        return from_row(IngestReport, report | version)

    def _stage(self, version: Row, batch: Sequence[Chunk]) -> set[int]:
        """Stages chunks; the ordinals that need a vector."""
        chunks = [
            {
                "ordinal": chunk.ordinal,
                "heading": chunk.heading,
                "body": chunk.body,
                "char_start": chunk.char_start,
                "char_end": chunk.char_end,
                "tokens": chunk.tokens,
            }
            for chunk in batch
        ]
        rows = self._call(
            "select * from knowledge.stage_chunks(%s, %s, %s)",
            version["version_id"],
            version["lease"],
            Jsonb(chunks),
        )
        return {row["ordinal"] for row in rows if row["needs_embedding"]}

    def _embed(self, version: Row, batch: Sequence[Chunk]) -> None:
        if not batch or self._embedder is None:
            return
        texts = [embedded_text(chunk) for chunk in batch]
        vectors = _embed(self._embedder, texts)
        self._call(
            "select knowledge.store_embeddings(%s, %s, %s, %s, %s)",
            version["version_id"],
            version["lease"],
            self._embedder.fingerprint,
            [chunk.ordinal for chunk in batch],
            "{" + ",".join(f'"{_vector(vector)}"' for vector in vectors) + "}",
        )

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
            "options": Jsonb(dict(options or {})),
        }
        if source_types is not None:
            given["source_types"] = _names("source_types", source_types)
        if metadata is not None:
            given["metadata"] = Jsonb(dict(metadata))
        _check_values(given)
        if self._embedder and mode != "keyword" and query.strip():
            self._check_model(self._embedder)
            (vector,) = _embed(self._embedder, [query])
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
            if not self._checked:
                self._check_version(conn)
            # Not conn.cursor(): its class and its rows are the caller's choice.
            with conn.transaction(), psycopg.Cursor(conn, row_factory=dict_row) as cursor:
                cursor.execute(setting, who)
                cursor.execute(statement, kwargs or args)
                return cursor.fetchall()

    def _check_version(self, conn: psycopg.Connection[Any]) -> None:
        installed, ours = migrate.installed_version(conn), migrate.version()
        if installed is None:
            raise InstallationError(
                "pg_knowledge is not installed in this database, or not granted to this role",
                hint="pg-knowledge migrate installs it; grant knowledge_reader to the role.",
            )
        if installed.split(".")[:2] != ours.split(".")[:2]:
            raise InstallationError(f"the database has pg_knowledge {installed}, the driver {ours}")
        self._checked = True


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


def _embed(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """The vectors of texts. EmbedderError when the embedder fails, or answers anything else."""
    try:
        vectors = embedder.embed(texts)
    except EmbedderError:
        raise
    except Exception as error:
        raise EmbedderError(f"{embedder.name} failed: {error}") from error
    return check_vectors(embedder, texts, vectors)


def _names(argument: str, names: Sequence[str] | None) -> list[str] | None:
    """A list of names; a single string is refused, it would be taken for its letters."""
    if isinstance(names, str):
        raise InvalidArgument(f"{argument} must be a list of strings, not one string")
    return None if names is None else list(names)


def _check_values(value: object, in_json: bool = False) -> None:
    """InvalidArgument for what PostgreSQL cannot take: text with NUL or a lone surrogate, integers
    of more than 32 bits, NaN and infinity in JSON.
    """
    if isinstance(value, Jsonb):
        _check_values(value.obj, True)
    elif isinstance(value, str):
        if "\0" in value:
            raise InvalidArgument("text must not have NUL characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument("text must not have lone surrogates") from error
    elif isinstance(value, float) and in_json and not isfinite(value):
        raise InvalidArgument(f"{value} is not a number that JSON has")
    elif isinstance(value, int) and not in_json and not -(2**31) <= value < 2**31:
        raise InvalidArgument(f"the number {value} is out of range")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_values(key, in_json)
            _check_values(item, in_json)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_values(item, in_json)


def embedded_text(chunk: Chunk) -> str:
    """What an embedder is given for a chunk: the heading trail, then the body."""
    return f"{chunk.heading}\n{chunk.body}" if chunk.heading else chunk.body


def _digest(chunks: Sequence[Chunk]) -> str:
    """sha256 (hex) over every chunk's heading, range and body."""
    digest = hashlib.sha256()
    for chunk in chunks:
        head = f"{chunk.char_start}:{chunk.char_end}:{len(chunk.heading)}:{len(chunk.body)}:"
        digest.update((head + chunk.heading + chunk.body).encode())
    return digest.hexdigest()


def _vector(numbers: Sequence[float]) -> str:
    """The text form of pgvector; 7 digits are more than a half-precision number keeps."""
    return "[" + ",".join(f"{number:.7g}" for number in numbers) + "]"
