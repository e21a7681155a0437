"""The command pg-knowledge: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

import pg_knowledge
from pg_knowledge import Knowledge, cli
from pg_knowledge.files import Document
from support import Database
from support.documents import docx, locked, paragraph, pdf
from support.server import INSTALLER

TOY = "support.embedder:ToyEmbedder"
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "PG_KNOWLEDGE_TOKEN")},
    "PYTHONPATH": os.pathsep.join(
        [
            str(Path(__file__).resolve().parents[1]),
            str(Path(pg_knowledge.__file__).resolve().parents[1]),
        ]
    ),
}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pg_knowledge.cli", *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def run(
    shared: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on the shared database in this process: exit code, stdout, stderr."""
    monkeypatch.delenv("PG_KNOWLEDGE_TOKEN", raising=False)
    monkeypatch.setenv("DATABASE_URL", shared.uri("app_backend"))

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two documents, one of them in a folder, and what is none."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "leave.md").write_text("# Leave policy\n\nThirty days off a year.\n")
    (tmp_path / "sub" / "travel.txt").write_text("Trains, second class.\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / ".hidden.md").write_text("hidden\n")
    return tmp_path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_migrate(shared: Database) -> None:
    """As a role that is no superuser: applied once; a bare database says what to do."""
    with shared.server.database(prepared=False) as fresh:
        root = fresh.superuser()
        root.execute("create extension vector")
        root.execute(
            f'grant create on database "{fresh.name}" to "{fresh.role(INSTALLER)}"'.encode()
        )
        url = fresh.uri(INSTALLER)
        before = command("sources", "--org", "acme", DATABASE_URL=fresh.uri())
        assert (before.returncode, before.stdout) == (1, "")
        assert "not installed" in before.stderr
        assert "pg-knowledge migrate" in before.stderr
        for applied in (True, False):
            done = command("migrate", "--json", "--database", url)
            assert done.returncode == 0, done.stderr
            assert lines(done.stdout) == [{"version": "0.1.0", "applied": applied}]
        assert command("migrate", DATABASE_URL=url).stdout == "version 0.1.0, applied False\n"
        assert root.execute("select knowledge.version()").fetchone() == ("0.1.0",)
        with psycopg.connect(url) as conn:
            query = "select rolsuper from pg_roles where rolname = current_user"
            assert conn.execute(query).fetchone() == (False,)


def test_migrate_without_vector(shared: Database) -> None:
    """What is missing is said, and nothing is left half installed."""
    with shared.server.database(prepared=False) as fresh:
        name = f'"{fresh.name}" to "{fresh.role(INSTALLER)}"'
        fresh.superuser().execute(f"grant create on database {name}".encode())
        done = command("migrate", DATABASE_URL=fresh.uri(INSTALLER))
        assert (done.returncode, done.stdout) == (1, "")
        assert "vector" in done.stderr
        assert "Traceback" not in done.stderr
        query = "select count(*) from pg_namespace where nspname like 'knowledge%'"
        assert fresh.superuser().execute(query).fetchone() == (0,)


def test_whole_job(run: Callable[..., Any], folder: Path, org: str) -> None:
    """register-model, ingest, again, search, sources, delete."""
    who = ("--org", org)
    code, out, _ = run("register-model", *who, "--embedder", TOY, "--json")
    assert (code, lines(out)[0]["model_id"]) == (0, 1)

    ingest = ("ingest", str(folder), *who, "--embedder", TOY, "--audience", "everyone")
    code, out, err = run(*ingest)
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[:-1]] == [
        ["file", "outcome", "chunks", "embedded", "reused", "unchanged", "error"],
        ["leave.md", "published", "1", "1", "0", "0"],
        ["sub/travel.txt", "published", "1", "1", "0", "0"],
    ]
    assert out.splitlines()[-1] == "2 of 2 files are live: 2 published, 0 unchanged, 0 failed"
    code, out, _ = run(*ingest, "--json")
    assert code == 0
    assert [(r["source_id"], r["skipped"], r["live"]) for r in lines(out)] == [
        ("leave.md", 1, True),
        ("sub/travel.txt", 1, True),
    ]

    code, out, _ = run("search", "days off", *who, "--embedder", TOY, "-k", "1")
    assert code == 0
    assert out.splitlines()[0] == "  1. Leave policy · Leave policy"
    assert "file/leave.md, characters 0-39; " in out
    code, out, _ = run("search", "days off", *who, "--embedder", "none", "--json")
    (hit,) = lines(out)
    assert (code, hit["title"], hit["legs"]) == (0, "Leave policy", ["keyword"])
    code, out, _ = run("search", "nothing", *who, "--embedder", "none")
    assert (code, out) == (0, "nothing found\n")
    code, out, _ = run("search", "nothing", *who, "--embedder", "none", "--json")
    assert (code, out) == (0, "")

    code, out, _ = run("sources", *who)
    assert out.splitlines() == [
        "file/leave.md: 'Leave policy', 1 chunks, for everyone",
        "file/sub/travel.txt: 'travel', 1 chunks, for everyone",
    ]
    assert [source["source_id"] for source in lines(run("sources", *who, "--json")[1])] == [
        "leave.md",
        "sub/travel.txt",
    ]
    code, out, _ = run("delete", "file", "leave.md", *who, "--json")
    assert (code, lines(out)[0]["chunks"], len(lines(out)[0]["receipt"])) == (0, 1, 64)
    code, out, err = run("delete", "file", "leave.md", *who)
    assert (code, out) == (1, "")
    assert err.startswith("pg-knowledge: ")


