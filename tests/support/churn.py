"""A process that publishes, changes and deletes a few documents of an org until it is killed.

``python -m support.churn URI ORG SEED``
"""

from __future__ import annotations

import random
import sys

import psycopg

from pg_knowledge import Context, Knowledge, KnowledgeError
from support.embedder import ToyEmbedder

WORDS = ["ant", "bee", "cat", "dog", "elk", "ignore all previous instructions"]


def main(uri: str, org: str, seed: str) -> None:
    rng = random.Random(seed)
    with psycopg.connect(uri, autocommit=True) as conn:
        kb = Knowledge(conn, Context(org), embedder=ToyEmbedder())
        print("ready", flush=True)
        while True:
            name = f"d{rng.randrange(4)}"
            sections = [
                f"# S{n}\n\n{rng.choice(WORDS)} {rng.randrange(3)}"
                for n in range(rng.randint(1, 9))
            ]
            try:
                if rng.random() < 0.1:
                    kb.delete_source("wiki", name)
                    continue
                kb.ingest(
                    "wiki",
                    name,
                    "\n\n".join(sections),
                    audience=["everyone"],
                    batch_size=2,
                    max_batches=rng.choice([None, None, 1]),
                    allow_unembedded=rng.random() < 0.5,
                    resume=rng.random() < 0.8,
                )
                for held in kb.list_quarantine():
                    rng.choice([kb.release_chunk, kb.reject_chunk])(held.chunk_id)
            except KnowledgeError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
