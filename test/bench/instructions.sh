#!/usr/bin/env bash
#
# Count the instructions that a call costs inside the server, against what a
# user would write by hand, and print the ratios.
#
#	bash test/bench/instructions.sh [run | whole]
#
# Needs an installed idem_tool, valgrind and pgbench; takes a minute or two.
# A throwaway server runs under callgrind.  Each workload runs in two lengths
# over the wire with prepared statements; the slope between them is the cost of
# one round without any start-up.  The counts hardly vary from run to run,
# unlike times.
#
# Two measures: what happens inside PortalRun, and the whole execution of a
# prepared statement, that is with fetching the plan and starting and ending
# the executor.  A plain statement locks and opens its tables in the latter; a
# function does so when it is called, which is in PortalRun.  Neither has the
# parser, the planner or the commit.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=test/bench/server.sh
. "$here/server.sh"
short=${SHORT:-500}
long=${LONG:-1500}
keys=${KEYS:-10000}
server_options+=(-c log_connections=on -c log_line_prefix='[%p] ')

run_only=(--toggle-collect=PortalRun)
whole=(--toggle-collect=PortalRun --toggle-collect=GetCachedPlan
	--toggle-collect=PortalStart --toggle-collect=PortalDrop)

# start_counting toggle...: each process writes its counts when it ends
start_counting() {
	start_server valgrind --tool=callgrind --trace-children=yes \
		--collect-atstart=no "$@" \
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
	PGAPPNAME=$name "$bindir/pgbench" -h "$dir" -U postgres -n -M prepared \
		-c 1 -t "$rounds" --random-seed="$RANDOM$RANDOM" "${@/#/-D}" \
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

# Both tables hold the same settled keys
prepare() {
	init_server
	start_server
	psql >/dev/null -c 'CREATE EXTENSION idem_tool' -f "$here/sql/schema.sql" \
		-c "SELECT fill(1, $keys)" -c "SELECT fill_peers()" -c 'VACUUM ANALYZE'
	stop_server
}

report() {
	awk -v what="$1" -v mine="$2" -v peer="$3" -v name="$4" \
		'BEGIN { printf "%-20s %8d instructions, %6.3f x %s (%d)\n",
			what, mine, mine / peer, name, peer }'
}

# compare TITLE toggle...
compare() {
	local mine peer
	# retries come in bursts: a few keys at a time, which a session has seen
	local burst=(share=0 keys=50)
	echo "$1:"
	shift
	start_counting "$@"
	mine=$(slope storm_idem "${burst[@]}")
	peer=$(slope storm_bare "${burst[@]}")
	report "replay" "$mine" "$peer" "primary-key SELECT"
	report "replay, any key" "$(slope storm_idem share=0 keys="$keys")" \
		"$peer" "primary-key SELECT"
	report "replay" "$mine" "$(slope storm_hand "${burst[@]}")" \
		"INSERT, SELECT by hand"
	mine=$(slope pair_idem)
	report "reserve + complete" "$mine" "$(slope pair_bare)" \
		"bare INSERT + UPDATE"
	report "reserve + complete" "$mine" "$(slope pair_hand)" \
		"INSERT, UPDATE by hand"
	report "reserve + complete" "$mine" "$(slope pair_three)" \
		"INSERT, SELECT, UPDATE by hand"
	stop_server
}

prepare
"$bindir/postgres" --version
[ "${1:-run}" != run ] || compare "Inside PortalRun" "${run_only[@]}"
[ "${1:-whole}" != whole ] || compare "The whole execution" "${whole[@]}"
