"""The command pg-knowledge."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any, TextIO
from uuid import UUID

import psycopg

from .client import Knowledge
from .embedding import Embedder
from .errors import InvalidArgument, KnowledgeError, database_errors
from .files import DEFAULT_MAX_BYTES, ENDINGS, convert_file, find_documents, read_file, version_of
from .migrate import installed_version, migrate
from .types import Context, Hit, LiveVersion, Token

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; 0 when all of it was done, 1 when something failed, 2 for wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KnowledgeError as error:
        print(f"pg-knowledge: {error}", file=sys.stderr)
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)
        return 1
    except psycopg.Error as error:
        print(f"pg-knowledge: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pg-knowledge: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pg-knowledge", description="A permission-aware knowledge base inside PostgreSQL."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    database = argparse.ArgumentParser(add_help=False)
    database.add_argument(
        "--database",
        metavar="URL",
        default=os.environ.get("DATABASE_URL", ""),
        help="connection string (default: DATABASE_URL, else the PG* variables of libpq)",
    )
    database.add_argument("--json", action="store_true", help="print JSON, one value a line")

    caller = argparse.ArgumentParser(add_help=False, parents=[database])
    who = caller.add_argument_group("who is asking")
    who.add_argument("--org", help="the tenant")
    who.add_argument(
        "--grant", action="append", default=[], metavar="TAG", help="a tag held; repeatable"
    )
    who.add_argument("--scope", help="the part of the tenant")
    who.add_argument(
        "--token",
        default=os.environ.get("PG_KNOWLEDGE_TOKEN"),
        help="a token of knowledge.issue_token instead (default: PG_KNOWLEDGE_TOKEN)",
    )
    embedder = argparse.ArgumentParser(add_help=False)
    embedder.add_argument(
        "--embedder",
        default="local",
        help="'local', 'none', or module:name of an Embedder or of a callable that makes one",
    )

    command = commands.add_parser("migrate", parents=[database], help="install pg_knowledge")
    command.set_defaults(run=_migrate)

    command = commands.add_parser(
        "maintain",
        parents=[database],
        help="expire, count and index: as a role that may become knowledge_owner, now and then",
    )
    command.set_defaults(run=_maintain)

    command = commands.add_parser(
        "register-model", parents=[caller, embedder], help="register the embedder's model"
    )
    command.set_defaults(run=_register_model)

    command = commands.add_parser(
        "ingest", parents=[caller, embedder], help="publish files, or what has changed in them"
    )
    command.add_argument("paths", nargs="+", type=Path, help=f"files ({ENDINGS}) or folders")
    command.add_argument("--source-type", default="file", help="kind of source (default: file)")
    command.add_argument(
        "--audience", action="append", metavar="NAME", help="whom the documents are for; repeatable"
    )
    command.add_argument("--visibility", help="label (default: org)")
    command.add_argument("--language", help="text search configuration (default: the org's)")
    command.add_argument(
        "--max-mb",
        type=float,
        default=DEFAULT_MAX_BYTES / 1e6,
        metavar="MB",
        help="size from which on a file is refused (default: %(default)g)",
    )
    command.set_defaults(run=_ingest)

    command = commands.add_parser(
        "worker",
        parents=[database, embedder],
        help="embed what was published without vectors, as a role in knowledge_trusted",
    )
    command.add_argument("--batch-size", type=int, default=64, help="chunks at a time")
    command.add_argument("--poll", type=float, default=5.0, help="seconds between looks")
    command.add_argument("--once", action="store_true", help="stop when nothing is due")
    command.set_defaults(run=_worker)

    command = commands.add_parser(
        "status", parents=[caller], help="what is being ingested, and what waits for a vector"
    )
    command.set_defaults(run=_status)

    command = commands.add_parser("quarantine", parents=[caller], help="list what is held back")
    command.set_defaults(run=_quarantine)
    for verdict, told in (("release", "publish"), ("reject", "forget")):
        command = commands.add_parser(
            verdict, parents=[caller], help=f"{told} a chunk that is held back"
        )
        command.add_argument("chunk_id", type=UUID)
        command.add_argument("--reason", help="for the audit log")
        command.set_defaults(run=_decide, verdict=verdict)

    command = commands.add_parser("search", parents=[caller, embedder], help="ask a question")
    command.add_argument("query")
    command.add_argument("-k", type=int, default=5, help="how many answers (default: 5)")
    command.add_argument("--mode", default="hybrid", choices=["hybrid", "vector", "keyword"])
    command.add_argument("--source-type", action="append", help="only this kind; repeatable")
    command.add_argument("--visibility", action="append", help="a label to see; repeatable")
    command.add_argument("--metadata", type=_json_object, help="JSON object to be contained")
    command.add_argument("--explain", action="store_true", help="say why, instead of the texts")
    command.set_defaults(run=_search)

    command = commands.add_parser("sources", parents=[caller], help="list the documents")
    command.add_argument("--source-type", action="append", help="only this kind; repeatable")
    command.set_defaults(run=_sources)

    command = commands.add_parser("delete", parents=[caller], help="erase one document")
    command.add_argument("source_type")
    command.add_argument("source_id")
    command.set_defaults(run=_delete)

    command = commands.add_parser(
        "demo", help="the whole of it, on an embedded server of its own that is gone afterwards"
    )
    command.add_argument("--docs", type=Path, metavar="FOLDER", help="folder of documents")
    command.set_defaults(run=_demo)
    return parser


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _connect(arguments: argparse.Namespace) -> psycopg.Connection[Any]:
    return psycopg.connect(arguments.database, autocommit=True)


def _knowledge(arguments: argparse.Namespace, conn: psycopg.Connection[Any]) -> Knowledge:
    if arguments.token and not arguments.org:
        context: Context | Token = Token(arguments.token)
    elif arguments.org:
        context = Context(arguments.org, tuple(arguments.grant), arguments.scope)
    else:
        raise InvalidArgument("say who is asking: --org, or --token")
    embedder = _embedder(getattr(arguments, "embedder", "none"))
    return Knowledge(
        conn, context, embedder=embedder, writer=f"pg-knowledge@{socket.gethostname()}"
    )


def _embedder(name: str) -> Embedder | None:
    if name == "none":
        return None
    if name == "local":
        from .local import LocalEmbedder

        return LocalEmbedder()
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"--embedder {name}: {error}") from error
    embedder = found
    if isinstance(found, type) or not isinstance(found, Embedder):
        try:
            embedder = found()
        except Exception as error:
            raise InvalidArgument(f"--embedder {name}: {error}") from error
    if not isinstance(embedder, Embedder):
        raise InvalidArgument(f"--embedder {name} is not an Embedder")
    return embedder


def _migrate(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        before = installed_version(conn)
        version = migrate(conn) if before is None else before
    _print(arguments, {"version": version, "applied": before is None})
    return 0


def _maintain(arguments: argparse.Namespace) -> int:
    with database_errors(), _connect(arguments) as conn:
        conn.execute("set role knowledge_owner")
        for task, done in conn.execute("select task, done from knowledge.maintain()").fetchall():
            _print(arguments, {"task": task, "done": done})
        plan = conn.execute("select statement, reason from knowledge.index_plan()").fetchall()
        for statement, reason in plan:
            _print(arguments, {"statement": statement, "reason": reason})
            conn.execute(statement)
    return 0


def _register_model(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        _print(arguments, {"model_id": _knowledge(arguments, conn).register_model()})
    return 0


def _ingest(arguments: argparse.Namespace) -> int:
    outcomes: list[dict[str, Any]] = []
    with _connect(arguments) as conn:
        knowledge = _knowledge(arguments, conn)
        files = _by_source_id(arguments.paths)
        bar = Bar(sys.stderr, len(files))
        try:
            for source_id, path in files.items():
                shown = source_id.encode(errors="backslashreplace").decode()  # it may be no text
                try:
                    done = _ingest_file(arguments, knowledge, source_id, path, bar)
                except KnowledgeError as error:
                    done = {"outcome": "failed", "error": str(error), "code": error.code}
                except Exception as error:
                    if conn.closed:
                        raise
                    message = f"{type(error).__name__}: {error}"
                    done = {"outcome": "failed", "error": message, "code": ""}
                outcomes.append({"source_id": shown, **done})
                bar.step()
                if arguments.json:
                    _print(arguments, outcomes[-1])
        finally:
            bar.end()
            if outcomes and not arguments.json:
                print(render_outcomes(outcomes, len(files)))
    return 1 if any(outcome["outcome"] == "failed" for outcome in outcomes) else 0


def _ingest_file(
    arguments: argparse.Namespace, knowledge: Knowledge, source_id: str, path: Path, bar: Bar
) -> dict[str, Any]:
    """Publishes one file, unless the live version is of these very bytes."""
    data = read_file(path, int(arguments.max_mb * 1e6))
    embedder = knowledge.embedder
    version = version_of(data, embedder.fingerprint if embedder else "")
    live = _live(arguments, knowledge, source_id)
    if live and live.source_version == version:
        return {
            "outcome": "unchanged",
            "document_id": live.document_id,
            "chunks": live.chunks,
            "embedded": 0,
            "reused": 0,
            "skipped": live.chunks,
            "live": True,
        }
    document = convert_file(path, data)
    report = knowledge.ingest(
        arguments.source_type,
        source_id,
        document.text,
        audience=arguments.audience,
        visibility=arguments.visibility,
        title=document.title,
        source_version=version,
        language=arguments.language,
        chunks=document.chunks(),
        on_progress=bar.part,
    )
    return {"outcome": "published", **dataclasses.asdict(report)}


def _live(
    arguments: argparse.Namespace, knowledge: Knowledge, source_id: str
) -> LiveVersion | None:
    """What is live of the document; None when nothing is, or the arguments would change more of it
    than its text."""
    live = knowledge.live_version(arguments.source_type, source_id)
    same = live and (
        arguments.visibility in (None, live.visibility)
        and arguments.language in (None, live.language, live.language.removeprefix("pg_catalog."))
        and (arguments.audience is None or set(arguments.audience) == set(live.audience))
    )
    return live if same else None


def render_outcomes(outcomes: Sequence[dict[str, Any]], total: int) -> str:
    """What an ingest did with each file as a table, then the totals."""
    counts = ("chunks", "embedded", "reused", "skipped")
    rows = [("file", "outcome", "chunks", "embedded", "reused", "unchanged", "error")]
    for done in outcomes:
        numbers = [str(done.get(count, "")) for count in counts]
        error = " ".join(done.get("error", "").split())
        rows.append((done["source_id"], done["outcome"], *numbers, error))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for row in rows:
        words = [row[n].ljust(widths[n]) for n in (0, 1)]
        numbers = [row[n].rjust(widths[n]) for n in range(2, 6)]
        lines.append("  ".join([*words, *numbers, row[6]]).rstrip())
    by_outcome = [
        f"{sum(done['outcome'] == outcome for done in outcomes)} {outcome}"
        for outcome in ("published", "unchanged", "failed")
    ]
    live = sum(done["outcome"] != "failed" for done in outcomes)
    lines.append(f"{live} of {total} files are live: {', '.join(by_outcome)}")
    return "\n".join(lines)


def _by_source_id(paths: Sequence[Path]) -> dict[str, Path]:
    """The files at or below paths by what each is called: its path within its folder."""
    files: dict[str, Path] = {}
    for base in paths:
        for path in find_documents(base):
            source_id = path.relative_to(base).as_posix() if base.is_dir() else path.name
            other = files.setdefault(source_id, path)
            if other != path:
                raise InvalidArgument(
                    f"{other} and {path} would both be {source_id}",
                    hint="Name the folder that both are in, or give each a --source-type.",
                )
    if not files:
        raise InvalidArgument(f"no file with text there ({ENDINGS})")
    return files


def _worker(arguments: argparse.Namespace) -> int:
    from .worker import Worker

    embedder = _embedder(arguments.embedder)
    if embedder is None:
        raise InvalidArgument("a worker needs an embedder")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with _connect(arguments) as conn:
        worker = Worker(conn, embedder, batch_size=arguments.batch_size)
        done = worker.drain() if arguments.once else worker.run(stop, poll=arguments.poll)
    _print(arguments, done)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        knowledge = _knowledge(arguments, conn)
        versions, queue = knowledge.ingest_status(), knowledge.embedding_queue()
    for value in (*versions, *queue):
        if arguments.json:
            _print(arguments, value)
    if arguments.json:
        return 0
    for version in versions:
        held = f"held by {version.lease_holder or 'a writer'}" if version.leased else "left behind"
        error = f", last error: {version.last_error}" if version.last_error else ""
        print(
            f"{version.source_type}/{version.source_id}: {version.staged} of {version.chunks}"
            f" chunks staged, {version.unembedded} without a vector, {held},"
            f" since {version.age}{error}"
        )
    for state in queue:
        reason = f": {state.reason}" if state.reason else ""
        print(f"{state.chunks} chunks for {state.model} {state.state}{reason}")
    if not versions and not queue:
        print("nothing is being ingested, and nothing waits for a vector")
    return 0


def _quarantine(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        for held in _knowledge(arguments, conn).list_quarantine():
            if arguments.json:
                _print(arguments, held)
            else:
                text = " ".join(held.body.split())[:160]
                print(
                    f"{held.chunk_id}  {held.source_type}/{held.source_id}, chunk {held.ordinal}:"
                    f" {held.reason}\n     {ascii(text)[1:-1]}"
                )
    return 0


def _decide(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        knowledge = _knowledge(arguments, conn)
        decide = (
            knowledge.release_chunk if arguments.verdict == "release" else knowledge.reject_chunk
        )
        _print(arguments, {"receipt": decide(arguments.chunk_id, arguments.reason)})
    return 0


def _search(arguments: argparse.Namespace) -> int:
    asked: dict[str, Any] = {
        "k": arguments.k,
        "mode": arguments.mode,
        "source_types": arguments.source_type,
        "visibility": arguments.visibility or ("org",),
        "metadata": arguments.metadata,
    }
    with _connect(arguments) as conn:
        knowledge = _knowledge(arguments, conn)
        if arguments.explain:
            explained = knowledge.explain(arguments.query, **asked)
            print(json.dumps(explained) if arguments.json else render_explanation(explained))
            return 0
        result = knowledge.search(arguments.query, **asked)
    for hit in result:
        if arguments.json:
            _print(arguments, hit)
        else:
            print(render_hit(hit))
    if not result and not arguments.json:
        print("nothing found")
    return 0


def _sources(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        for source in _knowledge(arguments, conn).list_sources(arguments.source_type):
            if arguments.json:
                _print(arguments, source)
            else:
                print(
                    f"{source.source_type}/{source.source_id}: {source.title!r},"
                    f" {source.chunks} chunks, for {', '.join(source.audience)}"
                )
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as conn:
        knowledge = _knowledge(arguments, conn)
        _print(arguments, knowledge.delete_source(arguments.source_type, arguments.source_id))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run

    with database_errors():
        run(arguments.docs)
    return 0


def _print(arguments: argparse.Namespace, value: Any) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if arguments.json:
        print(json.dumps(value, default=str, ensure_ascii=False))
    else:
        print(", ".join(f"{key} {item}" for key, item in value.items()))


def render_hit(hit: Hit) -> str:
    """A hit for a terminal: rank, citation, why, and the beginning of the text."""
    why = [
        f"{leg} rank {rank}"
        for leg, rank in (("vector", hit.vector_rank), ("keyword", hit.keyword_rank))
        if rank is not None
    ]
    where = f"{hit.source_type}/{hit.source_id}, characters {hit.char_start}-{hit.char_end}"
    if hit.locator:
        where += f", {hit.locator}"
    text = " ".join(hit.body.split())
    return (
        f"{hit.rank:>3}. {hit.title} · {hit.heading or '(no heading)'}\n"
        f"     {where}; {', '.join(why)}; score {hit.score:.4f}\n"
        f"     {text[:160]}{'…' if len(text) > 160 else ''}"
    )


def render_explanation(explained: dict[str, Any]) -> str:
    """What explain_search says, for a terminal: the search, each leg, then a line a row."""
    lines = [
        f"{explained['permitted_chunks']} chunks in {explained['compartments']} compartments may be"
        f" read; legs: {', '.join(explained['legs']) or 'none'}; {explained['search_ms']} ms"
    ]
    if vector := explained.get("vector"):
        lines.append(f"vector: {vector['rows']} rows, {vector['plan']}, {vector['ms']} ms")
    if keyword := explained.get("keyword"):
        lines.append(f"keyword: {keyword['rows']} rows, {keyword['ms']} ms")
        lines += [
            f"    {term['lexeme']}{'*' if term['prefix'] else ''}: in {term['chunks']} chunks,"
            f" idf {term['idf']:.2f}, asked {term['repeats']}x"
            for term in keyword["terms"]
        ]
    lines.append(f"{'rank':>4}  {'score':>7}  {'vector':>14}  {'keyword':>14}  matched")
    for row in explained["rows"]:
        vector_leg = _leg(row["vector_rank"], row["vector_distance"])
        keyword_leg = _leg(row["keyword_rank"], row["keyword_score"])
        matched = ", ".join(f"{word} {n}x" for word, n in (row["matched"] or {}).items())
        lines.append(
            f"{row['rank']:>4}  {row['score']:7.4f}  {vector_leg:>14}  {keyword_leg:>14}  {matched}"
        )
    return "\n".join(lines)


def _leg(rank: int | None, measure: float | None) -> str:
    return "-" if rank is None or measure is None else f"{rank} ({measure:.4f})"


class Bar:
    """A progress bar on a terminal; on anything else, silence."""

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream if stream.isatty() else None
        self._total = total
        self._done = 0

    def part(self, done: int, total: int) -> None:
        """done of total chunks of the current document."""
        self._draw(self._done + done / total)

    def step(self) -> None:
        """The current document is finished."""
        self._done += 1
        self._draw(self._done)

    def end(self) -> None:
        """Leaves the line clean."""
        self._write("")

    def _draw(self, done: float) -> None:
        filled = int(30 * done / self._total)
        self._write(f"[{'#' * filled}{'.' * (30 - filled)}] {self._done}/{self._total} documents")

    def _write(self, text: str) -> None:
        if self._stream:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()


if __name__ == "__main__":
    sys.exit(main())
