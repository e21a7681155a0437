"""The errors of the driver: one class for each SQLSTATE of class KB, chosen by the code alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import psycopg

__all__ = [
    "Conflict",
    "ContextRefused",
    "EmbedderError",
    "IncompleteVersion",
    "InstallationError",
    "InvalidArgument",
    "KnowledgeError",
    "LeaseLost",
    "ModelMismatch",
    "NoContext",
    "NotFound",
    "NotPermitted",
    "Offboarded",
    "QuotaExceeded",
    "UnknownVocabulary",
    "database_errors",
    "encoded_text",
    "error_text",
]


class KnowledgeError(Exception):
    """Every error of this package.

    code: the SQLSTATE, '' for an error that did not come from the database.
    detail: what the database says to programs; empty when it says nothing.
    hint: what to do about it; may be ''.
    """

    code: ClassVar[str] = ""

    def __init__(self, message: str, detail: Mapping[str, Any] | None = None, hint: str = ""):
        super().__init__(message)
        self.detail: dict[str, Any] = dict(detail or {})
        self.hint = hint


class NoContext(KnowledgeError):
    """Nobody said who is asking."""

    code = "KB001"


class ContextRefused(KnowledgeError):
    """The context or token is forged, copied, replayed or expired."""

    code = "KB002"


class NotPermitted(KnowledgeError):
    """The role of the connection may not do this (also SQLSTATE 42501)."""

    code = "KB003"


class NotFound(KnowledgeError):
    """It does not exist, or it is not yours."""

    code = "KB004"


class InvalidArgument(KnowledgeError, ValueError):
    """An argument is malformed, an option or key unknown."""

    code = "KB005"


class UnknownVocabulary(KnowledgeError):
    """A tag or audience is not in the org's vocabulary, or none was declared."""

    code = "KB006"


class ModelMismatch(KnowledgeError):
    """The embedder is not the org's model."""

    code = "KB007"


class IncompleteVersion(KnowledgeError):
    """Chunks or vectors of the version are missing."""

    code = "KB008"


class LeaseLost(KnowledgeError):
    """Another writer has taken over the document."""

    code = "KB009"


class Conflict(KnowledgeError):
    """Another writer is at it; try again later."""

    code = "KB010"


class Offboarded(KnowledgeError):
    """The org was erased."""

    code = "KB011"


class QuotaExceeded(KnowledgeError):
    """A quota of the org is used up."""

    code = "KB012"


class InstallationError(KnowledgeError):
    """pg_knowledge is not installed, is installed already, or has another version."""

    code = "KB013"


class EmbedderError(KnowledgeError):
    """An embedder is missing, failed, or returned something else than one vector per text."""


_BY_CODE: dict[str, type[KnowledgeError]] = {
    kind.code: kind for kind in KnowledgeError.__subclasses__() if kind.code
} | {"42501": NotPermitted, "3F000": InstallationError, "42883": InstallationError}


def encoded_text(text: str) -> bytes:
    """The text in UTF-8; InvalidArgument for one that PostgreSQL cannot take: with NUL or a lone
    surrogate."""
    if "\0" in text:
        raise InvalidArgument("text must not have NUL characters")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("text must not have lone surrogates") from error


def error_text(message: str) -> str:
    """The message as PostgreSQL can store it: no NUL, no lone surrogate, 2000 characters."""
    return message.replace("\0", "").encode(errors="replace").decode()[:2000]


@contextmanager
def database_errors() -> Iterator[None]:
    """Turns errors of the database that have a class here into it; others pass as they are."""
    try:
        yield
    except psycopg.Error as error:
        kind = _BY_CODE.get(error.sqlstate or "")
        if kind is None:
            raise
        try:
            detail = json.loads(error.diag.message_detail or "{}")
        except ValueError:
            detail = None
        if not isinstance(detail, dict):
            detail = {"detail": error.diag.message_detail}
        message = error.diag.message_primary or str(error)
        raise kind(message, detail, error.diag.message_hint or "") from error
