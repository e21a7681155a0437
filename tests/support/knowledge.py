"""Publishing and searching through the SQL functions alone, with a toy model of 8 dimensions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg
import psycopg.sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

DIMENSIONS = 8
FINGERPRINT = "toy:8"


def toy_vector(text: str) -> list[float]:
    """A vector that depends on the words of text alone: texts that share words are near."""
    vector = [0.01] * DIMENSIONS
    for word in text.lower().split():
        digest = hashlib.sha256(word.encode()).digest()
        vector[digest[0] % DIMENSIONS] += 1 + digest[1] / 256
    return vector


def vector_text(vector: Iterable[float]) -> str:
    """The text form that pgvector reads: ``[0.1,0.2]``."""
    return "[" + ",".join(repr(float(x)) for x in vector) + "]"


def rows(
    conn: psycopg.Connection[Any], query: str, /, *args: Any, **kwargs: Any
) -> list[dict[str, Any]]:
    """All rows of a query, as dicts; arguments by position or by name."""
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, kwargs or args).fetchall()  # type: ignore[arg-type]


def register(conn: psycopg.Connection[Any]) -> int:
    """Registers the toy model; needs an admin, no context."""
    query = "select knowledge.register_model('toy', %s, %s) as model_id"
    return int(rows(conn, query, DIMENSIONS, FINGERPRINT)[0]["model_id"])


def content_hash(bodies: Sequence[str]) -> str:
    """What the tests pass as content_hash."""
    return hashlib.sha256("\x1f".join(bodies).encode()).hexdigest()


def begin(
    conn: psycopg.Connection[Any], source_id: str, bodies: Sequence[str], **given: Any
) -> dict[str, Any]:
    """begin_version for bodies; given: further arguments by name (audience=['everyone'] …)."""
    arguments = {
        "source_type": "wiki",
        "source_id": source_id,
        "content_hash": content_hash(bodies),
        "chunk_count": len(bodies),
        "audience": ["everyone"],
        "fingerprint": FINGERPRINT,
        **given,
    }
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            arguments[name] = Jsonb(value)
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    return rows(conn, f"select * from knowledge.begin_version({named})", **arguments)[0]


def stage(
    conn: psycopg.Connection[Any], version: Mapping[str, Any], bodies: Sequence[str], first: int = 0
) -> list[dict[str, Any]]:
    """stage_chunks for bodies with the ordinals from first on."""
    chunks = [{"ordinal": first + i, "body": body} for i, body in enumerate(bodies)]
    return rows(
        conn,
        "select * from knowledge.stage_chunks(%s, %s, %s)",
        version["version_id"],
        version["lease"],
        Jsonb(chunks),
    )


def embed(
    conn: psycopg.Connection[Any],
    version: Mapping[str, Any],
    bodies: Sequence[str],
    ordinals: Iterable[int],
) -> None:
    """store_embeddings of the toy vectors of bodies[ordinal]."""
    wanted = list(ordinals)
    rows(
        conn,
        "select knowledge.store_embeddings(%s, %s, %s, %s, %s)",
        version["version_id"],
        version["lease"],
        FINGERPRINT,
        wanted,
        [vector_text(toy_vector(bodies[i])) for i in wanted],
    )


def finalize(
    conn: psycopg.Connection[Any], version: Mapping[str, Any], allow_unembedded: bool = False
) -> dict[str, Any]:
    """finalize_version; its report."""
    return rows(
        conn,
        "select * from knowledge.finalize_version(%s, %s, %s)",
        version["version_id"],
        version["lease"],
        allow_unembedded,
    )[0]


def publish(
    conn: psycopg.Connection[Any], source_id: str, bodies: Sequence[str], **given: Any
) -> dict[str, Any]:
    """A whole document: begin, stage, embed what needs it, finalize. {} if it is live already."""
    version = begin(conn, source_id, bodies, **given)
    if version["state"] == "live":
        return {}
    need = [r["ordinal"] for r in stage(conn, version, bodies) if r["needs_embedding"]]
    if need:
        embed(conn, version, bodies, need)
    return finalize(conn, version)


def search(
    conn: psycopg.Connection[Any],
    query: str | None,
    function: str = "search_scoped",
    **given: Any,
) -> list[dict[str, Any]]:
    """search_scoped (or search_exact) with the toy embedding of query, unless mode is keyword."""
    arguments = {"query": query, **given}
    if query is not None and given.get("mode") != "keyword" and "embedding" not in given:
        arguments |= {"embedding": vector_text(toy_vector(query)), "fingerprint": FINGERPRINT}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            arguments[name] = Jsonb(value)
    named = ", ".join(f"{name} => %({name})s" for name in arguments)
    return rows(conn, f"select * from knowledge.{function}({named})", **arguments)


def promote(superuser: psycopg.Connection[Any], org_id: str) -> str:
    """Gives an org its own vector index, whatever its size, as index_plan says; its name.

    Built without CONCURRENTLY, which would wait for every open transaction; it does wait for those
    that have ingested.
    """
    (before,) = rows(superuser, "select promoted_chunks from knowledge_private.settings")
    superuser.execute("update knowledge_private.settings set promoted_chunks = 1")
    plan = "select statement from knowledge.index_plan() where statement like %s"
    ending = f"%org_id = {psycopg.sql.Literal(org_id).as_string(superuser)}"
    for row in rows(superuser, plan, ending.replace("\\", "\\\\")):
        superuser.execute(row["statement"].replace(" concurrently", ""))
    superuser.execute(
        "update knowledge_private.settings set promoted_chunks = %s", (before["promoted_chunks"],)
    )
    name = "select knowledge_private.index_name(%s, active_model) as name from knowledge.orgs"
    return str(rows(superuser, f"{name} where org_id = %s", org_id, org_id)[0]["name"])
