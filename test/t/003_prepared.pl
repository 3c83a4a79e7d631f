# Prepared transactions: rivals for as long as they are in doubt, across a
# restart and a crash, and then the right answer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;
use Time::HiRes qw(time);

my $node = new_node('prepared', conf => 'max_prepared_transactions = 50');
my $session = session($node);

my $reserve =
  q{SELECT 'token ' || token FROM idem_reserve('{key}', '1 hour')};
my $lapsing = $reserve =~ s/1 hour/1 us/r;
my $complete = q{SELECT idem_complete('{key}', '1', {token})};
my $lock = q{SELECT FROM idempotency_keys WHERE key = '{key}' FOR UPDATE};

# Name, what went before, the prepared transaction, what the next caller hears
# while it is in doubt, after COMMIT PREPARED, after ROLLBACK PREPARED
my @cases = (
	[
		'reserve', [], [$reserve],
		'in_progress', 'in_progress 1 f', 'reserved 1 f'
	],
	[
		'reserve and complete', [], [ $reserve, $complete ],
		'in_progress', 'done 1 f 1', 'reserved 1 f'
	],
	[
		'complete', [$reserve], [$complete],
		'in_progress 1 f', 'done 1 f 1', 'in_progress 1 f'
	],
	[
		'fail', [$reserve], [q{SELECT idem_fail('{key}', '2', {token})}],
		'in_progress 1 f', 'failed 1 f 2', 'in_progress 1 f'
	],
	[
		'release', [$reserve], [q{SELECT idem_release('{key}', {token})}],
		'in_progress 1 f', 'reserved 2 f', 'in_progress 1 f'
	],
	[
		'abandon', [$reserve], [q{SELECT idem_abandon('{key}', {token})}],
		'in_progress 1 f', 'reserved 2 t', 'in_progress 1 f'
	],
	[
		'extend a lapsed lease',
		[$lapsing],
		[q{SELECT idem_extend('{key}', '1 hour', {token})}],
		'in_progress 1 f',
		'in_progress 1 f',
		'reserved 2 t'
	],
	[
		'takeover', [$lapsing], [$reserve],
		'in_progress 1 f', 'in_progress 2 t', 'reserved 2 t'
	],
	[
		'takeover and complete', [$lapsing], [ $reserve, $complete ],
		'in_progress 1 f', 'done 2 f 1', 'reserved 2 t'
	],
	[
		'a row lock on a released key',
		[ $reserve, q{SELECT idem_release('{key}', {token})} ],
		[$lock],
		'in_progress 1 f',
		'reserved 2 f',
		'reserved 2 f'
	],
	[
		'a row lock on a settled key', [ $reserve, $complete ], [$lock],
		'done 1 f 1', 'done 1 f 1', 'done 1 f 1'
	]);

my %token;

sub run
{
	my ($key, @statements) = @_;

	foreach my $sql (@statements)
	{
		my $token = $token{$key} // 0;

		$sql =~ s/\{key\}/$key/g;
		$sql =~ s/\{token\}/$token/g;
		my $text = $session->query($sql);
		$token{$key} = $1 if $text =~ /^token (\d+)/m;
	}
	return;
}

sub check_in_doubt
{
	my ($when) = @_;

	foreach my $case (@cases)
	{
		my ($name, undef, undef, $told) = @$case;

		foreach my $end ('commit', 'rollback')
		{
			is(heard($session, "$name $end"), $told, "$name in doubt, $when");
		}
	}
	return;
}

# for each case two keys, one for each way the transaction can end
foreach my $case (@cases)
{
	my ($name, $before, $transaction) = @$case;

	foreach my $end ('commit', 'rollback')
	{
		my $key = "$name $end";

		run($key, @$before, 'BEGIN', @$transaction,
			"PREPARE TRANSACTION '$key'");
	}
}
is( $session->query(
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"),
	0,
	'no lock but those of a transaction is prepared');

check_in_doubt('at once');
$node->restart;
$session = session($node);
check_in_doubt('after a restart');
crash($node);
$node->start;
$session = session($node);
check_in_doubt('after a crash');

# in doubt: what is not committed is not shown, settling and waiting wait
is($session->query("SELECT count(*) FROM idem_lookup('reserve commit')"),
	0, 'a reservation in doubt is not shown');
is($session->query("SELECT status FROM idem_lookup('complete commit')"),
	'in_progress', 'nor is a result');

$session->query("SET lock_timeout = '50 ms'");
foreach my $call (
	q{idem_complete('complete commit', '1', {token})},
	q{idem_release('complete commit', {token})},
	q{idem_extend('complete commit', NULL, {token})})
{
	my ($key) = $call =~ /'(.*?)'/;

	is( $session->try("SELECT $call" =~ s/\{token\}/$token{$key}/r),
		'55P03', "$call waits");
}
is( $session->try(
		"SELECT idem_extend('reserve commit', NULL, $token{'reserve commit'})"
	),
	'IK003',
	'but what was reserved in doubt is no reservation yet');
$session->query('RESET lock_timeout');

my $start = time;
is(heard($session, 'reserve commit', "wait => '200 ms'"),
	'in_progress', 'a wait for a transaction in doubt');
cmp_ok(time - $start, '>=', 0.2, '... lasts as long as it may');

# those who wait hear how it ends
my %waiter = map { $_ => session($node) } 'reserve and complete commit',
  'reserve rollback';
foreach my $key (sort keys %waiter)
{
	$waiter{$key}->send(<<"END");
SELECT concat_ws(' ', status, attempt, result)
FROM idem_reserve('$key', wait => '10 min')
END
	eventually($session, <<"END") or die "$key: no wait";
SELECT wait_event = 'transactionid'
FROM pg_stat_activity WHERE pid = @{[$waiter{$key}->pid]}
END
}

foreach my $case (@cases)
{
	my ($name, undef, undef, undef, @told) = @$case;

	foreach my $end ('commit', 'rollback')
	{
		my $key = "$name $end";
		my $told = shift @told;

		$session->query(uc($end) . " PREPARED '$key'");
		if ($waiter{$key})
		{
			my $answer = IdemTest::Session::outcome($waiter{$key}->answer);

			is($answer, $key =~ /commit/ ? 'done 1 1' : 'reserved 1',
				"$key, who waited hears of it");
			next if $answer =~ /^reserved/;
		}
		is(heard($session, $key), $told, "$name, then $end prepared");
	}
}

# the token from before the restarts is good, or was never given
foreach my $key ('reserve commit', 'complete rollback', 'takeover commit',
	'extend a lapsed lease commit')
{
	is($session->query("SELECT idem_complete('$key', '3', $token{$key})"),
		't', "$key: the token settles");
	is( $session->query("SELECT status, result FROM idem_lookup('$key')"),
		'done|3', "$key: ... and the outcome is there");
}

# a token that was rolled back is dead
my $dead = $token{'takeover rollback'};
is( $session->query(<<"END"), 't', 'it is not given again');
SELECT token > $dead AND token > $token{'takeover commit'}
FROM idempotency_keys WHERE key = 'takeover rollback'
END
is( $session->try("SELECT idem_complete('takeover rollback', '3', $dead)"),
	'IK002', '... and settles nothing');

$node->stop;
done_testing();
