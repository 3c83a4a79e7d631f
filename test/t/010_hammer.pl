# Many sessions at once: what no single session can see go wrong.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IPC::Run ();
use PostgreSQL::Test::Utils qw(append_to_file);
use Test::More;

my $seed = $ENV{HAMMER_SEED} || time;
my $seconds = $ENV{HAMMER_SECONDS} || 20;

my $node = new_node('hammer', conf => <<'END');
fsync = off
max_prepared_transactions = 30
track_commit_timestamp = on
deadlock_timeout = 100ms
END
my $observer = session($node);

$observer->query('CREATE EXTENSION amcheck');
$observer->query('CREATE EXTENSION pgstattuple');

# Is the table in order?
sub check_table
{
	my ($name) = @_;

	is( $observer->query(
			"SELECT bt_index_check('idempotency_keys_pkey', true)"),
		'', "$name: index has every row");
	is($observer->query("SELECT * FROM verify_heapam('idempotency_keys')"),
		'', "$name: table is in order");
	return;
}

# All functions at random on few keys
SKIP:
{
	my $python = '/usr/bin/python3';

	skip 'python3 has no psycopg', 1
		if system("$python -c 'import psycopg' 2>/dev/null") != 0;

	note "HAMMER_SEED=$seed";
	my ($out, $err);
	IPC::Run::run([ $python, '-B', "$FindBin::RealBin/hammer.py",
			$node->connstr('postgres'), $seed, $seconds ],
		'>', \$out, '2>', \$err);
	is($err, '', 'clients end well');
	foreach (split /\n/, $out)
	{
		if (/^(ok|not ok) - (.*)/)
		{
			ok($1 eq 'ok', $2);
		}
		else
		{
			note s/^# //r;
		}
	}
	ok(eventually($observer, <<'END'), 'the sweep has had its share');
SELECT n_tup_del > 0 FROM pg_stat_user_tables
WHERE relname = 'idempotency_keys'
END
	check_table('random mix');
}

# Many sessions come to each of many keys at the same moment.  They queue for
# a lock on the key's number, which the referee releases when all are there.
my $script = $node->basedir . '/barrier.sql';
my $sessions = 64;

append_to_file($script, <<'END');
\set n :n + 1
SELECT pg_advisory_xact_lock_shared(:n);
WITH r AS MATERIALIZED (SELECT * FROM idem_reserve('key ' || :n, '1 hour'))
INSERT INTO side_effect
SELECT :n, token, attempt, pg_current_xact_id() FROM r
WHERE status = 'reserved';
END
$observer->query(<<'END');
CREATE TABLE side_effect (n int, token bigint, attempt int, xid xid8);
CREATE PROCEDURE referee(sessions int, keys int) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 1 .. keys LOOP
		WHILE (SELECT count(*) FROM pg_locks
			WHERE NOT granted AND locktype = 'advisory' AND objid = n) <
			sessions LOOP
			PERFORM pg_sleep(0.001);
		END LOOP;
		PERFORM pg_advisory_unlock(n);
	END LOOP;
END $$;
END

# Each session asks for each key once
sub all_ask
{
	my ($keys, $name) = @_;

	# lest all wait for ever if one ends early
	local $ENV{PGOPTIONS} = '-c lock_timeout=60s';
	$node->command_ok(
		[ 'pgbench', '-n', '-j2', "-c$sessions", "-t$keys", '-Dn=0',
			'-M', 'prepared', '-f', $script, 'postgres' ],
		"$name: all calls end well");
	return;
}

# The same, all at once
sub barrier
{
	my ($keys, $name) = @_;
	my $referee = session($node);

	$referee->query(<<"END");
SELECT count(pg_advisory_lock(n)) FROM generate_series(1, $keys) AS n
END
	$referee->send("CALL referee($sessions, $keys)");
	all_ask($keys, $name);
	is($referee->answer->{message}, '', "$name: all have met");
	$referee->drop;
	return;
}

