# From the reservation to what becomes of it when its holder goes away;
# nothing depends on the session that reserved, and nothing adds up in it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;
use Time::HiRes qw(sleep);

my $node = new_node('life_cycle', conf => 'shared_buffers = 128MB');
my $observer = session($node);

# Ways for a session to end
my %ends = (
	'terminated' => sub {
		my ($session) = @_;
		$observer->query("SELECT pg_terminate_backend(@{[$session->pid]})");
	},
	'disconnected' => sub { $_[0]->drop; });

sub gone
{
	my ($session) = @_;

	return eventually($observer, <<"END") || die 'it does not go away';
SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = @{[$session->pid]}
END
}

# Two phases: the reservation outlives its session, for as long as its lease
foreach my $end (sort keys %ends)
{
	my $holder = session($node);
	my $key = "committed, $end";
	my ($token, $lease_end) = split(
		/\|/,
		$holder->query(
			"SELECT token, expires_at FROM idem_reserve('$key', '1500 ms')"));

	$ends{$end}->($holder);
	gone($holder);

	# what is seen, and at what time: a slow machine is no mistake
	my $seen = $observer->query(<<"END");
SELECT status, expires_at = '$lease_end',
	retry_after BETWEEN 1 AND 2, clock_timestamp() < '$lease_end'
FROM idem_reserve('$key')
END
	SKIP:
	{
		skip 'the machine stalled', 1 if $seen =~ /f$/;
		is($seen, 'in_progress|t|t|t',
			"$key: in progress until the lease ends");
	}
	is(heard($observer, $key, "'1 hour', wait => '1 min'"),
		'reserved 2 t', "$key: taken over then, attempt 2, it may have run");
	cmp_ok(
		$observer->query("SELECT clock_timestamp() >= '$lease_end'"),
		'eq', 't', "$key: ... and not before");
	is($observer->try("SELECT idem_complete('$key', '1', $token)"),
		'IK002', "$key: the first attempt is too late");
	is($observer->try("SELECT idem_release('$key', $token)"),
		'f', "$key: and cannot free the second");
	is(heard($observer, $key), 'in_progress 2 t', "$key: ... which goes on");
}

# A lease that lapses and is not taken over: the late result is the truth
my $late =
  $observer->query("SELECT token FROM idem_reserve('late', '10 ms')");
sleep 0.05;
is($observer->query("SELECT status FROM idem_lookup('late')"),
	'expired', 'a lapsed lease, to those who look');
is($observer->query("SELECT idem_complete('late', '1', $late)"),
	't', 'a late result is accepted');
is(heard($observer, 'late'), 'done 1 f 1', '... and replayed');

# Same transaction: everything goes with it
$observer->query('CREATE TABLE effects (key text)');
foreach my $end (sort keys %ends)
{
	my $holder = session($node);
	my $waiter = session($node);
	my $key = "uncommitted, $end";

	$holder->query($_)
	  foreach 'BEGIN', "SELECT FROM idem_reserve('$key')",
	  "INSERT INTO effects VALUES ('$key')",
	  "SELECT idem_complete('$key', '1')";
	$waiter->send(<<"END");
SELECT concat_ws(' ', status, attempt, maybe_ran)
FROM idem_reserve('$key', '1 hour', wait => '10 min')
END
	eventually($observer, <<"END") || die 'no wait';
SELECT wait_event = 'transactionid'
FROM pg_stat_activity WHERE pid = @{[$waiter->pid]}
END
	$ends{$end}->($holder);
	is($waiter->answer->{rows}[0][0],
		'reserved 1 f', "$key: the next caller begins anew");
	is( $observer->query("SELECT count(*) FROM effects WHERE key = '$key'"),
		0, "$key: no effect is left");
}

# Every call on another connection, each of which forgets everything after it
my @sessions = map { session($node) } 1 .. 3;
my $turn = 0;

sub elsewhere
{
	my ($sql) = @_;
	my $session = $sessions[ $turn++ % @sessions ];
	my $outcome = $session->try($sql);

	is( $session->query(<<'END'), 0, "$sql: no lock is kept");
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
END
	$session->query('DISCARD ALL');
	return $outcome;
}

