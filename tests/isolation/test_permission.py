"""Who may read what: grants, audiences, visibility, filters. Promise 5: never 'everything'."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from support import Database, as_context
from support.hostile import code_of, everything, undone
from support.knowledge import begin, content_hash, embed, finalize, publish, rows, search, stage

DOCUMENTS = {  # source_id -> (audience, visibility)
    "all": (["everyone"], "org"),
    "staff": (["staff"], "org"),
    "board": (["board"], "org"),
    "both": (["board", "staff"], "org"),
    "draft": (["everyone"], "draft"),
    "staff draft": (["staff"], "draft"),
}


def vocabulary(conn: psycopg.Connection[Any]) -> None:
    """Audience staff: tags hr and it; audience board: tag chair."""
    for tag in ("hr", "it", "chair"):
        conn.execute("select knowledge.define_tag(%s)", (tag,))
    conn.execute("select knowledge.define_audience('staff', '{hr,it}')")
    conn.execute("select knowledge.define_audience('board', '{chair}')")


@pytest.fixture(scope="module")
def library(shared: Database) -> str:
    """An org with one document of each audience and visibility."""
    backend = shared.connect("app_backend")
    with as_context(backend, "library", ["hr", "it", "chair"]):
        vocabulary(backend)
        for name, (audience, visibility) in DOCUMENTS.items():
            given = {"audience": audience, "visibility": visibility, "metadata": {"name": name}}
            publish(backend, name, [f"words about {name}"], **given)
    return "library"


def names(found: list[dict[str, Any]]) -> set[str]:
    return {row["source_id"] for row in found}


def by_tables(conn: psycopg.Connection[Any]) -> set[str]:
    """Names of the documents whose chunks a direct SELECT shows."""
    query = (
        "select d.source_id from knowledge.chunks as c"
        " join knowledge.documents as d using (org_id, document_id)"
    )
    return names(rows(conn, query))


OPENED = {
    (): set(),
    ("everyone",): set(),
    ("hr",): {"staff", "both", "staff draft"},
    ("it",): {"staff", "both", "staff draft"},
    ("chair",): {"board", "both"},
    ("hr", "chair"): {"staff", "board", "both", "staff draft"},
    ("unknown",): set(),
    ("staff",): set(),  # an audience is no tag
    ("HR",): set(),
    ("h%",): set(),
    ("hr ",): set(),
    ("",): set(),
    ("*",): set(),
}


@pytest.mark.parametrize("grants", OPENED)
def test_grants_open_what_they_name(
    shared: Database, library: str, grants: tuple[str, ...]
) -> None:
    """Any tag of a document opens it; none, or an unknown one, opens only what is for everyone."""
    caller = shared.connect("app_trusted")
    readable = {"all", "draft"} | OPENED[grants]
    with as_context(caller, library, grants):
        for mode in ("hybrid", "vector", "keyword"):
            found = search(caller, "words about", mode=mode, visibility=["org", "draft"], k=50)
            assert names(found) == readable
        assert names(search(caller, "words about")) == {
            name for name in readable if DOCUMENTS[name][1] == "org"
        }
        assert names(rows(caller, "select * from knowledge.list_sources()")) == readable
        assert by_tables(caller) == readable


@pytest.mark.parametrize(
    ("visibility", "expected"),
    [
        (None, {"all"}),
        (["org"], {"all"}),
        (["draft"], {"draft"}),
        (["org", "draft"], {"all", "draft"}),
        ([], set()),
        ([None], set()),
        (["unknown"], set()),
        ([""], set()),
        (["%"], set()),
        (["Org"], set()),
    ],
)
@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
def test_visibility(
    shared: Database, library: str, visibility: Any, expected: set[str], function: str
) -> None:
    """A search sees {'org'} unless it asks for more; an empty list is nothing (case 16)."""
    caller = shared.connect("app_trusted")
    with as_context(caller, library):
        found = search(caller, "words about", function, visibility=visibility)
        ids = {row["chunk_id"] for row in found}
        query = (
            "select d.source_id from knowledge.chunks as c"
            " join knowledge.documents as d using (org_id, document_id) where c.chunk_id = any (%s)"
        )
        assert names(rows(caller, query, list(ids))) == expected


@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
@pytest.mark.parametrize(
    "narrow",
    [
        {"source_types": []},
        {"source_types": [None]},
        {"source_types": ["unknown"]},
        {"metadata": {"name": "nobody"}},
        {"metadata": {"name": ["all"]}},
        {"metadata": {"Name": "all"}},
        {"metadata": {"name": "staff"}},  # exists, and is not for the caller (case 17)
        {"metadata": {"name": "staff"}, "source_types": ["wiki"], "visibility": ["org", "draft"]},
        {"metadata": {"name": "draft"}},  # exists, under a label that was not asked for
    ],
)
def test_filters_only_narrow(
    shared: Database, library: str, mode: str, function: str, narrow: dict[str, Any]
) -> None:
    """Filters are AND-ed with the permission: an empty or foreign one is nothing, never more."""
    caller = shared.connect("app_trusted")
    with as_context(caller, library):
        assert search(caller, "words about", function, mode=mode, **narrow) == []
        assert len(search(caller, "words about", function, mode=mode)) == 1


@pytest.mark.parametrize("function", ["search_scoped", "search_exact"])
@pytest.mark.parametrize(
    "arguments",
    [
        "options => '{\"unknown\": 1}'",
        'options => \'{"org_id": "library"}\'',
        'options => \'{"plan": "any"}\'',
        "options => '{\"plan\": null}'",
        "options => '{\"rrf_k\": -1}'",
        'options => \'{"rrf_k": "10"}\'',
        "options => '{\"vector_weight\": null}'",
        'options => \'{"language": "klingon"}\'',
        "options => '{\"language\": 1}'",
        "options => '[]'",
        "options => 'null'",
        "options => null",
        "metadata => '[]'",
        "metadata => '\"staff\"'",
        "metadata => 'null'",
        "mode => 'all'",
        "mode => null",
        "k => 0",
        "k => -1",
        "k => 1001",
        "k => null",
    ],
)
def test_invalid_filter_is_refused(
    shared: Database, library: str, function: str, arguments: str
) -> None:
    """Case 18: an invalid filter or option is KB005; it is not dropped."""
    caller = shared.connect("app_trusted")
    with as_context(caller, library, ["hr", "chair"]):
        assert code_of(caller, f"select knowledge.{function}('words', {arguments})") == "KB005"


def test_rule_change_takes_effect_at_once(shared: Database, org: str) -> None:
    """Case 24: a revoked tag stops working in the same transaction and session, and comes back."""
    backend = shared.connect("app_backend")
    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        publish(backend, "secret", ["a secret text"], audience=["staff"])
        for tags, expected in (
            ("{hr,it}", 1),
            ("{it}", 0),
            ("{chair}", 0),
            ("{chair,hr}", 1),
            ("{everyone}", 1),
            ("{it}", 0),
        ):
            backend.execute("select knowledge.define_audience('staff', %s)", (tags,))
            assert len(search(backend, "secret text")) == expected
            assert len(search(backend, "secret text", "search_exact")) == expected
            assert len(rows(backend, "select * from knowledge.chunks")) == expected
            assert len(rows(backend, "select * from knowledge.list_sources()")) == expected


def test_rule_change_reaches_other_sessions(shared: Database, org: str) -> None:
    """Case 24: also in the transaction and on the prepared plans of a session that read before."""
    backend = shared.connect("app_backend")
    reader = shared.connect("app_trusted", prepare_threshold=0)
    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        publish(backend, "secret", ["a secret text"], audience=["staff"])
    with as_context(reader, org, ["hr"]):
        for tags, expected in (("{hr}", 1), ("{it}", 0), ("{hr}", 1), ("{chair}", 0)):
            with as_context(backend, org):
                backend.execute("select knowledge.define_audience('staff', %s)", (tags,))
            assert len(search(reader, "secret text")) == expected
            assert len(rows(reader, "select * from knowledge.chunks")) == expected


def test_rule_change_writes_no_chunk(shared: Database, org: str) -> None:
    """Promise 7: a permission change costs rows of compartments, none of chunks or vectors."""
    backend, root = shared.connect("app_backend"), shared.superuser()

    def rows_on_disk() -> list[list[tuple[Any, ...]]]:
        return [
            root.execute(
                f"select ctid::text, xmin::text, t::text from knowledge.{name} as t"
                " where org_id = %s order by 1",
                (org,),
            ).fetchall()
            for name in ("chunks", "vectors_1", "places", "documents", "versions")
        ]

    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        for i in range(5):
            publish(backend, f"d{i}", [f"text {i} one", f"text {i} two"], audience=["staff"])
    before = rows_on_disk()
    assert [len(found) for found in before[:2]] == [10, 10]
    with as_context(backend, org, ["hr"]):
        query = "select knowledge.define_audience('staff', '{chair}')"
        assert backend.execute(query).fetchone() == (1,)
        assert search(backend, "text one") == []
    assert rows_on_disk() == before


def test_rule_change_stays_in_its_org(shared: Database, org: str) -> None:
    """The same audience and tags in another org are another vocabulary (case 19)."""
    backend = shared.connect("app_backend")
    for name in (org, f"{org}-too"):
        with as_context(backend, name, ["hr"]):
            vocabulary(backend)
            publish(backend, "secret", ["a secret text"], audience=["staff"])
    with as_context(backend, org):
        backend.execute("select knowledge.define_audience('staff', '{chair}')")
    for name, expected in ((org, 0), (f"{org}-too", 1)):
        with as_context(backend, name, ["hr"]):
            assert len(search(backend, "secret text")) == expected


@pytest.mark.parametrize("change", ["text", "title", "visibility", "language"])
def test_omitted_audience_is_kept(shared: Database, org: str, change: str) -> None:
    """Case 25: re-ingest without an audience keeps the old one; it neither widens nor wipes it."""
    backend = shared.connect("app_backend")
    again = {
        "text": (["a newer secret"], {}),
        "title": (["a secret"], {"title": "Changed"}),
        "visibility": (["a secret"], {"visibility": "draft"}),
        "language": (["a secret"], {"language": "simple"}),
    }
    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        publish(backend, "d", ["a secret"], audience=["staff"], visibility="inner")
        bodies, given = again[change]
        report = publish(backend, "d", bodies, audience=None, **given)
        assert report["live"] is True
        source = rows(backend, "select * from knowledge.get_source('wiki', 'd')")[0]
        assert source["audience"] == ["staff"]
        assert source["visibility"] == given.get("visibility", "inner")
        labels = ["org", "inner", "draft"]
        assert len(search(backend, "secret", visibility=labels)) == 1
    with as_context(backend, org):
        assert search(backend, "secret", visibility=labels) == []
        assert rows(backend, "select * from knowledge.chunks") == []
        assert code_of(backend, "select knowledge.get_source('wiki', 'd')") == "KB004"


def test_declared_audience_replaces(shared: Database, org: str) -> None:
    """A new audience counts from the publication on, also when the text is the same."""
    backend = shared.connect("app_backend")
    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        publish(backend, "d", ["a secret"], audience=["everyone"])
        assert publish(backend, "d", ["a secret"], audience=["board"])["skipped"] == 1
        assert search(backend, "secret") == []
    with as_context(backend, org, ["chair"]):
        assert len(search(backend, "secret")) == 1


REFUSED = {
    "unknown audience": ({"audience": ["nobody"]}, "KB006"),
    "one of two unknown": ({"audience": ["staff", "nobody"]}, "KB006"),
    "a tag is no audience": ({"audience": ["hr"]}, "KB006"),
    "audience of another org": ({"audience": ["theirs"]}, "KB006"),
    "case": ({"audience": ["Everyone"]}, "KB006"),
    "empty": ({"audience": []}, "KB006"),
    "null within": ({"audience": ["staff", None]}, "KB006"),
    "only null": ({"audience": [None]}, "KB006"),
    "missing": ({"audience": None}, "KB006"),
    "blank label": ({"visibility": " "}, "KB005"),
    "reserved label": ({"visibility": "_system"}, "KB005"),
    "label everyone": ({"visibility": "everyone"}, "KB005"),
    "blank source": ({"source_id": ""}, "KB005"),
    "blank type": ({"source_type": "\t"}, "KB005"),
    "no chunks": ({"chunk_count": 0}, "KB005"),
    "unknown option": ({"options": {"public": True}}, "KB005"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_document_leaves_nothing(shared: Database, org: str, case: str) -> None:
    """An unknown, empty or missing audience is KB006, and no row of the document is left."""
    backend, root = shared.connect("app_backend"), shared.superuser()
    given, code = REFUSED[case]
    with as_context(backend, f"{org}-other"):
        backend.execute("select knowledge.define_tag('t')")
        backend.execute("select knowledge.define_audience('theirs', '{t}')")
    with as_context(backend, org):
        vocabulary(backend)
    before = everything(root)
    with pytest.raises(psycopg.Error) as refused, as_context(backend, org, ["hr"]):
        begin(backend, **{"source_id": "d", "bodies": ["x"], **given})
    assert refused.value.sqlstate == code
    assert everything(root) == before


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\u00a0", "\u3000"])
def test_blank_chunk_is_rejected(shared: Database, org: str, text: str) -> None:
    """A chunk without text is rejected, and the rest is published; with nothing else, nothing."""
    backend = shared.connect("app_backend")
    with as_context(backend, org):
        version = begin(backend, "d", ["good", "bad"])
        verdicts = [row["verdict"] for row in stage(backend, version, ["good", text])]
        embed(backend, version, ["good"], [0])
        report = finalize(backend, version)
    assert verdicts == ["admitted", "rejected"]
    assert (report["chunks"], report["rejected"], report["embedded"]) == (2, 1, 1)
    with as_context(backend, org):
        version = begin(backend, "e", [text])
        stage(backend, version, [text])
    with pytest.raises(psycopg.Error) as refused, as_context(backend, org):
        finalize(backend, version)
    assert refused.value.sqlstate == "KB005"


def test_chunk_without_body_is_refused(shared: Database, org: str) -> None:
    """KB005, and nothing of its batch is staged."""
    backend, root = shared.connect("app_backend"), shared.superuser()
    with as_context(backend, org):
        version = begin(backend, "d", ["good", "bad"])
    before = everything(root)
    with pytest.raises(psycopg.Error) as refused, as_context(backend, org):
        stage(backend, version, ["good", None])  # type: ignore[list-item]
    assert refused.value.sqlstate == "KB005"
    assert everything(root) == before


@pytest.mark.parametrize(
    ("audience", "tags", "code"),
    [
        ("staff", ["nobody"], "KB006"),
        ("staff", ["hr", "nobody"], "KB006"),
        ("staff", [], "KB006"),
        ("staff", None, "KB006"),
        ("staff", [None], "KB006"),
        ("staff", ["hr", None], "KB006"),
        ("staff", ["staff"], "KB006"),
        ("everyone", ["hr"], "KB005"),
        ("_system", ["hr"], "KB005"),
        ("", ["hr"], "KB005"),
        (None, ["hr"], "KB005"),
    ],
)
def test_vocabulary_is_closed(
    shared: Database, org: str, audience: str | None, tags: Any, code: str
) -> None:
    """A rule with an unknown tag, none, or a reserved name is refused and changes nothing."""
    backend, root = shared.connect("app_backend"), shared.superuser()
    with as_context(backend, org, ["hr"]):
        vocabulary(backend)
        publish(backend, "d", ["a secret"], audience=["staff"])
    before = everything(root)
    query = "select knowledge.define_audience(%s, %s::text[])"
    with as_context(backend, org):
        assert code_of(backend, query, (audience, tags)) == code
        assert code_of(backend, "select knowledge.define_tag('everyone')") == "KB005"
        assert code_of(backend, "select knowledge.define_tag('_x')") == "KB005"
    assert everything(root) == before


def test_same_names_in_two_orgs(shared: Database, org: str) -> None:
    """Case 19: the same source_id and text in two orgs are two documents in every respect."""
    backend = shared.connect("app_backend")
    one, two = org, f"{org}-too"
    bodies = ["the same text", "in both"]
    for name in (one, two):
        with as_context(backend, name):
            report = publish(backend, "d", bodies, title=f"Of {name}")
            # Also vectors are not reused from another org: whether it has the text is its secret.
            assert (report["embedded"], report["reused"]) == (2, 0)

    def of(name: str) -> list[dict[str, Any]]:
        with as_context(backend, name):
            return search(backend, "same text")

    before = of(two)
    assert {row["title"] for row in before} == {f"Of {two}"}
    assert {row["chunk_id"] for row in before} & {row["chunk_id"] for row in of(one)} == set()
    with as_context(backend, one):
        publish(backend, "d", ["another text"], title="Changed")
    assert of(two) == before
    with as_context(backend, one):
        backend.execute("select knowledge.delete_source('wiki', 'd')")
    assert of(one) == []
    assert of(two) == before
    with as_context(backend, one):
        backend.execute("select knowledge.delete_by_scope(false, entire_org => true)")
    assert of(two) == before
    with as_context(backend, two):
        assert begin(backend, "d", bodies, content_hash=content_hash(bodies))["state"] == "live"


def test_reader_cannot_write(shared: Database, library: str) -> None:
    """A reader searches; it neither ingests nor deletes, whatever its context says."""
    trusted = shared.connect("app_trusted")
    with as_context(trusted, library, ["hr", "chair"]), undone(trusted):
        assert len(search(trusted, "words about")) == 4
        for call in (
            "begin_version('wiki', 'x', 'h', 1, '{everyone}')",
            "abort_version(gen_random_uuid())",
            "delete_source('wiki', 'all')",
            "prune_versions(0)",
            "define_tag('x')",
            "define_audience('staff', '{hr}')",
            "set_language('simple')",
            "delete_by_scope()",
            "verify_audit_log()",
            "register_model('x', 3, 'x')",
        ):
            assert code_of(trusted, f"select knowledge.{call}") == "42501"
    writer = shared.connect("app_writer")
    assert code_of(writer, "select knowledge.delete_by_scope()") == "42501"
    assert code_of(writer, "select knowledge.delete_source('wiki', 'all')") == "KB001"
