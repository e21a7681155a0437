"""pg_knowledge: a permission-aware knowledge base inside PostgreSQL, and its Python driver.

with ConnectionPool(url) as pool:
    kb = Knowledge(pool, Context("acme", ["hr"]), embedder=LocalEmbedder())
    kb.ingest("wiki", "leave", text, audience=["staff"], title="Leave policy")
    for hit in kb.search("how many days off do I get?"):
        print(hit.rank, hit.title, hit.heading, hit.body)
"""

from .chunking import Chunk, chunk_text, locate
from .client import Knowledge
from .embedding import Embedder
from .errors import KnowledgeError
from .migrate import installed_version, migrate
from .render import render_context
from .types import (
    Context,
    Deletion,
    Erasure,
    Held,
    Hit,
    IngestOutcome,
    IngestReport,
    IngestStatus,
    LiveVersion,
    Passage,
    QueueState,
    SearchResult,
    Source,
    SourceStats,
    Token,
    Verdict,
)

__all__ = [
    "Chunk",
    "Context",
    "Deletion",
    "Embedder",
    "Erasure",
    "Held",
    "Hit",
    "IngestOutcome",
    "IngestReport",
    "IngestStatus",
    "Knowledge",
    "KnowledgeError",
    "LiveVersion",
    "Passage",
    "QueueState",
    "SearchResult",
    "Source",
    "SourceStats",
    "Token",
    "Verdict",
    "chunk_text",
    "installed_version",
    "locate",
    "migrate",
    "render_context",
]
