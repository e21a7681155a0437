"""A re-ranker that runs here, on the CPU: any cross-encoder in ONNX form whose files you have.

Needs the extra: pip install pg-knowledge[rerank]
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["CrossEncoder"]


class CrossEncoder:
    """For ``Knowledge.search(rerank=...)``: the model reads the query and a text together.

    model: the .onnx file. tokenizer: its tokenizer.json; the one beside the model when not given.
    max_tokens: where a query with its text is cut. The score is the last logit, higher is better.

    ImportError when the extra is not installed; what the files are wrong with is raised as it is.
    """

    def __init__(
        self, model: str | Path, tokenizer: str | Path | None = None, *, max_tokens: int = 512
    ) -> None:
        self._numpy = _import("numpy")
        tokenizers, runtime = _import("tokenizers"), _import("onnxruntime")
        beside = Path(model).with_name("tokenizer.json")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer or beside))
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()
        self._session = runtime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self._inputs = {given.name for given in self._session.get_inputs()}

    def __call__(self, query: str, texts: Sequence[str]) -> list[float]:
        """A score per text, in order."""
        return [self._score(_encodable(query), _encodable(text)) for text in texts]

    def _score(self, query: str, text: str) -> float:
        # Each pair by itself, unpadded: no score depends on the texts beside it.
        encoded = self._tokenizer.encode(query, text)
        given = {
            "input_ids": encoded.ids,
            "attention_mask": encoded.attention_mask,
            "token_type_ids": encoded.type_ids,
        }
        tensors = {
            name: self._numpy.array([values], dtype=self._numpy.int64)
            for name, values in given.items()
            if name in self._inputs
        }
        return float(self._session.run(None, tensors)[0].reshape(-1)[-1])


def _encodable(text: str) -> str:
    # A lone surrogate cannot be given to the tokenizer.
    return text.encode("utf-8", "replace").decode("utf-8")


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError("not installed: pip install pg-knowledge[rerank]") from error