def test_broken_files(run: Callable[..., Any], folder: Path, org: str) -> None:
    """A file that cannot be read is named; the others are live; the exit code is 1."""
    (folder / "empty.md").write_text(" \n")
    (folder / "latin.txt").write_bytes("Käse".encode("latin-1"))
    (folder / "nul.md").write_bytes(b"a\0b")
    Path(os.fsdecode(os.fsencode(folder) + b"/name\xff.md")).write_text("text\n")
    ingest = ("ingest", str(folder), "--org", org, "--embedder", TOY, "--audience", "everyone")
    code, out, err = run(*ingest, "--json")
    assert (code, err) == (1, "")
    outcomes = {outcome["source_id"]: outcome for outcome in lines(out)}
    assert len(outcomes) == 6
    failed = {name for name, outcome in outcomes.items() if "error" in outcome}
    assert failed == {"empty.md", "latin.txt", "nul.md", "name\\udcff.md"}
    assert "not UTF-8" in outcomes["latin.txt"]["error"]
    live = [source["source_id"] for source in lines(run("sources", "--org", org, "--json")[1])]
    assert live == ["leave.md", "sub/travel.txt"]
    code, out, err = run(*ingest)
    assert code == 1
    assert out.splitlines()[-1] == "2 of 6 files are live: 0 published, 2 unchanged, 4 failed"
    assert err == ""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A document of each format, three that are broken, and one too large for --max-mb 0.1."""
    for name, data in {
        "a.md": b"# Notes\n\nmarkdown words\n",
        "b-broken.pdf": pdf([["text"]])[:100],
        "c.docx": docx(paragraph("Handbook", "Heading1"), paragraph("office words")),
        "d.html": b"<html><h1 id=top>Guide</h1><p>hypertext words</p></html>",
        "e-locked.docx": locked(docx(paragraph("secret"))),
        "f.pdf": pdf([["portable words"]], title="Manual"),
        "g-huge.txt": b"x" * 100_001,
        "h.txt": b"plain words\n",
    }.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_folder(run: Callable[..., Any], library: Path, org: str) -> None:
    """Every format is published, a bad file stops none after it, and a table tells it all."""
    who = ("--org", org, "--embedder", TOY)
    code, out, err = run("ingest", str(library), *who, "--audience", "everyone", "--max-mb", "0.1")
    assert (code, err) == (1, "")
    assert (
        out
        == """\
