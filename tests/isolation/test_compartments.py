"""Which compartments a claim opens, whichever way they are found."""

from __future__ import annotations

import random

from support import Database

TAGS = ["everyone", "hr", "sales", "board"]
SCOPES = [None, "eu", "us"]
TYPES = ["wiki", "mail"]
LABELS = ["org", "draft"]


def test_the_rule_is_the_same_in_an_org_of_many_compartments(db: Database) -> None:
    """Promise 1: by the org or by the index of tags; another org's compartments never."""
    conn = db.superuser()
    choose = random.Random(3)
    made = [
        (
            choose.choice(SCOPES),
            choose.choice(TYPES),
            choose.choice(LABELS),
            sorted(choose.sample(TAGS, choose.randint(1, 2))),
        )
        for _ in range(60)
    ]
    orgs = {"few": 0, "many": 2000, "stranger": 4000}  # org -> where its numbers begin
    for org, first in orgs.items():
        conn.execute("insert into knowledge.orgs (org_id) values (%s)", (org,))
        for n, (scope, source_type, label, acl) in enumerate(made):
            conn.execute(
                "insert into knowledge.compartments (org_id, compartment_id, org_scope,"
                " source_type, visibility, audience, language, acl, acl_version)"
                " values (%s, %s, %s, %s, %s, %s, 'pg_catalog.english', %s, 1)",
                (org, first + n, scope, source_type, label, [f"audience {n}"], acl),
            )
    for _ in range(100):
        scope = choose.choice(SCOPES)
        grants = choose.sample(TAGS[1:], choose.randint(0, 3))
        types = choose.choice([None, [], ["wiki"], TYPES])
        labels = choose.choice([None, [], ["org"], LABELS])
        wanted = [
            n
            for n, (of, source_type, label, acl) in enumerate(made)
            if of in (None, scope)
            and {"everyone", *grants} & {*acl}
            and (types is None or source_type in types)
            and (labels is None or label in labels)
        ]
        for org in ("few", "many"):
            found = conn.execute(
                "select p.org_id, p.compartment_id from knowledge_private.permitted_compartments("
                "row(%s, %s, %s::text[], null)::knowledge_private.claim, %s, %s) as p order by 2",
                (org, scope, grants, types, labels),
            ).fetchall()
            assert found == [(org, orgs[org] + n) for n in wanted]
