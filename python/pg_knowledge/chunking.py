"""Split a text into chunks that stay the same when another part of the text is edited.

A chunk is a slice of the text, never a copy with changes: `body == text[char_start:char_end]`.
A heading opens a chunk. Inside a section the cuts are chosen by the content around them, not by
counting from the top, so that an edit moves only the cuts near it.

How the cuts are chosen. A section is a list of atoms (paragraphs, lists, tables, code blocks; the
sentences or lines of those that do not fit). Every boundary between two atoms has a key: its class
(paragraph, sentence, word, anywhere) and a checksum of the atom after it. A boundary whose key is
the lowest within `min_chars` on both sides is an anchor, and is always cut; whether it is one
depends on its surroundings only. Between two anchors, what is longer than `max_chars` is cut at
the lowest key in reach.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple
from unicodedata import category, combining
from zlib import crc32

__all__ = ["Chunk", "Section", "Splitter", "chunk_text", "iter_chunks", "locate"]

DEFAULT_MAX_CHARS = 1000
TITLE_CHARS = 120
TRAIL_CHARS = 300
TRAIL_SEPARATOR = " > "
FLAGS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
VIRAMA = 9  # the combining class of a sign that joins two letters


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a text.

    ordinal: position in the text: 0, 1, 2 … without gaps.
    heading: the headings above it and its own, outermost first: 'Guide > Install > Linux';
        '' when there is none.
    body: exactly text[char_start:char_end].
    char_start, char_end: offsets in code points of the text that was given.
    tokens: estimate of the tokens of the body, from its length alone (UTF-8 bytes / 4).
    locator: where it stood in the file that the text was made of: 'page 3', '#install'; see
        ``locate``.
    """

    ordinal: int
    heading: str
    body: str
    char_start: int
    char_end: int
    tokens: int
    locator: str | None = None


def chunk_text(
    text: str,
    *,
    format: Literal["markdown", "text"] = "markdown",
    max_chars: int = DEFAULT_MAX_CHARS,
    min_chars: int | None = None,
) -> list[Chunk]:
    """Split `text` into chunks of at most `max_chars` code points.

    text: any text, in any script, with any line ends; it is not normalised.
    format: 'markdown' knows headings, code blocks, lists, tables and front matter; 'text' knows
        paragraphs only.
    max_chars: the longest body, in code points, at least 1.
    min_chars: how long a chunk should be at least, where no heading and no large block forces a
        shorter one; at most half of max_chars, and two fifths of it when not given.

    Returns the chunks in the order of the text. Their ranges do not overlap, none is blank, and
    every character that is not white space is in exactly one of them. A blank text has none.
    Raises ValueError for another format or sizes out of range.
    """
    return list(iter_chunks(text, format=format, max_chars=max_chars, min_chars=min_chars))


def iter_chunks(
    text: str,
    *,
    format: Literal["markdown", "text"] = "markdown",
    max_chars: int = DEFAULT_MAX_CHARS,
    min_chars: int | None = None,
) -> Iterator[Chunk]:
    """The same one by one, for a text whose chunks are too many to hold at once."""
    splitter = Splitter(text, format=format, max_chars=max_chars, min_chars=min_chars)
    ordinal = 0
    for section in splitter.sections():
        for start, end in splitter.ranges(section):
            yield splitter.chunk(section, ordinal, start, end)
            ordinal += 1


class Section(NamedTuple):
    """A stretch of a text under one heading. Its chunks depend on nothing outside it.

    start, end: its range; body: where its heading lines end, start when there is none.
    opaque: the ranges in it that are code, HTML or front matter. trail: heading of its chunks.
    """

    start: int
    body: int
    end: int
    opaque: Sequence[tuple[int, int]]
    trail: str