foreach my $round (1 .. 3)
{
	my $key = "moving $round";
	my $token = elsewhere("SELECT token FROM idem_reserve('$key', '1 min')");

	is(elsewhere("SELECT status FROM idem_reserve('$key')"),
		'in_progress', 'reserved on another connection');
	is( elsewhere("SELECT idem_extend('$key', '1 hour', $token) > now()"),
		't', 'extended on another connection');
	is(elsewhere("SELECT idem_complete('$key', '1')"),
		'IK003', 'not completed without the token');
	is(elsewhere("SELECT idem_complete('$key', '1', $token)"),
		't', 'completed on another connection');
	is(elsewhere("SELECT status FROM idem_reserve('$key')"),
		'done', 'replayed on another connection');
}

# Memory, locks and subtransactions of a long transaction.  Bytes are those of
# all memory contexts; the first thousand calls fill the caches.  PostgreSQL
# itself remembers about 50 bytes (a combo command id) for each row that was
# written in an earlier command of the same transaction and is updated now.
my $many = 100_000;
my $session = session($node);
$session->query(<<'END');
CREATE FUNCTION bytes(i integer) RETURNS bigint LANGUAGE sql VOLATILE AS
	'SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts'
END

# Growth between the thousandth row and the last of a statement whose FROM has
# $call for each i
sub growth
{
	my ($call) = @_;

	return $session->query(<<"END");
SELECT max(b) FILTER (WHERE i = $many) - max(b) FILTER (WHERE i = 1000)
FROM (SELECT i, CASE WHEN i IN (1000, $many) THEN bytes(i) END AS b
	FROM generate_series(1, $many) AS i, $call AS called) AS measured
END
}

my $flat = 10;
my $combo = 100;
my @calls = (
	[ 'reserve', "idem_reserve('many ' || i, '1 hour')", $flat ],
	[ 'reserve again', "idem_reserve('many ' || i, '1 hour')", $flat ],
	[ 'extend', "idem_extend('many ' || i, '2 hours')", $combo ],
	[ 'complete', "idem_complete('many ' || i, to_jsonb(i))", $combo ],
	[ 'replay', "idem_reserve('many ' || i)", $flat ],
	[ 'look up', "idem_lookup('many ' || i)", $flat ]);
my $xid = 'SELECT pg_current_xact_id()';

$session->query('BEGIN');
my $own_xid = $session->query($xid);
my $before = $session->query('SELECT bytes(0)');
foreach (@calls)
{
	my ($name, $call, $allowed) = @$_;
	my $growth = growth($call) / $many;

	note(sprintf('%s: %.1f bytes a call', $name, $growth));
	cmp_ok($growth, '<', $allowed, "$name, $many times: memory is flat");
}
my $kept = ($session->query('SELECT bytes(0)') - $before) / $many;
note(sprintf('kept until the end: %.1f bytes a key', $kept));
cmp_ok($kept, '<', 2 * $combo, 'nothing adds up in the transaction');
is($observer->query($xid), $own_xid + 1, 'no subtransaction was used');
cmp_ok($session->query(<<'END'), '<', 50, 'the lock table has room');
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()
END
is($session->query(<<'END'), $many, 'all were reserved and completed');
SELECT count(*) FROM idempotency_keys
WHERE status = 'done' AND key LIKE 'many %'
END
$session->query('COMMIT');

# The same by the statements of a function
$session->query(<<'END');
CREATE FUNCTION loop_over(calls integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	first bigint;
BEGIN
	FOR i IN 1 .. calls LOOP
		PERFORM * FROM idem_reserve('loop ' || i);
		PERFORM idem_complete('loop ' || i, '1');
		IF i = 1000 THEN
			first := bytes(i);
		END IF;
	END LOOP;
	RETURN bytes(0) - first;
END $$
END
$session->query('BEGIN');
my $growth = $session->query('SELECT loop_over(20000)') / 20000;
note(sprintf('loop: %.1f bytes a turn', $growth));
cmp_ok($growth, '<', $combo, 'a loop of statements: memory is flat');
$session->query('ROLLBACK');
is(heard($session, 'loop 1'),
	'reserved 1 f', '... and nothing is left of it');

$node->stop;
done_testing();
