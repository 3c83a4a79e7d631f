# A hot standby: it answers what can be answered without writing, refuses the
# rest, waits by polling, and after its promotion goes on where the primary
# was.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;
use Time::HiRes qw(time);

my $primary = new_node('primary', allows_streaming => 1,
	conf => 'max_prepared_transactions = 5');
my $p = session($primary);

$p->query('CREATE TABLE flushed (i integer)');
$primary->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;
my $s = session($standby);

# Let the standby catch up with everything so far, committed or not
sub catch_up
{
	session($primary)->query('INSERT INTO flushed VALUES (1)');
	$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));
	return;
}

# Reserve on the primary; returns the token
sub reserve
{
	my ($key, $arguments) = @_;

	$arguments //= q{'1 hour'};
	return $p->query("SELECT token FROM idem_reserve('$key', $arguments)");
}

my %token = map { $_ => reserve($_) }
  qw(done failed running released abandoned woken);
$token{lapsed} = reserve('lapsed', q{'1 us'});
$token{bound} = reserve('bound', q{request => '{"a": 1}'});
$p->query($_) foreach
  "SELECT idem_complete('done', (SELECT jsonb_agg(md5(i::text))
	FROM generate_series(1, 1000) AS i), $token{done})",
  "SELECT idem_fail('failed', '\"e\"', $token{failed})",
  "SELECT idem_release('released', $token{released})",
  "SELECT idem_abandon('abandoned', $token{abandoned})";
catch_up();

# Answers that change nothing
my $question = 'SELECT md5(r::text) FROM idem_reserve(\'%s\') AS r';
foreach my $key ('done', 'failed')
{
	is($s->query(sprintf $question, $key), $p->query(sprintf $question, $key),
		"$key: replayed as on the primary");
}
is(heard($s, 'running'), 'in_progress 1 f', 'a running lease is answered');
is( $s->query(
		q{SELECT token IS NULL, retry_after BETWEEN 1 AND 3600
			FROM idem_reserve('running')}),
	't|t',
	'... with its time left, without its token');
is($s->try(q{SELECT FROM idem_reserve('bound', request => '{"a": 2}')}),
	'IK001', 'another request under the key is refused');
is(heard($s, 'lapsed', q{takeover => '0'}),
	'expired 1 f', 'an unknown outcome that must not be taken over');
