"""Text as people write it: identifiers, paths, accents, Chinese, Japanese, Korean, any language."""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import Database, Server, as_context
from support.knowledge import FINGERPRINT, publish, register, rows, search, toy_vector, vector_text

BODIES = {
    "panel": "order the thyroid/metabolic panel",
    "hyphen": "a state-of-the-art turbo-charger",
    "dots": "set com.example.widget.Factory in the file settings.yaml",
    "snake": "call parse_user_agent before retry_count is read",
    "url": "see https://docs.example.org/guide/install-notes.html?lang=fr#linux",
    "mail": "write to jane.doe+kb@mail.example.com",
    "ticket": "fixed by KB-1042 in March",
    "version": "released as v1.2.3 on Friday",
    "windows": r"it lies in C:\Users\public\report.txt",
    "café": "the café in Zürich",
    "cafe": "a cafe with Muller",
    "müller": "Herr Müller",
    "decomposed": unicodedata.normalize("NFD", "Señor Gödel"),
    "cyrillic": "йод и мой край",
    "chinese": "北京大学的图书馆很大。",
    "japanese": "東京都庁は新宿にあります。カタカナとひらがな",
    "korean": "한국어 검색은 어렵다",
    "mixed": "使用PostgreSQL数据库的pgvector扩展",
    "one": "a 猫 alone",
    "last": "これは黒猫。",
}


@pytest.fixture(scope="module")
def shelf(server: Server) -> Iterator[Database]:
    with server.database() as db:
        conn = db.connect("app_backend")
        register(conn)
        with as_context(conn, "acme"):
            for name, body in BODIES.items():
                publish(conn, name, [body])
        yield db


@pytest.fixture
def reader(shelf: Database) -> Iterator[psycopg.Connection[Any]]:
    """app_trusted in the context of the org of BODIES."""
    with shelf.connect("app_trusted") as conn, as_context(conn, "acme"):
        yield conn


def found(conn: psycopg.Connection[Any], question: str, **given: Any) -> set[str]:
    """The documents that the words of question find, as search_exact finds them too."""
    answers = [
        [r["chunk_id"] for r in search(conn, question, function, mode="keyword", k=1000, **given)]
        for function in ("search_scoped", "search_exact")
    ]
    assert answers[0] == answers[1]
    query = (
        "select d.source_id from knowledge.documents as d "
        "inner join knowledge.chunks as c on c.document_id = d.document_id "
        "where c.chunk_id = any (%s)"
    )
    return {r["source_id"] for r in rows(conn, query, answers[0])}


@pytest.mark.parametrize(
    ("name", "questions"),
    [
        ("panel", ["thyroid", "metabolic", "thyroid/metabolic", "metabolic thyroid", '"thyroid"']),
        ("hyphen", ["turbo", "charger", "turbo-charger", "chargers", "state-of-the-art"]),
        ("dots", ["widget", "factory", "com.example.widget.Factory", "settings.yaml", "yaml"]),
        ("snake", ["parse_user_agent", "agent", "user agent", "retry", "retry_count"]),
        ("url", ["install", "notes", "guide", "https://docs.example.org", "docs.example.org"]),
        ("url", ["install-notes.html", "lang", "linux"]),
        ("url", ["https://docs.example.org/guide/install-notes.html?lang=fr#linux"]),
        ("mail", ["jane.doe+kb@mail.example.com", "jane", "doe", "mail.example.com"]),
        ("ticket", ["KB-1042", "1042", "kb-1042", "kb 1042", '"KB-1042"']),
        ("version", ["v1.2.3", "V1.2.3", "released v1"]),
        ("windows", [r"C:\Users\public\report.txt", "public", "report", "report.txt"]),
    ],
)
def test_identifiers_are_found_whole_and_by_their_parts(
    reader: psycopg.Connection[Any], name: str, questions: list[str]
) -> None:
    """Cases 10, 11: by either part, and first when asked for whole."""
    for question in questions:
        assert name in found(reader, question), question
        assert search(reader, question, mode="keyword")[0]["source_id"] == name, question


