#!/usr/bin/env bash
#
# Show what idem_tool is for: a payment provider that loses answers, callers
# that are killed, and customers who are charged twice, or once.
#
#	bash scripts/demo.sh
#
# Installs what is missing, as root or by sudo, on Debian 12.  The server is a
# throwaway one; the code that runs is in examples/payment/.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/common.sh
. "$root/scripts/common.sh"

packages=(gcc make git postgresql-15 postgresql-server-dev-15
	python3-psycopg)

dir=$(mktemp -d)
chmod 755 "$dir"
# what the server and the programs of the example write; nobody else gets in,
# for the server trusts whoever reaches its socket
home=$dir/postgres
lifeline=

clean_up() {
	trap '' INT TERM HUP
	if [ -n "$lifeline" ]; then
		exec {lifeline}>&-
		wait "$!" || true
	fi
	if as_root test -e "$home/data/postmaster.pid"; then
		as_server pg_ctl -D "$home/data" -m immediate stop >/dev/null || true
	fi
	as_root rm -rf "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# Run a command as postgres, with the server's programs and the way to it
as_server() {
	as_postgres env PATH="$bindir:$PATH" PGHOST="$home" PGUSER=postgres \
		PGDATABASE=postgres "$@"
}

# An interrupt must not come between the server's start and its pid file
start_server() (
	trap '' INT TERM HUP
	as_server pg_ctl -D "$home/data" -l "$home/server.log" -w start -o \
		"-c listen_addresses= -c unix_socket_directories='$home' \
		-c shared_preload_libraries=idem_tool -c idem_tool.naptime=100ms"
)

# In background, so that a signal to this script is heard at once.  run.py
# stops all it started when its input ends, however that comes about.
run_part() {
	as_postgres mkdir "$home/$1"
	exec {lifeline}> >(as_server /usr/bin/python3 \
		"$dir/idem_tool/examples/payment/run.py" "$1" "$home/$1")
	wait "$!"
}

echo "Building and installing idem_tool ..."
quietly "$dir/log" install_packages "${packages[@]}"
find_postgres
copy_tree "$dir/idem_tool"
cd "$dir/idem_tool"
quietly "$dir/log" make -j2 with_llvm=no
quietly "$dir/log" as_root make install with_llvm=no

as_root install -d -m 700 -o postgres "$home"
cd /
quietly "$dir/log" as_server initdb -D "$home/data" -A trust -E UTF8 \
	--no-locale --no-sync
quietly "$dir/log" start_server
as_server psql -X -q -v ON_ERROR_STOP=1 >/dev/null <<'END'
CREATE ROLE app LOGIN;
CREATE EXTENSION idem_tool;
SELECT idem_grant('app');
CREATE TABLE payments (invoice text PRIMARY KEY, receipt jsonb);
CREATE TABLE orders (id integer PRIMARY KEY, item text);
GRANT SELECT, INSERT ON payments, orders TO app;
END

cat <<'END'

A payment provider charges, then loses a third of its answers.  200 invoices,
each on the desks of two of 12 callers, who time out, retry and get killed.

1. Without idem_tool: look whether it is paid, charge, note it down
END
run_part without

cat <<'END'

2. With it, in two phases: idem_reserve, charge, idem_complete
END
run_part with

# A caller who dies with a key in his hands: his connection is gone, his
# reservation committed.  Waits for the worker, no longer than 20 seconds.
dying_caller() {
	as_server psql -X -q -A -t -v ON_ERROR_STOP=1 <<-'END'
	SELECT format('   %s: attempt %s, for a second; then the caller is killed', status, attempt)
		FROM idem_reserve('charge:late', '1 s', holder => 'caller 1');
	DO $$ BEGIN
		FOR i IN 1 .. 200 LOOP
			EXIT WHEN EXISTS (SELECT FROM idempotency_keys
				WHERE key = 'charge:late' AND status = 'expired');
			PERFORM pg_sleep(0.1);
			COMMIT;
		END LOOP;
	END $$;
	SELECT format('   idem_stuck: %s, attempt %s by %s, who began %s ago', key,
			attempt, holder, date_trunc('second', stuck_for))
		FROM idem_stuck;
	SELECT format('   %s: attempt %s, an earlier one may have run: %s', status, attempt, maybe_ran)
		FROM idem_reserve('charge:late', '1 min', holder => 'caller 2');
	END
}

cat <<'END'

3. A caller dies in the middle.  His lease lapses, the worker marks the key,
   operators see it, and the next caller takes it over.

END
late=$(dying_caller)
echo "$late"
grep -q 'reserved: attempt 2, an earlier one may have run: t' <<<"$late"
grep -q 'idem_stuck: charge:late, attempt 1 by caller 1' <<<"$late"

cat <<'END'

4. If the effect is in the same database, one transaction does it all.  These
   lines are yours to copy.  Then the same request comes a second time.

END
orders=$(as_server psql -X -q -a -t -U app -v ON_ERROR_STOP=1 <<'END'
BEGIN;
SELECT status, result FROM idem_reserve('order-7');
INSERT INTO orders VALUES (7, 'tea');             -- if "reserved"
SELECT idem_complete('order-7', '{"order": 7}');  -- so that others hear it
COMMIT;
-- again, after a lost answer
BEGIN;
SELECT status, result FROM idem_reserve('order-7');
COMMIT;                                           -- "done": give it back
END
)
sed '/^$/d; s/ *$//; s/^/   /' <<<"$orders"
grep -q '^ done *| {"order": 7}' <<<"$orders"