file           outcome    chunks  embedded  reused  unchanged  error
a.md           published       1         1       0          0
b-broken.pdf   failed                                          a broken PDF: its end is missing
c.docx         published       1         1       0          0
d.html         published       1         1       0          0
e-locked.docx  failed                                          an encrypted DOCX: it opens with a \
password only
f.pdf          published       1         1       0          0
g-huge.txt     failed                                          too large: 0.1 MB, the limit is \
0.1 MB
h.txt          published       1         1       0          0
5 of 8 files are live: 5 published, 0 unchanged, 3 failed
"""
    )
    titles = [source["title"] for source in lines(run("sources", *who[:2], "--json")[1])]
    assert titles == ["Notes", "Handbook", "Guide", "Manual", "h"]
    for word, title in (("office", "Handbook"), ("hypertext", "Guide"), ("portable", "Manual")):
        search = ("search", word, *who[:2], "--embedder", "none", "--json")
        assert [hit["title"] for hit in lines(run(*search)[1])] == [title]


def test_folder_again(
    run: Callable[..., Any],
    library: Path,
    org: str,
    kb: Knowledge,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what has no live version of these bytes, for this model and audience, is converted."""
    converted: list[str] = []
    convert_file = cli.convert_file

    def counted(path: Path, data: bytes) -> Document:
        converted.append(path.name)
        return convert_file(path, data)

    monkeypatch.setattr(cli, "convert_file", counted)
    for name in ("b-broken.pdf", "e-locked.docx", "g-huge.txt"):
        (library / name).unlink()
    every = ["a.md", "c.docx", "d.html", "f.pdf", "h.txt"]

    def ingest(*more: str, embedder: str = TOY) -> list[str]:
        """The outcomes, after what was converted was."""
        converted.clear()
        code, out, err = run(
            "ingest", str(library), "--org", org, "--embedder", embedder, "--json", *more
        )
        assert (code, err) == (0, "")
        assert all(outcome["live"] for outcome in lines(out))
        return [outcome["source_id"] for outcome in lines(out) if outcome["outcome"] != "unchanged"]

    assert (ingest("--audience", "everyone"), converted) == (every, every)
    for more in ((), ("--audience", "everyone")):
        assert (ingest(*more), converted) == ([], [])
    # Other bytes with the same text, then another text.
    for page in (b"<html> <h1>Guide</h1><p>hypertext words</p></html>", b"<html><p>new</p></html>"):
        (library / "d.html").write_bytes(page)
        assert (ingest(), converted) == (["d.html"], ["d.html"])
        assert (ingest(), converted) == ([], [])
    # Other arguments; back to these.
    kb.define_tag("hr")
    kb.define_audience("staff", ["hr"])
    hr = ("--grant", "hr")
    for more in (
        ("--language", "german"),
        ("--visibility", "draft"),
        (*hr, "--audience", "staff"),
        (*hr, "--audience", "everyone"),
        ("--audience", "everyone", "--scope", "eu"),
    ):
        assert (ingest(*more), converted) == (every, every)
        assert (ingest(*more), converted) == ([], [])
    assert (ingest(embedder="none"), converted) == (every, every)
    assert (ingest(), converted) == (every, every)
    assert (ingest(), converted) == ([], [])


@pytest.mark.parametrize("scope", [None, "eu"])
@pytest.mark.parametrize("by", ["org", "token"])
def test_folder_again_by_who_may_not_read_it(
    run: Callable[..., Any],
    library: Path,
    org: str,
    kb: Knowledge,
    shared: Database,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    scope: str | None,
) -> None:
    """Unchanged is unchanged, also for a writer without the tag, and with nothing but a token."""
    kb.define_tag("hr")
    kb.define_audience("staff", ["hr"])
    for name in ("b-broken.pdf", "e-locked.docx", "g-huge.txt"):
        (library / name).unlink()
    who = ["--org", org, *(["--scope", scope] if scope else [])]
    if by == "token":
        query = "select knowledge.issue_token(%s, '{}', %s)"
        row = shared.connect("app_trusted").execute(query, (org, scope)).fetchone()
        assert row
        who = ["--token", row[0], "--database", shared.uri("app_writer")]
    ingest = ("ingest", str(library), *who, "--embedder", TOY, "--audience", "staff", "--json")
    for outcome in ("published", "unchanged"):
        code, out, err = run(*ingest)
        assert (code, err) == (0, "")
        assert {done["outcome"] for done in lines(out)} == {outcome}
        monkeypatch.setattr(cli, "convert_file", None)
    assert lines(run("sources", *who, "--json")[1]) == []


