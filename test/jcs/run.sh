#!/bin/sh
#
# Compare idem_canonical with an independent implementation of RFC 8785.
#
#		test/jcs/run.sh [schema [documents [numbers [seed]]]]
#
# Connects as the PG* variables say, to a UTF8 database that has idem_tool in
# the schema (default: public).  Needs node, npm and psql.  Ends with 0 only
# if every generated line was compared and none differs.

set -eu

schema=${1:-public}
documents=${2:-4000}
numbers=${3:-2000}
seed=${4:-8785}

cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

die()
{
	echo "jcs: $*" >&2
	exit 1
}

[ -d node_modules/canonicalize ] ||
	npm ci --silent --no-audit --no-fund ||
	die "npm ci failed"

node generate.js "$documents" "$numbers" "$seed" > "$work/lines" ||
	die "generate.js failed"
wanted=$(($(wc -l < "$work/lines")))

psql -X -q -A -t -F ' ' -v ON_ERROR_STOP=1 -v schema="$schema" \
	-f compare.sql < "$work/lines" > "$work/out" ||
	die "comparison failed"

# The last line is the verdict, before it are the first differences
verdict=$(tail -n 1 "$work/out")
sed '$d' "$work/out"

# shellcheck disable=SC2086
set -- $verdict
[ $# -eq 4 ] || die "no verdict"
[ "$1" -gt 0 ] || die "nothing was compared"
[ "$1" -eq "$wanted" ] || die "compared $1 lines of $wanted"
[ "$4" -eq 0 ] || die "$4 faults in $1 lines"

echo "jcs: $2 documents and $3 exact numbers agree"
