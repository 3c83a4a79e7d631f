#!/usr/bin/env bash
#
# Run the regression tests against a server under valgrind's memcheck, and
# show what that finds.
#
#	bash scripts/valgrind.sh [test...]
#
# Without names all tests but "bulk", which would run into its time limit;
# they take a quarter of an hour, which is no part of the normal run.
#
# What PostgreSQL itself does on purpose is left out by test/valgrind.supp;
# everything else is a finding, whosever code it is in.  memcheck sees the use
# of undefined values, and reads beyond what malloc gave; of the borders
# between palloc's chunks it knows nothing.
#
# Fails if anything was found.  Tests that fail are shown: those that depend
# on time may do so here.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

dir=$(mktemp -d)
tree=$dir/idem_tool
data=$dir/data
trap 'stop_server; as_root rm -rf "$dir"' EXIT
chmod 755 "$dir"

# The exit code is one that the postmaster does not take for a crash: the
# other sessions go on
start_server() {
	as_postgres "$bindir/initdb" -D "$data" -U postgres -A trust -E UTF8 \
		--no-locale --no-sync >/dev/null
	as_postgres tee -a "$data/postgresql.conf" <test/test.conf >/dev/null
	as_postgres valgrind --quiet --track-origins=yes --trace-children=yes \
		--error-exitcode=1 --num-callers=25 --gen-suppressions=all \
		--suppressions=test/valgrind.supp --log-file="$dir/memcheck/%p" \
		"$bindir/postgres" -D "$data" -c listen_addresses= -c jit=off \
		-c unix_socket_directories="$dir/socket" >"$dir/server.log" 2>&1 &
	until as_postgres "$bindir/pg_isready" -q -h "$dir/socket"; do
		if ! kill -0 $!; then
			as_root cat "$dir/server.log" "$dir"/memcheck/* >&2
			exit 1
		fi
		sleep 0.5
	done
}

# The Makefile's list of tests, but "bulk"
all_tests() {
	# shellcheck disable=SC2016
	printf 'include Makefile\nlist:\n\t@echo $(filter-out bulk, $(REGRESS))' |
		make -s -f - list PG_CONFIG="$PG_CONFIG"
}

stop_server() {
	as_root test ! -e "$data/postmaster.pid" ||
		as_postgres "$bindir/pg_ctl" -D "$data" -m fast -t 300 stop >/dev/null
}

quietly "$dir/install.log" install_packages gcc make git postgresql-15 \
	postgresql-server-dev-15 sudo valgrind
find_postgres
copy_tree "$tree"
cd "$tree"
quietly "$dir/build.log" make -j2 with_llvm=no
quietly "$dir/build.log" as_root make install with_llvm=no
mkdir "$dir/memcheck" "$dir/socket"
as_root chown -R postgres "$tree" "$dir/memcheck" "$dir/socket"
as_root install -d -o postgres "$data"

tests=${*:-$(all_tests)}
start_server
as_postgres env PATH="$bindir:$PATH" PGHOST="$dir/socket" PGUSER=postgres \
	make -s installcheck PG_CONFIG="$PG_CONFIG" with_llvm=no \
	ISOLATION= TAP_TESTS= REGRESS="$tests" \
	>"$dir/regress.log" 2>&1 || cat "$dir/regress.log" regression.diffs
stop_server

logs=("$dir"/memcheck/*)
as_root cat "${logs[@]}" | tee "$dir/findings"
passed=$(grep -c ' ok ' "$dir/regress.log" || true)
findings=$(grep -c '^{' "$dir/findings" || true)
echo "$passed tests passed, ${#logs[@]} processes watched, $findings findings"
[ "$passed" -gt 0 ] && [ "$findings" -eq 0 ]
