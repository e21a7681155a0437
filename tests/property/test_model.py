"""Random histories of a knowledge base against a model of who may see what, in plain Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from support import Database
from support.invariants import check_invariants
from support.knowledge import begin, embed, finalize, promote, register, rows, search, stage

# English words that are their own stem, so that a set of words is what the keyword leg compares.
WORDS = ["fox", "lamp", "bird", "tree", "moon", "fish", "gold", "wolf"]
TAGS = ["red", "blue", "green"]
AUDIENCES = ["staff", "board", "guests"]
SCOPES = [None, "a", "b"]
SOURCE_TYPES = ["wiki", "mail"]
SOURCE_IDS = ["1", "2", "3"]
VISIBILITIES = ["org", "draft"]
METADATA = [{}, {"team": "x"}, {"team": "y"}, {"team": "x", "year": 1}]
BOOSTS = [
    {"boost": {"metadata": {"team": {"x": 3, "y": 0.1}}}},
    {"boost": {"recency": {"half_life_days": 0.001, "weight": 2}}},
]
LEASE = {"lease_holder": "w"}
_orgs = itertools.count(1)

Key = tuple[str | None, str, str]  # org_scope, source_type, source_id


@dataclass
class Doc:
    """What is live."""

    bodies: list[str]
    embedded: list[bool]
    audience: frozenset[str]
    visibility: str
    metadata: dict[str, Any]


@dataclass
class Pending:
    """What is being ingested; None keeps what is live."""

    version: dict[str, Any]
    bodies: list[str]
    audience: frozenset[str] | None
    visibility: str | None
    metadata: dict[str, Any] | None
    staged: dict[int, bool] = field(default_factory=dict)  # ordinal -> its vector is stored


@dataclass
class Org:
    name: str
    tags: set[str] = field(default_factory=set)
    audiences: dict[str, frozenset[str]] = field(default_factory=dict)
    docs: dict[Key, Doc] = field(default_factory=dict)
    pending: dict[Key, Pending] = field(default_factory=dict)

    def readable(self, grants: set[str], scope: str | None) -> dict[Key, Doc]:
        """Who may see what: all that permission is, in one place."""
        held = {"everyone", *grants}
        return {
            key: doc
            for key, doc in self.docs.items()
            if key[0] in (None, scope)
            and any(held & self.audiences.get(name, {name}) for name in doc.audience)
        }

    def unembedded(self, pending: Pending) -> list[int]:
        """The staged ordinals with neither a vector of their own nor one to reuse."""
        texts = {
            body
            for doc in self.docs.values()
            for body, has in zip(doc.bodies, doc.embedded, strict=True)
            if has
        }
        return sorted(
            i for i, has in pending.staged.items() if not has and pending.bodies[i] not in texts
        )


body_texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
documents = st.lists(body_texts, min_size=1, max_size=4)
edits = st.sampled_from(["same", "edit", "move", "double", "shorten", "new"])
audiences = st.one_of(
    st.none(),
    st.sampled_from([*AUDIENCES, "everyone"]).map(lambda a: [a]),
    st.lists(st.sampled_from([*AUDIENCES, "everyone"]), max_size=3),
)
known_audiences = st.sampled_from([["everyone"], ["staff"], ["board"], ["board", "staff"]])
tag_lists = st.lists(st.sampled_from([*TAGS, "everyone"]), min_size=1, max_size=2)
grant_sets = st.sets(st.sampled_from(TAGS))
keys = st.tuples(
    st.sampled_from(SCOPES), st.sampled_from(SOURCE_TYPES), st.sampled_from(SOURCE_IDS)
)
writers = st.sampled_from(["app_backend", "app_writer"])
readers = st.sampled_from(["app_backend", "app_trusted", "app_reader"])
org_numbers = st.integers(0, 1)
questions = st.lists(
    st.tuples(st.sampled_from(["", "", "", "-", '"']), st.sampled_from(WORDS)),
    min_size=1,
    max_size=3,
)
requests = st.fixed_dictionaries(
    {
        "n": org_numbers,
        "role": readers,
        "grants": grant_sets,
        "scope": st.sampled_from(SCOPES),
        "asked": questions,
        "k": st.integers(1, 8),
        "source_types": st.sampled_from([*[None] * 6, [], ["wiki"], ["mail", "other"]]),
        "visibility": st.sampled_from([*[None] * 3, *[VISIBILITIES] * 3, ["draft"], []]),
        "metadata": st.sampled_from([*[None] * 6, *METADATA]),
        "options": st.sampled_from([{}, {}, *BOOSTS]),
    }
)


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    """The block must fail with one of the codes."""
    with pytest.raises(psycopg.Error) as error:
        yield
    assert error.value.sqlstate in codes, error.value


def is_match(mode: str, asked: list[tuple[str, str]], body: str, embedded: bool) -> bool:
    """Whether a permitted chunk is an answer. asked: words with the mark before them."""
    words = set(body.split())
    if mode == "vector":
        return embedded  # the question's words are not looked at
    if words & {word for mark, word in asked if mark == "-"}:
        return False
    says = words & {word for mark, word in asked if mark != "-"}
    says_all = words >= {word for mark, word in asked if mark == '"'}
    return bool(says and says_all) or (embedded and mode == "hybrid")


def check_answer(
    found: list[dict[str, Any]],
    longer: list[dict[str, Any]],
    matches: dict[tuple[Any, ...], str],
    k: int,
) -> None:
    """found for k and longer for 3 k are min(k, matches) of matches, one a prefix of the other."""
    chunks = {
        (r["org_scope"], r["source_type"], r["source_id"], r["ordinal"]): r["body"] for r in longer
    }
    assert chunks.items() <= matches.items()
    assert len(chunks) == len(longer) == min(3 * k, len(matches))
    assert [r["chunk_id"] for r in found] == [r["chunk_id"] for r in longer[:k]]
    assert [r["rank"] for r in longer] == list(range(1, len(longer) + 1))


def check_same(scoped: list[dict[str, Any]], exact: list[dict[str, Any]]) -> None:
    """Same chunks in the same order, same ranks, same scores but for the last bits."""
    same = ("rank", "chunk_id", "vector_rank", "keyword_rank")
    assert [[r[c] for c in same] for r in scoped] == [[r[c] for c in same] for r in exact]
    for one, other in zip(scoped, exact, strict=True):
        for measure in ("score", "vector_distance", "keyword_score"):
            a, b = one[measure], other[measure]
            assert (a is None) == (b is None)
            assert a is None or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12), (a, b)


class Knowledge(RuleBasedStateMachine):
    """Each example has orgs of its own in the one database of the test."""

    db: Database
    connections: dict[str, psycopg.Connection[Any]]
    promote: bool
    orgs: Sequence[Org] = ()
    names: Sequence[str] = ()  # of all orgs there ever were
    indexes: Sequence[str] = ()  # of those that were promoted

    @initialize(
        rules=st.tuples(tag_lists, tag_lists),
        seeds=st.lists(st.tuples(org_numbers, keys, documents, known_audiences), min_size=9),
    )
    def start(self, rules: Any, seeds: Any) -> None:
        """Two orgs with a vocabulary and some documents."""
        self.names, self.indexes = [], []
        self.orgs = [self.new_org(), self.new_org()]
        for n, tags in enumerate(rules):
            for tag in TAGS[:2]:
                self.define_tag(n, tag)
            self.define_audience(n, "staff", tags, prepare=True)
            self.define_audience(n, "board", ["red"], prepare=True)
        for n, key, bodies, audience in seeds:
            org = self.orgs[n]
            if self.begin("app_backend", org, key, bodies, audience, None, None):
                self.stage("app_backend", org, key, list(range(len(bodies))), True)
                self.finalize("app_backend", org, key, allow=False)
        for org in self.orgs:
            if self.promote and org.docs:
                index = promote(self.connections["superuser"], org.name)
                self.indexes = [*self.indexes, index]

    def new_org(self) -> Org:
        org = Org(f"org {next(_orgs)}")
        self.names = [*self.names, org.name]
        return org

    def teardown(self) -> None:
        superuser = self.connections["superuser"]
        check_invariants(superuser, self.names)
        for name in self.indexes:
            superuser.execute(f"drop index if exists knowledge.{name}")

    @contextmanager
    def acting(
        self, role: str, org: Org, grants: set[str], scope: str | None
    ) -> Iterator[psycopg.Connection[Any]]:
        """A transaction of role with that context, by a token where the role has no other way."""
        conn = self.connections[role]
        claim = (org.name, sorted(grants), scope)
        if role in ("app_reader", "app_writer"):
            issuer = self.connections["app_trusted"]
            (token,) = issuer.execute("select knowledge.issue_token(%s, %s, %s)", claim).fetchone()
            enter = ("select knowledge.use_token(%s)", (token,))
        else:
            enter = ("select knowledge.set_context(%s, %s, %s)", claim)
        with conn.transaction():
            conn.execute(*enter)
            yield conn

    # -- the vocabulary

    @rule(n=org_numbers, tag=st.sampled_from(TAGS))
    def define_tag(self, n: int, tag: str) -> None:
        org = self.orgs[n]
        with self.acting("app_backend", org, set(), None) as conn:
            conn.execute("select knowledge.define_tag(%s)", (tag,))
        org.tags.add(tag)

    @rule(n=org_numbers, audience=st.sampled_from(AUDIENCES), tags=tag_lists, prepare=st.booleans())
    def define_audience(self, n: int, audience: str, tags: list[str], prepare: bool) -> None:
        org = self.orgs[n]
        if prepare:
            for tag in set(tags) - {"everyone"}:
                self.define_tag(n, tag)
        with self.acting("app_backend", org, set(), None) as conn:
            query = "select knowledge.define_audience(%s, %s)"
            unknown = set(tags) - org.tags - {"everyone"}
            if unknown:
                with refused("KB006"), conn.transaction():
                    conn.execute(query, (audience, tags))
                return
            conn.execute(query, (audience, tags))
        org.audiences[audience] = frozenset(tags)

    # -- ingest

    def edited(self, org: Org, key: Key, edit: str, fresh: list[str]) -> list[str]:
        live = list(org.docs[key].bodies) if key in org.docs else []
        if not live or edit == "new":
            return fresh
        return {
            "same": live,
            "edit": [*fresh[:1], *live[1:]],
            "move": [*live[1:], live[0]],
            "double": [*live, live[0]],
            "shorten": live[:-1] or fresh,
        }[edit]

    def begin(
        self,
        role: str,
        org: Org,
        key: Key,
        bodies: list[str],
        audience: list[str] | None,
        visibility: str | None,
        metadata: dict[str, Any] | None,
    ) -> Pending | None:
        """begin_version; None when it is refused, or there is nothing to do."""
        scope, source_type, source_id = key
        live = org.docs.get(key)
        known = {"everyone", *org.audiences}
        refusal = live is None if audience is None else not audience or set(audience) - known
        given = {
            "source_type": source_type,
            "audience": audience,
            "visibility": visibility,
            "metadata": metadata,
            "options": LEASE,
        }
        with self.acting(role, org, set(), scope) as conn:
            if refusal:
                with refused("KB006"), conn.transaction():
                    begin(conn, source_id, bodies, **given)
                return None
            version = begin(conn, source_id, bodies, **given)
        declared = None if audience is None else frozenset(audience)
        old = org.pending.get(key)
        unchanged = (
            live is not None
            and live.bodies == bodies
            and all(live.embedded)
            and (declared is None or declared == live.audience)
            and (visibility is None or visibility == live.visibility)
            and (metadata is None or metadata == live.metadata)
        )
        assert version["state"] == ("live" if unchanged else "ingesting")
        pending = None
        if not unchanged:
            pending = Pending(version, bodies, declared, visibility, metadata)
            if old and old.bodies == bodies:
                assert version["version_id"] == old.version["version_id"]
                pending.staged = old.staged
            assert version["staged"] == sorted(pending.staged)
            assert version["unembedded"] == org.unembedded(pending)
        if old:  # its writer is refused from now on
            with self.acting(role, org, set(), scope) as conn, refused("KB009"), conn.transaction():
                finalize(conn, old.version, allow_unembedded=True)
            del org.pending[key]
        if pending:
            org.pending[key] = pending
        return pending

    def stage(self, role: str, org: Org, key: Key, ordinals: list[int], vectors: bool) -> None:
        pending = org.pending[key]
        if not ordinals:
            return
        with self.acting(role, org, set(), key[0]) as conn:
            for i in ordinals:
                (answer,) = stage(conn, pending.version, [pending.bodies[i]], first=i)
                pending.staged.setdefault(i, False)
                needed = i in org.unembedded(pending)
                verdict = {"verdict": "admitted", "reason": None}
                assert answer == {"ordinal": i, "needs_embedding": needed, **verdict}
            missing = org.unembedded(pending)
            if vectors and missing:
                embed(conn, pending.version, pending.bodies, missing)
                pending.staged.update(dict.fromkeys(missing, True))

    def finalize(self, role: str, org: Org, key: Key, allow: bool) -> None:
        pending = org.pending[key]
        ready = len(pending.staged) == len(pending.bodies)
        with self.acting(role, org, set(), key[0]) as conn:
            missing = org.unembedded(pending)
            if not ready or (missing and not allow):
                with refused("KB008"), conn.transaction():
                    finalize(conn, pending.version, allow)
                return
            report = finalize(conn, pending.version, allow)
        stored = {pending.bodies[i] for i, has in pending.staged.items() if has}
        live = org.docs.get(key)
        doc = Doc(
            pending.bodies,
            # Of equal texts in one version, one vector is enough.
            [i not in missing or body in stored for i, body in enumerate(pending.bodies)],
            pending.audience if pending.audience is not None else live.audience,
            pending.visibility or (live.visibility if live else "org"),
            pending.metadata if pending.metadata is not None else (live.metadata if live else {}),
        )
        assert report["live"]
        assert report["chunks"] == len(doc.bodies)
        assert report["complete"] == all(doc.embedded)
        old = list(live.bodies) if live else []
        kept = sum(min(old.count(body), doc.bodies.count(body)) for body in set(doc.bodies))
        assert report["skipped"] == kept
        org.docs[key] = doc
        del org.pending[key]

    @rule(
        n=org_numbers,
        key=keys,
        role=writers,
        edit=edits,
        fresh=documents,
        audience=audiences,
        visibility=st.sampled_from([None, *VISIBILITIES]),
        metadata=st.sampled_from([None, *METADATA]),
        vectors=st.sampled_from([True, True, True, False]),
        allow=st.booleans(),
        stop=st.sampled_from([None, None, None, None, 0, 1, 2]),
    )
    def ingest(
        self,
        n: int,
        key: Key,
        role: str,
        edit: str,
        fresh: list[str],
        audience: list[str] | None,
        visibility: str | None,
        metadata: dict[str, Any] | None,
        vectors: bool,
        allow: bool,
        stop: int | None,
    ) -> None:
        """A whole ingest, or one that stops after some chunks."""
        org = self.orgs[n]
        bodies = self.edited(org, key, edit, fresh)
        pending = self.begin(role, org, key, bodies, audience, visibility, metadata)
        if pending:
            self.stage(role, org, key, list(range(len(bodies)))[:stop], vectors)
            if stop is None:
                self.finalize(role, org, key, allow)

    @rule(n=org_numbers, role=writers, pick=st.integers(0, 9), vectors=st.booleans())
    def resume(self, n: int, role: str, pick: int, vectors: bool) -> None:
        org = self.orgs[n]
        if not org.pending:
            return
        key = sorted(org.pending, key=str)[pick % len(org.pending)]
        old = org.pending[key]
        pending = self.begin(
            role,
            org,
            key,
            old.bodies,
            None if old.audience is None else sorted(old.audience),
            old.visibility,
            old.metadata,
        )
        if pending:
            rest = [i for i in range(len(pending.bodies)) if i not in pending.staged]
            self.stage(role, org, key, rest, vectors)
            self.finalize(role, org, key, allow=not vectors)

    @rule(n=org_numbers, role=writers, pick=st.integers(0, 9))
    def abort(self, n: int, role: str, pick: int) -> None:
        org = self.orgs[n]
        if not org.pending:
            return
        key = sorted(org.pending, key=str)[pick % len(org.pending)]
        version = org.pending.pop(key).version["version_id"]
        with self.acting(role, org, set(), key[0]) as conn:
            query = "select knowledge.abort_version(%s) as done"
            assert rows(conn, query, version) == [{"done": True}]

    # -- deletes

    @rule(n=org_numbers, key=keys, role=writers)
    def delete_source(self, n: int, key: Key, role: str) -> None:
        org = self.orgs[n]
        query = "select chunks from knowledge.delete_source(%s, %s)"
        with self.acting(role, org, set(), key[0]) as conn:
            if key not in org.docs and key not in org.pending:
                with refused("KB004"), conn.transaction():
                    rows(conn, query, *key[1:])
                return
            (deleted,) = rows(conn, query, *key[1:])
        assert deleted["chunks"] == (len(org.docs[key].bodies) if key in org.docs else 0)
        org.docs.pop(key, None)
        org.pending.pop(key, None)

    @rule(
        n=org_numbers,
        scope=st.sampled_from(SCOPES),
        source_types=st.sampled_from([None, [], ["wiki"], ["mail"]]),
        dry_run=st.booleans(),
    )
    def delete_by_scope(
        self, n: int, scope: str | None, source_types: list[str] | None, dry_run: bool
    ) -> None:
        org = self.orgs[n]
        query = "select * from knowledge.delete_by_scope(%s, source_types => %s)"
        gone = {
            key
            for key in {*org.docs, *org.pending}
            if key[0] == scope and (source_types is None or key[1] in source_types)
        }
        with self.acting("app_backend", org, set(), scope) as conn:
            (deleted,) = rows(conn, query, dry_run, source_types)
        assert deleted["documents"] == len(gone)
        assert deleted["chunks"] == sum(len(org.docs[k].bodies) for k in gone if k in org.docs)
        assert (deleted["receipt"] is None) == dry_run
        for key in gone if not dry_run else ():
            org.docs.pop(key, None)
            org.pending.pop(key, None)

    @rule(n=org_numbers, sure=st.integers(0, 3))
    def offboard(self, n: int, sure: int) -> None:
        """After entire_org nothing is there, nothing can be done, and another org goes on."""
        org = self.orgs[n]
        if sure != 3:
            return
        with self.acting("app_backend", org, set(), None) as conn:
            (deleted,) = rows(conn, "select * from knowledge.delete_by_scope(false, true)")
            assert deleted["documents"] == len({*org.docs, *org.pending})
        with self.acting("app_backend", org, {*TAGS}, "a") as conn:
            for call in (
                "search_scoped('fox', mode => 'keyword')",
                "begin_version('wiki', '1', 'hash', 1, '{everyone}')",
                "define_tag('red')",
                "define_audience('staff', '{everyone}')",
                "delete_source('wiki', '1')",
                "delete_by_scope()",
                "prune_versions()",
            ):
                with refused("KB011"), conn.transaction():
                    conn.execute(f"select knowledge.{call}")
            for pending in org.pending.values():
                with refused("KB011"), conn.transaction():
                    finalize(conn, pending.version)
            assert rows(conn, "select * from knowledge.list_sources()") == []
            assert rows(conn, "select chunk_id from knowledge.chunks") == []
        self.orgs = [self.new_org() if other is org else other for other in self.orgs]

    @rule(n=org_numbers, scope=st.sampled_from(SCOPES), keep=st.integers(0, 2))
    def prune(self, n: int, scope: str | None, keep: int) -> None:
        with self.acting("app_writer", self.orgs[n], set(), scope) as conn:
            rows(conn, "select knowledge.prune_versions(%s)", keep)

    # -- reads

    @rule(requests=st.lists(requests, min_size=4, max_size=6))
    def searches(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self.search(**request)

    def search(
        self,
        n: int,
        role: str,
        grants: set[str],
        scope: str | None,
        asked: list[tuple[str, str]],
        k: int,
        source_types: list[str] | None,
        visibility: list[str] | None,
        metadata: dict[str, Any] | None,
        options: dict[str, Any],
    ) -> None:
        """min(k, permitted matches) rows, all permitted, as search_exact ranks them."""
        org = self.orgs[n]
        question = " ".join(mark + word + mark.strip("-") for mark, word in asked)
        given: dict[str, Any] = {"source_types": source_types, "metadata": metadata}
        given["options"] = options
        if visibility is not None:
            given["visibility"] = visibility
        for mode in ("vector", "keyword", "hybrid"):
            matches: dict[tuple[Any, ...], str] = {}
            for key, doc in org.readable(grants, scope).items():
                if (
                    (source_types is None or key[1] in source_types)
                    and doc.visibility in (["org"] if visibility is None else visibility)
                    and (metadata or {}).items() <= doc.metadata.items()
                ):
                    matches |= {
                        (*key, ordinal): body
                        for ordinal, body in enumerate(doc.bodies)
                        if is_match(mode, asked, body, doc.embedded[ordinal])
                    }
            with self.acting(role, org, grants, scope) as conn:
                found = search(conn, question, mode=mode, k=k, **given)
                longer = search(conn, question, mode=mode, k=3 * k, **given)
                exact = search(conn, question, "search_exact", mode=mode, k=3 * k, **given)
            check_answer(found, longer, matches, k)
            check_same(longer, exact)

    @rule(n=org_numbers, role=readers, grants=grant_sets, scope=st.sampled_from(SCOPES), key=keys)
    def read(self, n: int, role: str, grants: set[str], scope: str | None, key: Key) -> None:
        """Direct SELECT, list_sources and get_source show what is permitted, whatever its label."""
        org = self.orgs[n]
        readable = org.readable(grants, scope)
        found_at: list[str | None] = [s for s in {scope, None} if (s, *key[1:]) in readable]
        with self.acting(role, org, grants, scope) as conn:
            seen = rows(
                conn,
                "select d.org_scope, d.source_type, d.source_id, p.ordinal, c.body "
                "from knowledge.chunks as c inner join knowledge.positions as p using (chunk_id) "
                "inner join knowledge.documents as d on d.document_id = c.document_id",
            )
            (counted,) = rows(conn, "select count(chunk_id) as n from knowledge.chunks")
            listed = rows(conn, "select * from knowledge.list_sources(k => 10000)")
            statistics = rows(conn, "select * from knowledge.stats()")
            query = "select * from knowledge.get_source(%s, %s)"
            if found_at:
                (source,) = rows(conn, query, *key[1:])
                assert source["org_scope"] == (scope if scope in found_at else None)
            else:
                with refused("KB004"), conn.transaction():
                    rows(conn, query, *key[1:])
        chunks = {
            (*key, ordinal): body
            for key, doc in readable.items()
            for ordinal, body in enumerate(doc.bodies)
        }
        assert {tuple(r.values())[:4]: r["body"] for r in seen} == chunks
        assert len(seen) == len(chunks) == counted["n"]
        assert {
            (r["org_scope"], r["source_type"], r["source_id"]): (
                frozenset(r["audience"]),
                r["visibility"],
                r["metadata"],
                r["chunks"],
            )
            for r in listed
        } == {k: (d.audience, d.visibility, d.metadata, len(d.bodies)) for k, d in readable.items()}
        assert sum(r["chunks"] for r in statistics) == len(chunks)
        assert sum(r["unembedded"] for r in statistics) == sum(
            d.embedded.count(False) for d in readable.values()
        )


def run(db: Database, plan: str, **profile: Any) -> None:
    connections = {role: db.connect(role) for role in ("app_backend", "app_writer")}
    connections |= {role: db.connect(role) for role in ("app_trusted", "app_reader")}
    connections["superuser"] = db.superuser()
    connections["superuser"].execute(f"update knowledge_private.settings set {PLANS[plan]}")
    register(connections["app_backend"])
    (parsed,) = rows(
        connections["app_reader"],
        "select lexemes from knowledge.parse_query(%s, '{english}')",
        " ".join(WORDS),
    )
    assert sorted(parsed["lexemes"]) == sorted(WORDS)
    members = {"db": db, "connections": connections, "promote": plan == "every org indexed"}
    machine = type("Machine", (Knowledge,), members)
    run_state_machine_as_test(
        machine,
        settings=settings(
            deadline=None, suppress_health_check=list(HealthCheck), database=None, **profile
        ),
    )


PLANS = {
    "as installed": "exact_rows = exact_rows",
    "no literal list": "long_list = 0",
    "every org indexed": "exact_rows = 0, index_share = 0, promoted_orgs = 1000000",
}


@pytest.mark.parametrize("plan", PLANS)
def test_every_answer_is_what_the_model_permits(db: Database, plan: str) -> None:
    """Whatever was published, changed and deleted before: each role sees what the model says."""
    examples = 5 if plan == "every org indexed" else 12
    run(db, plan, max_examples=examples, stateful_step_count=30, derandomize=True)


@pytest.mark.soak
@pytest.mark.parametrize("plan", PLANS)
def test_every_answer_is_what_the_model_permits_for_long(db: Database, plan: str) -> None:
    """The same promise, over many random histories."""
    run(db, plan, max_examples=300, stateful_step_count=50)
