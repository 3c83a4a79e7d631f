#!/usr/bin/env bash
#
# Run suites, by default all, on a busy machine: beside one endless loop a core.
#
#	bash scripts/test-busy.sh [suite...]
#
# What it says, and how it ends, is scripts/test.sh's.

set -uo pipefail

loops=()

# However this ends, signals included.  What kill -9 leaves behind ends by
# itself: a loop looks now and then whether its parent is still there.
clean_up() {
	kill "${loops[@]}"
	wait "${loops[@]}" 2>/dev/null
}

busy() {
	local i
	while kill -0 $$ 2>/dev/null; do
		for ((i = 0; i < 100000; i++)); do :; done
	done
}

trap clean_up EXIT
trap 'exit 130' INT TERM HUP
for ((core = $(nproc); core > 0; core--)); do
	busy &
	loops+=("$!")
done

bash "$(dirname "${BASH_SOURCE[0]}")/test.sh" "$@"
