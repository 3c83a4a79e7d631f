#!/usr/bin/env bash
#
# Measure how fast idem_tool is, against what people write by hand, and write
# a table and plots.
#
#	bash test/bench/run.sh [--quick] [--only W1,W5] [--out DIR]
#
#	--quick     one short round of everything, in less than two minutes: shows
#	            that it works, no figures to quote
#	--only      some of: footprint instructions W1 ... W8 outside
#	--out DIR   where results.md and the plots go; docs/performance by default
#
# Needs an installed idem_tool, pgbench and Debian's python3-psycopg; valgrind
# to count instructions; redis-server, node and npm for the peers outside of
# PostgreSQL.  What is missing is left out, and the results say so.
#
# One server in a directory of its own, below TMPDIR or /var/tmp: on a disk,
# for the durable figures mean nothing elsewhere.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export TMPDIR=${TMPDIR:-/var/tmp}
# shellcheck source=test/bench/server.sh
. "$here/server.sh"

conductor=
# The conductor ends what it has started; its sessions end with the server,
# for some of its threads may wait for an answer
clean_up() {
	[ -z "$conductor" ] || kill "$conductor" 2>/dev/null || true
	stop_server
	[ -z "$conductor" ] || wait "$conductor" || true
	rm -rf "$dir"
}
trap clean_up EXIT

# a third of the memory: ten million keys fit where there is enough of it
megabytes=$(awk '/^MemTotal/ { print int($2 / 1024 / 3) }' /proc/meminfo)
server_options=(-c shared_preload_libraries=idem_tool
	-c shared_buffers="${megabytes}MB" -c max_wal_size=32GB
	-c max_connections=200 -c checkpoint_timeout=1h -c jit=off)
init_server
# what the workloads change cannot be on the command line
as_postgres tee -a "$dir/data/postgresql.conf" >/dev/null <<-END
	autovacuum = off
	fsync = off
	full_page_writes = off
	idem_tool.worker = off
END
# shellcheck disable=SC2119
start_server

/usr/bin/python3 "$here/conductor.py" --socket "$dir" --bindir "$bindir" "$@" &
conductor=$!
wait "$conductor"
conductor=