def test_an_exception_in_a_converter(
    run: Callable[..., Any], library: Path, org: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the error of that file; those after it are published."""
    convert_file = cli.convert_file

    def broken(path: Path, data: bytes) -> Document:
        if path.name == "c.docx":
            raise ZeroDivisionError("no such\nnumber")
        return convert_file(path, data)

    monkeypatch.setattr(cli, "convert_file", broken)
    ingest = ("ingest", str(library), "--org", org, "--embedder", "none", "--audience", "everyone")
    code, out, err = run(*ingest)
    assert (code, err) == (1, "")
    (line,) = [line for line in out.splitlines() if line.startswith("c.docx")]
    assert line.split(maxsplit=2) == ["c.docx", "failed", "ZeroDivisionError: no such number"]
    assert out.splitlines()[-1].startswith("5 of 8 files are live: 5 published, 0 unchanged, 3")


def test_broken_files_in_a_process_of_its_own(shared: Database, folder: Path, org: str) -> None:
    """The same with real streams: no traceback, whatever the name of the file."""
    (folder / "latin.txt").write_bytes("Käse".encode("latin-1"))
    Path(os.fsdecode(os.fsencode(folder) + b"/name\xff.md")).write_text("text\n")
    ingest = ("ingest", str(folder), "--org", org, "--embedder", TOY, "--audience", "everyone")
    for more in ((), ("--json",)):
        done = command(*ingest, *more, DATABASE_URL=shared.uri("app_backend"))
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "name\\udcff.md" in done.stdout.replace("\\\\", "\\") + done.stderr
        assert "leave.md" in done.stdout
        assert "sub/travel.txt" in done.stdout


def test_an_embedder_that_breaks(run: Callable[..., Any], folder: Path, org: str) -> None:
    """One error line for each document, not a traceback."""
    code, out, err = run(
        "ingest", str(folder), "--org", org, "--audience", "everyone", "--json", "--embedder",
        "support.embedder:BrokenEmbedder",
    )  # fmt: skip
    assert (code, len(lines(out)), err) == (1, 2, "")
    assert all("out of order" in outcome["error"] for outcome in lines(out))


def test_token_instead_of_org(
    run: Callable[..., Any], shared: Database, folder: Path, org: str
) -> None:
    """A reader with a token, by option and by environment; an org given by name comes first."""
    run("ingest", str(folder), "--org", org, "--embedder", "none", "--audience", "everyone")
    trusted = shared.connect("app_trusted")
    row = trusted.execute("select knowledge.issue_token(%s, '{}')", (org,)).fetchone()
    assert row
    url = ("--database", shared.uri("app_reader"))
    search = ("search", "days", "--json", "--embedder", "none", *url)
    code, out, _ = run(*search, "--token", row[0])
    assert (code, len(lines(out))) == (0, 1)
    code, _, err = run(*search, "--token", row[0][:-1] + "x")
    assert (code, "token refused" in err) == (1, True)
    done = command(*search, PG_KNOWLEDGE_TOKEN=row[0])
    assert (done.returncode, len(lines(done.stdout))) == (0, 1)
    done = command("delete", "file", "leave.md", *url, PG_KNOWLEDGE_TOKEN=row[0])
    assert done.returncode == 1
    assert "permission denied" in done.stderr


def test_grants_and_scope(run: Callable[..., Any], folder: Path, org: str) -> None:
    """--grant and --scope are the caller's; without them less is seen."""
    scoped = ("--org", org, "--scope", "eu")
    run("ingest", str(folder), *scoped, "--embedder", "none", "--audience", "everyone")
    assert len(lines(run("sources", *scoped, "--json")[1])) == 2
    assert run("sources", "--org", org, "--json")[1] == ""
    assert run("sources", "--org", org, "--scope", "us", "--json")[1] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("sources",),
        ("search", "days", "--embedder", "none"),
        ("search", "days", "--org", "x", "--embedder", "no_such_module:x"),
        ("search", "days", "--org", "x", "--embedder", "json:loads"),
        ("search", "days", "--org", "x", "--embedder", "json"),
        ("search", " ", "--org", "x", "--embedder", "none"),
        ("search", "days", "--org", "x", "--embedder", "none", "-k", "0"),
        ("ingest", "/no/such/folder", "--org", "x", "--embedder", "none"),
        ("sources", "--org", "x", "--database", "host=/no/such/folder"),
        ("sources", "--org", "x", "--database", "no connection string"),
    ],
)
def test_failures(run: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    """Exit code 1 and one message, no traceback."""
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("pg-knowledge: ")
    assert len(err) > len("pg-knowledge: \n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-command",),
        ("search", "--org", "x"),
        ("search", "days", "--org", "x", "--mode", "psychic"),
        ("search", "days", "--org", "x", "-k", "many"),
        ("search", "days", "--org", "x", "--metadata", "{"),
        ("search", "days", "--org", "x", "--metadata", "[1]"),
        ("ingest", "--org", "x"),
        ("delete", "file", "--org", "x"),
        ("sources", "--org", "x", "--no-such-option"),
    ],
)
def test_wrong_usage(run: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("usage: ")


def test_empty_folder(run: Callable[..., Any], tmp_path: Path) -> None:
    code, _, err = run("ingest", str(tmp_path), "--org", "x", "--embedder", "none")
    assert (code, "no file with text" in err) == (1, True)


def test_demo(folder: Path) -> None:
    """The whole tour on a server of its own, of which nothing is left."""
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/tmp") as temporary:
        os.chmod(temporary, 0o755)
        done = command("demo", "--docs", str(folder), TMPDIR=temporary)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert list(Path(temporary).glob("pgk-*")) == []
        left = [p.info["pid"] for p in psutil.process_iter(["pid", "cmdline"])
                if any(temporary in part for part in p.info["cmdline"] or ())]  # fmt: skip
        assert left == []
    for expected in (
        "installed by a role that is no superuser",
        "== 2 documents for two tenants",
        "aurora: 2 documents, 2 chunks, for engineers",
        "borealis: 1 documents, 1 chunks, for lawyers",
        "  1. Leave policy · Leave policy",
        "aurora without the tag: 0 answers, 0 documents",
        "borealis with aurora's tag: 0 answers, 0 documents",
        "a tenant that has nothing: 0 answers, 0 documents",
        "dry run: 2 documents, 2 chunks, 2 vectors",
        "erased:  2 documents, 2 chunks, 2 vectors",
        "receipt: entry ",
        "aurora asks again: KB011",
        "borealis still has 1 chunks",
        "the server is stopped and its files gone",
    ):
        assert expected in done.stdout, expected


def test_demo_without_documents(tmp_path: Path) -> None:
    done = command("demo", "--docs", str(tmp_path))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "no file with text" in done.stderr


def test_two_files_of_one_name(run: Callable[..., Any], folder: Path, org: str) -> None:
    """Files that would overwrite each other are refused before any is read."""
    other = folder / "inner"
    other.mkdir()
    name = "leave.md"
    (other / name).write_text("# Another\n\nwith the same name")
    ingest = ("ingest", str(folder / name), str(other), "--org", org, "--embedder", TOY)
    code, out, err = run(*ingest, "--audience", "everyone")
    assert (code, out) == (1, "")
    assert f"would both be {name}" in err


def test_maintain(shared: Database, org: str) -> None:
    """maintain expires, counts and indexes as a role that may become the owner; others may not."""
    superuser = shared.superuser()
    with shared.connect("app_backend").transaction():
        pass
    superuser.execute("update knowledge_private.settings set promoted_chunks = 1")
    try:
        done = command("maintain", "--json", DATABASE_URL=shared.uri(INSTALLER))
        assert done.returncode == 0, done.stderr
        tasks = [json.loads(line) for line in done.stdout.splitlines()]
        assert [t["task"] for t in tasks if "task" in t] == [
            "versions expired",
            "compartments counted",
        ]
        plan = "select count(*) from knowledge.index_plan()"
        assert superuser.execute(plan).fetchone() == (0,)
    finally:
        superuser.execute("update knowledge_private.settings set promoted_chunks = default")
    refused = command("maintain", DATABASE_URL=shared.uri("app_backend"))
    assert refused.returncode == 1
    assert "permission denied" in refused.stderr


def test_explain(run: Callable[..., Any], folder: Path, org: str) -> None:
    """search --explain tells the legs, the terms and each row's ranks, as a table and as JSON."""
    asked = ("--org", org, "--embedder", TOY)
    run("register-model", *asked)
    run("ingest", str(folder), *asked, "--audience", "everyone")
    code, out, _ = run("search", "install", *asked, "--explain")
    assert code == 0
    assert "may be read; legs: vector" in out
    assert "rank    score" in out
    code, out, _ = run("search", "install", *asked, "--explain", "--json")
    explained = json.loads(out)
    assert explained["rows"][0]["rank"] == 1
