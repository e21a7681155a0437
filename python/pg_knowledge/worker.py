"""A worker: makes the vectors of chunks that were published without one.

Any number of workers may run, on any machine. A worker that dies loses nothing: what it had claimed
is claimed again when the claim runs out. No transaction is open while the embedder works.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from .embedding import Embedder, retry_after, stored_vectors
from .errors import InvalidArgument, database_errors, error_text
from .staging import embedded_text
from .vectors import Vectors, vector_dumper

__all__ = ["Embedded", "Worker"]

log = logging.getLogger(__name__)
Row = dict[str, Any]
# How long a provider that is out of order is left alone: from, and at most, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0


@dataclass(slots=True)
class Embedded:
    """What a worker did. claimed: chunks that it was given. stored: got their vector. failed:
    could not be embedded, and count as a failure of the text. postponed: were given back because
    the provider failed or asked for time. The rest was deleted meanwhile or taken by others.
    """

    claimed: int = 0
    stored: int = 0
    failed: int = 0
    postponed: int = 0

    def add(self, other: Embedded) -> None:
        self.claimed += other.claimed
        self.stored += other.stored
        self.failed += other.failed
        self.postponed += other.postponed


class Worker:
    """Embeds what waits for the embedder's model, for every org of the database.

    conn: an autocommit connection of this worker alone, as a role in knowledge_trusted.
    batch_size: chunks that are claimed and embedded at a time.
    """

    def __init__(
        self, conn: psycopg.Connection[Any], embedder: Embedder, *, batch_size: int = 64
    ) -> None:
        if not conn.autocommit:
            raise InvalidArgument("a worker needs an autocommit connection")
        if not 1 <= batch_size <= 10_000:
            raise InvalidArgument("batch_size must be from 1 to 10000")
        self._conn = conn
        self._embedder = embedder
        self._batch_size = batch_size
        self._dumper = vector_dumper(conn)
        self._pause = _FIRST_PAUSE
        self._not_before = 0.0
        self.total = Embedded()

    def run(self, stop: Event, *, poll: float = 5.0) -> Embedded:
        """Works until stop is set, the batch at hand to its end; what it did.

        Between batches with nothing due it waits for a notification, or poll seconds: what failed
        becomes due without one, and through a transaction pooler there are none.
        """
        with database_errors():
            self._conn.execute("listen knowledge_embeddings")
        try:
            while not stop.is_set():
                if not self.run_once().claimed:
                    self._wait(stop, poll)
        finally:
            with suppress(psycopg.Error):
                self._conn.execute("unlisten knowledge_embeddings")
            log.info("stopped: %s", self.total)
        return self.total

    def drain(self) -> Embedded:
        """Works until nothing is due, or the provider wants to be left alone; what it did."""
        while self.run_once().claimed:
            pass
        return self.total

    def run_once(self) -> Embedded:
        """One batch; nothing is claimed while the provider is left alone."""
        if time.monotonic() < self._not_before:
            return Embedded()
        rows = self._call(
            "select * from knowledge.claim_embeddings(%s, %s)",
            self._embedder.fingerprint,
            self._batch_size,
        )
        if not rows:
            return Embedded()
        started = time.monotonic()
        trial = _Trial(self._embedder)
        done = Embedded(claimed=len(rows))
        try:
            trial.run(rows)
        except BaseException:
            # Interrupted in the middle of a call: give everything back at once, and go.
            self._fail(rows, "its worker was stopped", timedelta(0))
            raise
        if trial.vectors:
            done.stored = self._complete(
                rows[0]["claim"], [row["chunk_id"] for row in trial.good], trial.vectors
            )
        for row, reason in trial.bad:
            done.failed += self._fail([row], reason)
        if trial.untried:
            seconds = trial.wait if trial.wait is not None else self._pause
            done.postponed = self._fail(trial.untried, trial.reason, timedelta(seconds=seconds))
            self._not_before = time.monotonic() + seconds
        if trial.untried and trial.wait is None:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        elif trial.good:
            self._pause = _FIRST_PAUSE
        self.total.add(done)
        log.info("%s in %.2f s", done, time.monotonic() - started)
        if trial.reason:
            log.warning("the embedder failed: %s", trial.reason)
        return done

    def _complete(self, claim: UUID, ids: Sequence[UUID], vectors: list[array[float]]) -> int:
        (row,) = self._call(
            "select knowledge.complete_embeddings(%s, %s, %s) as stored",
            claim,
            list(ids),
            Vectors(vectors),
        )
        return int(row["stored"])

    def _fail(self, rows: Sequence[Row], reason: str, wait: timedelta | None = None) -> int:
        (row,) = self._call(
            "select knowledge.fail_embeddings(%s, %s, %s, %s) as failed",
            rows[0]["claim"],
            [row["chunk_id"] for row in rows],
            error_text(reason),
            wait,
        )
        return int(row["failed"])

    def _wait(self, stop: Event, poll: float) -> None:
        """Until a notification, poll seconds, or stop: in short pieces, to see that soon."""
        until = time.monotonic() + poll
        while not stop.is_set() and (left := until - time.monotonic()) > 0:
            if any(True for _ in self._conn.notifies(timeout=min(left, 0.5), stop_after=1)):
                return

    def _call(self, statement: str, *args: Any) -> list[Row]:
        with self._cursor() as cursor:
            return cursor.execute(statement, args).fetchall()

    @contextmanager
    def _cursor(self) -> Iterator[psycopg.Cursor[Row]]:
        with database_errors(), psycopg.Cursor(self._conn, row_factory=dict_row) as cursor:
            cursor.adapters.register_dumper(Vectors, self._dumper)
            yield cursor


class _Trial:
    """Embeds chunks; when they fail together, halves of them, to find those that are to blame.

    good and vectors: what was embedded. bad: chunks that failed by themselves, and why. untried:
    the rest, because the embedder asked for time (wait) or fails whatever it is given.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self.good: list[Row] = []
        self.vectors: list[array[float]] = []
        self.bad: list[tuple[Row, str]] = []
        self.untried: list[Row] = []
        self.wait: float | None = None
        self.reason = ""

    def run(self, rows: Sequence[Row]) -> None:
        parts = [list(rows)]
        while parts:
            part = parts.pop()
            texts = [embedded_text(row["heading"], row["body"]) for row in part]
            try:
                vectors = stored_vectors(self._embedder, texts, self._embedder.embed(texts))
            except Exception as error:
                self.reason = f"{type(error).__name__}: {error}"
                self.wait = retry_after(error)
                if self.wait is not None:
                    self.untried += part
                elif len(part) == 1:
                    self.bad.append((part[0], self.reason))
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                # Two that fail by themselves before anything has gone well: it is not the texts.
                if self.wait is not None or (len(self.bad) >= 2 and not self.good):
                    self.untried += [row for rest in parts for row in rest]
                    return
            else:
                self.good += part
                self.vectors += vectors
