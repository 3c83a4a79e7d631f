# A replay leaves nothing behind: no WAL, no transaction id, no lock, over
# 10 000 of them, and works READ ONLY at every isolation level.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

# Nothing else writes here
my $node = new_node('replay', conf => 'bgwriter_lru_maxpages = 0');
my $session = session($node);
my $keys = 200;

# Done and failed keys, every tenth with a result that is stored out of line
$session->query(<<"END");
DO \$\$
DECLARE
	won record;
	result jsonb;
BEGIN
	FOR i IN 1 .. $keys LOOP
		SELECT * INTO won
		FROM idem_reserve('key ' || i, '1 hour', to_jsonb(i));
		result := to_jsonb(i);
		IF i % 10 IN (0, 1) THEN
			SELECT jsonb_agg(md5(concat(i, n))) INTO result
			FROM generate_series(1, 500) AS n;
		END IF;
		IF i % 2 = 0 THEN
			PERFORM idem_complete('key ' || i, result, won.token);
		ELSE
			PERFORM idem_fail('key ' || i, result, won.token);
		END IF;
	END LOOP;
END \$\$
END
cmp_ok(
	$session->query(<<'END'), '>', 0, 'some results are stored out of line');
SELECT pg_relation_size(reltoastrelid)
FROM pg_class WHERE oid = 'idempotency_keys'::regclass
END

# What replaying could leave: WAL, a transaction id, locks, tokens used up
my $counters = <<'END';
SELECT pg_current_wal_insert_lsn(),
	pg_snapshot_xmax(pg_current_snapshot()),
	pg_current_xact_id_if_assigned(),
	(SELECT count(*) FROM pg_locks
		WHERE pid = pg_backend_pid() AND locktype <> 'virtualxid'
		AND relation IS DISTINCT FROM 'pg_locks'::regclass),
	(SELECT last_value FROM idempotency_keys_token_seq)
END

# Replay 10 000 times in transactions that begin with $begin.  Returns how
# many answers were right, and the counters as they were before, in and after
# each transaction, each value once.
sub replay
{
	my ($begin) = @_;
	my %seen;
	my $answers = 0;

	foreach my $transaction (1 .. 50)
	{
		$session->query($begin);
		$seen{ $session->query($counters) }++;
		$answers += $session->query(<<"END");
SELECT count(*) FROM generate_series(1, $keys) AS i,
	idem_reserve('key ' || i, request => to_jsonb(i)) AS r
WHERE r.status = CASE WHEN i % 2 = 0 THEN 'done' ELSE 'failed' END
AND r.result IS NOT NULL
END
		$seen{ $session->query($counters) }++;
		$session->query('COMMIT');
		$seen{ $session->query($counters) }++;
	}
	return ($answers, sort keys %seen);
}

# The first round prunes pages and sets hint bits, as any SELECT does, in the
# catalogs as well
my ($answers) = replay('BEGIN READ ONLY');
is($answers, 50 * $keys, '10 000 replays, all answered');
$session->query('VACUUM');
$session->query('CHECKPOINT');

foreach my $mode (
	'READ ONLY',
	'READ ONLY ISOLATION LEVEL REPEATABLE READ',
	'READ ONLY ISOLATION LEVEL SERIALIZABLE',
	'READ WRITE')
{
	($answers, my @counters) = replay("BEGIN $mode");
	is($answers, 50 * $keys, "$mode: 10 000 replays, all answered");
	is(@counters, 1, "$mode: no WAL, transaction id, lock or token")
	  or diag(join("\n", @counters));
}

# The same for what else only reads
my $reads = <<'END';
BEGIN READ ONLY ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM generate_series(1, 1000) AS i,
	idem_lookup('key ' || i % 200 + 1);
SELECT count(*) FROM generate_series(1, 1000) AS i,
	idem_lookup('no key ' || i);
SELECT count(*) FROM generate_series(1, 1000) AS i,
	idem_reserve('running', wait => '0');
END
$session->query(q{SELECT FROM idem_reserve('running', '1 hour')});
$session->query("$reads; COMMIT");
$session->query('VACUUM');
$session->query('CHECKPOINT');
my $before = $session->query($counters);
is($session->query($reads), "1000\n0\n1000",
	'looking up, and hearing that a key is in progress');
is($session->query($counters), $before, '... leaves nothing either');
is($session->query("SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'"),
	0, '... no predicate lock');
$session->query('COMMIT');

# Locks go with the call, not with the statement
$session->query(<<'END');
CREATE FUNCTION locks_of_replay() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM idem_reserve('key 10');
	RETURN (SELECT string_agg(mode, ',') FROM pg_locks
		WHERE pid = pg_backend_pid()
		AND relation IN ('idempotency_keys'::regclass,
			'idempotency_keys_pkey'::regclass));
END $$
END
is($session->query('SELECT locks_of_replay()'), '',
	'no lock is kept for the rest of a statement');

# The counters would show it
$before = $session->query($counters);
$session->query('BEGIN');
is(heard($session, 'fresh'), 'reserved 1 f', 'a reservation');
isnt($session->query($counters), $before, '... can be seen');
$session->query('COMMIT');

$node->stop;
done_testing();
