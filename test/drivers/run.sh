#!/usr/bin/env bash
#
# Run the probes of all drivers, and check docs/drivers.md against what they
# have met.
#
#	bash test/drivers/run.sh [probe...]
#
# Installs the drivers, as root or by sudo, on Debian 12, and idem_tool; the
# server is a throwaway one.  Ends with 0 if the document is right.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

packages=(gcc make git postgresql-15 postgresql-server-dev-15
	python3-psycopg python3-psycopg2 python3-asyncpg python3-sqlalchemy
	python3-django golang-go golang-github-lib-pq-dev
	golang-github-jackc-pgx-v4-dev ruby-pg ruby-activerecord php8.2-cli
	php8.2-pgsql libpostgresql-jdbc-java openjdk-17-jdk-headless)
# not over an npm that somebody has from elsewhere
command -v npm >/dev/null || packages+=(nodejs npm)
probes=(psycopg psycopg2 asyncpg sqlalchemy django lost_answer node-postgres
	postgres.js jdbc go ruby php)

dir=$(mktemp -d)
chmod 755 "$dir"
clean_up() {
	if as_root test -e "$dir/data/postmaster.pid"; then
		as_server pg_ctl -D "$dir/data" -m immediate stop >/dev/null || true
	fi
	as_root rm -rf "$dir"
}
trap clean_up EXIT

# Run a command as postgres, with the server's programs and the way to it.  JDBC
# wants TCP, for which there is a password that nobody else knows.
password=$(od -An -N 16 -tx1 /dev/urandom | tr -d ' \n')
port=$((20000 + RANDOM % 20000))
as_server() {
	as_postgres env PATH="$bindir:$PATH" PGHOST="$dir/socket" PGPORT="$port" \
		PGUSER=postgres PGDATABASE=postgres PGPASSWORD="$password" \
		GOCACHE="$dir/go" "$@"
}

echo "Installing drivers and idem_tool ..."
quietly "$dir/log" install_packages "${packages[@]}"
find_postgres
copy_tree "$dir/idem_tool"
cd "$dir/idem_tool"
quietly "$dir/log" make -j2 with_llvm=no
quietly "$dir/log" as_root make install with_llvm=no
quietly "$dir/log" npm ci --prefix test/drivers/node --no-audit --no-fund

echo "$password" >"$dir/password"
mkdir -m 700 "$dir/socket" "$dir/data" "$dir/go"
as_root chown -R postgres "$dir"
quietly "$dir/server.log" as_server initdb -D "$dir/data" -U postgres -E UTF8 \
	--no-locale --no-sync --auth-local=trust --auth-host=scram-sha-256 \
	--pwfile="$dir/password"
as_server pg_ctl -D "$dir/data" -w -l "$dir/data/log" -o "-p $port \
	-c listen_addresses=127.0.0.1 -c unix_socket_directories='$dir/socket' \
	-c fsync=off -c shared_preload_libraries=idem_tool" start >/dev/null
as_server psql -X -q -c 'CREATE EXTENSION idem_tool'

[ $# -gt 0 ] || set -- "${probes[@]}"
as_server /usr/bin/python3 "$dir/idem_tool/test/drivers/check.py" "$@"
