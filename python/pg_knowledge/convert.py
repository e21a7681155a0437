"""PDF, HTML and DOCX to text, with marks that say where each part of it stood.

``convert`` runs a converter in a process of its own, with a limit of time and of memory, so that a
file on which one hangs, crashes or explodes is an error like any other. That process runs this very
file, which therefore imports nothing of the package; the converters are the extra ``files``.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles
from typing import Any

__all__ = ["CONVERTERS", "Converted", "Mark", "Unreadable", "convert", "what_is"]

Mark = tuple[int, str]

# The modules that each converter needs.
CONVERTERS = {
    "PDF": ("pypdfium2",),
    "HTML": ("bs4", "lxml", "markdownify"),
    "DOCX": ("bs4", "lxml", "mammoth", "markdownify"),
}
MAX_SECONDS = 300.0
MAX_MEMORY = 2 * 1024**3
MAX_XML = 100_000_000  # what a DOCX may unpack to


class Unreadable(Exception):
    """A file that gives no text; the message says why."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The text of a file, its own title if it has one, and where its parts stood.

    marks: (offset in text, locator), ascending: from that offset on the text is of 'page 3',
        '#install' or 'paragraph 12'.
    """

    text: str
    title: str | None
    marks: tuple[Mark, ...]


def convert(kind: str, data: bytes, max_seconds: float = MAX_SECONDS) -> Converted:
    """Converts in a process of its own. kind: a key of CONVERTERS. Raises Unreadable."""
    command = [sys.executable, "-P", __file__, kind]
    try:
        done = subprocess.run(
            command,
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=max_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable(f"its conversion took longer than {max_seconds:g} seconds") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise Unreadable(f"its conversion crashed (exit code {done.returncode})") from error
    if "error" in answer:
        raise Unreadable(answer["error"])
    marks = tuple((offset, locator) for offset, locator in answer["marks"])
    return Converted(answer["text"], answer["title"], marks)


# --- What a file is, by its bytes ---------------------------------------------------------------

_MAGIC = (
    (b"%PDF-", "PDF"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"{\\rtf", "RTF"),
    (b"%!PS", "PostScript"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf'\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90", "a program"),
)
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_IN_ZIP = (
    ("word/", "DOCX"),
    ("xl/", "an Excel workbook"),
    ("ppt/", "a PowerPoint presentation"),
    ("META-INF/container.xml", "an EPUB book"),
    ("content.xml", "an OpenDocument file"),
)
_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_HTML = re.compile(r"(?:\s|<\?xml[^>]*>|<!--.*?-->)*<(?:!doctype\s+html|html)\b", re.I | re.S)


def what_is(data: bytes) -> str:
    """'PDF', 'HTML', 'DOCX', 'text', or a few words for anything else; by the bytes alone."""
    start = data[:4096].lstrip()
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            return kind
    if start.startswith(b"PK\x03\x04"):
        return _what_zip_is(data)
    if data.startswith(_OLE):
        if "EncryptedPackage".encode("utf-16-le") in data:
            return "an encrypted Office document"
        return "an Office document of the old binary form"
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            head = data[len(bom) : 4096].decode(encoding, "ignore")
            return "HTML" if _HTML.match(head) else "text"
    if b"\0" in data[:4096] and len(start.translate(None, b"\0")) < len(start) * 0.95:
        return "binary data"
    return "HTML" if _HTML.match(start.decode("latin-1")) else "text"


def _what_zip_is(data: bytes) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, OSError, EOFError):
        return "a broken ZIP archive"
    for part, kind in _IN_ZIP:
        if any(name.startswith(part) for name in names):
            return kind
    return "a ZIP archive"


# --- PDF ----------------------------------------------------------------------------------------

_BROKEN_WORD = re.compile(r"(\w*)\ufffe(\w*)")


def _pdf(data: bytes) -> Converted:
    import pypdfium2

    if b"%%EOF" not in data.rstrip(b"\0")[-2048:]:
        raise Unreadable("a broken PDF: its end is missing")
    try:
        document = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise Unreadable("an encrypted PDF: it opens with a password only") from error
        if error.err_code == pypdfium2.raw.FPDF_ERR_SECURITY:
            raise Unreadable("an encrypted PDF, in a way that cannot be read") from error
        raise Unreadable("a broken PDF") from error
    pages = []
    for number in range(len(document)):
        try:
            page = document[number]
            pages.append(_clean(_page_text(page.get_textpage()), keep="\ufffe").strip())
            page.close()
        except pypdfium2.PdfiumError as error:
            raise Unreadable(f"a broken PDF: page {number + 1} cannot be read") from error
    if not any(pages):
        images = "one page" if len(pages) == 1 else f"{len(pages)} pages"
        raise Unreadable(f"no text in its {images}: a scanned PDF must go through OCR first")
    seen = Counter(re.findall(r"\w+-\w+", "\n".join(pages)))
    text, marks = "", []
    for number, words in enumerate(pages, start=1):
        page_text = _BROKEN_WORD.sub(lambda match: _rejoined(match, seen), words)
        if page_text:
            text += "\n\n" if text else ""
            marks.append((len(text), f"page {number}"))
            text += page_text
    title = _clean(document.get_metadata_dict().get("Title") or "").strip()
    junk = not title or title.lower().startswith(("untitled", "microsoft word -"))
    return Converted(text, None if junk else title, tuple(marks))


def _rejoined(match: re.Match[str], hyphenated: Counter[str]) -> str:
    """A word that was broken at the end of a line: without its hyphen when both parts are lower
    case and the document has it nowhere else with one."""
    first, second = match.groups()
    with_hyphen = f"{first}-{second}"
    joinable = first[-1:].islower() and second[:1].islower() and not hyphenated[with_hyphen]
    return first + second if joinable else with_hyphen


def _page_text(page: Any) -> str:
    """The lines of a page, with a blank line where the next is further down than usual, or up."""
    text: str = page.get_text_range()
    lines = text.split("\r\n")
    if len(text) != page.count_chars():
        return "\n".join(lines)
    bottoms: list[tuple[float, float]] = []  # of each line: where it stands, its height
    at = 0
    for line in lines:
        visible = at + len(line) - len(line.lstrip())
        if line.strip():
            _, bottom, _, top = page.get_charbox(visible, loose=True)
            bottoms.append((bottom, top - bottom))
        at += len(line) + 2
    lines = [line for line in lines if line.strip()]
    steps = [above[0] - below[0] for above, below in pairwise(bottoms)]
    down = [step for step in steps if step > 1]
    usual = quantiles(down, n=4)[0] if len(down) >= 8 else None
    out = lines[0] if lines else ""
    for step, (_, height), line in zip(steps, bottoms[1:], lines[1:], strict=True):
        far = 1.25 * (usual if usual is not None else 1.6 * height)
        out += ("\n\n" if step > far or step < -height else "\n") + line
    return out


# --- HTML and DOCX ------------------------------------------------------------------------------

# Two characters that no text has: between them stands the number of a mark.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_BEFORE_TEXT = re.compile(r"[ \t#>*+\-|`\[_!]*(?:\d+\. *)?[ \t*`\[_!]*")
_DROPPED = (
    "script, style, noscript, template, svg, math, iframe, object, canvas, nav, footer, dialog,"
    "button, input, select, textarea, [hidden], [aria-hidden=true], [role=navigation],"
    "[role=banner], [role=search], [role=contentinfo]"
)
_HEADING_LINK = re.compile(r"[¶#§🔗\s]*")
_LANGUAGE = re.compile(r"^(?:language|lang|highlight|brush)-([\w+#.]+)$")


def _html(data: bytes) -> Converted:
    soup = _parsed(_decoded(data))
    for element in soup.select(_DROPPED):
        if not element.decomposed:
            element.decompose()
    for link in soup.select('a[href^="#"]'):
        if _HEADING_LINK.fullmatch(link.get_text()) and not link.find("img"):
            link.decompose()
    name = soup.title.get_text() if soup.title else ""
    root = soup.select_one("main, [role=main]") or soup.body or soup

    def locator(element: Any) -> str | None:
        anchor = element.get("id") or (element.name == "a" and element.get("name"))
        return f"#{anchor}" if anchor and not re.search(r"\s", anchor) else None

    return _markdown(root, locator, " ".join(name.split()) or None)


def _docx(data: bytes) -> Converted:
    import mammoth

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = [part for part in archive.infolist() if part.filename.endswith(".xml")]
    except zipfile.BadZipFile as error:
        raise Unreadable("a broken DOCX") from error
    if any(part.flag_bits & 1 for part in parts):
        raise Unreadable("an encrypted DOCX: it opens with a password only")
    size = sum(part.file_size for part in parts)
    if size > MAX_XML:
        raise Unreadable(f"a DOCX that unpacks to {size / 1e6:.0f} MB of XML, too much to read")
    try:
        result = mammoth.convert_to_html(
            io.BytesIO(data),
            style_map="p[style-name='Title'] => h1:fresh",
            convert_image=mammoth.images.img_element(lambda _image: {}),
        )
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Unreadable(f"a broken DOCX: {error}") from error
    soup = _parsed(result.value)
    number = 0

    def locator(element: Any) -> str | None:
        nonlocal number
        paragraph = re.fullmatch("p|h[1-6]", element.name) or (
            element.name == "li" and not element.find("p", recursive=False)
        )
        number += bool(paragraph)
        return f"paragraph {number}" if paragraph else None

    return _markdown(soup.body or soup, locator, None)


def _parsed(html: str) -> Any:
    """The tree of a page, clean of what ``_clean`` drops, however it was written: &shy; too."""
    from bs4 import BeautifulSoup, NavigableString, Tag

    soup = BeautifulSoup(_clean(html), "lxml")
    for node in list(soup.descendants):
        if isinstance(node, Tag):
            for name, value in node.attrs.items():
                clean = _clean(value) if isinstance(value, str) else [_clean(v) for v in value]
                node.attrs[name] = clean
        elif type(node) is NavigableString and (words := _clean(node)) != node:
            node.replace_with(NavigableString(words))
    return soup


def _decoded(data: bytes) -> str:
    """HTML as text: by its byte order mark, else by what it declares, else as UTF-8."""
    from bs4.dammit import EncodingDetector

    declared = None
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            data, declared = data[len(bom) :], encoding
            break
    else:
        declared = EncodingDetector.find_declared_encoding(data[:4096], is_html=True)
    name = (declared or "utf-8").lower()
    # As browsers do: an encoding with another that has more characters stands for that one, and
    # what could be read as ASCII is not UTF-16.
    name = {
        "iso-8859-1": "cp1252", "latin-1": "cp1252", "latin1": "cp1252", "ascii": "cp1252",
        "us-ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
        "euc-kr": "cp949", "iso-8859-9": "cp1254", "utf-16": "utf-8",
    }.get(name, name)  # fmt: skip
    try:
        return data.decode(name)
    except LookupError as error:
        raise Unreadable(f"it declares the unknown charset {declared!r}") from error
    except ValueError as error:
        what = f"it declares the charset {declared}" if declared else "it declares no charset"
        raise Unreadable(f"{what} and is not {name} (byte {getattr(error, 'start', 0)})") from error


def _markdown(root: Any, locator: Callable[[Any], str | None], title: str | None) -> Converted:
    """The Markdown of an element. Locators go into the tree as marks in the text that follows."""
    from bs4 import NavigableString, Tag
    from markdownify import MarkdownConverter

    for image in root.select("img"):
        alt = image.get("alt")
        image.replace_with(alt if isinstance(alt, str) else "")
    locators: list[str] = []
    pending = locator(root) if isinstance(root, Tag) and root.name != "[document]" else None
    for node in list(root.descendants):
        if isinstance(node, Tag):
            pending = locator(node) or pending
        elif type(node) is NavigableString and pending and node.strip():
            blank = len(node) - len(node.lstrip())
            mark = f"{_OPEN}{len(locators)}{_CLOSE}"
            node.replace_with(NavigableString(node[:blank] + mark + node[blank:]))
            locators.append(pending)
            pending = None
    heading = root.find("h1")
    if heading and (words := " ".join(_MARK.sub("", heading.get_text()).split())):
        title = words
    marked = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        escape_asterisks=False,
        escape_underscores=False,
        table_infer_header=True,
        code_language_callback=_language,
    ).convert_soup(root)
    marked = re.sub(r"[ \t]+$", "", marked.strip(), flags=re.MULTILINE)
    pieces: list[str] = []
    marks: list[Mark] = []
    length = done = 0
    for match in _MARK.finditer(marked):
        pieces.append(marked[done : match.start()])
        length += len(pieces[-1])
        done = match.end()
        marks.append((length, locators[int(match[1])]))
    text = "".join([*pieces, marked[done:]])
    if not text.strip():
        raise Unreadable("no text in it")
    return Converted(text, title, _at_line_starts(text, marks))


def _at_line_starts(text: str, marks: list[Mark]) -> tuple[Mark, ...]:
    """The marks, each moved before the Markdown signs that its line begins with."""
    moved: dict[int, str] = {}
    for offset, locator in marks:
        start = text.rfind("\n", 0, offset) + 1
        moved[start if _BEFORE_TEXT.fullmatch(text, start, offset) else offset] = locator
    return tuple(sorted(moved.items()))


def _language(element: Any) -> str:
    """The language that the classes of a code block name."""
    code = element.find("code")
    for tag in (element, code):
        for name in (tag.get("class") or ()) if tag else ():
            if match := _LANGUAGE.match(name):
                return match[1]
    return ""


def _clean(text: str, keep: str = "") -> str:
    """The text without control characters, soft hyphens, surrogates and what is no character."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    dropped = r"[\0-\x08\x0b\x0e-\x1f\x7f\xad\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
    return re.sub(dropped, lambda match: match[0] if match[0] in keep else "", text)


# --- The process --------------------------------------------------------------------------------


def _main() -> None:
    """Reads a file from stdin, writes what is in it, or why nothing is, to stdout as JSON.

    What a converter prints, from Python or from C, goes to stderr instead.
    """
    stdout = os.dup(1)
    os.dup2(2, 1)
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, hard))
    kind = sys.argv[1]
    answer: dict[str, Any]
    try:
        done = {"PDF": _pdf, "HTML": _html, "DOCX": _docx}[kind](sys.stdin.buffer.read())
        answer = {"text": done.text, "title": done.title, "marks": done.marks}
    except Unreadable as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"its conversion needs more than {MAX_MEMORY // 1024**3} GB of memory"}
    except RecursionError:
        answer = {"error": f"the {kind} is nested too deeply"}
    except Exception as error:
        answer = {"error": f"a broken {kind}: {type(error).__name__}: {error}"}
    with open(stdout, "wb") as out:
        out.write(json.dumps(answer).encode())


if __name__ == "__main__":
    _main()
