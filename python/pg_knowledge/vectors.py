"""Vectors on the wire: an array of pgvector's vector in its binary form."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format
from psycopg.rows import tuple_row

from .errors import InstallationError

__all__ = ["Vectors", "vector_dumper"]


class Vectors:
    """A parameter of type vector[]. rows: single-precision numbers, one array a vector."""

    __slots__ = ("rows",)

    def __init__(self, rows: Sequence[array[float]]) -> None:
        self.rows = rows


def vector_dumper(conn: psycopg.Connection[Any]) -> type[Dumper]:
    """How Vectors are sent to the database of conn, where the type has a number of its own."""
    query = (
        "select t.oid::int8, t.typarray::int8 from pg_catalog.pg_extension as e"
        " inner join pg_catalog.pg_type as t on t.typnamespace = e.extnamespace"
        " where e.extname = 'vector' and t.typname = 'vector'"
    )
    with conn.transaction(), psycopg.Cursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(query).fetchone()
    if row is None:
        raise InstallationError("pgvector is not installed in this database")
    element, whole = row

    class VectorsDumper(Dumper):
        format = Format.BINARY
        oid = whole

        def dump(self, obj: Vectors) -> Buffer:
            # One dimension, no nulls, the element's type, then length and lower bound.
            parts = [struct.pack("!5i", 1, 0, element, len(obj.rows), 1)]
            for row in obj.rows:
                numbers = array("f", row)
                if sys.byteorder == "little":
                    numbers.byteswap()
                data = numbers.tobytes()
                parts.append(struct.pack("!iHH", 4 + len(data), len(row), 0) + data)
            return b"".join(parts)

    return VectorsDumper
