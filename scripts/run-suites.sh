#!/usr/bin/env bash
#
# Run suites, by default all, in the current directory: a copy of the tree that
# the current user owns, built and installed.
#
#	bash scripts/run-suites.sh [suite...]
#
# PATH has PostgreSQL's programs.  Prints what fails, and "N passed, N failed"
# at the end.  A suite in which a test was skipped has failed, unless SKIP_OK is
# set.

set -uo pipefail

wanted=" $* "
passed=0
failed=0
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

# count PASSED FAILED: add to the sums
count() {
	passed=$((passed + $1))
	failed=$((failed + $2))
}

# Both of pg_regress's styles: "test foo ... ok", and TAP since version 16
count_regress() {
	count "$(grep -cE '^(ok +[0-9]+|test .* \.\.\. ok)' "$1")" \
		"$(grep -cE '^(not ok +[0-9]+|test .* \.\.\. FAILED)' "$1")"
}

# suite NAME command...: run one; a suite that ran no test has failed
suite() {
	local name=$1 before=$((passed + failed)) failed_before=$failed
	case $wanted in "  " | *" $name "*) ;; *) return ;; esac
	shift
	"$@" >"$log/$name" 2>&1
	local status=$?
	case $name in
		*regress | isolation*) count_regress "$log/$name" ;;
		*)	count "$(grep -cE '^ok [0-9]' "$log/$name")" \
				"$(grep -cE '^not ok [0-9]' "$log/$name")" ;;
	esac
	if [ "$((passed + failed))" -eq "$before" ]; then
		echo "$name: no test was run"
		failed=$((failed + 1))
	elif [ "$status" -ne 0 ] && [ "$failed" -eq "$failed_before" ]; then
		echo "$name: ended with status $status"
		failed=$((failed + 1))
	fi
	# a test that could not run has not passed
	if grep -iE '^ok.*# skip|skipped: ' "$log/$name" >"$log/skipped"; then
		sed "s/^/$name: /" "$log/skipped"
		[ -n "${SKIP_OK:-}" ] || failed=$((failed + 1))
	fi
	if [ "$failed" -ne "$failed_before" ]; then
		grep -vE '^ok [0-9]|\.\.\. ok' "$log/$name"
		find . -name regression.diffs -exec cat {} + 2>/dev/null
	fi
}

# The suites of PGXS's installcheck, one at a time: make stops at the first
# that fails
regress() {
	make -s installcheck REGRESS_OPTS="--load-extension=idem_tool --encoding=UTF8 --temp-instance=./tmp_inst --temp-config=test/test.conf" \
		ISOLATION= TAP_TESTS= with_llvm=no
}

isolation() {
	make -s installcheck REGRESS= TAP_TESTS= with_llvm=no \
		EXTRA_REGRESS_OPTS="--temp-instance=./tmp_inst --temp-config=${1:-test/test.conf}"
}

# The same where sessions share memory
isolation_preloaded() {
	{
		cat test/test.conf
		echo "shared_preload_libraries = 'idem_tool'"
	} >"$log/preloaded.conf"
	isolation "$log/preloaded.conf"
}

tap() {
	make -s installcheck REGRESS= ISOLATION= with_llvm=no PROVE_FLAGS=-v
}

# with_server command...: run it where the PG* variables lead to a throwaway
# server that has the library preloaded
with_server() (
	data=$PWD/tmp_server
	export PGHOST=$log PGUSER=postgres PGDATABASE=postgres
	initdb -D "$data" -U postgres -A trust -E UTF8 --no-locale --no-sync >"$log/initdb" || exit
	pg_ctl -D "$data" -w -l "$log/server" -o "-c listen_addresses= \
		-c unix_socket_directories='$log' -c fsync=off -c idem_tool.naptime=100ms \
		-c shared_preload_libraries=idem_tool" start >/dev/null || exit
	"$@"
	status=$?
	pg_ctl -D "$data" -m immediate stop >/dev/null
	rm -rf "$data"
	exit "$status"
)

# run SQL text
sql() {
	psql -X -q -v ON_ERROR_STOP=1 -c "$1"
}

pgtap() {
	sql 'CREATE EXTENSION pgtap' && sql 'CREATE EXTENSION idem_tool' &&
		pg_prove -v test/pgtap/*.sql
}

# Against an independent implementation of RFC 8785, and in all encodings
jcs() {
	sql 'CREATE EXTENSION idem_tool' &&
		sh test/jcs/run.sh && echo 'ok 1 - canonical JSON' &&
		sh test/jcs/encodings.sh && echo 'ok 2 - in every encoding'
}

# The example of a user's own suites, which make a database of their own
example_regress() {
	cd examples/regress && make -s installcheck || return
	export PGDATABASE=shop_regression
	pg_prove -v pgtap/*.sql && /usr/bin/python3 ../common/run_tests.py
}

# What docs/drivers.md says of drivers that are quickly installed; all of them:
# test/drivers/run.sh
drivers() {
	sql 'CREATE EXTENSION idem_tool' &&
		/usr/bin/python3 test/drivers/check.py psycopg psycopg2 asyncpg \
			sqlalchemy django lost_answer node-postgres postgres.js
}

# Each example by its own test, in a database of its own
example() {
	cd "$1" || return
	createdb "$(basename "$1")" && export PGDATABASE=$(basename "$1") &&
		sql 'CREATE EXTENSION idem_tool' || return
	if [ -e package.json ]; then
		# its notes belong nowhere else
		npm_config_cache=$log/npm npm_config_update_notifier=false \
			npm test --silent
	else
		/usr/bin/python3 ../common/run_tests.py
	fi
}

suite regress regress
suite isolation isolation
suite isolation_preloaded isolation_preloaded
suite tap tap
suite pgtap with_server pgtap
suite jcs with_server jcs
suite drivers with_server drivers
suite example_regress with_server example_regress
for dir in examples/*; do
	[ "$dir" != examples/regress ] || continue
	if compgen -G "$dir/package.json" >/dev/null || compgen -G "$dir/test_*.py" >/dev/null; then
		suite "$(basename "$dir")" with_server example "$dir"
	fi
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
