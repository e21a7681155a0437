"""PDF, HTML and DOCX become text with marks, and a file that gives none says why."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from pg_knowledge import Chunk, locate
from pg_knowledge import convert as converter
from pg_knowledge import files as reader
from pg_knowledge.errors import InvalidArgument
from pg_knowledge.files import Document, convert_file, find_documents, read_document, version_of
from support.documents import docx, locked, paragraph, pdf, table, understated, zipped

PAGE = """<!doctype html>
<html><head><title>Guide | Example</title><style>p {}</style></head><body>
<nav><a href="/">menu</a></nav>
<main><p>Before.</p>
<h1 id="top">The <em>guide</em><a href="#top">¶</a></h1><p>Intro&shy;duction.</p>
<h2 id="install">Install</h2>
<pre><code class="language-sh">make  all</code></pre>
<ul><li id="first">one</li><li>two</li></ul>
<table><tr><th>k</th><th>v</th></tr><tr><td id="cell">1</td><td>2</td></tr></table>
<script>alert("script")</script></main>
<footer>imprint</footer></body></html>
"""
WORD = docx(
    paragraph("Handbook", "Heading1"),
    paragraph("Some &amp; text."),
    paragraph(""),
    paragraph("one", "ListBullet"),
    paragraph("two", "ListBullet"),
    table(("k", "v"), ("1", "2")),
    paragraph("End."),
)


def read(name: str, data: bytes) -> Document:
    return convert_file(Path(name), data)


def why(name: str, data: bytes) -> str:
    """Why there is no text in it."""
    with pytest.raises(InvalidArgument) as caught:
        read(name, data)
    return str(caught.value)


def marked(document: Document) -> list[tuple[str, str]]:
    """Each locator with the start of the line at its mark."""
    return [
        (locator, document.text[offset:].split("\n")[0][:12]) for offset, locator in document.marks
    ]


# --- What becomes of each format ----------------------------------------------------------------


def test_pdf() -> None:
    """Every chunk's locator names exactly the pages that its words stand on; a page without text
    counts."""
    pages = [[f"leaf{n} line{line} {'lorem ' * 7}" for line in range(1, 16)] for n in range(1, 8)]
    pages[1] = []
    document = read("manual.pdf", pdf(pages, title="The manual"))
    assert (document.title, document.format) == ("The manual", "text")
    assert re.findall(r"(leaf\d) (line\d+)", document.text) == [
        (f"leaf{n}", f"line{line}") for n in (1, 3, 4, 5, 6, 7) for line in range(1, 16)
    ]
    chunks = document.chunks()
    assert len(chunks) >= 4
    for chunk in chunks:
        assert chunk.body == document.text[chunk.char_start : chunk.char_end]
        first, *_, last = 2 * re.findall(r"leaf(\d)", chunk.body)
        expected = f"page {first}" if first == last else f"pages {first}-{last}"
        assert chunk.locator == expected
    assert read("x.pdf", pdf([["text"]], title="Untitled-1")).title == "x"


def test_html() -> None:
    """Markdown of what is not navigation; a locator is the nearest id before."""
    document = read("guide.html", PAGE.encode())
    assert (document.title, document.format) == ("The guide", "markdown")
    assert document.text == (
        "Before.\n\n# The *guide*\n\nIntroduction.\n\n## Install\n\n```sh\nmake  all\n```\n\n"
        "- one\n- two\n\n| k | v |\n| --- | --- |\n| 1 | 2 |"
    )
    assert marked(document) == [
        ("#top", "# The *guide"),
        ("#install", "## Install"),
        ("#first", "- one"),
        ("#cell", "| 1 | 2 |"),
    ]
    assert [(chunk.heading, chunk.locator) for chunk in document.chunks()] == [
        ("", None),
        ("The guide", "#top"),
        ("The guide > Install", "#install"),
    ]


def test_html_cannot_forge_marks() -> None:
    """The characters that stand for marks inside are dropped, however they are written."""
    forged = "&#xFDD0;0&#xfdd1;\ufdd00\ufdd1"
    page = f'<html><p id="a">A{forged} <a href="/x{forged}">link</a> <img alt="{forged}"></p>'
    document = read("a.html", page.encode())
    assert (document.text, document.marks) == ("A00 [link](/x00) 00", ((0, "#a"),))


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("", "utf-16"),
        ('<meta charset="iso-8859-1">', "cp1252"),
        ('<meta charset="windows-1251">', "cp1251"),
        ('<?xml version="1.0" encoding="shift_jis"?>', "cp932"),
    ],
)
def test_html_encodings(head: str, encoding: str) -> None:
    words = {"cp1251": "Привет", "cp932": "①日本語"}.get(encoding, "Käse “5 €”")
    page = f"{head}<html><p>{words}</p></html>"
    assert read("a.htm", page.encode(encoding)).text == words


def test_docx() -> None:
    """Markdown; a locator counts the paragraphs that have text, cells too."""
    document = read("handbook.docx", WORD)
    assert (document.title, document.format) == ("Handbook", "markdown")
    assert document.text == (
        "# Handbook\n\nSome & text.\n\n- one\n- two\n\n| k | v |\n| --- | --- |\n| 1 | 2 |\n\nEnd."
    )
    assert [locator for locator, _ in marked(document)] == [f"paragraph {n}" for n in range(1, 10)]
    assert marked(document)[3:] == [
        ("paragraph 4", "- two"),
        ("paragraph 5", "| k | v |"),
        ("paragraph 6", "v |"),
        ("paragraph 7", "| 1 | 2 |"),
        ("paragraph 8", "2 |"),
        ("paragraph 9", "End."),
    ]
    assert [chunk.locator for chunk in document.chunks()] == ["paragraphs 1-9"]


def test_locate() -> None:
    """From a mark to the next; ranges of one kind only; no mark, no locator."""
    spans = [(0, 5), (5, 10), (10, 20), (19, 21), (30, 40), (40, 50)]
    chunks = [Chunk(n, "", "x", *span, 1, "own") for n, span in enumerate(spans)]
    marks = [(5, "page 1"), (10, "page 2"), (19, "page 4"), (20, "#a"), (35, "#b")]
    assert [chunk.locator for chunk in locate(chunks, marks)] == [
        "own", "page 1", "pages 2-4", "page 4", "#a", "#b",
    ]  # fmt: skip
    assert locate(chunks, ()) == chunks


# --- Files that give no text --------------------------------------------------------------------

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 500
BOMB = zipped({"word/document.xml": "<a>" + " " * 101_000_000})


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.pdf", b"", "the file is empty"),
        ("empty.html", b" \n", "the file is empty"),
        ("no-text.html", b"<html><script>x</script></html>", "no text in it"),
        ("no-text.docx", docx(paragraph("")), "no text in it"),
        ("scan.pdf", pdf([[], []]), "no text in its 2 pages: a scanned PDF must go through OCR"),
        ("cut.pdf", pdf([["text"]])[:300], "a broken PDF: its end is missing"),
        ("garbage.pdf", b"%PDF-1.4\n" + b"garbage" * 50 + b"\n%%EOF\n", "a broken PDF"),
        ("cut.docx", WORD[:-100], "a broken DOCX"),
        ("xml.docx", zipped({"word/document.xml": "<w:document"}), "a broken DOCX: "),
        ("charset.html", b"<p>K\xe4se</p>", "declares no charset and is not utf-8 (byte 4)"),
        ("charset.html", b"<meta charset=klingon><p>x", "the unknown charset 'klingon'"),
        ("deep.html", b"<div>" * 20_000 + b"x", "the HTML is nested too deeply"),
        ("locked.pdf", pdf([["text"]], encrypted=True), "an encrypted PDF: it opens with a pass"),
        ("locked.docx", locked(WORD), "an encrypted DOCX: it opens with a password only"),
        ("locked.docx", OLE + "EncryptedPackage".encode("utf-16-le"), "an encrypted Office doc"),
        ("bomb.docx", BOMB, "unpacks to 101 MB of XML, too much to read"),
        ("liar.docx", understated(BOMB, 100), "a broken DOCX: "),
        ("old.docx", OLE, "says DOCX, but it is an Office document of the old binary form"),
        ("sheet.docx", zipped({"xl/workbook.xml": ""}), "says DOCX, but it is an Excel workbook"),
        ("a.docx", pdf([["text"]]), "its ending says DOCX, but it is PDF"),
        ("a.pdf", WORD, "its ending says PDF, but it is DOCX"),
        ("a.pdf", b"\x89PNG\r\n", "its ending says PDF, but it is a PNG image"),
        ("a.html", b"just words", "its ending says HTML, but it is plain text"),
        ("a.txt", pdf([["text"]]), "its ending says plain text, but it is PDF"),
        ("a.md", PAGE.encode(), "its ending says Markdown, but it is HTML"),
    ],
)  # fmt: skip
def test_unreadable(name: str, data: bytes, message: str) -> None:
    """InvalidArgument with the reason, in seconds."""
    start = time.monotonic()
    assert message in why(name, data)
    assert time.monotonic() - start < 20


def test_huge(tmp_path: Path) -> None:
    """Refused by its size, whatever is in it; one byte less is read."""
    path = tmp_path / "huge.pdf"
    with path.open("wb") as file:
        file.truncate(60_000_000)
    with pytest.raises(InvalidArgument, match=r"too large: 60\.0 MB, the limit is 50 MB"):
        read_document(path)
    (tmp_path / "a.txt").write_bytes(b"12345")
    assert read_document(tmp_path / "a.txt", max_bytes=5).text == "12345"
    with pytest.raises(InvalidArgument, match="too large"):
        read_document(tmp_path / "a.txt", max_bytes=4)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "a broken HTML: ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "its conversion crashed (exit code 3)"),
        ("__import__('time').sleep(60)", "its conversion took longer than 2 seconds"),
        pytest.param(
            "bytearray(3 * 1024**3)",
            "its conversion needs more than 2 GB of memory",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no limit of memory there"),
        ),
    ],
)
def test_a_converter_that_breaks(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does, it is an error of that file, soon."""
    source = Path(converter.__file__).read_text()
    assert source.count('"HTML": _html') == 1
    broken = tmp_path / "broken.py"
    broken.write_text(source.replace('"HTML": _html', f'"HTML": lambda data: {code}'))
    monkeypatch.setattr(converter, "__file__", str(broken))
    start = time.monotonic()
    with pytest.raises(InvalidArgument) as caught:
        convert_file(Path("a.html"), PAGE.encode(), max_seconds=2)
    assert str(caught.value) == message
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "noise",
    [
        "print('noise')",
        "print('noise', flush=True)",
        "os.write(1, b'noise')",  # as a library in C does
        "__import__('subprocess').run(['echo', 'noise'])",
        "__import__('atexit').register(print, 'noise')",
        "print('noise' * 1_000_000)",
    ],
)
def test_a_converter_that_prints(
    noise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words are no part of the answer."""
    source = Path(converter.__file__).read_text()
    assert source.count('"HTML": _html') == 1
    noisy = tmp_path / "noisy.py"
    noisy.write_text(source.replace('"HTML": _html', f'"HTML": lambda d: ({noise}, _html(d))[1]'))
    expected = read("a.html", PAGE.encode())
    monkeypatch.setattr(converter, "__file__", str(noisy))
    assert read("a.html", PAGE.encode()) == expected


@pytest.mark.parametrize(
    ("missing", "readable"),
    [
        ({"pypdfium2"}, {"a.html", "a.docx"}),
        ({"markdownify"}, {"a.pdf"}),
        ({"mammoth"}, {"a.pdf", "a.html"}),
    ],
)
def test_without_the_extra(
    missing: set[str], readable: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format whose converter is not installed says what to install; the others are read."""
    monkeypatch.setattr(reader, "find_spec", lambda name: name not in missing)
    files = {"a.pdf": pdf([["x"]]), "a.html": PAGE.encode(), "a.docx": WORD}
    for name, data in files.items():
        if name in readable:
            assert read(name, data).text
        else:
            assert why(name, data).endswith("needs: pip install 'pg-knowledge[files]'")
    assert read("a.md", b"# T\n\ntext").title == "T"


# --- Folders ------------------------------------------------------------------------------------


def test_find_documents(tmp_path: Path) -> None:
    """By ending, in order; nothing hidden, no packages, no links."""
    kept = ["a.MD", "b/c.docx", "b/d.Pdf", "e.htm"]
    for name in (*kept, "f.png", ".g.md", ".h/i.md", "node_modules/j.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "z.md").symlink_to("a.MD")
    assert [p.relative_to(tmp_path).as_posix() for p in find_documents(tmp_path)] == kept


def test_version_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another for other bytes, another embedder and another conversion; else the same."""
    versions = [version_of(b"a"), version_of(b"b"), version_of(b"a", "m:1"), version_of(b"a", "m")]
    assert version_of(b"a", "m:1") == versions[2]
    monkeypatch.setattr(reader, "CONVERSION", reader.CONVERSION + 1)
    assert len({*versions, version_of(b"a")}) == 5
