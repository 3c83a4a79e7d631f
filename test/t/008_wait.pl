# Waiting: how soon those who wait are woken, what many of them cost, and how
# a wait ends otherwise.
#
# Other things run on the machine of a test: of each latency several are
# measured, and the best and the middle one are judged by what the machine
# needs to wake a session from a lock of PostgreSQL's own.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_node('waiting', conf => <<'END');
max_prepared_transactions = 5
deadlock_timeout = 200ms
END
my $rival = session($node);
my $observer = session($node);
my $number = 0;

# Reserve a new key in $session; returns it and its token
sub new_key
{
	my ($session, $ttl) = @_;
	my $key = 'key ' . ++$number;

	$ttl //= '1 hour';
	return ($key,
		$session->query("SELECT token FROM idem_reserve('$key', '$ttl')"));
}

# What a waiter says, and when by the server's clock
sub wait_for_key
{
	my ($waiter, $key, $time) = @_;

	$time //= '10 min';
	$waiter->send(<<"END");
SELECT concat_ws(' ', status, attempt, maybe_ran, result),
	extract(epoch FROM clock_timestamp()), token
FROM idem_reserve('$key', '1 hour', wait => '$time')
END
	return;
}

# Wait until all of them wait, be it for a transaction or for the time of the
# next look
sub all_wait
{
	my (@waiters) = @_;
	my $pids = join(',', map { $_->pid } @waiters);

	return eventually($observer, <<"END") || die 'they do not wait';
SELECT count(*) = @{[scalar @waiters]} FROM pg_stat_activity
WHERE pid IN ($pids) AND state = 'active'
AND wait_event IN ('transactionid', 'Extension', 'advisory')
END
}

sub told
{
	my ($answer) = @_;

	return $answer->{sqlstate} || $answer->{rows}[0][0];
}

# What ends a wait: its name, what the rival does first, what it does then,
# what the waiter is told
my $complete = q{SELECT idem_complete('{key}', '1', {token})};
my @wakers = (
	[
		'completed and committed', [ 'BEGIN', '{reserve}', $complete ],
		'COMMIT', 'done 1 f 1'
	],
	[ 'rolled back', [ 'BEGIN', '{reserve}' ], 'ROLLBACK', 'reserved 1 f' ],
	[
		'rolled back to a savepoint',
		[ 'BEGIN', 'SAVEPOINT s', '{reserve}' ],
		'ROLLBACK TO s', 'reserved 1 f'
	],
	[
		'rolled back prepared',
		[ 'BEGIN', '{reserve}', q{PREPARE TRANSACTION '{key}'} ],
		q{ROLLBACK PREPARED '{key}'},
		'reserved 1 f'
	],
	[ 'completed', ['{reserve}'], $complete, 'done 1 f 1' ],
	[
		'failed', ['{reserve}'],
		q{SELECT idem_fail('{key}', '1', {token})},
		'failed 1 f 1'
	],
	[
		'released', ['{reserve}'],
		q{SELECT idem_release('{key}', {token})},
		'reserved 2 f'
	],
	[
		'abandoned', ['{reserve}'],
		q{SELECT idem_abandon('{key}', {token})},
		'reserved 2 t'
	],
	[
		'completion committed', [ '{reserve}', 'BEGIN', $complete ],
		'COMMIT', 'done 1 f 1'
	],
	[
		'deleted', ['{reserve}'],
		q{DELETE FROM idempotency_keys WHERE key = '{key}'},
		'reserved 1 f'
	]);

# Run a rival's statement on its key
sub run
{
	my ($wait, $sql) = @_;
	my $token = $wait->{token} // 0;

	$sql =~ s/\{reserve\}/SELECT token FROM idem_reserve('{key}', '1 hour')/;
	$sql =~ s/\{key\}/$wait->{key}/g;
	$sql =~ s/\{token\}/$token/g;
	my $text = $wait->{rival}->query($sql);
	$wait->{token} = $text if $sql =~ /idem_reserve/;
	return;
}

# Each with sessions of its own: they wait side by side, long enough to look
# but rarely, and are woken one after the other
my %latencies;
my %told;
my @waits = map {
	{ name => $_->[0], before => $_->[1], waking => $_->[2],
		rival => session($node), waiter => session($node) }
} @wakers;
my $lapse_waiter = session($node);
my ($locker, $lock_waiter) = (session($node), session($node));
my @machine;
foreach my $try (1 .. 7)
{
	foreach my $wait (@waits)
	{
		$wait->{key} = 'key ' . ++$number;
		run($wait, $_) foreach @{ $wait->{before} };
		wait_for_key($wait->{waiter}, $wait->{key});
	}

	# one whose lease lapses meanwhile
	my ($key) = new_key($rival, '400 ms');
	my $lease_end = $rival->query(<<"END");
SELECT extract(epoch FROM expires_at) FROM idem_lookup('$key')
END
	wait_for_key($lapse_waiter, $key);

	$locker->query('SELECT pg_advisory_lock(1)');
	$lock_waiter->send(<<'END');
SELECT pg_advisory_lock(1), extract(epoch FROM clock_timestamp()),
	pg_advisory_unlock(1)
END

	all_wait($lock_waiter, map { $_->{waiter} } @waits);
	sleep 0.3 + rand 0.02;
	foreach my $wait (@waits)
	{
		my $start = time;

		run($wait, $wait->{waking});
		my $answer = $wait->{waiter}->answer;
		push @{ $latencies{ $wait->{name} } }, $answer->{rows}[0][1] - $start;
		$told{ $wait->{name} }{ told($answer) }++;
		$wait->{rival}->query('ROLLBACK');
	}

	my $start = time;
	$locker->query('SELECT pg_advisory_unlock(1)');
	push @machine, $lock_waiter->answer->{rows}[0][1] - $start;

	my $answer = $lapse_waiter->answer;
	push @{ $latencies{lapsed} }, $answer->{rows}[0][1] - $lease_end;
	$told{lapsed}{ told($answer) }++;
}

