"""A toy embedder: deterministic, counted, and wrong or slow on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from support.knowledge import DIMENSIONS, FINGERPRINT, toy_vector

Vectors = list[list[float]]


class ToyEmbedder:
    """The model that ``support.knowledge.register`` registers, as an Embedder.

    calls: the texts of each call so far.
    hook: called with the number of the call (from 1) and the right vectors; what it returns is
        returned, what it raises is raised, and while it waits the embedder hangs.
    """

    name = "toy"
    dimensions = DIMENSIONS
    fingerprint = FINGERPRINT

    def __init__(
        self, hook: Callable[[int, Vectors], Any] | None = None, **different: str | int
    ) -> None:
        self.calls: list[list[str]] = []
        self._hook = hook
        self._lock = Lock()
        for name, value in different.items():  # name, dimensions, fingerprint
            setattr(self, name, value)

    @property
    def texts(self) -> list[str]:
        """All texts so far, in order."""
        return [text for call in self.calls for text in call]

    def embed(self, texts: Sequence[str]) -> Any:
        with self._lock:
            self.calls.append(list(texts))
            number = len(self.calls)
        vectors = [toy_vector(text) for text in texts]
        return vectors if self._hook is None else self._hook(number, vectors)


def wrong_at(number: int, change: Callable[[Vectors], Any]) -> ToyEmbedder:
    """Answers ``change(vectors)`` at the n-th call, and what is right at all others."""
    return ToyEmbedder(lambda call, vectors: change(vectors) if call == number else vectors)


class BrokenEmbedder(ToyEmbedder):
    """Raises what is none of our errors."""

    def embed(self, texts: Sequence[str]) -> Any:
        raise RuntimeError("out of order")