# What the table's counters say, once those have arrived
sub counters
{
	my ($writes) = @_;

	eventually($observer, <<"END") or diag 'counters have not arrived';
SELECT n_tup_ins + n_tup_upd >= $writes FROM pg_stat_user_tables
WHERE relname = 'idempotency_keys'
END
	return $observer->query(<<'END');
SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables
WHERE relname = 'idempotency_keys'
END
}

# The rows, where they are and who wrote or locked them
my $rows = <<'END';
SELECT md5(string_agg((ctid, xmin, xmax, k.*)::text, ',' ORDER BY key))
FROM idempotency_keys AS k
END

# Counts the rows that are as their winners left them
my $winners = <<'END';
SELECT s.attempt, count(*), count(DISTINCT n),
	count(*) FILTER (WHERE k.token = s.token AND k.xmin = s.xid::xid
		AND k.attempt = s.attempt AND k.xmax IN ('0', k.xmin))
FROM side_effect AS s JOIN idempotency_keys AS k ON k.key = 'key ' || n
GROUP BY s.attempt ORDER BY s.attempt
END

{
	$observer->query(<<'END');
TRUNCATE idempotency_keys;
ALTER SEQUENCE idempotency_keys_token_seq RESTART;
SELECT pg_stat_reset_single_table_counters('idempotency_keys'::regclass);
END
	barrier(500, 'new keys');
	is($observer->query($winners), '1|500|500|500',
		'new keys: one winner each, whose row nobody touched');
	is($observer->query(
			'SELECT last_value, is_called FROM idempotency_keys_token_seq'),
		'500|t', 'new keys: losers take no token');
	is(counters(500), '500|0|0', 'new keys: losers write nothing');
	is($observer->query(
			"SELECT dead_tuple_count FROM pgstattuple('idempotency_keys')"),
		'0', 'new keys: losers leave no dead rows');

	my $before = $observer->query($rows);
	all_ask(20, 'reserved keys');
	is($observer->query($rows), $before,
		'reserved keys: losers leave the rows untouched');

	$observer->query(<<'END');
TRUNCATE side_effect;
UPDATE idempotency_keys SET expires_at = clock_timestamp();
END
	barrier(150, 'lapsed keys');
	is($observer->query($winners), '2|150|150|150',
		'lapsed keys: one winner each, whose row nobody touched');
	is($observer->query(
			'SELECT last_value FROM idempotency_keys_token_seq'),
		'650', 'lapsed keys: losers take no token');
	is(counters(500 + 500 + 150),
		'500|650|0', 'lapsed keys: losers write nothing');
	check_table('barrier');
}

# One session reserves and releases a key all the time, others ask for it.
# Any error ends the session.
{
	$observer->query(<<'END');
CREATE PROCEDURE nag(rounds int) LANGUAGE plpgsql AS $$
DECLARE
	a record;
BEGIN
	FOR i IN 1 .. rounds LOOP
		SELECT * INTO STRICT a FROM idem_reserve('loop', '1 hour');
		COMMIT;
		IF a.status IS NULL OR
			a.status NOT IN ('reserved', 'in_progress') THEN
			RAISE EXCEPTION 'answered %', a;
		END IF;
		IF a.status = 'reserved' THEN
			IF NOT idem_release('loop', a.token) THEN
				RAISE EXCEPTION 'not released: %', a;
			END IF;
			COMMIT;
		END IF;
	END LOOP;
END $$;
END
	my @nags = map { session($node) } 1 .. 9;

	$_->send('CALL nag(1200)') foreach @nags;
	is(join('', map { $_->answer->{message} } @nags),
		'', 'release loop: no error, no empty answer');
	is($observer->query("SELECT status FROM idem_lookup('loop')"),
		'released', 'release loop: nobody is left behind');
	check_table('release loop');
}

$node->stop;
done_testing();
