"""What the driver keeps of a document that it ingests: digests, and where each chunk is."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from typing import Literal, overload

from .chunking import Chunk, iter_chunks
from .errors import InvalidArgument

__all__ = ["Digests", "Parts", "embedded_text"]


class Parts(Sequence[Chunk]):
    """The chunks of a text by their ranges; each is cut out of the text again when it is asked for.

    So a document of 100,000 chunks costs a few bytes a chunk beside its text.
    """

    def __init__(
        self, text: str, format: Literal["markdown", "text"], see: Callable[[Chunk], None]
    ) -> None:
        """see: called with each chunk once, in order."""
        self._text = text
        self._numbers = array("q")  # char_start, char_end, tokens, number of the heading
        self._headings: list[str] = []
        for chunk in iter_chunks(text, format=format):
            see(chunk)
            if not self._headings or self._headings[-1] != chunk.heading:
                self._headings.append(chunk.heading)
            self._numbers.extend(
                (chunk.char_start, chunk.char_end, chunk.tokens, len(self._headings) - 1)
            )

    def __len__(self) -> int:
        return len(self._numbers) // 4

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, end, tokens, heading = self._numbers[4 * index : 4 * index + 4]
        return Chunk(index, self._headings[heading], self._text[start:end], start, end, tokens)


class Digests:
    """Of each chunk the sha256 that ``stage_unchanged`` compares, and one of all of them.

    ``add`` takes the chunks in order; InvalidArgument for text that PostgreSQL cannot take: with
    NUL or a lone surrogate.
    """

    def __init__(self) -> None:
        self._hashes = bytearray()
        self._whole = hashlib.sha256()

    def add(self, chunk: Chunk) -> None:
        digest = _text_hash(chunk.heading, chunk.body)
        self._hashes += digest
        where = f"{chunk.char_start}:{chunk.char_end}:{chunk.locator or ''}:"
        self._whole.update(where.encode() + digest)

    @property
    def whole(self) -> str:
        return self._whole.hexdigest()

    def __getitem__(self, ordinal: int) -> bytes:
        return bytes(self._hashes[32 * ordinal : 32 * ordinal + 32])


def _text_hash(heading: str, body: str) -> bytes:
    if "\0" in heading or "\0" in body:
        raise InvalidArgument("text must not have NUL characters")
    try:
        head = heading.encode()
        return hashlib.sha256(b"%d:%b%b" % (len(head), head, body.encode())).digest()
    except UnicodeEncodeError as error:
        raise InvalidArgument("text must not have lone surrogates") from error


def embedded_text(heading: str, body: str) -> str:
    """What an embedder is given for a chunk: the heading trail, then the body."""
    return f"{heading}\n{body}" if heading else body