class Splitter:
    """Splits one text: ``iter_chunks`` in two steps, for a caller that needs not all the chunks.

    Arguments and errors as of ``chunk_text``.
    """

    def __init__(
        self,
        text: str,
        *,
        format: Literal["markdown", "text"] = "markdown",
        max_chars: int = DEFAULT_MAX_CHARS,
        min_chars: int | None = None,
    ) -> None:
        if format not in ("markdown", "text"):
            raise ValueError(f"format must be 'markdown' or 'text', not {format!r}")
        if max_chars < 1:
            raise ValueError(f"max_chars must be at least 1, not {max_chars}")
        if min_chars is None:
            min_chars = max_chars * 2 // 5
        if not 0 <= min_chars <= max_chars // 2:
            raise ValueError(
                f"min_chars must be from 0 to half of max_chars ({max_chars // 2}), not {min_chars}"
            )
        self._text = text
        self._scan = _with_plain_line_ends(text)
        self._markdown = format == "markdown"
        self._max_chars = max_chars
        self._min_chars = min_chars

    def sections(self) -> Iterator[Section]:
        """The sections in order; one without text has no chunks."""
        if self._markdown:
            return _markdown_sections(self._scan, self._max_chars // 2)
        return iter([Section(0, 0, len(self._scan), (), "")])

    def ranges(self, section: Section) -> Iterator[tuple[int, int]]:
        """char_start and char_end of the chunks of a section."""
        atoms = _atoms(self._scan, section, self._max_chars, self._min_chars, self._markdown)
        return _pack(atoms, self._max_chars, self._min_chars)

    def chunk(self, section: Section, ordinal: int, start: int, end: int) -> Chunk:
        """The chunk of a section that has this range."""
        body = self._text[start:end]
        tokens = (len(body.encode("utf-8", "surrogatepass")) + 3) // 4
        return Chunk(ordinal, section.trail, body, start, end, tokens)


def locate(chunks: Iterable[Chunk], marks: Sequence[tuple[int, str]]) -> list[Chunk]:
    """The chunks, each with the locator of its range.

    marks: (offset, locator), ascending; a locator holds from its offset to the next mark. Numbered
    ones become a range, 'pages 3-4'; of others a chunk gets the one that its first character has,
    or else the first in it. Without marks the chunks stay as they are.
    """
    offsets = [offset for offset, _ in marks]
    located = []
    for chunk in chunks:
        first = max(bisect_right(offsets, chunk.char_start) - 1, 0)
        last = bisect_left(offsets, chunk.char_end)
        covered = [locator for _, locator in marks[first:last]]
        locator = _range_of(covered[0], covered[-1]) if covered else chunk.locator
        located.append(replace(chunk, locator=locator))
    return located


def _range_of(first: str, last: str) -> str:
    (kind, start), (other, end) = _numbered(first), _numbered(last)
    return f"{kind}s {start}-{end}" if kind and kind == other and start != end else first


def _numbered(locator: str) -> tuple[str, str]:
    kind, _, number = locator.partition(" ")
    return (kind, number) if number.isdecimal() else ("", "")


def _with_plain_line_ends(text: str) -> str:
    """A copy of the same length, so that offsets agree, in which every line ends with a \\n."""
    if "\r" in text:
        text = text.replace("\r\n", " \n").replace("\r", "\n")
    return text.replace("\f", "\n").replace("\u2028", "\n").replace("\u2029", "\n")


# --- Structure: sections and their blocks -------------------------------------------------------


class _Block(NamedTuple):
    start: int
    end: int
    opaque: bool  # code, HTML or front matter: made of lines, and not searched


_EVENT = re.compile(
    r"^\ufeff?(?:"
    r" {0,3}(?P<hashes>\#{1,6})(?:[ \t]+(?P<title>[^\n]*))?$"
    r"|[ \t]*(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})[^\n]*$"
    r"| {0,3}(?P<rule>=+|--+)[ \t]*$"
    r"| {0,3}<(?:(?P<comment>!--)|(?P<tag>pre|script|style|textarea)\b)"
    r")",
    re.MULTILINE | re.IGNORECASE,
)
_CANDIDATE = re.compile(r"\n\ufeff?[ \t]*[#`~=<-]")
_FRONT_MATTER = re.compile(
    r"\A\ufeff?(---|\+\+\+)[ \t]*\n(?=[ \t]*(?:\#|\[|[^\s:=][^:=\n]*[:=]))"
    r"(?:[^\n]*\n)*?(?:\1|\.\.\.)[ \t]*(?:\n|\Z)"
)
_LINE_END = re.compile(r"\n|\Z")
_GAP = re.compile(r"\n\s*\n")
_BLANK_LINES = re.compile(r"\s*\n")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+•‣–]|\(?(?:\d{1,9}|[A-Za-z])[.)])[ \t]")
_INDENTED = re.compile(r"[ \t]{2}|\t")
_NOT_SETEXT = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]| {0,3}[>|]| {4}|\t")


