#!/usr/bin/env bash
#
# Build idem_tool and run suites, by default every one: pg_regress, isolation,
# TAP, pgTAP, and the tests of the examples.
#
#	bash scripts/test.sh [suite...]
#
# Installs what is missing, as root or by sudo, on Debian 12.  Says one line a
# suite as it ends, and at the end "N passed, N failed".

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

packages=(gcc make git postgresql-15 postgresql-server-dev-15
	postgresql-15-pgtap libtap-parser-sourcehandler-pgtap-perl
	libipc-run-perl locales pgbouncer python3-psycopg python3-psycopg2
	python3-asyncpg python3-sqlalchemy python3-django python3-requests
	python3-tap sudo valgrind)
# not over an npm that somebody has from elsewhere
command -v npm >/dev/null || packages+=(nodejs npm)

(cd "$root" && bash scripts/run-suites.sh --check "$@")

dir=$(mktemp -d)
trap 'as_root rm -rf "$dir"' EXIT
chmod 755 "$dir"

quietly "$dir/install.log" install_packages "${packages[@]}"
find_postgres
copy_tree "$dir/idem_tool"
cd "$dir/idem_tool"

quietly "$dir/build.log" make -j2 with_llvm=no COPT=-Werror
quietly "$dir/build.log" as_root make install with_llvm=no
# as the caller, who may have settings of his own for npm
find examples test/jcs test/drivers -name package-lock.json | while read -r lock; do
	quietly "$dir/npm.log" npm ci --prefix "${lock%/*}" --no-audit --no-fund
done
as_root chown -R postgres "$dir"

cd "$dir/idem_tool"
as_postgres env PG_CONFIG="$PG_CONFIG" PATH="$bindir:$PATH" \
	bash scripts/run-suites.sh "$@"
