#!/usr/bin/env bash
#
# Count the instructions that a call costs inside the server, against what a
# user would write by hand, and print the ratios.
#
#	bash test/bench/instructions.sh [whole | everything | large]
#
# Needs an installed idem_tool, valgrind and pgbench; takes four minutes, one
# measure a minute.  A throwaway server runs under callgrind.  Each workload
# runs in two lengths over the wire with prepared statements; the slope between
# them is the cost of one round without any start-up.  The counts hardly vary
# from run to run, unlike times.
#
# The measures:
#
#	whole		the whole execution of a prepared statement: fetching the plan,
#				starting and ending the executor, and what happens in between.
#				Neither parser and planner nor the commit.
#	everything	all that the session does for a round, protocol and commit
#				included, and a replay whose statement is not prepared
#	large		the same in a table of LARGE keys, for replays only

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=test/bench/server.sh
. "$here/server.sh"
short=${SHORT:-500}
long=${LONG:-1500}
keys=${KEYS:-10000}
large=${LARGE:-3000000}
protocol=prepared
server_options+=(-c log_connections=on -c log_line_prefix='[%p] '
	-c shared_buffers=1GB -c max_wal_size=16GB)

# retries come in bursts: a few keys at a time, which a session has seen
burst=(share=0 keys=50)
whole=(--collect-atstart=no
	--toggle-collect=PortalRun --toggle-collect=GetCachedPlan
	--toggle-collect=PortalStart --toggle-collect=PortalDrop)
everything=(--collect-atstart=yes)

# start_counting option...: each process writes its counts when it ends
start_counting() {
	start_server valgrind --tool=callgrind --trace-children=yes "$@" \
		--callgrind-out-file="$dir/callgrind.%p" --log-file=/dev/null
}

# sessions NAME: the process ids of pgbench's sessions; it opens one more than
# it has clients
sessions() {
	sed -n "s/^\[\([0-9]*\)\].*application_name=$1\$/\1/p" "$dir/server.log"
}

# count SCRIPT ROUNDS [variable...]: instructions of that many rounds
count() {
	local script=$1 rounds=$2 name=count-$RANDOM$RANDOM pid
	shift 2
	PGAPPNAME=$name "$bindir/pgbench" -h "$dir" -U postgres -n \
		-M "$protocol" -c 1 -t "$rounds" \
		--random-seed="$RANDOM$RANDOM" "${@/#/-D}" \
		-f "$here/sql/$script.sql" postgres >"$dir/pgbench.log" 2>&1 ||
		{ cat "$dir/pgbench.log" >&2; exit 1; }
	for pid in $(sessions "$name"); do
		until grep -qs '^totals:' "$dir/callgrind.$pid"; do sleep 0.05; done
		cat "$dir/callgrind.$pid"
	done | awk '/^totals:/ { if ($2 > most) most = $2 } END { print most }'
}

# slope SCRIPT [variable...]: instructions of one round
slope() {
	local script=$1 few many
	shift
	# the first rounds in a table find it in another state than later ones
	count "$script" "$short" "$@" >/dev/null
	few=$(count "$script" "$short" "$@")
	many=$(count "$script" "$long" "$@")
	echo $(( (many - few) / (long - short) ))
}

# prepare KEYS: both tables hold the same settled keys
prepare() {
	rm -rf "$dir/data"
	init_server
	start_server
	psql >/dev/null -c 'CREATE EXTENSION idem_tool' -f "$here/sql/schema.sql" \
		-c "SELECT fill(1, $1)" -c "SELECT fill_peers()" -c 'VACUUM ANALYZE'
	stop_server
}

report() {
	awk -v what="$1" -v mine="$2" -v peer="$3" -v name="$4" \
		'BEGIN { printf "%-20s %8d instructions, %6.3f x %s (%d)\n",
			what, mine, mine / peer, name, peer }'
}

replay_any_key() {
	report "replay, any key" "$(slope storm_idem share=0 keys="$1")" \
		"$(slope storm_bare share=0 keys="$1")" "primary-key SELECT"
}

replay() {
	local mine
	mine=$(slope storm_idem "${burst[@]}")
	report "replay" "$mine" "$(slope storm_bare "${burst[@]}")" \
		"primary-key SELECT"
	report "replay" "$mine" "$(slope storm_hand "${burst[@]}")" \
		"INSERT, SELECT by hand"
}

replay_unprepared() {
	local protocol=extended
	report "replay, not prepared" "$(slope storm_idem "${burst[@]}")" \
		"$(slope storm_bare "${burst[@]}")" "primary-key SELECT"
}

reserve_and_complete() {
	local mine
	mine=$(slope pair_idem)
	report "reserve + complete" "$mine" "$(slope pair_bare)" \
		"bare INSERT + UPDATE"
	report "reserve + complete" "$mine" "$(slope pair_hand)" \
		"INSERT, UPDATE by hand"
	report "reserve + complete" "$mine" "$(slope pair_three)" \
		"INSERT, SELECT, UPDATE by hand"
}

measure_whole() {
	echo "The whole execution:"
	start_counting "${whole[@]}"
	replay
	replay_any_key "$keys"
	reserve_and_complete
	stop_server
}

measure_everything() {
	echo "Everything:"
	start_counting "${everything[@]}"
	replay
	replay_any_key "$keys"
	replay_unprepared
	reserve_and_complete
	stop_server
}

measure_large() {
	echo "Everything, $large keys:"
	prepare "$large"
	start_counting "${everything[@]}"
	replay_any_key "$large"
	stop_server
}

"$bindir/postgres" --version
prepare "$keys"
for measure in ${1:-whole everything large}; do
	"measure_$measure"
done