def test_a_part_of_a_word_is_no_part(reader: psycopg.Connection[Any]) -> None:
    """Only punctuation parts a word."""
    for question in ("thyro", "104", "actory", "ublic", "ane", "onnect"):
        assert found(reader, question) == set(), question


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chinese", ["北", "北京", "大学", "图书馆", "书馆", "北京大学", "很大", "大"]),
        ("japanese", ["東", "東京", "都庁", "東京都", "新宿", "カタカナ", "ひらがな", "カ"]),
        ("korean", ["한", "한국", "국어", "한국어", "검색", "검색은", "어렵다"]),
        ("mixed", ["使用", "数据库", "扩展", "postgresql", "pgvector", "数据", "使"]),
        ("one", ["猫"]),
        ("last", ["黒猫", "猫", "黒"]),
    ],
)
def test_words_without_spaces(reader: psycopg.Connection[Any], name: str, words: list[str]) -> None:
    """Case 12: of one, two, three and more letters, wherever they stand in a run."""
    for word in words:
        assert name in found(reader, word), word
        assert name in found(reader, f"zebra {word}"), word


def test_other_words_without_spaces_are_not_found(reader: psycopg.Connection[Any]) -> None:
    """A pair of letters that does not stand side by side is not there."""
    for word in ("南京", "国語", "大北", "書館", "南", "犬", "어검"):
        assert found(reader, word) == set(), word


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ('"北京大学"', {"chinese"}),
        ('"大学的图书馆"', {"chinese"}),
        ('"大学图书馆"', set()),
        ('"東京都庁"', {"japanese"}),
        ('"京都市"', set()),
        ('"PostgreSQL数据库"', {"mixed"}),
        ('"数据库的pgvector"', {"mixed"}),
        ('"pgvector数据库"', set()),
        ('"猫"', {"one", "last"}),
        ("数据库 大学 -北京大学", {"mixed"}),
        ('猫 -"黒猫"', {"one"}),
        ("黒猫 図 -猫", set()),
        ('"都"', {"japanese"}),
        ("カタカナ -都", set()),
    ],
)
def test_phrases_without_spaces(
    reader: psycopg.Connection[Any], question: str, names: set[str]
) -> None:
    """Quoted, letters must follow each other; excluded, they must not."""
    assert found(reader, question) == names


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("cafe", {"café", "cafe"}),
        ("café", {"café", "cafe"}),
        (unicodedata.normalize("NFD", "CAFÉ"), {"café", "cafe"}),
        ("Müller", {"müller", "cafe"}),
        ("muller", {"müller", "cafe"}),
        ("zurich", {"café"}),
        ("Zürich", {"café"}),
        ("senor", {"decomposed"}),
        ("Gödel", {"decomposed"}),
        ('"cafe in zurich"', {"café"}),
        ("cafe -zürich", {"cafe"}),
        ("caf*", {"café", "cafe"}),
        ("mül*", {"müller", "cafe"}),
        ("йод", {"cyrillic"}),
        (unicodedata.normalize("NFD", "йод"), {"cyrillic"}),
        ("иод", set()),
        ("краи", set()),
    ],
)
def test_accents_do_not_matter_on_latin_letters(
    reader: psycopg.Connection[Any], question: str, names: set[str]
) -> None:
    """In the text or in the question, composed or not; й is a letter of its own."""
    assert found(reader, question) == names


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("post*", {"mixed"}),
        ("POST*", {"mixed"}),
        ("thyr* zebra", {"panel"}),
        ("met*", {"panel"}),
        ("x*", set()),
        ("*", set()),
        ("kb*", {"ticket", "mail"}),
        ("104*", {"ticket"}),
        ("pgv* -数据库", set()),
        ("東京*", {"japanese"}),
        ("東京都*", {"japanese"}),
        ("猫*", {"one", "last"}),
        ("th*yroid", set()),
        # The beginning may be longer than the stem that chunks have: releas, metabol, charger.
        *(("released"[:n] + "*", {"version"}) for n in range(3, 9)),
        *(("metabolism"[:n] + "*", {"panel"}) for n in range(3, 11)),
        ("releasing*", {"version"}),
        ("chargers*", {"hyphen"}),
        ("charging*", set()),
        ("RELEASED* -friday", set()),
    ],
)
def test_a_star_asks_for_the_beginning_of_words(
    reader: psycopg.Connection[Any], question: str, names: set[str]
) -> None:
    """word* finds every word that begins so, in both cases, although chunks have stems."""
    assert found(reader, question) == names


