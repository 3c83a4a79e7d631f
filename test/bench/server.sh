# shellcheck shell=bash
# A throwaway server for measurements; sourced, not run.  Sets bindir and dir.

# numbers have a decimal point
export LC_ALL=C

bindir=$("${PG_CONFIG:-pg_config}" --bindir)
dir=$(mktemp -d)

# what every measurement wants; a caller may add to it
server_options=(-c jit=off -c autovacuum=off -c fsync=off
	-c checkpoint_timeout=1h)

# PostgreSQL refuses to run as root
as_postgres() {
	if [ "$(id -u)" = 0 ]; then
		runuser -u postgres -- "$@"
	else
		"$@"
	fi
}
if [ "$(id -u)" = 0 ]; then
	chown postgres "$dir"
fi

psql() {
	"$bindir/psql" -X -q -v ON_ERROR_STOP=1 -h "$dir" -U postgres -d postgres "$@"
}

# start_server [command...]: start it, under the command if there is one
start_server() {
	as_postgres "$@" "$bindir/postgres" -D "$dir/data" \
		-c listen_addresses= -c unix_socket_directories="$dir" \
		"${server_options[@]}" >>"$dir/server.log" 2>&1 &
	local child=$!
	until psql -c 'SELECT 1' >/dev/null 2>&1; do
		kill -0 "$child" || { cat "$dir/server.log" >&2; exit 1; }
		sleep 0.2
	done
}

# By its own record: runuser and valgrind may stand in between, and it may
# have been interrupted while it started
stop_server() {
	local pid
	pid=$(head -1 "$dir/data/postmaster.pid" 2>/dev/null) || return 0
	kill -INT "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
}
trap 'stop_server; rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# A database as most are: UTF-8, and not the C locale
init_server() {
	as_postgres "$bindir/initdb" -D "$dir/data" -U postgres -A trust \
		-E UTF8 --locale=C.UTF-8 --no-sync >/dev/null
}
