# The sweep against every function: leases of 1 to 50 ms on a few keys, results
# that are forgotten at once, 16 callers, and sweeping without a pause.
# Whoever was told "reserved" or true must own the row that says so.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IPC::Run;
use Test::More;

my $seconds = $ENV{IDEM_HAMMER_SECONDS} // 20;
my $node = new_server('main', conf => <<'CONF');
idem_tool.naptime = 10ms
idem_tool.unknown_ttl = 1s
synchronous_commit = off
idem_tool.durable = off
CONF

$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem_tool;

-- who was told what; written in the transaction that did it
CREATE TABLE reserved (key text, token bigint, at timestamptz, lease_end timestamptz, attempt int);
CREATE TABLE settled (key text, token bigint, how text, at timestamptz);
CREATE INDEX ON settled (token);
CREATE TABLE anomaly (what text, detail text);
CREATE TABLE answer (status text, n bigint);
CREATE TABLE raised (sqlstate text, n bigint);

-- the row must be what the caller was told, as long as that holds
CREATE PROCEDURE check_row(k text, tok bigint, want text, until timestamptz, gone_at timestamptz)
LANGUAGE plpgsql AS $$
DECLARE
	r record;
	t timestamptz;
BEGIN
	SELECT token, status, expires_at INTO r FROM idempotency_keys WHERE key = k;
	t := clock_timestamp();
	IF t < until AND (r.token IS DISTINCT FROM tok OR r.status <> want) THEN
		INSERT INTO anomaly VALUES ('row is not what was told',
			format('%s token %s %s until %s: found %s at %s', k, tok, want, until, r, t));
	ELSIF t < gone_at AND (r.token IS NULL OR r.token < tok) THEN
		INSERT INTO anomaly VALUES ('row is gone',
			format('%s token %s %s: found %s at %s', k, tok, want, r, t));
	END IF;
END $$;

CREATE PROCEDURE hammer(seconds int) LANGUAGE plpgsql AS $$
DECLARE
	finish timestamptz := clock_timestamp() + seconds * interval '1 second';
	k text;
	r idem_answer;
	act double precision;
	ok boolean;
	lease timestamptz;
	ttl interval;
	now_ timestamptz;
	answers jsonb := '{}';
	errors jsonb := '{}';
BEGIN
	WHILE clock_timestamp() < finish LOOP
		k := 'h' || (random() * 59)::int;
		r := NULL;
		BEGIN
			SELECT * INTO r FROM idem_reserve(k, (1 + random() * 49) * interval '1 ms',
				wait => CASE WHEN random() < 0.7 THEN '0' ELSE '20 ms' END::interval);
			answers := answers || jsonb_build_object(coalesce(r.status, 'NULL'),
				coalesce((answers ->> coalesce(r.status, 'NULL'))::int, 0) + 1);
			IF r.status = 'reserved' THEN
				INSERT INTO reserved VALUES (k, r.token, clock_timestamp(), r.expires_at, r.attempt);
			-- an older snapshot would not see what idem_reserve does
			ELSIF r.status IN ('done', 'failed') AND
				current_setting('transaction_isolation') = 'read committed' AND NOT EXISTS
				(SELECT FROM settled WHERE token = (r.result ->> 'token')::bigint
					AND how = r.status AND key = k) THEN
				INSERT INTO anomaly VALUES ('replay of what nobody recorded', r::text);
			END IF;
		EXCEPTION WHEN OTHERS THEN
			errors := errors || jsonb_build_object(SQLSTATE, coalesce((errors ->> SQLSTATE)::int, 0) + 1);
			r := NULL;
		END;
		COMMIT;
		CONTINUE WHEN r.status IS DISTINCT FROM 'reserved';
		CALL check_row(k, r.token, 'in_progress', r.expires_at, r.expires_at + interval '900 ms');
		COMMIT;

		IF random() < 0.5 THEN
			PERFORM pg_sleep(random() * 0.04);
		END IF;
		act := random();
		ok := NULL;
		BEGIN
			IF act < 0.3 THEN
				lease := idem_extend(k, '20 ms', r.token);
				UPDATE reserved SET lease_end = lease WHERE token = r.token;
				r.expires_at := lease;
			END IF;
		EXCEPTION WHEN OTHERS THEN
			errors := errors || jsonb_build_object(SQLSTATE, coalesce((errors ->> SQLSTATE)::int, 0) + 1);
		END;
		COMMIT;
		act := random();
		BEGIN
			now_ := clock_timestamp();
			ttl := (5 + random() * 100) * interval '1 ms';
			IF act < 0.35 THEN
				ok := idem_complete(k, jsonb_build_object('token', r.token), r.token, ttl);
				IF ok THEN INSERT INTO settled VALUES (k, r.token, 'done', now_); END IF;
			ELSIF act < 0.5 THEN
				ok := idem_fail(k, jsonb_build_object('token', r.token), r.token, ttl);
				IF ok THEN INSERT INTO settled VALUES (k, r.token, 'failed', now_); END IF;
			ELSIF act < 0.65 THEN
				ok := idem_release(k, r.token);
				IF ok THEN INSERT INTO settled VALUES (k, r.token, 'released', now_); END IF;
			ELSIF act < 0.8 THEN
				ok := idem_abandon(k, r.token);
				IF ok THEN INSERT INTO settled VALUES (k, r.token, 'abandoned', now_); END IF;
			END IF;			-- or die
		EXCEPTION WHEN OTHERS THEN
			errors := errors || jsonb_build_object(SQLSTATE, coalesce((errors ->> SQLSTATE)::int, 0) + 1);
		END;
		COMMIT;
		IF ok AND act < 0.5 THEN
			CALL check_row(k, r.token, CASE WHEN act < 0.35 THEN 'done' ELSE 'failed' END,
				now_ + ttl, now_ + ttl);
			COMMIT;
		END IF;
	END LOOP;
	INSERT INTO answer SELECT key, value::bigint FROM jsonb_each_text(answers);
	INSERT INTO raised SELECT key, value::bigint FROM jsonb_each_text(errors);
