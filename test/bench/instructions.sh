#!/usr/bin/env bash
#
# Count the instructions that a call costs inside the server, against what a
# user would write by hand, and print the ratios.
#
#	bash test/bench/instructions.sh
#
# Needs an installed idem_tool, valgrind and pgbench; takes a few minutes.  A
# throwaway server runs under callgrind.  Each workload runs in two lengths over
# the wire with prepared statements; the slope between them is the cost of one
# round without any start-up.  The counts hardly vary from run to run, unlike
# times.
#
# Two measures: what happens inside PortalRun, and the whole execution of a
# prepared statement, that is with fetching the plan and starting and ending the
# executor.  A plain statement locks and opens its tables in the latter; a
# function does so when it is called, which is in PortalRun.  Neither has the
# parser, the planner or the commit.

set -euo pipefail

# shellcheck source=test/bench/server.sh
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"
short=${SHORT:-500}
long=${LONG:-1500}
keys=${KEYS:-10000}

run_only=(--toggle-collect=PortalRun)
whole=(--toggle-collect=PortalRun --toggle-collect=GetCachedPlan
	--toggle-collect=PortalStart --toggle-collect=PortalDrop)

# count SCRIPT ROUNDS SEED: instructions of that many rounds of a script
count() {
	rm -f "$dir"/callgrind.*
	start_server valgrind --tool=callgrind --trace-children=yes \
		--collect-atstart=no "${measure[@]}" \
		--callgrind-out-file="$dir/callgrind.%p" --log-file=/dev/null
	"$bindir/pgbench" -h "$dir" -U postgres -n -M prepared -c 1 -t "$2" \
		--random-seed="$3" -f "$dir/$1.sql" postgres >"$dir/pgbench.log" 2>&1 ||
		{ cat "$dir/pgbench.log" >&2; exit 1; }
	stop_server
	cat "$dir"/callgrind.* |
		awk '/^totals:/ { if ($2 > most) most = $2 } END { print most }'
}

# slope SCRIPT: instructions of one round
slope() {
	local few many
	few=$(count "$1" "$short" "$RANDOM$RANDOM")
	many=$(count "$1" "$long" "$RANDOM$RANDOM")
	echo $(( (many - few) / (long - short) ))
}

# The table that the peers use, as a user would make it: no scope, the
# database's collation.  Both tables hold the same settled keys.
prepare() {
	init_server
	start_server
	psql >/dev/null <<-SQL
	CREATE EXTENSION idem_tool;
	CREATE TABLE by_hand (
		key text PRIMARY KEY,
		status text NOT NULL,
		created_at timestamptz NOT NULL DEFAULT now(),
		expires_at timestamptz NOT NULL,
		completed_at timestamptz,
		result jsonb
	) WITH (fillfactor = 50);
	SELECT idem_complete('settled:' || i, '{"charge": "ch_123", "ok": true}', token)
		FROM generate_series(1, $keys) i, idem_reserve('settled:' || i);
	INSERT INTO by_hand (key, status, expires_at, completed_at, result)
		SELECT 'settled:' || i, 'done', now() + '1 day', now(),
			'{"charge": "ch_123", "ok": true}'
		FROM generate_series(1, $keys) i;
	VACUUM ANALYZE;
	SQL
	stop_server
}

write_scripts() {
	# retries come in bursts: a few keys at a time, which a session knows
	local pick="\\set k random(1, 100)"
	cat >"$dir/pair_idem.sql" <<-'SQL'
	\set k random(1, 9000000000000000)
	SELECT status, token FROM idem_reserve('charge:' || :k, '5 min') \gset
	SELECT idem_complete('charge:' || :k, '{"charge": "ch_123", "ok": true}', :token);
	SQL
	cat >"$dir/pair_bare.sql" <<-'SQL'
	\set k random(1, 9000000000000000)
	INSERT INTO by_hand (key, status, expires_at) VALUES ('charge:' || :k, 'in_progress', now() + interval '5 min');
	UPDATE by_hand SET status = 'done', completed_at = now(), expires_at = now() + interval '1 day', result = '{"charge": "ch_123", "ok": true}' WHERE key = 'charge:' || :k;
	SQL
	cat >"$dir/pair_hand.sql" <<-'SQL'
	\set k random(1, 9000000000000000)
	INSERT INTO by_hand (key, status, expires_at) VALUES ('charge:' || :k, 'in_progress', now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING key;
	SELECT status, result, expires_at FROM by_hand WHERE key = 'charge:' || :k;
	UPDATE by_hand SET status = 'done', completed_at = now(), expires_at = now() + interval '1 day', result = '{"charge": "ch_123", "ok": true}' WHERE key = 'charge:' || :k;
	SQL
	{
		echo "$pick"
		echo "SELECT status, result FROM idem_reserve('settled:' || :k, '5 min');"
	} >"$dir/replay_idem.sql"
	{
		echo "$pick"
		echo "SELECT * FROM idem_reserve('settled:' || :k, '5 min');"
	} >"$dir/replay_all.sql"
	{
		echo "\\set k random(1, $keys)"
		echo "SELECT status, result FROM idem_reserve('settled:' || :k, '5 min');"
	} >"$dir/replay_any.sql"
	{
		echo "$pick"
		echo "SELECT status, result FROM by_hand WHERE key = 'settled:' || :k;"
	} >"$dir/replay_select.sql"
	{
		echo "$pick"
		echo "INSERT INTO by_hand (key, status, expires_at) VALUES ('settled:' || :k, 'in_progress', now() + interval '5 min') ON CONFLICT DO NOTHING RETURNING key;"
		echo "SELECT status, result, expires_at FROM by_hand WHERE key = 'settled:' || :k;"
	} >"$dir/replay_hand.sql"
}

report() {
	awk -v what="$1" -v mine="$2" -v peer="$3" -v name="$4" \
		'BEGIN { printf "%-20s %8d instructions, %5.2f x %s (%d)\n", what, mine, mine / peer, name, peer }'
}

compare() {
	local pair replay select
	echo "$1"
	replay=$(slope replay_idem)
	select=$(slope replay_select)
	report "replay" "$replay" "$select" "primary-key SELECT"
	report "replay" "$replay" "$(slope replay_hand)" "hand-written SQL"
	report "replay, any key" "$(slope replay_any)" "$select" "primary-key SELECT"
	report "replay, all columns" "$(slope replay_all)" "$select" "primary-key SELECT of two"
	pair=$(slope pair_idem)
	report "reserve + complete" "$pair" "$(slope pair_bare)" "bare INSERT + UPDATE"
	report "reserve + complete" "$pair" "$(slope pair_hand)" "hand-written SQL"
}

prepare
write_scripts
"$bindir/postgres" --version
measure=("${run_only[@]}")
compare "Inside PortalRun:"
measure=("${whole[@]}")
compare "The whole execution:"
