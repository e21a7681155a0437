"""PgBouncer in transaction mode: two server connections for many clients of many orgs."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pg_knowledge import Context, Knowledge
from pg_knowledge.errors import NoContext, NotFound, database_errors
from support import Database, wait_until
from support.embedder import ToyEmbedder
from support.writer import document

COMMAND = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
ROLE = "app_backend"
PORT = 6432  # names the socket; there is no TCP
CLIENTS = 20

pytestmark = pytest.mark.skipif(COMMAND is None, reason="the command pgbouncer is not installed")


@pytest.fixture
def bouncer(shared: Database) -> Iterator[str]:
    """A connection string of a PgBouncer before the shared database."""
    target: dict[str, Any] = dict(conninfo_to_dict(shared.uri(ROLE)))
    user, password = target["user"], target.get("password", "")
    parts = {name: target[name] for name in ("host", "port", "dbname") if name in target}
    server = " ".join(f"{name}={value}" for name, value in parts.items())
    owner = os.stat(parts["host"]).st_uid if str(parts.get("host", "")).startswith("/") else None
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        users, settings = Path(folder, "users"), Path(folder, "pgbouncer.ini")
        users.write_text(f'"{user}" "{password}"\n')
        settings.write_text(
            f"[databases]\nkb = {server}\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n"
            f"unix_socket_dir = {folder}\nauth_type = trust\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n"
        )
        options: dict[str, Any] = {}
        if os.geteuid() == 0:  # it does not run as root
            options = {"user": owner or "nobody", "extra_groups": []}
        assert COMMAND
        log = Path(folder, "log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                [COMMAND, str(settings)], stdout=out, stderr=out, cwd="/", **options
            )
        try:
            uri = make_conninfo(host=folder, port=PORT, dbname="kb", user=user)
            wait_until(lambda: answers(uri) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield uri
        finally:
            process.terminate()
            process.wait(10)


def connect(uri: str) -> psycopg.Connection[Any]:
    return psycopg.connect(uri, autocommit=True, prepare_threshold=None)


def answers(uri: str) -> bool:
    try:
        connect(uri).close()
    except psycopg.OperationalError:
        return False
    return True


def test_twenty_clients_of_twenty_orgs(bouncer: str, shared: Database, org: str) -> None:
    """Everything works, everyone sees its own, and no context stays on a server connection."""

    def work(number: int) -> set[int]:
        mine = f"{org}, client {number}"
        pids = set()
        with connect(bouncer) as conn:
            kb = Knowledge(conn, Context(mine), embedder=ToyEmbedder())
            for turn in range(5):
                text = document(f"own{number} turn{turn}")
                kb.ingest("wiki", "a", text, audience=["everyone"], source_version=str(turn))
                hits = kb.search("common", k=100)
                assert [hit.body.split()[-1] for hit in hits if hit.ordinal == 0] == [
                    f"own{number}"
                ]
                assert {hit.source_version for hit in hits} == {str(turn)}
                with pytest.raises(NotFound):
                    kb.get_source("wiki", "missing")
                query = "select pg_backend_pid(), current_setting('knowledge.context', true)"
                pid, left = conn.execute(query).fetchone() or (None, "?")
                assert left in ("", None)
                pids.add(pid)
                with pytest.raises(NoContext), database_errors():
                    conn.execute("select * from knowledge.search_scoped('common')")
            kb.delete_source("wiki", "a")
        return pids

    with ThreadPoolExecutor(CLIENTS) as threads:
        pids = set().union(*threads.map(work, range(CLIENTS)))
    assert 1 <= len(pids) <= 2
    query = "select state from pg_stat_activity where pid = any (%s)"
    states = {state for (state,) in shared.superuser().execute(query, (list(pids),)).fetchall()}
    assert states <= {"idle"}
