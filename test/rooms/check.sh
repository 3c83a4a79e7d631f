#!/usr/bin/env bash
#
# Which room of the source uses which, and are there circles?  What do files
# call their own, and how long are they?
#
#	bash test/rooms/check.sh [DIR]	a tree that has been built, by default here
#
# The rooms stand one above the other, in the Makefile's order.  Files include
# the headers of their own room and of rooms below, objects use symbols that are
# defined there, and no files use each other in a ring.  Only the top, which
# the server loads, knows everybody; everybody knows its settings.
#
# Before PostgreSQL 16 others see all symbols of a module: they begin as the
# project does.  No file has more than 450 lines.
#
# Prints what is wrong, and fails if anything is.

set -euo pipefail

cd "${1:-.}"
rooms=(worker gate operate call store keys shared)

# below UPPER LOWER: may UPPER use LOWER?
below() {
	local room seen=
	for room in "${rooms[@]}"; do
		[ "$room" != "$1" ] || seen=yes
		[ "$room" != "$2" ] || { [ -n "$seen" ]; return; }
	done
	return 1
}

# Lines "FILE HEADER" of what files in rooms include from rooms
includes() {
	local file header
	grep -H '^#include ".*/' src/*/*.[ch] |
		sed 's/^\([^:]*\):#include "\(.*\)"/\1 \2/' |
		while read -r file header; do
			[ ! -e "src/$header" ] || echo "$file src/$header"
		done
}

# Lines "USER DEFINER SYMBOL" of the objects, without the top
uses() {
	local object
	for object in src/*/*.o; do
		nm "$object" | sed -n "s|^.* \([A-Z]\) \(idem_.*\)|$object \1 \2|p"
	done | awk '
		$2 == "U" { user[++n] = $1; wanted[n] = $3; next }
		{ definer[$3] = $1 }
		END {
			for (i = 1; i <= n; i++)
				if (wanted[i] in definer)
					print user[i], definer[wanted[i]], wanted[i]
		}'
}

# What objects define under names that are not ours, but for what the server
# looks for
names() {
	local object
	for object in src/*.o src/*/*.o; do
		nm --defined-only "$object" |
			sed -nE "s|^.* [A-Z] (.*)|$object defines \1|p"
	done | sed -E '/ (pg_finfo_)?idem_/d; / (_PG_init|Pg_magic_func)$/d'
}

lengths() {
	awk 'FNR == 451 { print FILENAME " has more than 450 lines" }' \
		src/*.[ch] src/*/*.[ch]
}

wrong() {
	local user used symbol
	{ includes; uses; } | while read -r user used symbol; do
		below "$(cut -d/ -f2 <<<"$user")" "$(cut -d/ -f2 <<<"$used")" ||
			echo "$user uses $used${symbol:+ for $symbol}"
	done
	uses | awk '{ print $1, $2 }' | sort -u |
		{ LC_ALL=C tsort 2>&1 >/dev/null || true; } |
		sed 's/^tsort: -: .*/a ring of files:/; s/^tsort: /\t/'
	names
	lengths
}

[ "$(ls -d src/*/ | wc -l)" -eq "${#rooms[@]}" ] ||
	{ echo "the rooms are other ones:" src/*/; exit 1; }
[ "$(uses | wc -l)" -gt 0 ] || { echo "nothing was built"; exit 1; }
found=$(wrong)
[ -z "$found" ] || { echo "$found"; exit 1; }