def _markdown_sections(scan: str, carry_chars: int) -> Iterator[Section]:
    """The sections, in order. An empty one is joined to the deeper one that follows it, while its
    heading lines are not longer than `carry_chars`."""
    matter = _FRONT_MATTER.match(scan)
    first = matter.end() if matter else 0
    if matter:
        yield Section(0, 0, first, [(0, first)], "")

    headings: list[tuple[int, int, int, str]] = []  # start, end of the line, level, title
    opaque: list[tuple[int, int]] = []
    unclosed: dict[str, int] = {}  # closing marks that occur no more, to search for them once
    pos = barrier = first
    while match := _next_event(scan, pos):
        start, end = match.span()
        if match["hashes"]:
            headings.append((start, end, len(match["hashes"]), match["title"] or ""))
            barrier = end
        elif rule := match["rule"]:
            title_start = _setext_start(scan, start, barrier)
            if title_start is not None:
                title = scan[title_start:start]
                headings.append((title_start, end, 1 if rule[0] == "=" else 2, title))
            barrier = end
        else:
            close = _close_of(scan, match, unclosed)
            if close is not None:
                opaque.append((start, close))
                barrier = end = close
        # At least one character further: an event never starts where another ended.
        pos = max(end, start + 1)

    starts = [heading[0] for heading in headings] + [len(scan)]
    cursor = 0

    def inside(start: int, end: int) -> list[tuple[int, int]]:
        nonlocal cursor
        first_inside = cursor
        while cursor < len(opaque) and opaque[cursor][0] < end:
            cursor += 1
        return opaque[first_inside:cursor]

    yield Section(first, first, starts[0], inside(first, starts[0]), "")
    path: list[tuple[int, str]] = []
    carried: int | None = None
    for number, (start, line_end, level, title) in enumerate(headings):
        end = starts[number + 1]
        while path and path[-1][0] >= level:
            path.pop()
        path.append((level, _plain_title(title)))
        opening = start if carried is None else carried
        empty = scan[line_end:end].isspace()
        deeper = number + 1 < len(headings) and headings[number + 1][2] > level
        if empty and deeper and line_end - opening <= carry_chars:
            carried = opening
            continue
        carried = None
        yield Section(opening, line_end, end, inside(line_end, end), _trail(path))


def _next_event(scan: str, pos: int) -> re.Match[str] | None:
    """The first event from pos on, looked for at line starts that can be one: that is quicker."""
    if pos == 0 and (match := _EVENT.match(scan)):
        return match
    line = max(pos - 1, 0)
    while candidate := _CANDIDATE.search(scan, line):
        if match := _EVENT.match(scan, candidate.start() + 1):
            return match
        line = candidate.start() + 1
    return None


def _setext_start(scan: str, rule: int, barrier: int) -> int | None:
    """Where the heading underlined by the rule starts; None when the rule underlines none.

    The heading is the paragraph above it, which must have one to three lines."""
    start = rule
    for _ in range(4):
        if start <= barrier:
            break
        line = max(scan.rfind("\n", barrier, start - 1) + 1, barrier)
        if not scan[line:start].strip():
            break
        start = line
    else:
        return None
    if start == rule or _NOT_SETEXT.match(scan, start):
        return None
    return start


