"""What an embedder returned is checked before anything is stored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from pg_knowledge.embedding import Embedder, check_vectors
from pg_knowledge.errors import EmbedderError, KnowledgeError


class Fake:
    name = "fake"
    dimensions = 3
    fingerprint = "fake:1"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 2.0, 3.0] for _ in texts]


FAKE = Fake()


def test_an_object_with_the_members_is_an_embedder() -> None:
    assert isinstance(FAKE, Embedder)


@pytest.mark.parametrize("member", ["name", "dimensions", "fingerprint", "embed"])
def test_an_object_without_one_is_none(member: str) -> None:
    members = {"name": "x", "dimensions": 3, "fingerprint": "x", "embed": lambda self, texts: []}
    del members[member]
    assert not isinstance(type("Part", (), members)(), Embedder)


@pytest.mark.parametrize(
    "vectors", [[[1, 2, 3], [0, 0, -1e-30]], ((1.0, 2.0, 3.0), (0, 0, -1e-30))]
)
def test_sequences_become_lists_of_floats(vectors: Any) -> None:
    checked = check_vectors(FAKE, ["a", "b"], vectors)
    assert checked == [[1.0, 2.0, 3.0], [0.0, 0.0, -1e-30]]
    assert all(type(number) is float for vector in checked for number in vector)


def test_no_texts_give_no_vectors() -> None:
    assert check_vectors(FAKE, [], []) == []


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8"])
def test_numpy_arrays_are_taken(kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.array([[1, 2, 3], [4, 5, 6]], dtype=kind)
    expected = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    for vectors in (array, list(array), [list(row) for row in array]):
        checked = check_vectors(FAKE, ["a", "b"], vectors)
        assert checked == expected
        assert all(type(number) is float for vector in checked for number in vector)


GOOD = [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([GOOD], "1 vectors for 2 texts"),
        ([GOOD, GOOD, GOOD], "3 vectors for 2 texts"),
        ([], "0 vectors for 2 texts"),
        ([GOOD, [1.0, 2.0]], "vector 1 has 2 dimensions, not 3"),
        ([[1.0, 2.0, 3.0, 4.0], GOOD], "vector 0 has 4 dimensions, not 3"),
        ([GOOD, []], "vector 1 has 0 dimensions"),
        ([GOOD, [1.0, math.nan, 3.0]], "vector 1 holds a number that is not finite"),
        ([GOOD, [1.0, math.inf, 3.0]], "not finite"),
        ([GOOD, [1.0, -math.inf, 3.0]], "not finite"),
        ([GOOD, [0.0, 0, -0.0]], "vector 1 is all zero"),
        ([GOOD, [1.0, "2", 3.0]], "not a number"),
        ([GOOD, [1.0, None, 3.0]], "not a number"),
        ([GOOD, [1.0, True, 3.0]], "not a number"),
        ([GOOD, [1.0, 10**400, 3.0]], "not a number"),
        ([GOOD, [1.0, [2.0], 3.0]], "not a number"),
        ([GOOD, "abc"], "a sequence is needed, not str"),
        ([GOOD, None], "a sequence is needed, not NoneType"),
        (None, "a sequence is needed, not NoneType"),
        ({"a": GOOD, "b": GOOD}, "a sequence is needed, not dict"),
    ],
)
def test_anything_else_is_refused(vectors: Any, message: str) -> None:
    with pytest.raises(EmbedderError, match=message) as caught:
        check_vectors(FAKE, ["a", "b"], vectors)
    assert str(caught.value).startswith("fake: ")
    assert isinstance(caught.value, KnowledgeError)
