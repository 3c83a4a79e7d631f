#!/usr/bin/env bash
#
# What a key leaves behind: WAL bytes of reserve + complete as two transactions,
# the share of completions that are heap-only updates, bytes on disk.
#
#	bash test/bench/footprint.sh
#
# Needs an installed idem_tool and pgbench.

set -euo pipefail
# shellcheck source=test/bench/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"
rounds=${ROUNDS:-5000}

# measure BYTES: a result of that many bytes
measure() {
	local start wal
	cat >"$dir/pair.sql" <<-SQL
	\set k random(1, 9000000000000000)
	SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
	SELECT idem_complete('charge:' || :k, to_jsonb(repeat('x', $1)), :token);
	SQL
	psql -c 'TRUNCATE idempotency_keys' -c CHECKPOINT \
		-c 'SELECT pg_stat_reset()' >/dev/null
	start=$(psql -At -c 'SELECT pg_current_wal_insert_lsn()')
	"$bindir/pgbench" -h "$dir" -U postgres -n -M prepared -c 1 \
		-t "$rounds" --random-seed="$RANDOM" -f "$dir/pair.sql" postgres \
		>"$dir/pgbench.log" 2>&1
	wal=$(psql -At -c "SELECT pg_current_wal_insert_lsn() - '$start'::pg_lsn")
	sleep 1
	psql -At -c "SELECT format('%s bytes of result: %s bytes of WAL for reserve + complete, %s %% heap-only, %s bytes a key on disk',
		$1, ${wal%.*} / $rounds, round(100.0 * n_tup_hot_upd / n_tup_upd, 1),
		pg_total_relation_size('idempotency_keys') / $rounds)
		FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'"
}

init_server
start_server
"$bindir/postgres" --version
psql -c 'CREATE EXTENSION idem_tool' -c 'ALTER SYSTEM SET full_page_writes = off' \
	-c 'SELECT pg_reload_conf()' >/dev/null
for bytes in 30 100 500 2000; do
	measure "$bytes"
done
