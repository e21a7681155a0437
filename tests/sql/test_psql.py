"""Publish, search and erase need no Python: psql alone does it all."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support import Database

HERE = Path(__file__).parent


def test_psql_scripts(db: Database) -> None:
    """Every script in this folder prints what its file in expected/ says."""
    embedded = getattr(db.server, "embedded", None)
    program = embedded.bindir / "psql" if embedded else shutil.which("psql")
    done = subprocess.run(
        [HERE / "run.sh", db.uri("app_backend")],
        env={**os.environ, "PSQL": str(program)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    scripts = sorted(file.stem for file in HERE.glob("*.sql"))
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines() == [f"ok {name}" for name in scripts]
