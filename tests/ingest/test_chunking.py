"""Chunks are exact slices, cover the text, fit, and stay the same when another part is edited."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pg_knowledge.chunking import Chunk, chunk_text

WORDS = [
    *("vector", "index", "tenant", "scope", "search", "rank", "chunk", "heading", "paragraph"),
    *("version", "publish", "erase", "audit", "grant", "reader", "writer", "query", "lexeme"),
    *("distance", "neighbour", "recall", "latency", "planner", "cursor", "lease"),
]


def check(text: str, chunks: list[Chunk], max_chars: int) -> None:
    position = 0
    for number, chunk in enumerate(chunks):
        assert chunk.ordinal == number
        assert chunk.body == text[chunk.char_start : chunk.char_end]
        assert chunk.body.strip(), "blank chunk"
        assert len(chunk.body) <= max_chars
        assert chunk.char_start >= position, "overlap"
        assert not text[position : chunk.char_start].strip(), "text left out"
        assert chunk.tokens >= 1
        position = chunk.char_end
    assert not text[position:].strip(), "text left out at the end"


def bodies(text: str, **options: int) -> list[str]:
    return [chunk.body for chunk in chunk_text(text, **options)]


def paragraph(rng: random.Random, sentences: tuple[int, int] = (1, 6)) -> str:
    return " ".join(
        " ".join(rng.choices(WORDS, k=rng.randint(5, 18))).capitalize() + "."
        for _ in range(rng.randint(*sentences))
    )


def document(rng: random.Random, paragraphs: int, headings: bool) -> list[str]:
    parts = []
    for number in range(paragraphs):
        if headings and rng.random() < 0.1:
            parts.append(f"{'#' * rng.randint(1, 4)} Part {number}")
        parts.append(paragraph(rng))
    return parts


# --- Properties ---------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *("#", "##", "###", "#######", "---", "===", "+++", "```", "~~~", "````", "-", "*", "1."),
        *("|", ">", ":", "!", ".", "?", "\\", "[", "]", "(", ")", "<!--", "-->", "<pre>", "</pre>"),
        *("\n", "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\t", " ", "    ", "\u00a0", "\f", "\u2028"),
        *("word", "A sentence. ", "Title", "key: value", "x" * 50, "snake_case", "1,2;3"),
        *(
            "知识库",
            "検索。",
            "한국어",
            "שלום",
            "สวัสดี",
            "e\u0301",
            "👩‍👩‍👧‍👦",
            "🇩🇪🇫🇷",
            "👍🏽",
            "\ufeff",
        ),
        *("\x00", "\ud83d", "\ude00", "\x1f", "\u200b"),
    ]
)
TEXTS = st.one_of(st.text(max_size=400), st.lists(PIECES, max_size=120).map("".join))


@settings(max_examples=600, deadline=None)
@given(TEXTS, st.sampled_from(["markdown", "text"]), st.integers(1, 120), st.data())
@example("\ufeff", "markdown", 5, None)
@example("\ufeff# Title\ntext", "markdown", 50, None)
@example("---\nkey: value\n---", "markdown", 50, None)
def test_slices_cover_the_text_and_fit(text, format, max_chars, data) -> None:
    low = data.draw(st.none() | st.integers(0, max_chars // 2)) if data else None
    chunks = chunk_text(text, format=format, max_chars=max_chars, min_chars=low)
    check(text, chunks, max_chars)
    assert chunks == chunk_text(text, format=format, max_chars=max_chars, min_chars=low)


@pytest.mark.parametrize("text", ["", " ", "\n\n\t\r\n", "\u00a0\u3000"])
def test_a_blank_text_has_no_chunks(text: str) -> None:
    assert chunk_text(text) == []


@pytest.mark.parametrize(
    "options", [{"max_chars": 0}, {"max_chars": 10, "min_chars": 6}, {"min_chars": -1}]
)
def test_sizes_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="_chars must be"):
        chunk_text("text", **options)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format must be"):
        chunk_text("text", format="html")  # type: ignore[arg-type]


# --- Headings -----------------------------------------------------------------------------------


def test_a_heading_opens_a_chunk_that_shows_it() -> None:
    text = (
        "Before.\n\n# Guide\n\nIntro.\n\n## Install ##\n\nRun it.\n\n"
        "### Linux\n\nDeb.\n\n## Use\n\nGo."
    )
    assert [(c.heading, c.body) for c in chunk_text(text)] == [
        ("", "Before."),
        ("Guide", "# Guide\n\nIntro."),
        ("Guide > Install", "## Install ##\n\nRun it."),
        ("Guide > Install > Linux", "### Linux\n\nDeb."),
        ("Guide > Use", "## Use\n\nGo."),
    ]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_setext_headings_under_every_line_end(newline: str) -> None:
    text = newline.join(["Guide", "=====", "", "Intro.", "", "Install", "---", "Run it.", ""])
    assert [(c.heading, c.body) for c in chunk_text(text)] == [
        ("Guide", newline.join(["Guide", "=====", "", "Intro."])),
        ("Guide > Install", newline.join(["Install", "---", "Run it."])),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Text.\n\n---\n\nMore.",
        "- item\n---\nmore",
        "> quote\n---\nmore",
        "| a |\n---\nmore",
        "    code\n---\nmore",
        "one\ntwo\nthree\nfour\n---\nmore",
        "#hashtag\n\n####### seven",
        "    # indented code",
        "- # in a list",
    ],
)
def test_what_only_looks_like_a_heading(text: str) -> None:
    assert [c.heading for c in chunk_text(text)] == [""]


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# **Bold** and *thin*", "Bold and thin"),
        ("# `code_name` of [a link](http://x.y/z)", "code_name of a link"),
        ("# snake_case and 2*3*4", "snake_case and 2*3*4"),
        ("# C#", "C#"),
        ("# Title {#anchor}", "Title"),
        ("#   wide \t title  ##  ", "wide title"),
        ("# 1 \\# 2", "1 # 2"),
        ("#", ""),
    ],
)
def test_the_trail_has_no_markdown_marks(line: str, title: str) -> None:
    assert [c.heading for c in chunk_text(f"{line}\n\ntext")] == [title]


def test_a_long_trail_is_capped_and_keeps_the_innermost_heading() -> None:
    text = "\n\n".join(f"{'#' * level} {level} {'long ' * 40}" for level in range(1, 6))
    trail = chunk_text(f"{text}\n\n###### Last\n\ntext")[-1].heading
    assert len(trail) <= 300
    assert trail.startswith("… > ")
    assert trail.endswith(" > Last")


def test_an_empty_section_goes_along_with_its_first_subsection() -> None:
    text = "# Guide\n\n## Install\n\nRun it.\n\n## Empty\n\n## Use\n\nGo."
    assert [(c.heading, c.body) for c in chunk_text(text)] == [
        ("Guide > Install", "# Guide\n\n## Install\n\nRun it."),
        ("Guide > Empty", "## Empty"),
        ("Guide > Use", "## Use\n\nGo."),
    ]


def test_a_heading_is_not_parted_from_a_long_paragraph() -> None:
    rng = random.Random(1)
    for length in range(20, 60):
        text = "# Heading\n\n" + " ".join(paragraph(rng, (1, 1)) for _ in range(length))
        first = chunk_text(text)[0]
        assert len(first.body) >= 400


def test_a_long_heading_is_not_parted_from_a_long_paragraph() -> None:
    heading = "# " + "long " * 90
    text = f"{heading}\n\n{paragraph(random.Random(1), (30, 30))}"
    assert len(chunk_text(text)[0].body) > len(heading) + 2


# --- Blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fence", ["```", "~~~", "````"])
@pytest.mark.parametrize("indent", ["", "   ", "      "])
def test_code_is_not_searched_for_headings(fence: str, indent: str) -> None:
    code = f"{fence}sh\n# comment\n\nTitle\n===\n```x\n{fence}"
    text = "\n".join(indent + line for line in code.splitlines())
    chunks = chunk_text(f"# Real\n\n{text}\n\n# Next\n\ntext")
    assert [c.heading for c in chunks] == ["Real", "Next"]


def test_code_that_is_not_closed_runs_to_the_end() -> None:
    assert [c.heading for c in chunk_text("# A\n\n```\n# b\n\n# c")] == ["A"]


@pytest.mark.parametrize("html", ["<!--\n# no\n\n-->", "<pre>\n# no\n</pre>"])
def test_html_blocks_are_not_searched_for_headings(html: str) -> None:
    assert [c.heading for c in chunk_text(f"# A\n\n{html}\n\n# B\n\ntext")] == ["A", "B"]


def test_an_open_html_block_hides_nothing() -> None:
    assert [c.heading for c in chunk_text("# A\n\n<!-- open\n\n# B\n\ntext")] == ["A", "B"]


CODE = "```python\n" + "\n\n".join(f"def f{n}():\n    return {n}" for n in range(20)) + "\n```"
LIST = "\n\n".join(f"- item {n} has some text\n\n  and a second paragraph" for n in range(10))
TABLE = "| a | b |\n|---|---|\n" + "\n".join(f"| {n} | some text here |" for n in range(20))


@pytest.mark.parametrize("block", [CODE, LIST, TABLE])
def test_a_block_that_fits_is_kept_whole(block: str) -> None:
    assert 400 < len(block) <= 800
    rng = random.Random(2)
    for _ in range(30):
        before = "\n\n".join(paragraph(rng) for _ in range(rng.randint(0, 8)))
        after = "\n\n".join(paragraph(rng) for _ in range(rng.randint(0, 8)))
        text = f"{before}\n\n{block}\n\n{after}"
        assert sum(block in body for body in bodies(text)) == 1


def test_a_long_table_is_cut_between_rows() -> None:
    text = "\n".join(f"| row {n}. Then. More | {n * n} |" for n in range(500))
    for body in bodies(text):
        assert body.startswith("| row")
        assert body.endswith("|")


def test_long_code_is_cut_between_lines() -> None:
    lines = [f"call({n}). More()  # say. And say" for n in range(500)]
    inside = {"```", *lines}
    for body in bodies("\n".join(["```", *lines, "```"])):
        assert set(body.split("\n")) <= inside


def test_a_long_list_is_cut_between_items() -> None:
    items = (f"- Item {n}. Some\n  text that runs on. And\n  on to its end" for n in range(500))
    for body in bodies("\n".join(items)):
        assert body.startswith("- Item")


def test_a_long_paragraph_is_cut_between_sentences() -> None:
    text = paragraph(random.Random(3), (200, 200))
    for wrapped in (text, text.replace(" ", "\n", 1), text.replace(" vector ", "\nvector ")):
        for body in bodies(wrapped):
            assert body[0].isupper()
            assert body[-1] == "."


def test_a_long_sentence_is_cut_between_words() -> None:
    text = " ".join(random.Random(4).choices(WORDS, k=3000))
    for body in bodies(text):
        assert set(body.split()) <= set(WORDS)


@pytest.mark.parametrize("grapheme", ["e\u0301", "👩‍👩‍👧‍👦", "❤️‍🔥", "👍🏽", "🇩🇪", "각", "क्षि"])
def test_a_grapheme_is_not_divided(grapheme: str) -> None:
    for body in bodies(grapheme * 500, max_chars=100):
        assert len(body) % len(grapheme) == 0
        assert body == grapheme * (len(body) // len(grapheme))


def test_front_matter_is_a_chunk_of_its_own() -> None:
    matter = "---\ntitle: Guide\n# a comment\ntags: [a]\n---"
    text = f"{matter}\n# Guide\n\nText.\n\n---\n\nMore."
    assert [(c.heading, c.body) for c in chunk_text(text)] == [
        ("", matter),
        ("Guide", "# Guide\n\nText.\n\n---\n\nMore."),
    ]


def test_a_rule_at_the_top_is_not_front_matter() -> None:
    text = "---\n\n# A\n\ntext\n\n---\n\n# B\n\ntext"
    assert [c.heading for c in chunk_text(text)] == ["", "A", "B"]


def test_plain_text_has_no_headings() -> None:
    assert [c.heading for c in chunk_text("# A\n\ntext\n\nB\n===\n", format="text")] == [""]


def test_indentation_is_kept_and_blank_lines_are_not() -> None:
    assert bodies("\n\n  \n    indented\n\n\n") == ["    indented"]


def test_tokens_follow_the_length() -> None:
    assert [c.tokens for c in chunk_text("x" * 400)] == [100]


# --- Sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("longest", [2, 6, 25])
def test_chunks_are_neither_tiny_nor_all_at_the_limit(longest: int) -> None:
    rng = random.Random(5)
    sizes = sorted(map(len, bodies("\n\n".join(paragraph(rng, (1, longest)) for _ in range(1000)))))
    assert 550 <= sum(sizes) / len(sizes) <= 800
    assert sizes[len(sizes) // 20] >= 380


# --- Locality -----------------------------------------------------------------------------------


def edit(parts: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(parts))
    while parts[at].startswith("#"):
        at = rng.randrange(len(parts))
    kind = rng.choice(["edit", "insert", "delete", "word"])
    if kind == "insert":
        return [*parts[:at], paragraph(rng), *parts[at:]]
    if kind == "delete":
        return parts[:at] + parts[at + 1 :]
    new = parts[at] + " More." if kind == "word" else paragraph(rng)
    return [*parts[:at], new, *parts[at + 1 :]]


def changed(before: str, after: str) -> int:
    """How many chunks of the text after the edit are new."""
    return (Counter(bodies(after)) - Counter(bodies(before))).total()


@pytest.mark.parametrize("headings", [False, True])
def test_an_edit_changes_the_chunks_around_it_only(headings: bool) -> None:
    rng = random.Random(6)
    parts = document(rng, 2000, headings)
    before = "\n\n".join(parts)
    counts = [changed(before, "\n\n".join(edit(parts, rng))) for _ in range(60)]
    assert max(counts) <= 4
    assert sum(counts) / len(counts) <= 2.5


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 12))
def test_an_edit_of_any_text_changes_a_handful(seed: int, headings: bool, longest: int) -> None:
    rng = random.Random(seed)
    parts = [paragraph(rng, (1, longest)) for _ in range(300)]
    if headings:
        parts[::20] = [f"## Part {number}" for number in range(0, 300, 20)]
    assert changed("\n\n".join(parts), "\n\n".join(edit(parts, rng))) <= 6


WALLS: dict[str, Callable[[random.Random], list[str]]] = {
    "sentences in one paragraph": lambda rng: [paragraph(rng, (1, 1)) + " " for _ in range(3000)],
    "lines of a log": lambda rng: [f"{rng.random()} GET /{rng.random()}\n" for _ in range(3000)],
    "words without an end": lambda rng: [f"{rng.choice(WORDS)} " for _ in range(20000)],
    "one word": lambda rng: [f"{rng.getrandbits(64):x}" for _ in range(5000)],
    "a list": lambda rng: [f"- {paragraph(rng, (1, 1))}\n\n" for _ in range(2000)],
    "Chinese": lambda rng: [
        "".join(rng.choices("知识库在数据里面搜索向量段落", k=12)) + "。" for _ in range(3000)
    ],
}


@pytest.mark.parametrize("wall", WALLS)
def test_an_edit_inside_a_block_that_does_not_fit(wall: str) -> None:
    rng = random.Random(7)
    parts = WALLS[wall](rng)
    before = "".join(parts)
    counts = []
    for _ in range(20):
        at = rng.randrange(len(parts))
        counts.append(changed(before, "".join([*parts[:at], "Something new", *parts[at + 1 :]])))
    assert max(counts) <= 8
    assert sum(counts) / len(counts) <= 4


def test_text_put_before_moves_the_ranges_only() -> None:
    text = "\n\n".join(document(random.Random(8), 500, True))
    before = chunk_text(text)
    after = chunk_text("# New\n\nSomething new.\n\n" + text)
    assert changed(text, "# New\n\nSomething new.\n\n" + text) <= 3
    assert after[-1].body == before[-1].body
    assert after[-1].char_start == before[-1].char_start + len("# New\n\nSomething new.\n\n")


# --- Speed --------------------------------------------------------------------------------------

MEGABYTE = 1_000_000
HOSTILE = {
    "spaces": " " * MEGABYTE,
    "line ends": "\n" * MEGABYTE,
    "indented line ends": "\n   " * (MEGABYTE // 4),
    "one letter": "a" * MEGABYTE,
    "rules": "---\n" * (MEGABYTE // 4),
    "fences": "    ```a\n" * (MEGABYTE // 9),
    "growing fences": "\n".join("`" * (3 + n % 999) + "x" for n in range(2000)),
    "open html": "<pre>\n<!-- \n" * (MEGABYTE // 12),
    "front matter without a colon": "---\n" + "a" * MEGABYTE,
    "brackets": "# " + "[" * MEGABYTE,
    "marks": "\u0301" * MEGABYTE,
    "closing quotes": "." + "'" * MEGABYTE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_the_length_only(name: str) -> None:
    started = time.perf_counter()
    check(HOSTILE[name], chunk_text(HOSTILE[name]), 1000)
    assert time.perf_counter() - started < 10


def test_eight_megabytes() -> None:
    rng = random.Random(9)
    parts = document(rng, 2000, True)
    text = "\n\n".join(parts)
    text *= 8 * MEGABYTE // len(text) + 1
    started = time.perf_counter()
    chunk_text(text)
    assert time.perf_counter() - started < 6  # 0.3 s when nothing else runs
