"""Checks the SQL source by PostgreSQL's own grammar (pglast). Prints file:line: message.

    python sql/lint.py [FOLDER]    the default is the folder of this script

- Every file parses, as does every PL/pgSQL body, and holds no psql command and no BEGIN or COMMIT.
- Every function pins search_path = pg_catalog, ..., pg_temp. A function with a BEGIN ATOMIC body
  that is not SECURITY DEFINER need not: its names were bound when it was created, and a function
  with a SET clause cannot be inlined.
- A file makes at most one function of schema knowledge, with its comment, its revoke from public
  and its grant execute.
- A function of schema knowledge_private has its comment and its revoke from public in its file.
- Tables, their columns, and views carry a comment.
- Nothing sets a parameter for longer than the transaction.
- Dynamic SQL concatenates only constants and the results of format() and quote_*(). Where it must
  not, the line says so in the comment `-- lint: literal`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pglast import ast, parse_plpgsql, parse_sql
from pglast.enums import (
    FunctionParameterMode,
    ObjectType,
    RoleSpecType,
    TransactionStmtKind,
    VariableSetKind,
)
from pglast.parser import ParseError, scan

ALLOW = "-- lint: literal"
API, PRIVATE = "knowledge", "knowledge_private"
QUOTING = {"format", "quote_ident", "quote_literal", "quote_nullable"}
FUNCTION_OBJECTS = {
    ObjectType.OBJECT_FUNCTION,
    ObjectType.OBJECT_PROCEDURE,
    ObjectType.OBJECT_ROUTINE,
}
# Types of pgvector: scalars to PL/pgSQL, unknown to a parser that has no catalog.
VECTOR_TYPES = {"vector", "halfvec", "sparsevec"}

# The key of a function: schema, name, types of its input arguments (None: not given).
Signature = tuple[str, str, tuple[str, ...] | None]
# The key of a table, a view or a column.
Name = tuple[str, ...]


@dataclass(frozen=True, order=True)
class Finding:
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass
class Comments:
    """What the whole tree comments on."""

    tables: set[Name] = field(default_factory=set)
    columns: set[Name] = field(default_factory=set)
    views: set[Name] = field(default_factory=set)


@dataclass
class File:
    path: Path
    text: str
    statements: list[tuple[int, ast.Node]] = field(default_factory=list)

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, max(offset, 0)) + 1

    def at(self, offset: int, message: str) -> Finding:
        return Finding(self.path, self.line(offset), message)


def read(path: Path) -> tuple[File, list[Finding]]:
    file = File(path, path.read_text(encoding="utf-8"))
    try:
        raw = parse_sql(file.text)
    except ParseError as error:
        meta = [
            Finding(path, number, "psql command: a migration is plain SQL")
            for number, line in enumerate(file.text.splitlines(), 1)
            if line.lstrip().startswith("\\")
        ]
        return file, meta or [file.at(location(error), f"does not parse: {error.args[0]}")]
    file.statements = [(r.stmt_location, r.stmt) for r in raw]
    return file, []


def location(error: ParseError) -> int:
    return error.args[1] or 0 if len(error.args) > 1 else 0


def walk(node: object) -> Iterator[ast.Node]:
    """The node and all below it, except what a function or a role has in its SET clauses."""
    if isinstance(node, tuple | list):
        for item in node:
            yield from walk(item)
    elif isinstance(node, ast.Node):
        if isinstance(node, ast.AlterRoleSetStmt | ast.AlterDatabaseSetStmt):
            return
        if isinstance(node, ast.DefElem) and node.defname == "set":
            return
        yield node
        for attribute in node:
            yield from walk(getattr(node, attribute))


def strings(nodes: Iterable[Any] | None) -> Name:
    return tuple(node.sval for node in nodes or ())


def schema_and_name(names: Name) -> tuple[str, str]:
    return (names[-2] if len(names) > 1 else "", names[-1])


def type_key(type_name: ast.TypeName) -> str:
    return strings(type_name.names)[-1] + "[]" * len(type_name.arrayBounds or ())


# Functions: definitions, and the comments and grants that name them


OUTPUT_MODES = {FunctionParameterMode.FUNC_PARAM_OUT, FunctionParameterMode.FUNC_PARAM_TABLE}


def defined(stmt: ast.CreateFunctionStmt) -> Signature:
    schema, name = schema_and_name(strings(stmt.funcname))
    inputs = [p for p in stmt.parameters or () if p.mode not in OUTPUT_MODES]
    return schema, name, tuple(type_key(p.argType) for p in inputs)


def referred(target: ast.ObjectWithArgs) -> Signature:
    schema, name = schema_and_name(strings(target.objname))
    if target.args_unspecified:
        return schema, name, None
    if target.objfuncargs:
        inputs = [p for p in target.objfuncargs if p.mode not in OUTPUT_MODES]
        return schema, name, tuple(type_key(p.argType) for p in inputs)
    return schema, name, tuple(type_key(t) for t in target.objargs or ())


def named(function: Signature, references: set[Signature]) -> bool:
    return function in references or (*function[:2], None) in references


def options(stmt: ast.CreateFunctionStmt) -> dict[str, list[ast.DefElem]]:
    result: dict[str, list[ast.DefElem]] = defaultdict(list)
    for option in stmt.options or ():
        result[option.defname].append(option)
    return result


def constant(node: object) -> object:
    """The value of a constant, else None."""
    if isinstance(node, ast.TypeCast):
        node = node.arg
    if isinstance(node, ast.A_Const) and not node.isnull:
        for attribute in ("sval", "boolval", "ival", "fval"):
            if hasattr(node.val, attribute):
                return getattr(node.val, attribute)
    return None


def pinned(stmt: ast.CreateFunctionStmt) -> bool:
    for option in options(stmt)["set"]:
        setting = option.arg
        if setting.name == "search_path" and setting.kind == VariableSetKind.VAR_SET_VALUE:
            path = [constant(value) for value in setting.args]
            return path[0] == "pg_catalog" and path[-1] == "pg_temp"
    return False


def is_definer(stmt: ast.CreateFunctionStmt) -> bool:
    return any(option.arg.boolval for option in options(stmt)["security"])


def check_functions(file: File) -> Iterator[Finding]:
    commented: set[Signature] = set()
    revoked: set[Signature] = set()
    granted: set[Signature] = set()
    functions: list[tuple[int, ast.CreateFunctionStmt]] = []
    for offset, stmt in file.statements:
        if isinstance(stmt, ast.CreateFunctionStmt):
            functions.append((offset, stmt))
        elif isinstance(stmt, ast.CommentStmt) and stmt.objtype in FUNCTION_OBJECTS:
            if stmt.comment:
                commented.add(referred(stmt.object))
        elif isinstance(stmt, ast.GrantStmt) and stmt.objtype in FUNCTION_OBJECTS:
            targets = {referred(o) for o in stmt.objects if isinstance(o, ast.ObjectWithArgs)}
            public = any(g.roletype == RoleSpecType.ROLESPEC_PUBLIC for g in stmt.grantees)
            if stmt.is_grant and public:
                yield file.at(offset, "grants EXECUTE to PUBLIC")
            elif stmt.is_grant:
                granted |= targets
            elif public:
                revoked |= targets

    api: set[str] = set()
    for offset, stmt in functions:
        signature = schema, name, _ = defined(stmt)
        label = f"{schema}.{name}" if schema else name
        if not schema:
            yield file.at(offset, f"{label}: name the schema of a function")
            continue
        if schema not in (API, PRIVATE):
            continue
        bound = stmt.sql_body is not None and not is_definer(stmt)
        if not pinned(stmt) and not bound:
            yield file.at(offset, f"{label}: needs SET search_path = pg_catalog, ..., pg_temp")
        if not named(signature, commented):
            yield file.at(offset, f"{label}: no COMMENT ON FUNCTION in this file")
        if not named(signature, revoked):
            yield file.at(offset, f"{label}: no REVOKE ... FROM PUBLIC in this file")
        if schema == API:
            if not named(signature, granted):
                yield file.at(offset, f"{label}: no GRANT EXECUTE in this file")
            api.add(name)
            if len(api) > 1:
                yield file.at(offset, f"{label}: a second public function in one file")


# Tables and views


def collect_comments(files: Iterable[File]) -> Comments:
    comments = Comments()
    sets = {
        ObjectType.OBJECT_TABLE: comments.tables,
        ObjectType.OBJECT_COLUMN: comments.columns,
        ObjectType.OBJECT_VIEW: comments.views,
        ObjectType.OBJECT_MATVIEW: comments.views,
    }
    for file in files:
        for _, stmt in file.statements:
            if isinstance(stmt, ast.CommentStmt) and stmt.comment and stmt.objtype in sets:
                sets[stmt.objtype].add(strings(stmt.object))
    return comments


def relation(node: ast.RangeVar) -> Name:
    return tuple(part for part in (node.schemaname, node.relname) if part)


def check_tables(file: File, comments: Comments) -> Iterator[Finding]:
    for offset, stmt in file.statements:
        if isinstance(stmt, ast.CreateStmt | ast.AlterTableStmt):
            table = relation(stmt.relation)
            if stmt.relation.relpersistence == "t":
                continue
            label = ".".join(table)
            if isinstance(stmt, ast.CreateStmt):
                columns = [e for e in stmt.tableElts or () if isinstance(e, ast.ColumnDef)]
                if not stmt.relation.schemaname:
                    yield file.at(offset, f"{label}: name the schema of a table")
                if table not in comments.tables:
                    yield file.at(offset, f"{label}: no COMMENT ON TABLE")
            else:
                columns = [c.def_ for c in stmt.cmds if isinstance(c.def_, ast.ColumnDef)]
                columns = [c for c in columns if c.typeName and c.colname]
            for column in columns:
                if (*table, column.colname) not in comments.columns:
                    where = column.location if column.location > 0 else offset
                    yield file.at(where, f"{label}.{column.colname}: no COMMENT ON COLUMN")
        elif isinstance(stmt, ast.ViewStmt | ast.CreateTableAsStmt):
            target = stmt.view if isinstance(stmt, ast.ViewStmt) else stmt.into.rel
            if target.relpersistence == "t":
                continue
            if relation(target) not in comments.views | comments.tables:
                yield file.at(offset, f"{'.'.join(relation(target))}: no COMMENT ON VIEW")


# Statements, at top level and in bodies


def setting_message(node: ast.Node) -> str | None:
    """Why the node sets a parameter for longer than the transaction, else None."""
    if isinstance(node, ast.VariableSetStmt):
        if node.kind == VariableSetKind.VAR_SET_MULTI:
            return None if node.name.startswith("TRANSACTION") else f"SET {node.name}"
        if node.kind in (VariableSetKind.VAR_RESET, VariableSetKind.VAR_RESET_ALL):
            return f"RESET {node.name or 'ALL'} works on the session: use SET LOCAL"
        return None if node.is_local else f"SET {node.name} without LOCAL"
    if isinstance(node, ast.DiscardStmt):
        return "DISCARD works on the session"
    if (
        isinstance(node, ast.FuncCall)
        and strings(node.funcname)[-1] == "set_config"
        and (len(node.args or ()) < 3 or constant(node.args[2]) is not True)
    ):
        return "the third argument of set_config must be the constant true"
    return None


def check_settings(file: File, node: object, base: int, start: int) -> Iterator[Finding]:
    """base: where in the file the parsed text begins; start: the place of a node without one."""
    for child in walk(node):
        if message := setting_message(child):
            own = getattr(child, "location", None)
            yield file.at(base + own if isinstance(own, int) and own > 0 else start, message)


def check_statements(file: File, scalars: set[str]) -> Iterator[Finding]:
    for offset, stmt in file.statements:
        if isinstance(stmt, ast.TransactionStmt):
            kind = TransactionStmtKind(stmt.kind).name.removeprefix("TRANS_STMT_")
            yield file.at(offset, f"{kind} at top level: whoever applies a migration opens it")
        yield from check_settings(file, stmt, 0, offset)
        if isinstance(stmt, ast.CreateFunctionStmt):
            yield from check_body(file, offset, stmt, scalars)
        elif isinstance(stmt, ast.DoStmt):
            arguments = {a.defname: a for a in stmt.args}
            language = arguments["language"].arg.sval if "language" in arguments else "plpgsql"
            if language == "plpgsql":
                yield from Body(file, arguments["as"], "create function f() returns void", scalars)


def check_body(
    file: File, offset: int, stmt: ast.CreateFunctionStmt, scalars: set[str]
) -> Iterator[Finding]:
    given = options(stmt)
    if not given["as"]:
        return
    language = given["language"][0].arg.sval if given["language"] else "sql"
    source = given["as"][0]
    if language == "plpgsql":
        yield from Body(file, source, header(stmt, scalars), scalars)
    elif language == "sql":
        text = source.arg[0].sval
        base = body_offset(file, source)
        try:
            statements = parse_sql(text)
        except ParseError as error:
            yield file.at(base + location(error), f"body does not parse: {error.args[0]}")
            return
        for raw in statements:
            yield from check_settings(file, raw.stmt, base, base + raw.stmt_location)
    else:
        yield file.at(offset, f"language {language}: only sql and plpgsql")


def body_offset(file: File, option: ast.DefElem) -> int:
    """Where the text of a body begins: after $tag$ or the quote."""
    start: int = option.arg_location if option.arg_location is not None else option.location
    opening = re.compile(r"\$\w*\$|'").search(file.text, start)
    return opening.end() if opening else start


# PL/pgSQL. The parser has no catalog: a type that it does not know is a record to it, or an error.
# So the types of this project are replaced, in the copy that is parsed, by record or text.


def plain_type(names: Name, is_array: bool, scalars: set[str]) -> str:
    schema, name = schema_and_name(names)
    if is_array:
        return "text[]"
    if name in scalars:
        return "text"
    if schema in ("", "pg_catalog"):
        return f'"{name}"'
    return "record"


def header(stmt: ast.CreateFunctionStmt, scalars: set[str]) -> str:
    """CREATE FUNCTION up to the body, in types that the parser knows."""

    def spell(node: ast.TypeName) -> str:
        if node.pct_type:
            return "text"
        return plain_type(strings(node.names), bool(node.arrayBounds), scalars)

    modes = {
        FunctionParameterMode.FUNC_PARAM_OUT: "out",
        FunctionParameterMode.FUNC_PARAM_INOUT: "inout",
    }
    arguments: list[str] = []
    columns: list[str] = []
    for parameter in stmt.parameters or ():
        name = '"' + (parameter.name or "").replace('"', '""') + '"' if parameter.name else ""
        words = f"{modes.get(parameter.mode, '')} {name} {spell(parameter.argType)}".strip()
        table = parameter.mode == FunctionParameterMode.FUNC_PARAM_TABLE
        (columns if table else arguments).append(words)
    kind = "procedure" if stmt.is_procedure else "function"
    text = f"create {kind} f({', '.join(arguments)})"
    if columns:
        text += f" returns table({', '.join(columns)})"
    elif stmt.returnType:
        setof = "setof " if stmt.returnType.setof else ""
        text += f" returns {setof}{spell(stmt.returnType)}"
    return text


def plain_declarations(body: str, scalars: set[str]) -> str:
    """The body with the types in DECLARE sections replaced; line breaks stay where they were."""
    tokens = [(t.name, t.start, t.end + 1) for t in scan(body) if "COMMENT" not in t.name]
    edits: list[tuple[int, int, str]] = []
    index, declaring = 0, False
    while index < len(tokens):
        name, start, end = tokens[index]
        if name == "DECLARE":
            declaring = True
            index += 1
            continue
        if declaring and name == "BEGIN_P":
            declaring = False
        if not declaring or name == "Op":
            index += 1
            continue
        # name [constant] type [...] ;
        index += 1
        if index < len(tokens) and body[tokens[index][1] : tokens[index][2]].lower() == "constant":
            index += 1
        first = index
        while index < len(tokens) and tokens[index][0] != "ASCII_59":
            index += 1
        edits.extend(type_edit(body, tokens[first:index], scalars))
        index += 1
    for start, end, text in reversed(edits):
        body = body[:start] + text + "\n" * body.count("\n", start, end) + body[end:]
    return body


def type_edit(
    body: str, tokens: list[tuple[str, int, int]], scalars: set[str]
) -> Iterator[tuple[int, int, str]]:
    words = [body[start:end].lower() for _, start, end in tokens]
    stops = {"collate", "not", "default", ":=", "=", "cursor", "no", "scroll", "alias"}
    length = next((i for i, word in enumerate(words) if word in stops), len(words))
    if length == 0:
        return  # a cursor or an alias
    kind = words[:length]
    dots = [i for i, word in enumerate(kind) if word == "."]
    names = tuple(word.strip('"') for word in [kind[0], *(kind[i + 1] for i in dots)])
    if "[" in kind or "array" in kind:
        text = "text[]"
    elif "%" in kind:
        text = "record" if kind[-1] == "rowtype" else "text"
    elif len(names) > 1 or names[0] in scalars:
        text = plain_type(names, False, scalars)
    else:
        return
    yield tokens[0][1], tokens[length - 1][2], text


class Body:
    """The findings in one PL/pgSQL body."""

    def __init__(self, file: File, option: ast.DefElem, head: str, scalars: set[str]) -> None:
        self.file = file
        self.base = body_offset(file, option)
        self.text: str = option.arg[0].sval if isinstance(option.arg, tuple) else option.arg.sval
        self.head = head
        self.scalars = scalars

    def __iter__(self) -> Iterator[Finding]:
        tag = "$lint$"
        while tag in self.text:
            tag = tag[:-1] + "_$"
        plain = plain_declarations(self.text, self.scalars)
        try:
            tree = parse_plpgsql(f"{self.head} language plpgsql as {tag}{plain}{tag}")
        except ParseError as error:
            message = str(error.args[0])
            yield self.file.at(self.guess(message), f"body does not parse: {message}")
            return
        self.dynamic: list[tuple[int, str]] = []
        self.assigned: list[tuple[int, str, str]] = []
        for line, expression, mode in self.expressions(tree, 1):
            yield from self.check_expression(line, expression, mode)
        yield from self.check_dynamic()

    def guess(self, message: str) -> int:
        """PL/pgSQL tells no place: the first line with the word that it complains of."""
        near = re.search(r'"(.+)"', message)
        found = self.text.find(near.group(1)) if near and self.text.count(near.group(1)) == 1 else 0
        return self.base + max(found, 0)

    def offset(self, line: int, expression: str) -> int:
        """Where in the file an expression of a statement that begins on a line of the body is."""
        start = 0
        for _ in range(line - 1):
            start = self.text.find("\n", start) + 1
        found = self.text.find(expression, start)
        return self.base + (found if found >= 0 else start + self.indent(start))

    def indent(self, start: int) -> int:
        rest = self.text[start:]
        return len(rest) - len(rest.lstrip(" "))

    def expressions(self, node: object, line: int) -> Iterator[tuple[int, str, int]]:
        if isinstance(node, list):
            for item in node:
                yield from self.expressions(item, line)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key == "PLpgSQL_expr":
                    yield line, value["query"], value["parseMode"]
                    continue
                inner = value.get("lineno", line) if isinstance(value, dict) else line
                if key.startswith("PLpgSQL_stmt_"):
                    query = value.get("dynquery") or (value.get("query") if "dyn" in key else None)
                    if query:
                        self.dynamic.append((inner, query["PLpgSQL_expr"]["query"]))
                elif key == "PLpgSQL_var" and "default_val" in value:
                    default = value["default_val"]["PLpgSQL_expr"]["query"]
                    self.assigned.append((inner, value["refname"].lower(), default))
                yield from self.expressions(value, inner)

    def check_expression(self, line: int, expression: str, mode: int) -> Iterator[Finding]:
        """mode is RawParseMode: 0 a statement, 1 a type, 2 an expression, from 3 an assignment."""
        if mode == 1:
            return
        begin = self.offset(line, expression)
        sql, prefix = expression, 0
        if mode >= 3:
            target, sql = split_assignment(expression)
            self.assigned.append((line, target, sql))
            begin += len(expression) - len(sql)
        if mode:
            sql, prefix = "select " + sql, len("select ")
        try:
            parsed = parse_sql(sql)
        except ParseError as error:
            yield self.file.at(
                begin + max(location(error) - prefix, 0), f"does not parse: {error.args[0]}"
            )
            return
        for raw in parsed:
            yield from check_settings(self.file, raw.stmt, begin - prefix, begin)

    def check_dynamic(self) -> Iterator[Finding]:
        """EXECUTE of an expression, and every assignment to a variable that is executed."""
        executed = {query.strip().lower() for _, query in self.dynamic}
        variables = {query for query in executed if query.isidentifier()}
        checks = [(line, query) for line, query in self.dynamic]
        checks += [(line, sql) for line, target, sql in self.assigned if target in variables]
        for line, query in checks:
            try:
                value = parse_sql("select " + query)[0].stmt.targetList[0].val
            except (ParseError, TypeError):
                continue  # reported already
            if unsafe(value, variables) and not self.allowed(line, query):
                yield self.file.at(
                    self.offset(line, query),
                    "dynamic SQL by || without format(), or say why in a comment and end with "
                    + ALLOW,
                )

    def allowed(self, line: int, query: str) -> bool:
        lines = self.file.text.splitlines()
        first = self.file.line(self.base) + line - 2
        last = self.file.line(self.offset(line, query)) + query.count("\n") - 1
        return any(ALLOW in text for text in lines[max(first - 1, 0) : last + 1])


def split_assignment(expression: str) -> tuple[str, str]:
    """`target := value`, as the variable's name in lower case and the value."""
    depth = 0
    for token in scan(expression):
        word = expression[token.start : token.end + 1]
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(word, 0)
        if depth == 0 and word in (":=", "="):
            return expression[: token.start].strip().lower(), expression[token.end + 1 :].lstrip()
    return "", expression