is( $s->query(
		q{SELECT string_agg(concat_ws(' ', key, status), ', ' ORDER BY key)
			FROM unnest('{done,failed,running,released,abandoned,lapsed,
				fresh}'::text[]) AS k, idem_lookup(k)}),
	'abandoned expired, done done, failed failed, lapsed expired, '
	  . 'released released, running in_progress',
	'idem_lookup');

# What would have to write
foreach my $key ('fresh', 'released', 'abandoned', 'lapsed')
{
	is(heard($s, $key), '25006', "$key: cannot be reserved here");
	is(heard($s, $key, q{wait => '1 s'}),
		'25006', "$key: waiting does not help");
}
is(heard($s, 'running', q{holder => 'me'}),
	'in_progress 1 f', 'another holder is no reason to write');
foreach my $call (
	q{idem_complete('running', '1', {token})},
	q{idem_fail('running', '1', {token})},
	q{idem_release('running', {token})},
	q{idem_abandon('running', {token})},
	q{idem_extend('running', NULL, {token})})
{
	is( $s->try("SELECT $call" =~ s/\{token\}/$token{running}/r),
		'25006', "$call is refused");
}
is($s->try(q{SELECT idem_release('done', 1)}), 'f',
	'release in a finally block does not mask the error');
is($p->query("SELECT idem_complete('running', '1', $token{running})"),
	't', 'nothing has changed for the holder');

# Waits end by polling; the standby knows no transaction to wait for
sub waiter
{
	my ($key, $time) = @_;
	my $waiter = session($standby);

	$waiter->send(<<"END");
SELECT concat_ws(' ', status, attempt, result)
FROM idem_reserve('$key', wait => '$time')
END
	eventually($s, <<"END") or die "no wait for $key";
SELECT wait_event IN ('Extension', 'advisory')
FROM pg_stat_activity WHERE pid = @{[$waiter->pid]}
END
	return $waiter;
}

my $start = time;
is(heard($s, 'woken', q{wait => '300 ms'}),
	'in_progress 1 f', 'a wait that ends without an answer');
cmp_ok(time - $start, '>=', 0.3, '... lasts as long as it may');

my @waiters = map { waiter('woken', '10 min') } 1 .. 3;
$p->query("SELECT idem_complete('woken', '\"up\"', $token{woken})");
is($_->answer->{rows}[0][0], 'done 1 "up"', 'a wait ends with the completion')
  foreach @waiters;

foreach my $end (
	[ 'COMMIT', 'done 1 "in time"' ],
	[ 'ROLLBACK', '25006' ],
	[ "PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'", 'done 1 "in time"' ])
{
	my ($sql, $told) = @$end;
	my $key = "open, $sql" =~ s/'//gr;

	$p->query('BEGIN');
	reserve($key);
	$p->query("SELECT idem_complete('$key', '\"in time\"')");
	catch_up();
	is(heard($s, $key), 'in_progress', "$key: uncommitted, a rival");
	is( $s->query("SELECT count(*) FROM idem_lookup('$key')"),
		0, "$key: ... of which nothing is shown");
	is(heard($s, $key, q{wait => '100 ms'}),
		'in_progress', "$key: ... for which a wait does not last for ever");
	my $waiter = waiter($key, '10 min');
	$p->query($_) foreach split(/; /, $sql);
	is(IdemTest::Session::outcome($waiter->answer),
		$told, "$key: a wait ends with the transaction");
}

# first the commit, then the completion in a later transaction
$p->query('BEGIN');
$token{slow} = reserve('slow');
catch_up();
my $waiter = waiter('slow', '10 min');
$p->query('COMMIT');
catch_up();
is(heard($s, 'slow'), 'in_progress 1 f', 'committed, and in progress');
is($waiter->answered, 0, '... the wait goes on');
$p->query("SELECT idem_complete('slow', '2', $token{slow})");
is($waiter->answer->{rows}[0][0], 'done 1 2', '... until it is complete');

$token{lasting} = reserve('lasting');
catch_up();
$waiter = waiter('lasting', '10 min');
$s->query("SELECT pg_cancel_backend(@{[$waiter->pid]})");
is($waiter->answer->{sqlstate}, '57014', 'a wait can be cancelled');

# Promotion, while somebody waits
$token{'last'} = reserve('last');
$token{'last taken over'} = reserve('last taken over', q{'1 us'});
$p->query('BEGIN');
$token{uncommitted} = reserve('uncommitted');
catch_up();
$waiter = waiter('lasting', '10 min');
my ($highest) = sort { $b <=> $a } values %token;

$primary->stop('immediate');
is($s->query('SELECT pg_promote()'), 't', 'promoted');
is($s->query("SELECT idem_complete('lasting', '3', $token{lasting})"),
	't', 'a token of the old primary settles');
is($waiter->answer->{rows}[0][0],
	'done 1 3', 'who waited meanwhile hears it');

foreach my $case (
	[ 'done after promotion', 'reserved 1' ],
	[ 'last taken over', 'reserved 2' ],
	[ 'uncommitted', 'reserved 1' ],
	[ 'released', 'reserved 2' ])
{
	my ($key, $told) = @$case;

	is( $s->query(<<"END"), "$told|t", "$key: reserved, with a higher token");
SELECT concat_ws(' ', status, attempt), token > $highest
FROM idem_reserve('$key', '1 hour')
END
}
is(heard($s, 'last'), 'in_progress 1 f', 'a lease goes on');
is($s->query("SELECT idem_extend('last', '2 hours', $token{last}) > now()"),
	't', '... and can be extended');
is( $s->try(<<"END"), 'IK002', '... unless it was taken over');
SELECT idem_complete('last taken over', '1', $token{'last taken over'})
END

$standby->stop;
done_testing();
