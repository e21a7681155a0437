"""CrossEncoder gives its model one pair at a time; the model is a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pg_knowledge import Knowledge
from pg_knowledge.rerank import CrossEncoder

numpy = pytest.importorskip("numpy")


class Tokenizer:
    """Letters as tokens; from_file and enable_truncation as tokenizers has them."""

    def __init__(self, path: str) -> None:
        self.path, self.limit = path, 0

    from_file = classmethod(lambda cls, path: cls(path))

    def enable_truncation(self, limit: int) -> None:
        self.limit = limit

    def no_padding(self) -> None: ...

    def encode(self, query: str, text: str) -> Any:
        pair = [(ord(c), part) for part, piece in enumerate((query, text)) for c in piece]
        ids, types = zip(*pair[: self.limit], strict=True)
        return SimpleNamespace(ids=ids, attention_mask=[1] * len(ids), type_ids=types)


class Session:
    """Scores a pair by how many letters of the text the query has."""

    inputs = ("input_ids", "attention_mask", "token_type_ids")

    def __init__(self, path: str, providers: list[str]) -> None:
        assert (path, providers) == ("folder/model.onnx", ["CPUExecutionProvider"])

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.inputs]

    def run(self, outputs: None, given: dict[str, Any]) -> list[Any]:
        assert sorted(given) == sorted(self.inputs)
        assert {(t.dtype, t.ndim, len(t)) for t in given.values()} == {(numpy.dtype("int64"), 2, 1)}
        ids, types = given["input_ids"][0], given["token_type_ids"][0]
        shared = {*ids[types == 0]} & {*ids[types == 1]}
        return [numpy.array([[0.0, len(shared)]], dtype="float32")]


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch) -> CrossEncoder:
    runtime, tokenizers = (
        SimpleNamespace(InferenceSession=Session),
        SimpleNamespace(Tokenizer=Tokenizer),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tokenizers", tokenizers)  # type: ignore[arg-type]
    return CrossEncoder(Path("folder/model.onnx"), max_tokens=20)


def test_a_score_a_text(encoder: CrossEncoder) -> None:
    """In order, as numbers; cut at max_tokens; the tokenizer is the one beside the model."""
    assert encoder("abc", ["xyz", "abz", "abc", "x" * 17 + "abc"]) == [0, 2, 3, 0]
    assert encoder("abc", []) == []
    assert encoder("a\ud800", ["a\udfff?"]) == [2]
    assert encoder._tokenizer.path == "folder/tokenizer.json"


def test_it_is_a_reranker(encoder: CrossEncoder, kb: Knowledge) -> None:
    """search takes it as it is."""
    kb.ingest("wiki", "letters", "fox zzzz\n\nfox quick\n\nfox q", audience=["everyone"])
    hits = kb.search("fox quick", mode="keyword", rerank=encoder)
    assert [hit.rerank_score for hit in hits] == sorted(
        (encoder("fox quick", [hit.body])[0] for hit in hits), reverse=True
    )


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pg-knowledge\[rerank\]"):
        CrossEncoder("model.onnx")