@pytest.mark.parametrize(
    ("language", "word"),
    [
        *(("english", w) for w in ("running", "organization", "universities", "happiness")),
        *(("german", w) for w in ("laufen", "Verwaltungen", "freundlich")),
        *(("french", w) for w in ("mangions", "pommes", "heureusement")),
        ("simple", "running"),
    ],
)
def test_every_beginning_of_a_word_finds_it(db: Database, language: str, word: str) -> None:
    """Letter by letter, as one types it, from the third on."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "acme"):
        publish(conn, "doc", [f"zebra {word} zebra"], language=language)
        for typed in range(3, len(word) + 1):
            assert found(conn, word[:typed] + "*") == {"doc"}, word[:typed]


def test_a_beginning_counts_once(reader: psycopg.Connection[Any]) -> None:
    """However many words of a chunk begin so, and however often; parse_query marks it."""
    (asked,) = rows(reader, "select * from knowledge.parse_query('Cat cat* dog* cat', '{english}')")
    assert list(zip(asked["lexemes"], asked["prefixes"], asked["repeats"], strict=True)) == [
        ("cat", False, 2),
        ("cat", True, 1),
        ("dog", True, 1),
    ]


LANGUAGES = {
    "english": ("the children were running home", ["run", "runs", "homes"]),
    "german": ("die alten Häuser brennen", ["Haus", "alt", "Hauses"]),
    "french": ("nous mangions des pommes", ["mangions", "pomme"]),
    "simple": ("widgets gadgets", ["widgets", "gadgets"]),
}


def test_plain_syntax_has_no_operators(reader: psycopg.Connection[Any]) -> None:
    """In syntax plain a question's quotes, minus and stars are signs like any other."""
    question = '"panel thyroid" -turbo pars*'
    assert found(reader, question) == set()
    assert found(reader, '"metabolic panel" -turbo pars*') == set()
    plain = found(reader, question, options={"syntax": "plain"})
    assert plain == {"panel", "hyphen"}
    scoped, exact = (
        search(reader, question, function, mode="keyword", options={"syntax": "plain"})
        for function in ("search_scoped", "search_exact")
    )
    assert [r["chunk_id"] for r in scoped] == [r["chunk_id"] for r in exact]


