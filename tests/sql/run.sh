#!/bin/sh
# Runs every *.sql file here with psql and compares what it prints with expected/*.out.
#
#     tests/sql/run.sh postgresql://backend@host/database
#
# Without an argument, libpq's environment (PGHOST, PGDATABASE, PGUSER …) says where. The login role
# must be in knowledge_admin and knowledge_trusted. PSQL names another psql. UPDATE=1 writes the
# expected files. Exit code 1 when an output differs.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
org="sql test $(date +%s) $$" # a new tenant: the last script erases it
status=0

for script in "$here"/*.sql; do
    name=$(basename "$script" .sql)
    expected="$here/expected/$name.out"
    # From standard input, so that no message names a file. VERBOSITY: errors are compared by code.
    actual=$("${PSQL:-psql}" -X -q -v org="$org" -v VERBOSITY=sqlstate -P null=null \
        ${1:+-d "$1"} <"$script" 2>&1)
    if [ "${UPDATE:-}" = 1 ]; then
        printf '%s\n' "$actual" >"$expected"
    elif printf '%s\n' "$actual" | diff -u "$expected" -; then
        echo "ok $name"
    else
        echo "FAILED $name"
        status=1
    fi
done
exit $status
