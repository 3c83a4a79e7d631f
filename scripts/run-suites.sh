#!/usr/bin/env bash
#
# Run suites, by default all, in the current directory: a copy of the tree that
# the current user owns, built and installed.
#
#	bash scripts/run-suites.sh [suite...]
#	bash scripts/run-suites.sh --check [suite...]	whether there are such suites
#
# PATH has PostgreSQL's programs.  Prints one line a suite as it ends, what
# failed in it, and "N passed, N failed" at the end.  A suite in which a test
# was skipped has failed, unless SKIP_OK is set.

set -uo pipefail

passed=0
failed=0

# All suites, in order, and the examples' that have tests
all_suites() {
	local test
	printf '%s\n' build regress regress_preloaded dates locale isolation \
		isolation_preloaded tap \
		pgtap jcs drivers example_regress
	for test in examples/*/package.json examples/*/test_*.py; do
		[ ! -e "$test" ] || basename "${test%/*}"
	done | grep -vx regress | uniq
}

# The suites to run; fails if there is none of such a name
chosen_suites() {
	local name known
	known=$(all_suites)
	[ $# -gt 0 ] || { echo "$known"; return; }
	for name; do
		if ! grep -qxF -e "$name" <<<"$known"; then
			echo "there is no suite \"$name\" but:" $known >&2
			return 2
		fi
		echo "$name"
	done
}

# count NAME: tests in the log of a suite, "PASSED FAILED".  pg_regress says
# "test foo ... ok", since version 16 it speaks TAP as all others do.
count() {
	local passes fails
	passes=$(grep -cE '^(ok +[0-9]+|test .* \.\.\. ok)' "$log/$1.log")
	fails=$(grep -cE '^(not ok +[0-9]+|test .* \.\.\. FAILED)' "$log/$1.log")
	echo "$passes $fails"
}

# judge NAME STATUS: what is wrong with a suite beyond its failed tests
judge() {
	local passes fails
	read -r passes fails < <(count "$1")
	if [ "$((passes + fails))" -eq 0 ]; then
		echo "no test was run"
	elif [ "$2" -ne 0 ] && [ "$fails" -eq 0 ]; then
		echo "ended with status $2"
	fi
	# a test that could not run has not passed
	[ -n "${SKIP_OK:-}" ] || grep -iE '^ok.*# skip|skipped: ' "$log/$1.log"
}

# Run one suite and say how it went
suite() {
	local name=$1 start=$SECONDS wrong passes fails status
	if declare -F "suite_$name" >/dev/null; then
		"suite_$name"
	else
		with_server example "examples/$name"
	fi >"$log/$name.log" 2>&1
	status=$?
	wrong=$(judge "$name" "$status")
	read -r passes fails < <(count "$name")
	[ -z "$wrong" ] || fails=$((fails + 1))
	passed=$((passed + passes))
	failed=$((failed + fails))
	echo "$name: $passes passed, $fails failed, $((SECONDS - start)) s"
	if [ "$fails" -ne 0 ]; then
		grep -vE '^ok [0-9]|\.\.\. ok' "$log/$name.log"
		find . "$log" -name regression.diffs -exec cat {} + 2>/dev/null
		[ -z "$wrong" ] || sed "s/^/$name: /" <<<"$wrong"
	fi
	find . "$log" -name regression.diffs -delete
}

# pg_regress's suites by PGXS's installcheck, one at a time: make stops at the
# first that fails
installcheck() {
	make -s installcheck with_llvm=no "$@"
}

# regress [option...]: pg_regress with further options, in the way of the
# server that the PG* variables lead to or of one of its own
regress() {
	installcheck ISOLATION= TAP_TESTS= \
		REGRESS_OPTS="--load-extension=idem_tool --encoding=UTF8 $*"
}

# config SETTING...: the file of a test server's settings, with these
config() {
	local file
	file=$(mktemp "$log/conf.XXXXXX")
	{ cat test/test.conf; printf '%s\n' "$@"; } >"$file"
	echo "$file"
}

# Calls in FROM by a plain function scan, and sessions that share nothing; or by
# our own scan from the first statement on, and with shared memory
plain="idem_tool.enable_callscan = off"
preloaded="shared_preload_libraries = 'idem_tool'"

# regress_alone DIR [SETTING...]: all that it makes goes to DIR, the server too
regress_alone() {
	local dir=$1
	shift
	mkdir -p "$dir" &&
		regress "--outputdir=$dir" "--temp-instance=$dir/instance" \
			--temp-config="$(config "$@")"
}

suite_regress() {
	regress_alone "$log/regress" "$plain"
}

suite_regress_preloaded() {
	regress_alone "$log/regress_preloaded" "$preloaded"
}

# isolation SETTING
isolation() {
	installcheck REGRESS= TAP_TESTS= PREPARED=yes \
		EXTRA_REGRESS_OPTS="--temp-instance=./tmp_inst --temp-config=$(config "$1")"
}

suite_isolation() {
	isolation "$plain"
}

suite_isolation_preloaded() {
	isolation "$preloaded"
}

# two_at_a_time COMMAND ITEM...: COMMAND with each; then what they all said
two_at_a_time() {
	local command=$1 running=0 number=0 status=0
	shift
	for ((; $# > 0; number++)); do
		[ "$running" -lt 2 ] || { wait -n || status=$?; running=1; }
		"$command" "$1" >"$log/part.$number" 2>&1 &
		running=$((running + 1))
		shift
	done
	for ((; running > 0; running--)); do
		wait -n || status=$?
	done
	for ((running = 0; running < number; running++)); do
		cat "$log/part.$running"
	done
	return "$status"
}

# tap FILE: where PGXS builds, there it tests
tap() {
	make -s -C "$(mktemp -d "$PWD/tmp_check.XXXXXX")" -f "$PWD/Makefile" \
		installcheck with_llvm=no REGRESS= ISOLATION= PROVE_FLAGS=-v \
		PROVE_TESTS="$1"
}

suite_tap() {
	export PG_TEST_PORT_DIR=$log/ports
	two_at_a_time tap test/t/*.pl
}

# Seconds since the epoch at which the clocks of pg_regress's time zone change
# next, twice
clock_changes() {
	local -x TZ=PST8PDT
	local hour=$((EPOCHSECONDS / 3600 * 3600)) zone before found=0
	printf -v before '%(%z)T' "$hour"
	while [ "$found" -lt 2 ]; do
		hour=$((hour + 3600))
		printf -v zone '%(%z)T' "$hour"
		[ "$zone" != "$before" ] || continue
		echo "$hour"
		before=$zone
		found=$((found + 1))
	done
}

# The next 29th of February
leap_day() {
	local year=$(date +%Y) day
	for ((; ; year++)); do
		day=$(date -d "$year-02-29 12:00 UTC" +%s 2>/dev/null) || continue
		[ "$day" -lt "$EPOCHSECONDS" ] || { echo "$day"; return; }
	done
}

# Times that are unlike others: in the month before a change of the clocks, on
# the day before, at the change; a leap day; the end of a year
dates() {
	local change day=86400
	for change in $(clock_changes); do
		echo $((change - 15 * day)) $((change - day + 3600)) $((change - 8))
	done
	leap_day
	TZ=PST8PDT date -d "$(date +%Y)-12-31 23:59:52" +%s
}

# regress_at TIME: the regression tests at that time
regress_at() {
	printf '%(%F %T %Z)T\n' "$1"
	LD_PRELOAD=$log/shift_clock.so IDEM_CLOCK_OFFSET=$(($1 - EPOCHSECONDS)) \
		regress_alone "$log/dates/$1"
}

suite_dates() {
	cc -shared -fPIC -o "$log/shift_clock.so" test/clock/shift_clock.c &&
		mkdir "$log/dates" || return
	# shellcheck disable=SC2046
	two_at_a_time regress_at $(dates)
}

# with_server command...: run it where the PG* variables lead to a throwaway
# server that has the library preloaded.  $locale, $encoding and $settings, if
# set, are the server's.
with_server() (
	home=$(mktemp -d "$log/server.XXXXXX")
	export PGHOST=$home PGUSER=postgres PGDATABASE=postgres
	initdb -D "$home/data" -U postgres -A trust -E "${encoding:-UTF8}" \
		--locale="${locale:-C}" --no-sync >"$home/initdb" || exit
	printf '%s\n' "${settings:-}" >>"$home/data/postgresql.conf"
	pg_ctl -D "$home/data" -w -l "$home/log" -o "-c listen_addresses= \
		-c unix_socket_directories='$home' -c fsync=off -c idem_tool.naptime=100ms \
		-c shared_preload_libraries=idem_tool" start >/dev/null || exit
	"$@"
	status=$?
	pg_ctl -D "$home/data" -m immediate stop >/dev/null
	rm -rf "$home"
	exit "$status"
)

# The tests' database has the server's locale, which "make installcheck" would
# not give it
in_english() {
	local locale=en_US.UTF-8 settings="
		timezone = 'Pacific/Apia'
		datestyle = 'German, DMY'
		intervalstyle = 'sql_standard'
		lc_messages = 'de_DE.ISO-8859-1'"
	with_server regress "--outputdir=$log/locale"
}

# A server that is as far from the tests' own as it may be, and on it what
# users would run
in_german() {
	local locale=de_DE.ISO-8859-1 encoding=LATIN1 settings="
		timezone = 'Asia/Kathmandu'
		datestyle = 'German, DMY'
		extra_float_digits = 0"
	with_server installcheck TAP_TESTS=
}

suite_locale() {
	local name status=0
	mkdir "$log/locales" "$log/locale" || return
	for name in en_US.UTF-8 de_DE.ISO-8859-1; do
		localedef -i "${name%%.*}" -f "${name#*.}" "$log/locales/$name" || return
	done
	export LOCPATH=$log/locales
	in_english >"$log/locale/out" 2>&1 &
	in_german || status=$?
	wait $! || status=$?
	unset LOCPATH
	cat "$log/locale/out"
	return "$status"
}

# out_of_tree ARGUMENT...: a build outside of the source has all that the one
# inside has
out_of_tree() {
	rm -rf "$log/out"
	mkdir "$log/out" && cd "$log/out" &&
		make -s -j2 -f ../source/Makefile "$@" &&
		make -s -f ../source/Makefile "$@" install \
			DESTDIR="$log/out/root" &&
		symbols idem_tool.so | diff "$log/inside" - &&
		find root -name 'idem_tool--*.sql' | grep .
}

# With LLVM every object has its bitcode, which is installed with an index
bitcode() {
	local objects
	objects=$(find "$log/out/src" -name '*.o' | wc -l)
	[ "$objects" -gt 0 ] &&
		[ "$(find "$log/out/root" -name '*.bc' -path '*/src/*' | wc -l)" -eq "$objects" ] &&
		find "$log/out/root" -name 'idem_tool.index.bc' | grep .
}

# In a copy, since make would find what was built in the source
outside() {
	cp -r Makefile idem_tool.control src sql "$log/source" || return
	find "$log/source/src" -name '*.o' -delete
	chmod -R a-w "$log/source"
	symbols idem_tool.so >"$log/inside"
	grep idem_reserve "$log/inside" &&
		(out_of_tree with_llvm=no) &&
		echo 'ok 1 - out of the tree' &&
		(out_of_tree with_llvm=no VPATH=../source srcdir=../source) &&
		echo 'ok 2 - out of the tree, which is named' &&
		(out_of_tree with_llvm=yes) && bitcode &&
		echo 'ok 3 - out of the tree, with bitcode'
	local status=$?
	chmod -R u+w "$log/source"
	return "$status"
}

# planted FILE TEXT COMPLAINT: notice what breaks the rules of the house
planted() {
	local found
	cp -p "$1" "$1.kept" && echo "$2" >>"$1" &&
		make -s with_llvm=no >/dev/null || return
	found=$(bash test/rooms/check.sh)
	echo "$found"
	mv "$1.kept" "$1" && touch "$1" && grep -qF -e "$3" <<<"$found"
}

rooms() {
	cp -a Makefile idem_tool.control src sql test "$log/rooms" &&
		cd "$log/rooms" &&
		bash test/rooms/check.sh &&
		echo 'ok 4 - rooms use those below them' &&
		planted src/store/hint.c '#include "gate/idem_gate.h"' \
			'src/store/hint.c uses src/gate/idem_gate.h' &&
		planted src/keys/name.c \
			'void idem_writer_init(void); void idem_up(void); void idem_up(void) { idem_writer_init(); }' \
			'src/keys/name.o uses src/store/rowwriter.o for idem_writer_init' &&
		planted src/store/row.c \
			'void idem_ring(void); void idem_ring(void) { idem_writer_init(); }' \
			$'\tsrc/store/row.o' &&
		planted src/store/row.c 'void stranger(void); void stranger(void) { }' \
			'src/store/row.o defines stranger' &&
		planted src/store/row.c "$(yes '' | head -450; echo ' ')" \
			'src/store/row.c has more than 450 lines' &&
		echo 'ok 5 - and whatever else is noticed'
}

suite_build() {
	mkdir "$log/source" "$log/rooms" && outside && (rooms)
}

symbols() {
	nm -D --defined-only "$1" | cut -d' ' -f2-
}

# run SQL text
sql() {
	psql -X -q -v ON_ERROR_STOP=1 -c "$1"
}

pgtap() {
	sql 'CREATE EXTENSION pgtap' && sql 'CREATE EXTENSION idem_tool' &&
		pg_prove -v test/pgtap/*.sql
}

suite_pgtap() {
	with_server pgtap
}

# Against an independent implementation of RFC 8785, and in all encodings
jcs() {
	sql 'CREATE EXTENSION idem_tool' &&
		sh test/jcs/run.sh && echo 'ok 1 - canonical JSON' &&
		sh test/jcs/encodings.sh && echo 'ok 2 - in every encoding'
}

suite_jcs() {
	with_server jcs
}

# What docs/drivers.md says of drivers that are quickly installed; all of them:
# test/drivers/run.sh
drivers() {
	sql 'CREATE EXTENSION idem_tool' &&
		/usr/bin/python3 test/drivers/check.py psycopg psycopg2 asyncpg \
			sqlalchemy django lost_answer node-postgres postgres.js
}

suite_drivers() {
	with_server drivers
}

# The example of a user's own suites, which make a database of their own
example_regress() {
	cd examples/regress && make -s installcheck || return
	export PGDATABASE=shop_regression
	pg_prove -v pgtap/*.sql && /usr/bin/python3 ../common/run_tests.py
}

suite_example_regress() {
	with_server example_regress
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

if [ "${1:-}" = --check ]; then
	shift
	chosen_suites "$@" >/dev/null
	exit
fi
chosen=$(chosen_suites "$@") || exit
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

for name in $chosen; do
	suite "$name"
done

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
