"""Builds migrations/pg_knowledge--VERSION.sql from sql/NN_folder/*.sql, and SHA256SUMS beside it.

    python sql/build.py            write the files
    python sql/build.py --check    write nothing; exit 1 when a committed file differs

Parts are joined in the order of their folder's name, then of their own. In the text, @VERSION@
becomes the version of pyproject.toml, and @CHECKSUM@ the sha256 of the built text as it was before
that last replacement.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import re
import sys
import tomllib
from pathlib import Path

FOLDER = re.compile(r"[0-9]{2}_\w+")
DIFF_LINES = 20


def read_version(root: Path) -> str:
    """The version in pyproject.toml."""
    with (root / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    if not isinstance(version, str):
        raise SystemExit("pyproject.toml: [project] version is not a string")
    return version


def parts(root: Path) -> list[Path]:
    """The source files in build order."""
    folders = sorted(p for p in (root / "sql").iterdir() if p.is_dir() and FOLDER.fullmatch(p.name))
    return [file for folder in folders for file in sorted(folder.glob("*.sql"))]


def build_sql(root: Path, version: str) -> str:
    """The text of the fresh install."""
    files = parts(root)
    if not files:
        raise SystemExit("sql/: nothing to build")
    blocks = []
    for file in files:
        name = file.relative_to(root).as_posix()
        blocks.append(f"-- ---- {name}\n{file.read_text(encoding='utf-8').strip()}\n")
    text = "\n".join(blocks).replace("@VERSION@", version)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return text.replace("@CHECKSUM@", checksum)


def build(root: Path) -> dict[Path, str]:
    """Every file this script writes, with its text."""
    migrations = root / "migrations"
    version = read_version(root)
    target = migrations / f"pg_knowledge--{version}.sql"
    built = {target: build_sql(root, version)}
    contents = {file.name: file.read_bytes() for file in migrations.glob("*.sql")}
    contents[target.name] = built[target].encode()
    built[migrations / "SHA256SUMS"] = "".join(
        f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents)
    )
    return built


def check(root: Path, built: dict[Path, str]) -> bool:
    """Whether the files on disk are what would be built; prints what differs."""
    same = True
    for path, text in built.items():
        name = path.relative_to(root).as_posix()
        if not path.exists():
            print(f"{name}: missing; run: python sql/build.py")
            same = False
            continue
        current = path.read_bytes().decode(errors="replace")
        if current == text:
            continue
        same = False
        diff = list(
            difflib.unified_diff(
                current.splitlines(), text.splitlines(), name, "built from sql/", "", "", 0, ""
            )
        )
        added = sum(line.startswith("+") for line in diff[2:])
        removed = sum(line.startswith("-") for line in diff[2:])
        print(f"{name}: out of date (+{added} -{removed} lines); run: python sql/build.py")
        print("\n".join(f"    {line}" for line in diff[:DIFF_LINES]))
        if len(diff) > DIFF_LINES:
            print(f"    ... and {len(diff) - DIFF_LINES} more lines")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description="Build migrations/ from sql/.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 on a difference"
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="the project's folder",
    )
    args = parser.parse_args()
    root: Path = args.root.resolve()
    built = build(root)
    if args.check:
        return 0 if check(root, built) else 1
    for path, text in built.items():
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_bytes() != text.encode():
            path.write_bytes(text.encode())
            print(f"wrote {path.relative_to(root).as_posix()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
