insert into knowledge.migrations (version, checksum, granted_usage)
values ('@VERSION@', '@CHECKSUM@', current_setting('pg_knowledge.granted_usage')::text[]);
