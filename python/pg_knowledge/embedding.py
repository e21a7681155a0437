"""What an embedder is, and the check of what it returned."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Protocol, runtime_checkable

from .errors import EmbedderError

__all__ = ["Embedder", "check_vectors"]


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. Any object with these members is one.

    name: the model, for people: 'all-MiniLM-L6-v2-int8'.
    dimensions: the length of every vector, at least 1.
    fingerprint: identifies the vector space. Two embedders with the same fingerprint give the same
        vector for the same text; anything that changes vectors (weights, tokenizer, pooling,
        truncation, prefix) changes it.
    """

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector per text, in the order of the texts: shape (len(texts), dimensions).

        The numbers are finite and not all zero; they need no unit length. No texts give no
        vectors. The vector of a text does not depend on the texts beside it. When a text cannot be
        embedded, raise an exception; never leave one out.
        """
        ...


def check_vectors(
    embedder: Embedder, texts: Sequence[str], vectors: Sequence[Sequence[float]]
) -> list[list[float]]:
    """What `embedder` returned for `texts`, as lists of floats: shape (len(texts), dimensions).

    vectors: sequences of numbers, or arrays of numpy and the like (whatever has `tolist`).
    Raises EmbedderError when the number of vectors is not the number of texts, or when a vector
    has another length than `embedder.dimensions`, holds something that is not a finite number, or
    is all zero. Nothing is cut, padded or dropped to make it fit.
    """
    name = embedder.name
    rows = _as_list(vectors, f"{name}: the vectors")
    if len(rows) != len(texts):
        raise EmbedderError(f"{name}: {len(rows)} vectors for {len(texts)} texts")
    return [_check_vector(embedder, number, row) for number, row in enumerate(rows)]


def _check_vector(embedder: Embedder, number: int, row: object) -> list[float]:
    what = f"{embedder.name}: vector {number}"
    numbers = _as_list(row, what)
    if len(numbers) != embedder.dimensions:
        raise EmbedderError(f"{what} has {len(numbers)} dimensions, not {embedder.dimensions}")
    try:
        vector = [float(_number(value)) for value in numbers]
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbedderError(f"{what} holds something that is not a number") from error
    stored = array("f", vector)  # as pgvector reads it
    if not all(map(isfinite, stored)):
        raise EmbedderError(f"{what} holds a number that is not finite, or too large for a float4")
    if not any(stored):
        raise EmbedderError(f"{what} is all zero")
    return vector


def _number(value: object) -> float:
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError(type(value).__name__)
    return float(value)


def _as_list(value: object, what: str) -> list[object]:
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        raise EmbedderError(f"{what}: a sequence is needed, not {type(value).__name__}")
    return list(value)
