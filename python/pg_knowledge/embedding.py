"""What an embedder is, and the check of what it returned."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Any, Protocol, runtime_checkable

from .errors import EmbedderError

__all__ = ["Embedder", "check_vectors", "retry_after", "stored_vectors"]


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
    rows = _as_list(vectors, f"{embedder.name}: the vectors")
    stored_vectors(embedder, texts, rows)
    return [[float(_number(value)) for value in _as_list(row, "a vector")] for row in rows]


def stored_vectors(embedder: Embedder, texts: Sequence[str], vectors: object) -> list[array[float]]:
    """The same in single precision, as pgvector reads it."""
    rows = _rows(vectors, f"{embedder.name}: the vectors")
    if len(rows) != len(texts):
        raise EmbedderError(f"{embedder.name}: {len(rows)} vectors for {len(texts)} texts")
    return [_stored_vector(embedder, number, row) for number, row in enumerate(rows)]


def _stored_vector(embedder: Embedder, number: int, row: object) -> array[float]:
    what = f"{embedder.name}: vector {number}"
    numbers: Any = _floats(row)
    if numbers is None:
        numbers = _as_list(row, what)
    if len(numbers) != embedder.dimensions:
        raise EmbedderError(f"{what} has {len(numbers)} dimensions, not {embedder.dimensions}")
    stored: array[float] = numbers if isinstance(numbers, array) else _single(numbers, what)
    if not isfinite(sum(stored)):  # of so few single-precision numbers no sum is too large
        raise EmbedderError(f"{what} holds a number that is not finite, or too large for a float4")
    if not any(stored):
        raise EmbedderError(f"{what} is all zero")
    return stored


def _single(numbers: list[object], what: str) -> array[float]:
    try:
        plain = set(map(type, numbers)) <= {float, int}
        values: Any = numbers if plain else [float(_number(value)) for value in numbers]
        return array("f", values)
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbedderError(f"{what} holds something that is not a number") from error


def _buffer(value: object) -> memoryview | None:
    """The memory of an array of floats, of whatever library; None of anything else."""
    try:
        view = memoryview(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return None
    return view if view.format in ("f", "d") and view.c_contiguous else None


def _floats(row: object) -> array[float] | None:
    view = _buffer(row)
    if view is None or view.ndim != 1:
        return None
    numbers: array[float] = array(view.format)
    numbers.frombytes(view.cast("B"))
    return numbers if view.format == "f" else array("f", numbers)


def retry_after(error: BaseException) -> float | None:
    """After how many seconds an embedder that failed asks to be called again; None when it does
    not ask.

    Read from the error as HTTP clients and their users make them: an attribute retry_after, or a
    response with the header Retry-After in seconds; a response with the status 429 and no such
    header asks for 5 seconds.
    """
    response = getattr(error, "response", None)
    headers: Any = getattr(response, "headers", None)
    told = getattr(error, "retry_after", None)
    if told is None and hasattr(headers, "get"):
        told = headers.get("Retry-After") or headers.get("retry-after")
    try:
        return max(float(told), 0.0) if told is not None else _unsaid(error, response)
    except (TypeError, ValueError):
        return _unsaid(error, response)


def _unsaid(error: BaseException, response: object) -> float | None:
    limited = any(
        429 in (getattr(x, "status_code", 0), getattr(x, "status", 0)) for x in (error, response)
    )
    return 5.0 if limited else None


def _number(value: object) -> float:
    if isinstance(value, (str, bytes, bool)) or not hasattr(value, "__float__"):
        raise TypeError(type(value).__name__)
    return float(value)


def _rows(value: object, what: str) -> list[object]:
    view = _buffer(value)
    if view is not None and view.ndim == 2:
        return list(value)  # type: ignore[call-overload, no-any-return]
    return _as_list(value, what)


def _as_list(value: object, what: str) -> list[object]:
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    if isinstance(value, (str, bytes, bytearray)) or not isinstance(value, Sequence):
        raise EmbedderError(f"{what}: a sequence is needed, not {type(value).__name__}")
    return list(value)
