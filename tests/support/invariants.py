"""What is true of the tables after every transaction, whatever happened before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

# Each query returns what breaks the rule that names it. {org}: a condition on the column org_id.
RULES: dict[str, str] = {
    "no two chunks, live or quarantined, have one place in a document": """
        select org_id, document_id, ordinal, count(*) from (
            select org_id, document_id, ordinal from knowledge.positions
            union all select org_id, document_id, ordinal from knowledge.quarantine) as p
        where {org} group by org_id, document_id, ordinal having count(*) > 1""",
    "each chunk has exactly one position, of its document and compartment": """
        select org_id, chunk_id, c.document_id, p.document_id, c.compartment_id, p.compartment_id
        from knowledge.chunks as c full join knowledge.positions as p using (org_id, chunk_id)
        where {org} and (c.document_id, c.compartment_id)
            is distinct from (p.document_id, p.compartment_id)""",
    "the pieces of a document have each ordinal once, and no place twice": """
        select org_id, document_id, d.layout, v.chunk_count
        from knowledge.documents as d
        left join (select org_id, version_id as live_version, chunk_count
            from knowledge.versions) as v using (org_id, live_version)
        cross join lateral (
            select count(*) as pieces, sum(s.many) as many,
                range_agg(int4range(s.ordinal, s.ordinal + s.many)) as ordinals,
                range_agg(int4range(s.place, s.place + s.many)) as places
            from unnest(d.layout) as s) as s
        where {org} and d.layout is not null and (
            s.many <> v.chunk_count or s.pieces > 64
            or s.ordinals <> int4multirange(int4range(0, v.chunk_count))
            or s.many <> (select sum(upper(p) - lower(p)) from unnest(s.places) as p))""",
    "each chunk is in the compartment of its document": """
        select org_id, chunk_id, c.compartment_id, d.compartment_id
        from knowledge.chunks as c left join knowledge.documents as d using (org_id, document_id)
        where {org} and c.compartment_id is distinct from d.compartment_id""",
    "the compartment of a document has its scope and source type": """
        select org_id, document_id, c.org_scope, c.source_type, d.org_scope, d.source_type
        from knowledge.documents as d
        inner join knowledge.compartments as c using (org_id, compartment_id)
        where {org}
            and (c.org_scope, c.source_type) is distinct from (d.org_scope, d.source_type)""",
    "lexemes, number of words and hash of a chunk are those of its text": """
        select org_id, chunk_id, c.words, c.tsv
        from knowledge.chunks as c
        inner join knowledge.compartments as m using (org_id, compartment_id)
        where {org} and (
            c.tsv <> knowledge_private.chunk_tsv(m.language, c.heading, c.body)
            or c.words <> (select coalesce(sum(cardinality(positions)), 0) from unnest(c.tsv))
            or c.content_hash <> knowledge_private.content_hash(c.org_id, c.heading, c.body))""",
    "a compartment counts its chunks and their words": """
        select org_id, k.compartment_id, k.chunks, count(c.chunk_id), k.words, sum(c.words)
        from knowledge.compartments as k
        left join knowledge.chunks as c using (org_id, compartment_id)
        where {org} group by org_id, k.compartment_id, k.chunks, k.words
        having k.chunks <> count(c.chunk_id) or k.words <> coalesce(sum(c.words), 0)""",
    "the acl of a compartment is what the vocabulary derives": """
        select org_id, c.compartment_id, c.audience, c.acl, array_agg(distinct t.tag order by t.tag)
        from knowledge.compartments as c
        left join lateral (
            select unnest(a.tags) as tag from knowledge.audiences as a
            where a.org_id = c.org_id and a.audience = any (c.audience)
            union all
            select 'everyone' where 'everyone' = any (c.audience)) as t on true
        where {org} group by org_id, c.compartment_id
        having c.acl is distinct from array_agg(distinct t.tag order by t.tag)""",
    "only versions that are being ingested have staged chunks, within chunk_count": """
        select org_id, version_id, v.state, s.ordinal, v.chunk_count
        from knowledge_private.staged_chunks as s
        left join knowledge.versions as v using (org_id, version_id)
        where {org} and (v.state is distinct from 'ingesting' or s.ordinal >= v.chunk_count)""",
    "a document has at most one version ingesting and exactly its live_version live": """
        select org_id, document_id, d.live_version,
            array_agg(v.version_id) filter (where v.state = 'live'),
            count(*) filter (where v.state = 'ingesting')
        from knowledge.documents as d left join knowledge.versions as v using (org_id, document_id)
        where {org} group by org_id, document_id, d.live_version
        having array_remove(array[d.live_version], null)
                <> coalesce(array_agg(v.version_id) filter (where v.state = 'live'), '{{}}')
            or count(*) filter (where v.state = 'ingesting') > 1""",
    "the chunks of a live version are live, quarantined or rejected; another version has none": """
        select org_id, document_id, v.chunk_count, v.report, n.live, n.held
        from knowledge.documents as d
        left join (select org_id, version_id as live_version, chunk_count, report
            from knowledge.versions) as v using (org_id, live_version)
        cross join lateral (select
            (select count(*) from knowledge.chunks as c
                where c.org_id = d.org_id and c.document_id = d.document_id) as live,
            (select count(*) from knowledge.positions as p
                where p.org_id = d.org_id and p.document_id = d.document_id
                and p.ordinal < v.chunk_count) as placed,
            (select count(*) from knowledge.quarantine as q
                where q.org_id = d.org_id and q.document_id = d.document_id
                and q.ordinal < v.chunk_count and q.version_id = d.live_version) as held,
            (select count(*) from knowledge.quarantine as q
                where q.org_id = d.org_id and q.document_id = d.document_id) as all_held) as n
        where {org} and (n.live, n.held, n.all_held) is distinct from (
            coalesce(v.chunk_count - (v.report ->> 'rejected')::integer
                - (v.report ->> 'quarantined')::integer, 0),
            coalesce((v.report ->> 'quarantined')::integer, 0), n.held)
            or v.chunk_count is not null and n.live <> n.placed""",
    "a job in the queue of embeddings is for a chunk of its document": """
        select org_id, j.chunk_id, j.document_id, c.document_id
        from knowledge_private.embedding_jobs as j left join knowledge.chunks as c
            using (org_id, chunk_id)
        where {org} and j.document_id is distinct from c.document_id""",
    "an org with jobs in the queue of embeddings that are not dead has its turn": """
        select org_id, model_id, count(*) from knowledge_private.embedding_jobs as j
        left join knowledge_private.embedding_turns as t using (org_id, model_id)
        where {org} and t.served_at is null and not j.dead group by org_id, model_id""",
    "nothing of an offboarded org is left": """
        select org_id, n.kind, n.things from knowledge.orgs as o cross join lateral (
            select 'document' as kind, count(*) as things
            from knowledge.documents as x where x.org_id = o.org_id
            union all select 'version', count(*)
            from knowledge.versions as x where x.org_id = o.org_id
            union all select 'compartment', count(*)
            from knowledge.compartments as x where x.org_id = o.org_id
            union all select 'audience', count(*)
            from knowledge.audiences as x where x.org_id = o.org_id
            union all select 'tag', count(*)
            from knowledge.tags as x where x.org_id = o.org_id
            union all select 'index', count(*)
            from pg_class as x, knowledge.models as m
            where x.relname = knowledge_private.index_name(o.org_id, m.model_id)) as n
        where {org} and o.status = 'offboarded' and n.things > 0""",
    "the audit log is an unbroken chain that the org knows the end of": """
        select org_id, o.audit_entries, count(a.entry)
        from knowledge.orgs as o left join (
            select *, entry = row_number() over w and previous = lag(digest, 1, '\\x'::bytea) over w
                and digest = knowledge_private.audit_digest(audit_log) as good
            from knowledge.audit_log window w as (partition by org_id order by entry)
        ) as a using (org_id)
        where {org} group by org_id, o.audit_entries, o.audit_head
        having not coalesce(bool_and(a.good), true) or count(a.entry) <> o.audit_entries
            or coalesce((array_agg(a.digest order by a.entry desc))[1], '\\x') <> o.audit_head""",
}

# The same for each table of vectors.
VECTOR_RULES: dict[str, str] = {
    "a chunk of a version of the model has a vector, or a job in the queue, and not both": """
        select org_id, chunk_id, v.embedding is not null as vector, j.due_at as job
        from knowledge.chunks as c
        inner join knowledge.documents as d using (org_id, document_id)
        inner join (select org_id, version_id as live_version, model_id from knowledge.versions)
            as n using (org_id, live_version)
        left join {vectors} as v using (org_id, chunk_id)
        left join knowledge_private.embedding_jobs as j using (org_id, chunk_id, model_id)
        where {org} and model_id = {model}
            and (v.embedding is null) <> (j.due_at is not null)""",
    "a vector is in the document and compartment of its chunk": """
        select org_id, chunk_id, v.document_id, c.document_id, v.compartment_id, c.compartment_id
        from {vectors} as v left join knowledge.chunks as c using (org_id, chunk_id)
        where {org} and (v.document_id, v.compartment_id)
            is distinct from (c.document_id, c.compartment_id)""",
    "a vector has length 1": """
        select org_id, chunk_id from {vectors} as v
        where {org} and abs({schema}.l2_norm(v.embedding) - 1) > 0.01""",
}


def check_invariants(conn: psycopg.Connection[Any], orgs: Sequence[str] | None = None) -> None:
    """Check every rule, in all orgs or in those named; conn is a superuser's.

    Raises AssertionError that names each broken rule and shows the first rows that break it.
    """
    schema = _all(
        conn,
        "select quote_ident(n.nspname) from pg_extension as e "
        "inner join pg_namespace as n on n.oid = e.extnamespace where e.extname = 'vector'",
    )[0][0]
    models = [m for (m,) in _all(conn, "select model_id from knowledge.models order by 1")]
    checks = dict(RULES)
    for model in models:
        for rule, query in VECTOR_RULES.items():
            vectors = f"knowledge.vectors_{model}"
            for name, value in (("vectors", vectors), ("schema", schema), ("model", str(model))):
                query = query.replace("{" + name + "}", value)
            checks[f"{rule} ({vectors})"] = query
    where = "true" if orgs is None else "org_id = any (%(orgs)s)"
    broken = []
    for rule, query in checks.items():
        found = _all(conn, query.format(org=where), {"orgs": list(orgs or [])})
        if found:
            broken.append(f"{rule}: {len(found)} times not, as in {found[:3]}")
    assert not broken, "\n".join(broken)


def _all(
    conn: psycopg.Connection[Any], query: str, given: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    return conn.execute(query, given).fetchall()  # type: ignore[arg-type]
