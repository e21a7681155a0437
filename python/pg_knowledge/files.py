"""Documents from a folder of files: Markdown, plain text, HTML, DOCX and PDF."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .chunking import Chunk, chunk_text, locate
from .convert import CONVERTERS, MAX_SECONDS, Mark, Unreadable, convert, what_is
from .errors import InvalidArgument

__all__ = [
    "DEFAULT_MAX_BYTES",
    "ENDINGS",
    "Document",
    "convert_file",
    "find_documents",
    "read_document",
    "read_file",
    "version_of",
]

DEFAULT_MAX_BYTES = 50_000_000
# Part of every source_version: another number when the same file would give other chunks.
CONVERSION = 1
# What a file must be, by its ending.
_KINDS = {
    ".md": "Markdown",
    ".markdown": "Markdown",
    ".txt": "plain text",
    ".html": "HTML",
    ".htm": "HTML",
    ".docx": "DOCX",
    ".pdf": "PDF",
}
ENDINGS = ", ".join(_KINDS)
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


@dataclass(frozen=True, slots=True)
class Document:
    """A file that has been read.

    title: its first heading, or what it says its title is, or its name without the ending.
    format: of the text; PDF becomes plain text, HTML and DOCX become Markdown.
    marks: (offset in text, locator), ascending: what stands from there on is of 'page 3' of a
        PDF, at '#install' of an HTML page (the nearest id before it), of 'paragraph 12' of a
        DOCX (those with text, from 1; each cell of a table counts). Other files have none.
    """

    path: Path
    title: str
    text: str
    format: Literal["markdown", "text"]
    marks: tuple[Mark, ...] = ()

    def chunks(self) -> list[Chunk]:
        """The text in chunks with their locators."""
        return locate(chunk_text(self.text, format=self.format), self.marks)


def find_documents(path: Path) -> Iterator[Path]:
    """The files at or below path with one of ENDINGS, in order; hidden folders are left out.

    Raises InvalidArgument when path does not exist or is a file of another kind.
    """
    if path.is_file():
        if path.suffix.lower() not in _KINDS:
            raise InvalidArgument(f"{path}: only {ENDINGS} files are read")
        yield path
    elif path.is_dir():
        for found in sorted(path.iterdir()):
            if found.name.startswith(".") or found.name in _SKIPPED or found.is_symlink():
                continue
            if found.is_dir():
                yield from find_documents(found)
            elif found.suffix.lower() in _KINDS and found.is_file():
                yield found
    else:
        raise InvalidArgument(f"{path}: no such file or folder")


def read_document(path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> Document:
    """Reads a file. InvalidArgument says why it has no text to give: empty, broken, encrypted,
    too large, something else than its ending says, or the extra ``files`` is not installed."""
    return convert_file(path, read_file(path, max_bytes))


def read_file(path: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """The bytes of a file. InvalidArgument when it cannot be read or has more than max_bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
            size = max(path.stat().st_size, len(data))
    except OSError as error:
        raise InvalidArgument(error.strerror or str(error)) from error
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
    if len(data) > max_bytes:
        raise InvalidArgument(
            f"too large: {size / 1e6:.1f} MB, the limit is {max_bytes / 1e6:g} MB"
        )
    return data


def version_of(data: bytes, fingerprint: str = "") -> str:
    """A source_version: it stays while the bytes, their conversion and the embedder do."""
    digest = hashlib.sha256(f"{CONVERSION}\n{fingerprint}\n".encode())
    digest.update(data)
    return f"sha256:{digest.hexdigest()[:32]}"


def convert_file(path: Path, data: bytes, *, max_seconds: float = MAX_SECONDS) -> Document:
    """The document in the bytes of a file; path gives its ending and its name. InvalidArgument as
    of ``read_document``, and when a converter takes more than max_seconds."""
    kind = _KINDS.get(path.suffix.lower(), "plain text")
    if not data.strip():
        raise InvalidArgument("the file is empty")
    _check_kind(kind, data)
    if kind not in CONVERTERS:
        return _text_document(path, data, "markdown" if kind == "Markdown" else "text")
    if not all(find_spec(module) for module in CONVERTERS[kind]):
        raise InvalidArgument(f"reading {kind} needs: pip install 'pg-knowledge[files]'")
    try:
        done = convert(kind, data, max_seconds)
    except Unreadable as error:
        raise InvalidArgument(str(error)) from error
    format: Literal["markdown", "text"] = "text" if kind == "PDF" else "markdown"
    return Document(path, done.title or path.stem, done.text, format, done.marks)


def _check_kind(kind: str, data: bytes) -> None:
    """InvalidArgument when the bytes are not what the ending says."""
    found = what_is(data)
    expected = kind if kind in CONVERTERS else "text"
    if found == expected:
        return
    if expected == "HTML" and found == "text":
        if not data.isascii() or re.search(rb"<[A-Za-z!/?]", data):
            return  # a part of a page; text in other encodings is for the converter to judge
        found = "plain text"
    if expected == "PDF" and b"%PDF-" in data[:1024]:
        return
    if expected == "text" and found == "binary data":
        raise InvalidArgument("not text: it has NUL characters")
    if found.startswith("an encrypted"):
        raise InvalidArgument(f"{found}: it opens with a password only")
    if expected == "DOCX" and found.startswith("a broken"):
        raise InvalidArgument("a broken DOCX")
    found = {"text": "plain text"}.get(found, found)
    raise InvalidArgument(f"its ending says {kind}, but it is {found}")


def _text_document(path: Path, data: bytes, format: Literal["markdown", "text"]) -> Document:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise InvalidArgument("not text: it has NUL characters")
    if not text.strip():
        raise InvalidArgument("the file is empty")
    heading = (
        re.search(r"^#\s+(.+?)\s*#*\s*$", text, re.MULTILINE) if format == "markdown" else None
    )
    return Document(path, heading[1] if heading else path.stem, text, format)
