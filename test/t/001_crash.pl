# kill -9 between any two statements: what does the next caller hear?
#
# Each scenario is a caller's statements and what the next one is told if the
# server dies right after each.  One session is taken up to each statement,
# all of them side by side, and then the server is killed once for all.
#
# {key}, {ttl} and {token} are filled in; {token} is the last one the session
# was given.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

my $reserve = q{SELECT token, expires_at FROM idem_reserve('{key}', '{ttl}')};
my $attempt = $reserve =~ s/\)$/, holder => 'me')/r;
my $effect = q{INSERT INTO effects VALUES ('{key}')};
my $complete = q{SELECT idem_complete('{key}', '"r"', {token})};

# A lease that is still running: 'in_progress'; with {ttl} too short, the next
# caller takes it over instead (see after_lapse)
my %scenarios = (
	'same transaction' => [
		[ '', 'reserved 1 f' ],
		[ 'BEGIN', 'reserved 1 f' ],
		[ $reserve, 'reserved 1 f' ],
		[ $effect, 'reserved 1 f' ],
		[ $complete, 'reserved 1 f' ],
		[ 'COMMIT', 'done 1 f "r"', 'effect' ],
	],
	'same transaction, failed' => [
		[ 'BEGIN', 'reserved 1 f' ],
		[ $reserve, 'reserved 1 f' ],
		[ q{SELECT idem_fail('{key}', '"e"')}, 'reserved 1 f' ],
		[ 'COMMIT', 'failed 1 f "e"' ],
	],
	'same transaction, settled in a savepoint that is rolled back' => [
		[ 'BEGIN', 'reserved 1 f' ],
		[ $reserve, 'reserved 1 f' ],
		[ 'SAVEPOINT s', 'reserved 1 f' ],
		[ $effect, 'reserved 1 f' ],
		[ q{SELECT idem_complete('{key}', '"r"')}, 'reserved 1 f' ],
		[ 'ROLLBACK TO s', 'reserved 1 f' ],
		[ 'COMMIT', 'in_progress 1 f' ],
	],
	'two phases' => [
		[ $reserve, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[ $effect, 'in_progress 1 f' ],
		[ $complete, 'in_progress 1 f' ],
		[ 'COMMIT', 'done 1 f "r"', 'effect' ],
	],
	'two phases, the reservation in a transaction' => [
		[ 'BEGIN', 'reserved 1 f' ],
		[ $reserve, 'reserved 1 f' ],
		[ 'COMMIT', 'in_progress 1 f' ],
		[ $complete, 'done 1 f "r"' ],
	],
	'two phases, failed' => [
		[ $reserve, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[ q{SELECT idem_fail('{key}', '"e"', {token})}, 'in_progress 1 f' ],
		[ 'COMMIT', 'failed 1 f "e"' ],
	],
	'two phases, in the middle of completion' => [
		[ $reserve, 'in_progress 1 f' ],
		[ "!$complete, pg_sleep(600)", 'in_progress 1 f' ],
	],
	'released' => [
		[ $reserve, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[ q{SELECT idem_release('{key}', {token})}, 'in_progress 1 f' ],
		[ 'COMMIT', 'reserved 2 f' ],
	],
	'abandoned' => [
		[ $reserve, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[ q{SELECT idem_abandon('{key}', {token})}, 'in_progress 1 f' ],
		[ 'COMMIT', 'reserved 2 t' ],
	],
	'extended' => [
		[ $reserve, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[
			q{SELECT idem_extend('{key}', '{ttl}', {token})},
			'in_progress 1 f'
		],
		[ 'COMMIT', 'in_progress 1 f' ],
		[ $complete, 'done 1 f "r"' ],
	],
	'taken over' => [
		[ $attempt, 'in_progress 1 f' ],
		[ 'BEGIN', 'in_progress 1 f' ],
		[ $attempt, 'in_progress 1 f' ],
		[ 'COMMIT', 'in_progress 2 t' ],
		[ $complete, 'done 2 f "r"' ],
	],
	'reserved again after a release, which is not committed' => [
		[ $reserve, 'in_progress 1 f' ],
		[ q{SELECT idem_release('{key}', {token})}, 'reserved 2 f' ],
		[ 'BEGIN', 'reserved 2 f' ],
		[ $reserve, 'reserved 2 f' ],
		[ 'COMMIT', 'in_progress 2 f' ],
	]);

# The lease is over and nobody knows whether the action ran
sub after_lapse
{
	my ($told) = @_;

	return $told if $told !~ /^in_progress (\d+)/;
	return 'reserved ' . ($1 + 1) . ' t';
}

# Run the first statements of a scenario in a session of its own.  Returns
# what there is to know of it afterwards.
sub take_up_to
{
	my ($node, $key, $ttl, $steps, $last) = @_;
	my $session = session($node);
	my %lane = (key => $key, session => $session, in_transaction => 0);

	foreach my $step (@$steps[ 0 .. $last ])
	{
		my $sql = $step->[0];
		my $token = $lane{token} // 0;

		$sql =~ s/\{key\}/$key/g;
		$sql =~ s/\{ttl\}/$ttl/g;
		$sql =~ s/\{token\}/$token/g;

		# the statement that the crash is to hit
		if ($sql =~ s/^!//)
		{
			$session->send($sql);
			eventually(session($node), <<"END");
SELECT wait_event = 'PgSleep'
FROM pg_stat_activity WHERE pid = @{[$session->pid]}
END
			next;
		}

		my $text = $session->query($sql);

		$lane{token} = $1 if $text =~ s/^(\d+)\|//;
		$lane{lease_end} = $text if $text =~ /^\d{4}-/;
		$lane{in_transaction} = 1 if $sql eq 'BEGIN';
		$lane{in_transaction} = 0 if $sql eq 'COMMIT';
		next if $lane{in_transaction};
		$lane{acknowledged} = $lane{token};
		$lane{acknowledged_end} = $lane{lease_end};
	}
	return \%lane;
}

# Take sessions to every point of every scenario
sub take_everywhere
{
	my ($node, $round) = @_;
	my @lanes;

	foreach my $name (sort keys %scenarios)
	{
		my $steps = $scenarios{$name};

		foreach my $last (0 .. $#$steps)
		{
			foreach my $ttl ('1 hour', '1 ms')
			{
				my $key = sprintf('%s %d', $round, scalar @lanes);
				my $lane = take_up_to($node, $key, $ttl, $steps, $last);

				$lane->{name} = sprintf('%s, %s, lease of %s, after "%s"',
					$round, $name, $ttl,
					$steps->[$last][0] =~ s/.*(idem_\w+).*/$1/r);
				$lane->{told} = $steps->[$last][1];
				$lane->{told} = after_lapse($lane->{told}) if $ttl eq '1 ms';
				$lane->{effects} = defined $steps->[$last][2] ? 1 : 0;
				push @lanes, $lane;
			}
		}
	}
	return @lanes;
}

# Ask as the next caller, go on as he would, and say what came of it
sub next_caller
{
	my ($session, $lane) = @_;
	my ($status, $token, $end) =
	  split(/\|/, $session->query(<<"END"));
SELECT status, token, expires_at FROM idem_reserve('$lane->{key}', '1 hour')
END
	my $state = $session->query(<<"END");
SELECT concat_ws(' ', attempt, maybe_ran, result)
FROM idem_lookup('$lane->{key}')
END
	my $effects = $session->query(<<"END");
SELECT count(*) FROM effects WHERE key = '$lane->{key}'
END
	my $late = !$lane->{acknowledged} ? 'none' : $session->try(<<"END");
SELECT idem_complete('$lane->{key}', '"late"', $lane->{acknowledged})
END

	$lane->{new_token} = $token;
	return {
		told => "$status $state",
		lease_end => $status eq 'in_progress' ? $end : undef,
		effects => $effects,
		late => $late,
		settled => $status eq 'reserved'
		? $session->try("SELECT idem_complete('$lane->{key}', '1', $token)")
		: $session->try("SELECT status FROM idem_lookup('$lane->{key}')")
	};
}

# The same as it must be
sub expected
{
	my ($lane) = @_;
	my ($status) = $lane->{told} =~ /^(\w+)/;
	my $running = $status eq 'in_progress';
	my %late = (
		in_progress => 't',
		done => 'IK004',
		failed => 'IK004',
		reserved => 'IK002');
	my %settled = (
		in_progress => 'done',
		done => 'done',
		failed => 'failed',
		reserved => 't');

	return {
		told => $lane->{told},
		lease_end => $running ? $lane->{acknowledged_end} : undef,
		effects => $lane->{effects},
		late => $lane->{acknowledged} ? $late{$status} : 'none',
		settled => $settled{$status}
	};
}

sub check
{
	my ($node, @lanes) = @_;
	my $session = session($node);
	my ($highest) = sort { $b <=> $a } map { $_->{acknowledged} // 0 } @lanes;
	my $low = 0;

	foreach my $lane (@lanes)
	{
		my $heard = next_caller($session, $lane);

		is_deeply($heard, expected($lane), $lane->{name});
		$low++ if $lane->{new_token} && $lane->{new_token} <= $highest;
	}
	is($low, 0, 'tokens after the crash are higher than any acknowledged');
}

my $node = new_node('crash', conf => <<'END');
max_connections = 150
restart_after_crash = on
END

session($node)->query('CREATE TABLE effects (key text)');

my @lanes = take_everywhere($node, 'server killed');
crash($node);
$node->start;
check($node, @lanes);

# one backend's death takes all sessions with it
@lanes = take_everywhere($node, 'backend killed');
kill_and_wait($lanes[0]{session}->pid);
$lanes[1]{session}->run('SELECT 1');
$node->poll_query_until('postgres', 'SELECT 1', 1)
  or die 'no restart after a crash';
check($node, @lanes);

$node->stop;
done_testing();
