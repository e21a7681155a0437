"""Documents from a folder of Markdown and plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .errors import InvalidArgument

__all__ = ["Document", "find_documents", "read_document"]

_FORMATS: dict[str, Literal["markdown", "text"]] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
}
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


@dataclass(frozen=True, slots=True)
class Document:
    """A file that has been read. title: its first heading, or its name without the ending."""

    path: Path
    title: str
    text: str
    format: Literal["markdown", "text"]


def find_documents(path: Path) -> Iterator[Path]:
    """The .md, .markdown and .txt files at or below path, in order; hidden folders are left out.

    Raises InvalidArgument when path does not exist or is a file of another kind.
    """
    if path.is_file():
        if path.suffix.lower() not in _FORMATS:
            raise InvalidArgument(f"{path}: only .md, .markdown and .txt files are read")
        yield path
    elif path.is_dir():
        for found in sorted(path.iterdir()):
            if found.name.startswith(".") or found.name in _SKIPPED or found.is_symlink():
                continue
            if found.is_dir():
                yield from find_documents(found)
            elif found.suffix.lower() in _FORMATS:
                yield found
    else:
        raise InvalidArgument(f"{path}: no such file or folder")


def read_document(path: Path) -> Document:
    """Reads a UTF-8 file. InvalidArgument when it is not text or has none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InvalidArgument(error.strerror or str(error)) from error
    if "\0" in text:
        raise InvalidArgument("not text: it has NUL characters")
    if not text.strip():
        raise InvalidArgument("the file is empty")
    format = _FORMATS.get(path.suffix.lower(), "text")
    heading = (
        re.search(r"^#\s+(.+?)\s*#*\s*$", text, re.MULTILINE) if format == "markdown" else None
    )
    return Document(path, heading[1] if heading else path.stem, text, format)