note('the machine wakes a session after ', milliseconds(@machine));
my $slowness = median(@machine);
foreach my $waker (@wakers, [ 'lapsed', undef, undef, 'reserved 2 t' ])
{
	my ($name, undef, undef, $expected) = @$waker;
	my @latencies = sort { $a <=> $b } @{ $latencies{$name} };

	is_deeply([ keys %{ $told{$name} } ],
		[$expected], "$name: the waiter hears of it");
	note('after ', milliseconds(@latencies));
	cmp_ok($latencies[0], '<', 0.02 + $slowness, "$name: ... within 20 ms");
	cmp_ok(median(@latencies),
		'<', 0.05 + 2 * $slowness, "$name: ... as a rule");
}

# Without a wait: at once, whatever the rival holds back
my %holding_back = (
	'an uncommitted reservation' => "SELECT FROM idem_reserve('{key}')",
	'an uncommitted completion' =>
	  "SELECT idem_complete('{key}', '1', {token})",
	'an uncommitted row lock' =>
	  "SELECT FROM idempotency_keys WHERE key = '{key}' FOR UPDATE",
	'an uncommitted row lock on a released key' =>
	  "SELECT FROM idempotency_keys WHERE key = '{key}' FOR UPDATE",
	'an uncommitted takeover' =>
	  "SELECT FROM idem_reserve('{key}', holder => 'me')");
foreach my $name (sort keys %holding_back)
{
	my ($key, $token) = ('key ' . ++$number, 0);
	my $sql = $holding_back{$name};
	my (@latencies, %told);

	$token = $rival->query(
		"SELECT token FROM idem_reserve('$key', '1 hour', holder => 'me')")
	  if $name !~ /reservation/;
	$rival->query("SELECT idem_release('$key', $token)")
	  if $name =~ /released/;
	$sql =~ s/\{key\}/$key/g;
	$sql =~ s/\{token\}/$token/g;
	$rival->query('BEGIN');
	$rival->query($sql);
	foreach (1 .. 20)
	{
		my $start = time;

		$told{ heard($observer, $key) }++;
		push @latencies, time - $start;
	}
	$rival->query('ROLLBACK');
	is(join(', ', keys %told),
		$token ? 'in_progress 1 f' : 'in_progress', "$name: no wait");
	note('answered after ', milliseconds(median(@latencies)));
	cmp_ok(median(@latencies), '<', 0.05 + $slowness, '... answered at once');
}

# A wait is bounded by its time, by lock_timeout, by the transaction itself
my ($key, $token) = new_key($rival);
foreach my $state ('committed', 'uncommitted')
{
	my $start;

	if ($state eq 'uncommitted')
	{
		$rival->query('BEGIN');
		($key) = new_key($rival);
	}
	$start = time;
	like(heard($observer, $key, "wait => '300 ms'"),
		qr/^in_progress/, "$state: a wait that ends without an answer");
	cmp_ok(time - $start, '>=', 0.3, '... lasts as long as it may');
	cmp_ok(time - $start, '<', 60, '... and not for ever');
	$observer->query("SET lock_timeout = '100 ms'");
	is(heard($observer, $key, "wait => '10 min'"),
		'55P03', "$state: lock_timeout ends a wait");
	$observer->query('RESET lock_timeout');
	$observer->query("SET statement_timeout = '100 ms'");
	is(heard($observer, $key, "wait => '10 min'"),
		'57014', "$state: so does statement_timeout");
	$observer->query('RESET statement_timeout');
	is( $observer->query(<<"END"), 0, '... and leaves no lock');
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()
AND locktype IN ('advisory', 'transactionid')
END
}
is(heard($rival, $key, "wait => '10 min'"),
	'in_progress 1 f', 'nobody waits for its own transaction');
$rival->query('COMMIT');

# A cancel in the very moment in which a wait ends by itself is not lost: the
# statement does not go on
foreach my $state ('uncommitted', 'committed')
{
	my %told;

	$rival->query('BEGIN') if $state eq 'uncommitted';
	($key) = new_key($rival);
	foreach my $time (30 .. 50)
	{
		$observer->query("SET statement_timeout = '$time ms'");
		$told{ $observer->try(<<"END") }++;
SELECT r.status FROM idem_reserve('$key', wait => '$time ms') AS r,
	LATERAL (SELECT pg_sleep(CASE r.status WHEN 'in_progress' THEN 1000 END)) AS s
END
	}
	$observer->query('RESET statement_timeout');
	is(join(' ', keys %told), '57014', "$state: no cancel is lost");
	$rival->query('COMMIT') if $state eq 'uncommitted';
}

