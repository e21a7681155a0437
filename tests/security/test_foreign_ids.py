"""Promise 5: a foreign id and a missing id answer alike (case 20)."""

from __future__ import annotations

import psycopg
import pytest

from support import Database, as_context
from support.hostile import error_of, everything
from support.knowledge import FINGERPRINT, begin, publish, rows, stage, toy_vector, vector_text

VECTOR = vector_text(toy_vector("alpha"))
CALLS = {
    "stage_chunks": "select * from knowledge.stage_chunks(%(id)s, %(lease)s, %(chunks)s)",
    "store_embeddings": "select knowledge.store_embeddings(%(id)s, %(lease)s, %(fingerprint)s,"
    " '{0}', array[%(vector)s]::extensions.vector[])",
    "finalize_version": "select * from knowledge.finalize_version(%(id)s, %(lease)s)",
    "finalize_version too": "select * from knowledge.finalize_version(%(id)s, %(lease)s, true)",
    "stage_unchanged": "select knowledge.stage_unchanged(%(id)s, %(lease)s, '{}', '{}', '{}')",
    "renew_lease": "select knowledge.renew_lease(%(id)s, %(lease)s)",
    "release_version": "select knowledge.release_version(%(id)s, %(lease)s, 'x')",
    "release_chunk": "select * from knowledge.release_chunk(%(id)s)",
    "reject_chunk": "select * from knowledge.reject_chunk(%(id)s)",
    "abort_version": "select knowledge.abort_version(%(id)s)",
}
NOBODYS = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def versions(world: Database) -> dict[str, tuple[str, int]]:
    """Versions that are not the caller's (acme, no scope): (id, lease), and one of nobody."""
    backend = world.connect("app_backend")
    found: dict[str, tuple[str, int]] = {}
    places = {"other org": ("globex", None), "other scope": ("acme", "eu")}
    for place, (org, scope) in places.items():
        with as_context(backend, org, ["hr"], scope):
            version = begin(backend, "unfinished", ["one", "two"])
            stage(backend, version, ["one", "two"])
            found[f"{place}, ingesting"] = (version["version_id"], version["lease"])
    live = rows(
        world.superuser(),
        "select org_id, org_scope, version_id, lease from knowledge.versions"
        " join knowledge.documents using (org_id, document_id) where state = 'live'",
    )
    for row in live:
        for place, where in places.items():
            if (row["org_id"], row["org_scope"]) == where:
                found[f"{place}, live"] = (row["version_id"], row["lease"])
    document = rows(
        world.superuser(), "select document_id from knowledge.documents where org_id = 'acme'"
    )
    found["id of an own document"] = (document[0]["document_id"], 1)
    found["null"] = (None, 1)
    assert len(found) == 6
    return found


def said(refused: psycopg.errors.Diagnostic | None) -> tuple[str | None, ...]:
    """All that a client can see of an error."""
    assert refused is not None
    return (
        refused.sqlstate,
        refused.message_primary,
        refused.message_detail,
        refused.message_hint,
        refused.context,
    )


def test_every_function_with_an_id_is_tested(world: Database) -> None:
    """The list above is complete: it names each function that takes a uuid."""
    functions = rows(
        world.superuser(),
        "select distinct proname as name from pg_proc"
        " where pronamespace = 'knowledge'::regnamespace and 'uuid'::regtype = any (proargtypes)",
    )
    tested = {name.split()[0] for name in CALLS} | {"list_sources", "list_quarantine"}
    # Of a claim, which is nobody's but its worker's: tests/ingest/test_embedding_queue.py.
    tested |= {"complete_embeddings", "fail_embeddings"}
    assert {row["name"] for row in functions} == tested


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("scope", [None, "asia"])
def test_foreign_version_is_a_missing_version(
    world: Database, versions: dict[str, tuple[str, int]], call: str, scope: str | None
) -> None:
    """Ids of another org and of another scope are refused word for word like one of nobody."""
    caller = world.connect("app_backend")
    before = everything(world.superuser())
    answers = {}
    with as_context(caller, "acme", ["hr"], scope):
        # Of nobody twice: the first error of a session is worded by a plan that is still fresh.
        for name, (version, lease) in [("nobody's", (NOBODYS, 1))] * 2 + [*versions.items()]:
            arguments = {
                "id": version,
                "lease": lease,
                "chunks": '[{"ordinal": 0, "body": "overwritten"}]',
                "fingerprint": FINGERPRINT,
                "vector": VECTOR,
            }
            answers[name] = said(error_of(caller, CALLS[call], arguments))
    assert answers == dict.fromkeys(answers, answers["nobody's"])
    assert answers["nobody's"][0] == "KB004"
    assert everything(world.superuser()) == before


@pytest.mark.parametrize("function", ["get_source", "delete_source"])
@pytest.mark.parametrize(
    ("org", "grants", "scope", "source"),
    [
        ("nowhere", ["hr"], None, "open"),  # another org's
        ("acme", ["hr"], "asia", "only-eu"),  # another scope's
        ("acme", ["hr"], None, "only-eu"),  # a scope's, without one
        ("acme", [], None, "never"),
    ],
)
def test_foreign_source_is_a_missing_source(
    world: Database, function: str, org: str, grants: list[str], scope: str | None, source: str
) -> None:
    """A source of another org or scope is refused word for word like one that never was."""
    backend = world.connect("app_backend")
    query = f"select * from knowledge.{function}('wiki', %s)"
    with backend.transaction(force_rollback=True):
        with as_context(backend, "acme", ["hr"], "eu"):
            publish(backend, "only-eu", ["a text of eu"])
        with as_context(backend, org, grants, scope):
            foreign = said(error_of(backend, query, (source,)))
            missing = said(error_of(backend, query, ("never was",)))
    assert foreign == missing
    assert foreign[0] == "KB004"


def test_unreadable_source_is_a_missing_source(world: Database) -> None:
    """So is one whose audience the caller does not belong to."""
    caller = world.connect("app_trusted")
    query = "select * from knowledge.get_source('wiki', %s)"
    with as_context(caller, "acme"):
        assert said(error_of(caller, query, ("closed",))) == said(
            error_of(caller, query, ("never was",))
        )
    with as_context(caller, "acme", ["hr"]):
        assert error_of(caller, query, ("closed",)) is None


def test_foreign_cursor_pages_own_sources(world: Database) -> None:
    """list_sources after any id at all lists sources of the context only."""
    caller = world.connect("app_trusted")
    ids = rows(world.superuser(), "select document_id from knowledge.documents")
    for document in (*(row["document_id"] for row in ids), NOBODYS):
        with as_context(caller, "acme"):
            page = rows(caller, "select * from knowledge.list_sources(after => %s)", document)
        assert {row["title"] for row in page} <= {"Open acme", ""}
        assert {row["source_id"] for row in page} <= {"open", "draft"}