def _close_of(scan: str, match: re.Match[str], unclosed: dict[str, int]) -> int | None:
    """Where the code or HTML block that the match opens ends; None when it opens none."""
    if fence := match["fence"]:
        mark, size = fence[0], len(fence)
        indent = len(scan[match.start() : match.start("fence")].strip("\ufeff").expandtabs(4))
        kind, key = mark, size
        pattern = rf"^[ \t]*{re.escape(mark)}{{{size},}}[ \t]*$"
        to_the_end = indent < 4
    else:
        tag = match["tag"]
        kind, key = (tag or "!--").lower(), 1
        pattern = rf"</{tag}>" if tag else "-->"
        to_the_end = False
    if key < unclosed.get(kind, key + 1):
        close = re.compile(pattern, re.MULTILINE | re.IGNORECASE).search(scan, match.end())
        if close:
            line_end = _LINE_END.search(scan, close.end())
            return line_end.start() if line_end else len(scan)
        unclosed[kind] = key
    return len(scan) if to_the_end else None


_PLAIN = re.compile(r"\w+(?: \w+)*")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,3})(?=[^\s*])([^*]+)(?<=[^\s*])\1(?![\w*])")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_ATTRIBUTES = re.compile(r"\s\{[#.][^{}]*\}$")


def _plain_title(title: str) -> str:
    """The words of a heading, without markdown marks, in at most TITLE_CHARS characters."""
    title = title[: 8 * TITLE_CHARS].strip()
    if len(title) <= TITLE_CHARS and _PLAIN.fullmatch(title):
        return title
    bare = title.rstrip("#")
    if not bare or bare[-1] in " \t":
        title = bare.rstrip()
    title = _ATTRIBUTES.sub("", title)
    title = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", title)).replace("`", "")
    title = " ".join(_ESCAPE.sub(r"\1", title).split())
    return title if len(title) <= TITLE_CHARS else title[: TITLE_CHARS - 1].rstrip() + "…"


def _trail(path: list[tuple[int, str]]) -> str:
    """The trail of the open headings; the outermost give way when it is too long."""
    titles = [title for _, title in path if title]
    trail = TRAIL_SEPARATOR.join(titles)
    while len(trail) > TRAIL_CHARS:
        titles = titles[1:]
        trail = TRAIL_SEPARATOR.join(["…", *titles])
    return trail


def _blocks(scan: str, section: Section, max_chars: int, markdown: bool) -> list[_Block]:
    """The blocks of a section, trimmed, in order; lists with blank lines inside as one block where
    that fits."""
    blocks: list[_Block] = []
    pos = section.body
    for start, end in [*section.opaque, (section.end, section.end)]:
        while pos < start:
            gap = _GAP.search(scan, pos, start)
            _add_block(blocks, scan, pos, gap.start() if gap else start, False)
            pos = gap.end() if gap else start
        _add_block(blocks, scan, start, end, True)
        pos = end
    return _join_lists(scan, blocks, max_chars) if markdown else blocks


def _add_block(blocks: list[_Block], scan: str, start: int, end: int, opaque: bool) -> None:
    blank = _BLANK_LINES.match(scan, start, end)
    if blank:
        start = blank.end()
    end = start + len(scan[start:end].rstrip())
    if start < end:
        blocks.append(_Block(start, end, opaque))


def _join_lists(scan: str, blocks: list[_Block], max_chars: int) -> list[_Block]:
    joined: list[_Block] = []
    number = 0
    while number < len(blocks):
        block = blocks[number]
        after = number + 1
        if not block.opaque and _LIST_ITEM.match(scan, block.start):
            while after < len(blocks) and (
                _INDENTED.match(scan, blocks[after].start)
                or (not blocks[after].opaque and _LIST_ITEM.match(scan, blocks[after].start))
            ):
                after += 1
        if after - number > 1 and blocks[after - 1].end - block.start <= max_chars:
            joined.append(_Block(block.start, blocks[after - 1].end, False))
        else:
            joined.extend(blocks[number:after])
        number = after
    return joined


# --- Atoms: what is never cut, and the keys of the boundaries between them ----------------------

_PARAGRAPH, _SENTENCE, _LINE, _WORD, _ANYWHERE, _NEVER = range(6)


class _Atoms:
    """starts[i], ends[i]: the range of atom i; keys[i]: of the boundary before it, low is good."""

    def __init__(self, scan: str) -> None:
        self.scan = scan
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.keys: list[int] = []

    def add(self, start: int, end: int, kind: int) -> None:
        piece = self.scan[start:end]
        end = start + len(piece.rstrip())
        if start < end:
            self.starts.append(start)
            self.ends.append(end)
            checksum = crc32(piece.strip().encode("utf-8", "surrogatepass"))
            self.keys.append(kind << 32 | checksum)


_RUNNING_LINE = re.compile(r"\n[ \t>]*[a-z]")
_NOT_PROSE = re.compile(r"[ \t]*(?:[-*+•|]|\d{1,9}[.)][ \t])")
_SENTENCES = re.compile(
    r"(?:(?<!\b[A-Z])(?<!\b[DM]r)(?<!\bMrs)(?<!\bFig)(?<!\bvs)(?<!\bNo)\.|[!?…؟۔।])"
    r"[\"'”’»)\]*_]*\s+(?=[^a-z\s])"
    r"|[。！？；｡][”’」』）】]*\s*"
)
_WORDS = re.compile(r"\s+")


def _atoms(scan: str, section: Section, max_chars: int, min_chars: int, markdown: bool) -> _Atoms:
    """The atoms of a section, each at most `max_chars` long. The heading lines belong to the first
    block where both fit together; elsewhere the boundary between them is the last to be cut."""
    atoms = _Atoms(scan)
    limit = max_chars - min_chars  # so that some boundary is always in reach, see _pack
    blocks = _blocks(scan, section, max_chars, markdown)
    if section.start < section.body:
        if blocks and blocks[0].end - section.start <= max_chars:
            atoms.add(section.start, blocks[0].end, _PARAGRAPH)
        else:
            _add_split(atoms, section.start, section.body, _SENTENCES, _PARAGRAPH, limit)
            if blocks:
                at = len(atoms.starts)
                _add_oversize(atoms, blocks[0], limit)
                atoms.keys[at] = _NEVER << 32
        blocks = blocks[1:]
    for block in blocks:
        if block.end - block.start <= max_chars:
            atoms.add(block.start, block.end, _PARAGRAPH)
        else:
            _add_oversize(atoms, block, limit)
    return atoms


def _add_oversize(atoms: _Atoms, block: _Block, limit: int) -> None:
    """Add the lines or the sentences of a block. Lines that run on in lower case are prose."""
    scan, start, end, opaque = atoms.scan, *block
    breaks = scan.count("\n", start, end)
    lines = opaque or bool(_NOT_PROSE.match(scan, start))
    if not lines and breaks:
        running = sum(1 for _ in _RUNNING_LINE.finditer(scan, start, end))
        lines = running * 2 <= breaks
    if not lines or not breaks:
        _add_split(atoms, start, end, _SENTENCES, _PARAGRAPH, limit)
        return
    kind = _PARAGRAPH
    pos = start
    while pos < end:
        line_end = scan.find("\n", pos, end)
        stop = end if line_end < 0 else line_end + 1
        if stop - pos <= limit:
            atoms.add(pos, stop, kind)
        else:
            _add_split(atoms, pos, stop, _SENTENCES, kind, limit)
        item = scan[pos:stop].isspace() or _LIST_ITEM.match(scan, stop, end)
        kind = _SENTENCE if item else _LINE
        pos = stop


def _add_split(
    atoms: _Atoms, start: int, end: int, boundary: re.Pattern[str], kind: int, limit: int
) -> None:
    """Add a range in pieces that end where `boundary` matches, cut at words where those are longer
    than `limit`; the boundary before the range is of the given kind."""
    pos = start
    for match in boundary.finditer(atoms.scan, start, end):
        _add_words(atoms, pos, match.end(), kind, limit)
        pos, kind = match.end(), _SENTENCE
    _add_words(atoms, pos, end, kind, limit)


def _add_words(atoms: _Atoms, start: int, end: int, kind: int, limit: int) -> None:
    scan = atoms.scan
    while end - start > limit:
        if scan[start].isspace():
            word = _WORDS.match(scan, start, end)
            if word and word.end() - start > limit // 2:
                start = word.end()
                continue
        cut, cut_kind = _cut_in_words(scan, start, limit)
        atoms.add(start, cut, kind)
        start, kind = cut, cut_kind
    atoms.add(start, end, kind)


def _cut_in_words(scan: str, start: int, limit: int) -> tuple[int, int]:
    """A cut in the second half of the `limit` characters from `start`, and its kind: before the
    word that is the last in the order of the alphabet, so that it is found from any start."""
    low, high = start + max(1, limit // 2), start + limit
    words = [match.end() for match in _WORDS.finditer(scan, low - 1, high)]
    if words:
        return max(words, key=lambda at: scan[at : at + 24]), _WORD
    window = scan[low : high + 1]
    for char in sorted(set(window), reverse=True):
        if _extends(char):
            continue
        spots: list[int] = []
        at = window.rfind(char)
        while at >= 0 and len(spots) < 64:
            if not _joined(scan, start, low + at):
                spots.append(low + at)
            at = window.rfind(char, 0, at)
        if spots:
            return max(spots, key=lambda at: scan[at : at + 24]), _ANYWHERE
    return high, _ANYWHERE


def _extends(char: str) -> bool:
    """Whether the character continues the grapheme before it."""
    return (
        char in "\u200d\u200c"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or "\u1160" <= char <= "\u11ff"
        or "\udc00" <= char <= "\udfff"
        or category(char) in ("Mn", "Me", "Mc")
    )


def _joined(scan: str, start: int, at: int) -> bool:
    """Whether a cut before `at` would divide an emoji sequence, a flag or a conjunct."""
    before = scan[at - 1]
    if before == "\u200d" or combining(before) == VIRAMA:
        return True
    if before not in FLAGS or scan[at] not in FLAGS:
        return False
    run = scan[start:at]
    return (len(run) - len(run.rstrip(FLAGS))) % 2 == 1


# --- Packing ------------------------------------------------------------------------------------


def _pack(atoms: _Atoms, max_chars: int, min_chars: int) -> Iterator[tuple[int, int]]:
    """The ranges of the chunks of one section."""
    starts, ends, keys = atoms.starts, atoms.ends, atoms.keys
    if not starts:
        return
    if ends[-1] - starts[0] <= max_chars:
        yield starts[0], ends[-1]
        return
    begin = 0
    for stop in [*_anchors(atoms, min_chars), len(starts)]:
        while ends[stop - 1] - starts[begin] > max_chars:
            # A chunk may end before atom `cut`, from `least` on; the last one in reach is `most`.
            start = starts[begin]
            most = bisect_right(ends, start + max_chars, begin, stop)
            least = bisect_left(ends, start + min_chars, begin, most) + 1
            leave = bisect_right(starts, ends[stop - 1] - min_chars, begin, stop)
            reach = range(max(least, begin + 1), min(most + 1, max(leave, least + 1)))
            cut = min(reversed(reach), key=keys.__getitem__) if reach else most
            yield start, ends[cut - 1]
            begin = cut
        yield starts[begin], ends[stop - 1]
        begin = stop


def _anchors(atoms: _Atoms, radius: int) -> list[int]:
    """The boundaries whose key is lower than every other within `radius` characters; none that
    near to an end of the section."""
    starts, keys = atoms.starts, atoms.keys
    first, last = starts[0] + radius, atoms.ends[-1] - radius
    following = [last + 2 * radius + 1] * len(starts)  # start of the next key as low or lower
    preceding = [first - 2 * radius - 1] * len(starts)
    rising: list[int] = []
    for i, key in enumerate(keys):
        while rising and keys[rising[-1]] > key:
            following[rising.pop()] = starts[i]
        if rising:
            preceding[i] = starts[rising[-1]]
            if keys[rising[-1]] == key:
                following[rising.pop()] = starts[i]
        rising.append(i)
    return [
        i
        for i in range(1, len(starts))
        if first <= starts[i] <= last
        and keys[i] < _NEVER << 32
        and starts[i] - preceding[i] > radius
        and following[i] - starts[i] > radius
    ]