def unsafe(node: object, variables: set[str]) -> bool:
    """Whether a concatenation has a part that is no constant, format() or executed variable."""
    if isinstance(node, ast.A_Expr) and strings(node.name)[-1] == "||":
        return any(
            unsafe(part, variables) or not fixed(part, variables)
            for part in (node.lexpr, node.rexpr)
        )
    if isinstance(node, ast.CaseExpr):
        results = [when.result for when in node.args] + [node.defresult]
        return any(unsafe(result, variables) for result in results)
    if isinstance(node, ast.CoalesceExpr):
        return any(unsafe(argument, variables) for argument in node.args)
    return False


def fixed(node: object, variables: set[str]) -> bool:
    if node is None or isinstance(node, ast.A_Const):
        return True
    if isinstance(node, ast.TypeCast):
        return fixed(node.arg, variables)
    if isinstance(node, ast.A_Expr):
        return strings(node.name)[-1] == "||"  # judged by unsafe
    if isinstance(node, ast.FuncCall):
        return strings(node.funcname)[-1] in QUOTING
    if isinstance(node, ast.CaseExpr):
        results = [when.result for when in node.args] + [node.defresult]
        return all(fixed(result, variables) for result in results)
    if isinstance(node, ast.CoalesceExpr):
        return all(fixed(argument, variables) for argument in node.args)
    if isinstance(node, ast.ColumnRef) and len(node.fields) == 1:
        name = node.fields[0]
        return isinstance(name, ast.String) and name.sval in variables
    return False


def lint(root: Path) -> list[Finding]:
    findings: list[Finding] = []
    files: list[File] = []
    for path in sorted(root.rglob("*.sql")):
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        file, errors = read(shown)
        files.append(file)
        findings += errors
    comments = collect_comments(files)
    scalars = set(VECTOR_TYPES)
    for file in files:
        for _, stmt in file.statements:
            if isinstance(stmt, ast.CreateEnumStmt):
                scalars.add(strings(stmt.typeName)[-1])
            elif isinstance(stmt, ast.CreateDomainStmt):
                scalars.add(strings(stmt.domainname)[-1])
    for file in files:
        findings += check_statements(file, scalars)
        findings += check_functions(file)
        findings += check_tables(file, comments)
    return sorted(set(findings))


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the SQL source.")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(__file__).parent, help="default: sql/"
    )
    folder: Path = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    findings = lint(folder.resolve())
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