@pytest.fixture
def tower(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """An org with a document in each language."""
    conn = db.connect("app_backend")
    register(conn)
    with as_context(conn, "babel"):
        for language, (body, _) in LANGUAGES.items():
            publish(conn, language, [body], language=language)
        yield conn


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_is_searched(tower: psycopg.Connection[Any], language: str) -> None:
    """Case 12: each document by the stems of its own language, without naming any."""
    stems = [f"pg_catalog.{name}" for name in LANGUAGES]
    (used,) = rows(tower, "select array_agg(language) as names from knowledge.compartments")
    assert sorted(used["names"]) == sorted(stems)
    for word in LANGUAGES[language][1]:
        assert language in found(tower, word), word
        assert language in found(tower, word, options={"language": language})


def test_the_option_narrows_the_reading(tower: psycopg.Connection[Any]) -> None:
    """The stems of the named language alone; words that are their own stem go on being found."""
    assert found(tower, "runs") == found(tower, "runs", options={"language": "english"})
    assert found(tower, "runs", options={"language": "simple"}) == set()
    assert found(tower, "alten") == found(tower, "alten", options={"language": "german"})
    assert found(tower, "alten", options={"language": "english"}) == set()
    assert found(tower, "widgets", options={"language": "english"}) == set()
    assert found(tower, "widgets") == {"simple"}


def test_the_language_of_what_is_forbidden_is_not_read(tower: psycopg.Connection[Any]) -> None:
    """English documents are asked in English, whatever others are there."""
    bodies = ["the widget", "widgets of a gadget"]
    tower.execute("select knowledge.set_context('other', '{}')")
    publish(tower, "own", bodies, language="english")
    before = search(tower, "widgets", mode="keyword")
    assert len(before) == 2
    tower.execute("select knowledge.define_tag('staff')")
    tower.execute("select knowledge.define_audience('staff', '{staff}')")
    publish(tower, "hidden", ["widgets"], language="simple", audience=["staff"])
    assert search(tower, "widgets", mode="keyword") == before


def test_a_document_keeps_its_language_until_told(tower: psycopg.Connection[Any]) -> None:
    """An ingest that names none keeps it; another moves the document and its words."""
    publish(tower, "german", ["die alten Häuser", "neu"])
    assert found(tower, "Hauses", options={"language": "german"}) == {"german"}
    publish(tower, "german", ["die alten Häuser", "neu"], language="simple")
    assert found(tower, "Hauses") == set()
    assert found(tower, "häuser") == {"german"}


# Letters of many kinds, and everything that some parser on the way may take for its own.
NASTY = [
    *"aBé北京大学東京カ한국어猫",
    *"  \t\n'\"\\/.-_:@&|!()*<>%$?#+=~,;^`[]{}",
    "\u0301",
    "\u200b",
    "\u200d",
    "🦊",
    "👩‍👩‍👧",
    "й",
    "İ",
    "ß",
    "ﬁ",
    "\U00020000",
    "cafe",
    "fox ",
    " -fox",
    ' "fox 北京" ',
    "fo*",
    "C:\\x\\fox",
    "a.b@c.de",
    "http://x.org/y",
    "KB-1042",
    ":*",
    "''",
    "$1",
    "%s",
    "%L",
]
nasty = st.lists(st.sampled_from(NASTY), max_size=14).map("".join)
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
texts = st.one_of(nasty, nasty, anything).map(lambda text: text if text.split() else "fox " + text)
QUICK = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
_orgs = itertools.count(1)


@pytest.fixture
def conn(db: Database) -> psycopg.Connection[Any]:
    conn = db.connect("app_backend")
    register(conn)
    conn.execute("set statement_timeout = '20s'")
    return conn


def compare(
    conn: psycopg.Connection[Any], documents: list[list[str]], questions: list[str], k: int
) -> None:
    """Publish documents in a new org and hold search_scoped against search_exact."""
    languages = ("english", "german", "simple")
    with as_context(conn, f"org {next(_orgs)}"):
        for n, bodies in enumerate(documents):
            publish(conn, f"doc {n}", bodies, language=languages[n % 3])
        vector = {"embedding": vector_text(toy_vector("fox")), "fingerprint": FINGERPRINT}
        for question, mode in itertools.product(questions, ("keyword", "hybrid")):
            asked = {"query": question, "mode": mode, "k": k, **vector}
            answers = [
                search(conn, function=function, **asked)
                for function in ("search_scoped", "search_exact")
            ]
            same = ("rank", "chunk_id", "vector_rank", "keyword_rank")
            scoped, exact = ([[r[c] for c in same] for r in answer] for answer in answers)
            assert scoped == exact
            for one, other in zip(*answers, strict=True):
                for measure in ("score", "vector_distance", "keyword_score"):
                    a, b = one[measure], other[measure]
                    assert a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


documents = st.lists(st.lists(texts, min_size=1, max_size=3), min_size=1, max_size=4)


def words_of(documents: list[list[str]]) -> st.SearchStrategy[list[str]]:
    """Questions: random ones, and pieces of the documents."""
    pieces = [word for bodies in documents for body in bodies for word in body.split()]
    marks = st.sampled_from(["{}", "{}", "-{}", '"{}"', "{}*", '-"{}"'])
    piece = st.builds(str.replace, marks, st.just("{}"), st.sampled_from(pieces or ["fox"]))
    return st.lists(
        st.one_of(texts, st.lists(piece, min_size=1, max_size=4).map(" ".join)),
        min_size=2,
        max_size=4,
    )


cases = documents.flatmap(lambda d: st.tuples(st.just(d), words_of(d)))


def test_any_text_and_question_score_as_specified(conn: psycopg.Connection[Any]) -> None:
    """search_scoped is search_exact, whatever is written and whatever is asked."""

    @settings(QUICK, max_examples=40)
    @given(cases, st.integers(1, 12))
    def check(case: tuple[list[list[str]], list[str]], k: int) -> None:
        compare(conn, *case, k)

    check()


@pytest.mark.soak
def test_any_text_and_question_score_as_specified_for_long(conn: psycopg.Connection[Any]) -> None:
    """The same promise, over many random texts."""

    @settings(QUICK, max_examples=500, derandomize=False)
    @given(cases, st.integers(1, 12))
    def check(case: tuple[list[list[str]], list[str]], k: int) -> None:
        compare(conn, *case, k)

    check()


def test_every_body_is_found_by_each_of_its_words(conn: psycopg.Connection[Any]) -> None:
    """A word of letters and digits, as it stands between spaces, finds its chunk."""
    letters = st.text("abcé北京大学東京カ한국어猫12", min_size=1, max_size=6)

    @settings(QUICK, max_examples=25)
    @given(st.lists(letters, min_size=1, max_size=4))
    def check(words: list[str]) -> None:
        with as_context(conn, f"org {next(_orgs)}"):
            publish(conn, "doc", [" ".join(words)], language="simple")
            for word in words:
                assert found(conn, word) == {"doc"}, word

    check()


def test_a_long_text_without_spaces_is_read_in_time(conn: psycopg.Connection[Any]) -> None:
    """As long as a chunk may be, of letters whose number of bytes is not one."""
    conn.execute("set statement_timeout = '5s'")
    with as_context(conn, "acme"):
        conn.execute("select knowledge.define_admission_rule('too_long', 'admitted')")
        publish(conn, "doc", ["北京大学" * 25_000, "北a" * 20_000])
        assert found(conn, "京大") == {"doc"}


LONG = ["x", "x*", "北", "-x ", '"', '-"x" ', "a/", "a.b@", "x* ", "\\", "'", "é", "🦊", "\u0301"]


@pytest.mark.parametrize("piece", [*LONG, "北x", "x" * 3000 + " ", "x" * 9998 + "*"], ids=ascii)
def test_long_questions_are_read(reader: psycopg.Connection[Any], piece: str) -> None:
    """A question of 10,000 characters, of any kind, is an answer or none, never an error."""
    question = (piece * 10_000)[: 9999 if len(piece) > 5000 else 10_000]
    rows(reader, "select * from knowledge.parse_query(%s, '{english,simple}')", question)
    for function in ("search_scoped", "search_exact"):
        search(reader, question, function, mode="keyword")


def test_any_question_is_read(db: Database) -> None:
    """parse_query raises for no text, and what it gives is a question."""
    conn = db.connect("app_reader")
    conn.execute("set statement_timeout = '20s'")
    text = st.one_of(nasty, anything, texts.map(lambda t: (t * 10_000)[:10_000]))

    @settings(QUICK, max_examples=120)
    @given(text, st.sampled_from([["english"], ["simple"], ["german", "english"]]))
    def check(text: str, languages: list[str]) -> None:
        query = "select * from knowledge.parse_query(%s, %s)"
        (asked,) = rows(conn, query, text, languages)
        lexemes = asked["lexemes"]
        if lexemes is None:
            assert asked["repeats"] is asked["prefixes"] is None
            return
        assert len(lexemes) == len(asked["repeats"]) == len(asked["prefixes"])
        pairs = list(zip(lexemes, asked["prefixes"], strict=True))
        assert sorted(pairs) == pairs
        assert len({*pairs}) == len(pairs)
        assert all(lexemes)
        assert min(asked["repeats"]) > 0

    check()
