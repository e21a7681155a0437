"""What the tests share: servers, databases with the migration applied, and waiting."""

from support.server import (
    Database,
    LocalServer,
    MigrationMissing,
    Server,
    as_context,
    migration_file,
    prepare_database,
)
from support.waiting import wait_until

__all__ = [
    "Database",
    "LocalServer",
    "MigrationMissing",
    "Server",
    "as_context",
    "migration_file",
    "prepare_database",
    "wait_until",
]