# Cancelled and terminated
my @pair = map { session($node) } 1 .. 2;
foreach my $state ('uncommitted', 'committed')
{
	$rival->query('BEGIN') if $state eq 'uncommitted';
	($key) = new_key($rival);
	my @latencies;
	foreach my $try (1 .. 5)
	{
		foreach my $waiter (@pair)
		{
			wait_for_key($waiter, $key);
			all_wait($waiter);
		}

		foreach my $waiter (@pair)
		{
			my $start = time;

			$observer->query("SELECT pg_cancel_backend(@{[$waiter->pid]})");
			my $answer = $waiter->answer;
			push @latencies, $answer->{time} - $start;
			is($answer->{sqlstate}, '57014', "$state: a wait is cancelled");
		}
	}
	note('after ', milliseconds(sort { $a <=> $b } @latencies));
	cmp_ok(median(@latencies),
		'<', 0.1 + $slowness, "$state: ... usually in 100 ms");
	$rival->query('COMMIT') if $state eq 'uncommitted';
}
($key, $token) = new_key($rival);
foreach my $waiter (@pair)
{
	wait_for_key($waiter, $key);
	all_wait($waiter);
}
$observer->query("SELECT pg_terminate_backend(@{[$pair[0]->pid]})");
is($pair[0]->answer->{sqlstate}, '57P01', 'a waiter is terminated');
$rival->query("SELECT idem_complete('$key', '1', $token)");
is(told($pair[1]->answer), 'done 1 f 1', '... another waits on');

# Who waits for a transaction can be asked about
$rival->query('BEGIN');
($key) = new_key($rival);
wait_for_key($pair[1], $key);
ok( eventually($observer, <<"END"), 'a waiter shows who blocks it');
SELECT @{[$rival->pid]} = ANY (pg_blocking_pids(@{[$pair[1]->pid]}))
END
$rival->query('ROLLBACK');
like(told($pair[1]->answer), qr/^reserved/, '... until it goes on');

# Two who wait for each other's key
my @deadlocked = map { session($node) } 1 .. 2;
$_->query('BEGIN') foreach @deadlocked;
my @keys = map { (new_key($_))[0] } @deadlocked;
wait_for_key($deadlocked[0], $keys[1]);
all_wait($deadlocked[0]);
wait_for_key($deadlocked[1], $keys[0]);
is_deeply([ sort map { told($_->answer) } @deadlocked ],
	[ '40P01', 'reserved 1 f' ],
	'a deadlock ends for one, the other goes on');
$_->query('ROLLBACK') foreach @deadlocked;

# 64 on one key
my @many = map { session($node) } 1 .. 64;

# Seconds of processor time that backends have used
sub cpu
{
	my (@sessions) = @_;
	my $ticks = 0;

	foreach my $session (@sessions)
	{
		open(my $file, '<', '/proc/' . $session->pid . '/stat') or die $!;
		my @field = split(' ', <$file> =~ s/^.*\) //sr);

		$ticks += $field[11] + $field[12];
	}
	return $ticks / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

foreach my $state ('uncommitted', 'committed')
{
	$rival->query('BEGIN') if $state eq 'uncommitted';
	($key, $token) = new_key($rival);
	wait_for_key($_, $key) foreach @many;
	all_wait(@many);

	# deadlock detection has run once in each
	sleep 0.5;
	my ($cpu, $start) = (cpu(@many), time);
	sleep 3;
	my $share = (cpu(@many) - $cpu) / (time - $start);
	note(sprintf('%.1f %% of a processor', $share * 100));
	cmp_ok($share, '<', 0.1, "$state: 64 waiters cost next to nothing");

	# free: one wins, the others go on waiting
	$rival->query(
		$state eq 'uncommitted'
		? 'ROLLBACK'
		: "SELECT idem_release('$key', $token)");
	my ($winner) = IdemTest::Session->wait_for(\@many, 60);
	like(told($winner->answer), qr/^reserved/, "$state: one wins");
	my @others = grep { $_ != $winner } @many;
	sleep 0.5;
	all_wait(@others);
	is(scalar(grep { $_->answered } @others), 0, '... the others wait on');

	# done: all hear the same
	my $won = $winner->answer->{rows}[0][2];
	$start = time;
	$rival->query("SELECT idem_complete('$key', '{\"n\": 1}', $won)");
	my %told;
	my $last = 0;
	foreach my $session (@others)
	{
		my $answer = $session->answer;

		$told{ told($answer) =~ s/ \d [tf]//r }++;
		$last = $answer->{time} if $answer->{time} > $last;
	}
	is_deeply(\%told, { 'done {"n": 1}' => 63 },
		'... until it is done, then all hear the same');
	note('the last after ', milliseconds($last - $start));
}

$node->stop;
done_testing();
