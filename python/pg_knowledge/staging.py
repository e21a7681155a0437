"""What the driver keeps of a document that it ingests, and how it finds what has not changed.

The outline of a document is a list of stretches: of each a digest, how many chunks it has and
where it starts. A stretch is a section of the text, or, where sections are long or the chunks are
the caller's own, a single chunk. It goes to the database with the document and comes back when the
next edition is begun: a section whose digest is in it is neither split nor sent.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, overload

from .chunking import DEFAULT_MAX_CHARS, Chunk, Section, Splitter
from .errors import InvalidArgument, encoded_text

__all__ = ["Outline", "Run", "Split", "embedded_text", "outline_of"]

# Longer sections are outlined chunk by chunk, so that an edit costs no more than so much.
_LONG_SECTION = 32 * DEFAULT_MAX_CHARS
# Goes into every digest: another way to split a text must not take the old chunks for its own.
_SPLITTER = "1"


class Run(NamedTuple):
    """So many chunks from ordinal on are those of the live version from live_ordinal on, shift
    characters further back."""

    ordinal: int
    live_ordinal: int
    chunks: int
    shift: int


class Outline:
    """The stretches of a document, in order; see the module."""

    _HEAD = b"pg_knowledge outline 1\n"
    _STRETCH = struct.Struct("<16sII")  # digest, number of chunks, first character

    def __init__(self, data: bytes | None = None) -> None:
        """data: ``data`` of another; of anything else this is an outline without stretches."""
        self._data = bytearray(self._HEAD)
        if data and data.startswith(self._HEAD):
            whole = (len(data) - len(self._HEAD)) // self._STRETCH.size * self._STRETCH.size
            self._data += data[len(self._HEAD) : len(self._HEAD) + whole]

    def add(self, digest: bytes, chunks: int, start: int) -> None:
        """digest: 16 bytes. start: one that no text can have is for the database to refuse."""
        self._data += self._STRETCH.pack(digest, chunks, min(max(start, 0), 2**32 - 1))

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    @property
    def digest(self) -> str:
        """sha256 in hex: documents with the same one have the same chunks."""
        return hashlib.sha256(self._data).hexdigest()

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        return self._STRETCH.iter_unpack(memoryview(self._data)[len(self._HEAD) :])

    def counts(self) -> dict[bytes, int]:
        """How many chunks the stretches have, by digest."""
        return {digest: chunks for digest, chunks, _ in self}

    def unchanged(self, live: Outline) -> list[Run]:
        """What is in the live outline too. A stretch that it has several times pairs first with
        first, but what follows a pair pairs with what follows there."""
        places: dict[bytes, deque[int]] = {}
        old: list[tuple[bytes, int, int, int]] = []  # digest, ordinal, chunks, start
        ordinal = 0
        for place, (digest, chunks, start) in enumerate(live):
            places.setdefault(digest, deque()).append(place)
            old.append((digest, ordinal, chunks, start))
            ordinal += chunks
        used = bytearray(len(old))
        runs: list[Run] = []
        following = ordinal = 0
        for digest, chunks, start in self:
            free = places.get(digest, deque())
            while free and used[free[0]]:
                free.popleft()
            if free:
                follows = following < len(old) and old[following][0] == digest
                place = following if follows and not used[following] else free[0]
                used[place] = 1
                following = place + 1
                _, live_ordinal, live_chunks, live_start = old[place]
                if live_chunks == chunks:
                    _extend(runs, Run(ordinal, live_ordinal, chunks, start - live_start))
            ordinal += chunks
        return runs


def _extend(runs: list[Run], run: Run) -> None:
    """Adds a run, to the last one where it goes on with it."""
    last = runs[-1] if runs else None
    if last and run == (
        last.ordinal + last.chunks,
        last.live_ordinal + last.chunks,
        run.chunks,
        last.shift,
    ):
        runs[-1] = last._replace(chunks=last.chunks + run.chunks)
    else:
        runs.append(run)


class Split(Sequence[Chunk]):
    """The chunks of a text, each cut out of it when it is asked for.

    So a document of 100,000 chunks costs a few bytes a chunk beside its text. InvalidArgument for
    a text that PostgreSQL cannot take: with NUL or a lone surrogate.
    """

    def __init__(
        self, text: str, format: Literal["markdown", "text"], known: Mapping[bytes, int]
    ) -> None:
        """known: numbers of chunks by digest; a section that is in it is not split for now."""
        self._splitter = Splitter(text, format=format)
        self._sections: list[Section] = []
        self._firsts = array("q")  # by section: the ordinal of its first chunk
        self._ranges: list[array[int] | None] = []  # by section: start and end of each chunk
        self._count = 0
        self.outline = Outline()
        for section in self._splitter.sections():
            self._add(text, format, section, known)

    def _add(self, text: str, format: str, section: Section, known: Mapping[bytes, int]) -> None:
        start, body, end, opaque, trail = section
        ranges = None
        if end - start > _LONG_SECTION:
            ranges = self._split(section)
            chunks = len(ranges) // 2
            for n in range(0, len(ranges), 2):
                digest = _digest(trail, text[ranges[n] : ranges[n + 1]])
                self.outline.add(digest, 1, ranges[n])
        else:
            inner = [(first - start, last - start) for first, last in opaque] if opaque else ""
            digest = _digest(f"{format} {body - start} {inner} {trail}", text[start:end])
            chunks = known.get(digest, 0)
            if not chunks:
                ranges = self._split(section)
                chunks = len(ranges) // 2
            if chunks:
                self.outline.add(digest, chunks, start)
        if chunks:
            self._sections.append(section)
            self._firsts.append(self._count)
            self._ranges.append(ranges)
            self._count += chunks

    def _split(self, section: Section) -> array[int]:
        return array("q", [edge for pair in self._splitter.ranges(section) for edge in pair])

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at = bisect_right(self._firsts, index) - 1
        section = self._sections[at]
        ranges = self._ranges[at]
        if ranges is None:
            ranges = self._ranges[at] = self._split(section)
        n = 2 * (index - self._firsts[at])
        return self._splitter.chunk(section, index, ranges[n], ranges[n + 1])


def outline_of(chunks: Sequence[Chunk]) -> Outline:
    """The outline of chunks that the caller made; InvalidArgument when their ordinals are not
    0, 1, 2 …, or for text that PostgreSQL cannot take."""
    outline = Outline()
    for n, chunk in enumerate(chunks):
        if chunk.ordinal != n:
            raise InvalidArgument("chunks must have the ordinals 0, 1, 2 … in order")
        length, locator = chunk.char_end - chunk.char_start, chunk.locator or ""
        head = f"{length} {len(locator)} {locator} {chunk.heading}"
        outline.add(_digest(head, chunk.body), 1, chunk.char_start)
    return outline


def _digest(head: str, text: str) -> bytes:
    return hashlib.sha256(encoded_text(f"{_SPLITTER} {len(head)} {head}{text}")).digest()[:16]


def embedded_text(heading: str, body: str) -> str:
    """What an embedder is given for a chunk: the heading trail, then the body."""
    return f"{heading}\n{body}" if heading else body