END $$;
SQL
my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/hammer.sql", "CALL hammer($seconds);\n");
append_to_file("$dir/hammer_rr.sql",
	"SET default_transaction_isolation = 'repeatable read';\nCALL hammer($seconds);\n");
append_to_file("$dir/sweep.sql", "SELECT * FROM idem_sweep();\n");
my @connection = ('-n', '-h', $node->host, '-p', $node->port);
my ($out1, $out2) = ('', '');
my $callers = IPC::Run::start(
	[   'pgbench', @connection, '-c', 16, '-t', 1, '-f', "$dir/hammer.sql",
		'-f', "$dir/hammer_rr.sql", 'postgres' ],
	'>&', \$out1);
my $sweeper = IPC::Run::start(
	[ 'pgbench', @connection, '-c', 2, '-T', $seconds, '-f', "$dir/sweep.sql", 'postgres' ],
	'>&', \$out2);
ok($callers->finish, 'the callers came through') or diag($out1);
ok($sweeper->finish, 'the sweepers came through') or diag($out2);
unlike($out2, qr/ERROR/, 'without an error');

note($node->safe_psql('postgres',
	'SELECT status, sum(n) FROM answer GROUP BY 1 ORDER BY 1'));
note($node->safe_psql('postgres',
	'SELECT sqlstate, sum(n) FROM raised GROUP BY 1 ORDER BY 1'));
note($node->safe_psql('postgres',
	'SELECT swept_expired, swept_deleted, sweep_refused, rounds FROM idem_stats'));

$node->safe_psql('postgres', 'CREATE INDEX ON reserved (token); ANALYZE');
is($node->safe_psql('postgres', 'SELECT * FROM anomaly LIMIT 10'),
	'', 'nobody was told what is not true');
is( $node->safe_psql('postgres',
		"SELECT status FROM answer EXCEPT VALUES ('reserved'), ('in_progress'), ('done'), ('failed')"
	),
	'', 'no other answer than the right ones');
is( $node->safe_psql('postgres',
		"SELECT DISTINCT sqlstate FROM raised WHERE sqlstate NOT IN ('IK002', 'IK003', 'IK004')"
	),
	'', 'no undocumented SQLSTATE');
is( $node->safe_psql('postgres',
		'SELECT key, token, count(*) FROM reserved GROUP BY 1, 2 HAVING count(*) > 1'
	),
	'', 'no token was given twice');
is( $node->safe_psql('postgres', <<'SQL'),
SELECT a.key, a.token, a.lease_end, b.token, b.at
FROM (SELECT *, lead(token) OVER (PARTITION BY key ORDER BY token) AS next FROM reserved) a
JOIN reserved b ON b.token = a.next
WHERE b.at < a.lease_end AND NOT EXISTS (SELECT FROM settled s WHERE s.token = a.token)
LIMIT 10
SQL
	'', 'no running lease was given away');
my ($expired, $deleted) = split /\|/, $node->safe_psql('postgres',
	"SELECT swept_expired, swept_deleted FROM idem_stats WHERE datname = 'postgres'");
cmp_ok($expired, '>', 50, "the sweep marked $expired rows in between");
cmp_ok($deleted, '>', 50, "and deleted $deleted");
is(count_in_log($node, qr/(?:ERROR|FATAL|PANIC):/), 0, 'nothing in the log');

$node->stop('fast');
done_testing();
