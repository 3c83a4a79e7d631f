# Under synchronous_commit = off: which commits reach the disk, and does a
# reservation that was acknowledged survive kill -9 at once?

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;

# The WAL writer would flush what commits leave to it; it is stopped besides
my $node = new_node('durability', conf => <<'END');
synchronous_commit = off
wal_writer_delay = 10s
bgwriter_lru_maxpages = 0
shared_buffers = 4MB
max_connections = 10
END

# A session of a server that only flushes on demand
sub quiet_session
{
	my $session = session($node);

	kill 'STOP', $session->query(<<'END');
SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'
END
	return $session;
}

my $session = quiet_session();

# Is all WAL on disk?  The end of a page makes a difference of a page header
# between the two positions, a transaction makes more.
sub flushed
{
	return $session->query(<<'END');
SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() <= 40
END
}

# Run statements; {key} is filled in, {token} too: it is the last one given
sub run
{
	my ($key, @statements) = @_;
	my $token = 0;

	foreach my $sql (@statements)
	{
		$sql =~ s/\{key\}/$key/g;
		$sql =~ s/\{token\}/$token/g;
		my $text = $session->query($sql);
		$token = $1 if $text =~ /^token (\d+)/m;
	}
	return;
}

my $reserve =
  q{SELECT 'token ' || token FROM idem_reserve('{key}', '1 hour')};
my $lapsing = $reserve =~ s/1 hour/1 us/r;
my $complete = q{SELECT idem_complete('{key}', '1')};
my $release = q{SELECT idem_release('{key}', {token})};
my $write = q{INSERT INTO effects VALUES ('{key}')};

$session->query(<<'END');
CREATE TABLE effects (key text);
CREATE FUNCTION reserve_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM idem_reserve(NEW.key);
	RETURN NULL;
END $$;
CREATE TABLE reserved_late (key text);
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON reserved_late
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION reserve_late();
END

# Name, what went before, the transaction, is its commit flushed?
my @cases = (
	[ 'a transaction of no concern', [], [$write], 'f' ],
	[ 'reserve', [], [$reserve], 't' ],
	[
		'reserve after a release', [ $reserve, $release ],
		[$reserve], 't'
	],
	[ 'takeover', [$lapsing], [$reserve], 't' ],
	[
		'extend', [$reserve],
		[q{SELECT idem_extend('{key}', '2 hours', {token})}], 't'
	],
	[
		'complete', [$reserve],
		[q{SELECT idem_complete('{key}', '1', {token})}], 't'
	],
	[ 'fail', [$reserve], [q{SELECT idem_fail('{key}', '1', {token})}], 't' ],
	[ 'release', [$reserve], [$release], 't' ],
	[
		'abandon', [$reserve],
		[q{SELECT idem_abandon('{key}', {token})}], 't'
	],
	[
		'reserve and complete', [],
		[ 'BEGIN', $reserve, $write, $complete, 'COMMIT' ], 'f'
	],
	[
		'reserve and complete with the token',
		[],
		[
			'BEGIN', $reserve, q{SELECT idem_complete('{key}', '1', {token})},
			'COMMIT'
		],
		'f'
	],
	[
		'reserve and fail', [],
		[ 'BEGIN', $reserve, q{SELECT idem_fail('{key}', '1')}, 'COMMIT' ],
		'f'
	],
	[
		'reserve and release', [],
		[ 'BEGIN', $reserve, $release, 'COMMIT' ], 'f'
	],
	[
		'reserve and abandon', [],
		[ 'BEGIN', $reserve, q{SELECT idem_abandon('{key}')}, 'COMMIT' ], 't'
	],
	[
		'reserve, extend and complete',
		[],
		[
			'BEGIN', $reserve, q{SELECT idem_extend('{key}', '2 hours')},
			$complete, 'COMMIT'
		],
		'f'
	],
	[
		'takeover and complete', [$lapsing],
		[ 'BEGIN', $reserve, $complete, 'COMMIT' ], 'f'
	],
	[
		'two reserved, one completed',
		[],
		[
			'BEGIN', $reserve, q{SELECT FROM idem_reserve('{key}, another')},
			$complete, 'COMMIT'
		],
		't'
	],
	[
		'reserve in a savepoint that is rolled back',
		[],
		[
			'BEGIN', $write, 'SAVEPOINT s', $reserve, 'ROLLBACK TO s',
			'COMMIT'
		],
		'f'
	],
	[
		'reserve in a savepoint that is released',
		[],
		[ 'BEGIN', 'SAVEPOINT s', $reserve, 'RELEASE s', 'COMMIT' ], 't'
	],
	[
		'reserve in a savepoint in one that is rolled back',
		[],
		[
			'BEGIN', $write, 'SAVEPOINT a', 'SAVEPOINT b', $reserve,
			'RELEASE b', 'ROLLBACK TO a', 'COMMIT'
		],
		'f'
	],
	[
		'reserve and complete, in savepoints of their own',
		[],
		[
			'BEGIN', 'SAVEPOINT a', $reserve, 'RELEASE a', 'SAVEPOINT b',
			'SAVEPOINT c', $complete, 'RELEASE b', 'COMMIT'
		],
		'f'
	],
	[
		'reserve and complete, the completion rolled back',
		[],
		[
			'BEGIN', $reserve, 'SAVEPOINT s', $complete, 'ROLLBACK TO s',
			'COMMIT'
		],
		't'
	],
	[
		'reserve and complete, rolled back and then completed',
		[],
		[
			'BEGIN', $reserve, 'SAVEPOINT s', $complete, 'ROLLBACK TO s',
			$complete, 'COMMIT'
		],
		'f'
	],
	[
		'complete in a savepoint that is rolled back',
		[$reserve],
		[
			'BEGIN', $write, 'SAVEPOINT s',
			q{SELECT idem_complete('{key}', '1', {token})}, 'ROLLBACK TO s',
			'COMMIT'
		],
		'f'
	],
	[
		'reserve in a block with an exception handler',
		[],
		[
			q{DO $$ BEGIN PERFORM * FROM idem_reserve('{key}');
				EXCEPTION WHEN division_by_zero THEN END $$}
		],
		't'
	],
	[
		'reserve in a block that fails and is caught',
		[],
		[
			q{DO $$ BEGIN INSERT INTO effects VALUES ('{key}');
				BEGIN PERFORM * FROM idem_reserve('{key}'); PERFORM 1/0;
				EXCEPTION WHEN division_by_zero THEN END; END $$}
		],
		'f'
	],
	[
		'reserve at commit, by a deferred trigger',
		[],
		[q{INSERT INTO reserved_late VALUES ('{key}')}], 't'
	],
	[
		'reserve that was refused',
		[$reserve],
		[ 'BEGIN', $write, $reserve, 'COMMIT' ], 'f'
	],
	[
		'replay',
		[ $reserve, q{SELECT idem_complete('{key}', '1', {token})} ],
		[ 'BEGIN', $write, $reserve, 'COMMIT' ], 'f'
	],
	[
		'reserve with idem_tool.durable = off', [],
		[ 'BEGIN', 'SET LOCAL idem_tool.durable = off', $reserve, 'COMMIT' ],
		'f'
	],
	[
		'complete with idem_tool.durable = off',
		[$reserve],
		[
			'BEGIN',
			'SET LOCAL idem_tool.durable = off',
			q{SELECT idem_complete('{key}', '1', {token})},
			'COMMIT'
		],
		'f'
	],
	[
		'reserve and complete with synchronous_commit = on',
		[],
		[
			'BEGIN', 'SET LOCAL synchronous_commit = on', $reserve, $complete,
			'COMMIT'
		],
		't'
	]);

# a transaction must not leave anything behind for the next one
foreach my $round ('', ', second time')
{
	foreach my $case (@cases)
	{
		my ($name, $before, $transaction, $expected) = @$case;
		my $key = "$name$round";

		run($key, @$before, @$transaction);
		is(flushed(), $expected,
			"$name is " . ($expected eq 't' ? '' : 'not ') . "flushed$round");
	}
}

# Crashes.  In each round all kinds of change are made, each to a key of an
# earlier transaction, and the server is killed after the last one, which is
# another in each round: whatever was acknowledged must be there.

my $state = q{concat_ws(' ', status, attempt, token, expires_at, result)};
my %changes = (
	reserve => $reserve,
	takeover =>
	  q{SELECT 'token ' || token FROM idem_reserve('{key}', holder => 'me')},
	extend => q{SELECT idem_extend('{key}', '2 hours', {token})},
	complete => q{SELECT idem_complete('{key}', '"r"', {token})},
	fail => q{SELECT idem_fail('{key}', '"e"', {token})},
	release => $release,
	abandon => q{SELECT idem_abandon('{key}', {token})});
my @kinds = sort keys %changes;

# Reserve a key for each kind but "reserve"; returns the tokens
sub reserve_all
{
	my ($round) = @_;
	my $others = join(',', grep { $_ ne 'reserve' } @kinds);
	my $rows = $session->query(<<"END");
SELECT kind, token
FROM unnest('{$others}'::text[]) AS kind,
	idem_reserve('$round ' || kind, '1 hour', holder => 'me')
END
	return map { split /\|/ } split(/\n/, $rows);
}

# Make the changes, the kind $last last.  Returns what the keys looked like
# to the caller, and kills the server before anything else happens.
sub change_and_crash
{
	my ($round, $last) = @_;
	my %token = reserve_all($round);
	my %seen;

	foreach my $kind ((grep { $_ ne $last } @kinds), $last)
	{
		my $token = $token{$kind} // 0;
		my $key = "$round $kind";
		my $sql = "$changes{$kind};
			SELECT $state FROM idempotency_keys WHERE key = '{key}'";

		$sql =~ s/\{key\}/$key/g;
		$sql =~ s/\{token\}/$token/g;

		# the row as the transaction leaves it
		my $answer = $session->run("BEGIN; $sql");

		die $answer->{message} if $answer->{sqlstate};
		$seen{$key} = $answer->{rows}[-1][0];
		$session->query('COMMIT');
	}
	crash($node);
	return %seen;
}

sub restart
{
	$node->start;
	$session = quiet_session();
	return;
}

# Keys that are not as they were seen
sub lost
{
	my (%seen) = @_;
	my $rows = $session->query("SELECT key, $state FROM idempotency_keys");
	my %found = map { split(/\|/, $_, 2) } split(/\n/, $rows);

	return grep { $seen{$_} ne ($found{$_} // 'gone') } sort keys %seen;
}

my %all;
my @lost;
foreach my $round (1 .. 50)
{
	my %seen = change_and_crash("round $round", $kinds[ $round % @kinds ]);

	restart();
	push @lost, lost(%seen);
	%all = (%all, %seen);
}
is("@lost", '', 'nothing acknowledged is lost in 50 crashes');
@lost = lost(%all);
is("@lost", '', '... nor by a later one');

# the same would be lost if it were not for the rule
my %lost_without;
foreach my $kind (@kinds)
{
	$session->query('SET idem_tool.durable = off');
	my %seen = change_and_crash("durable off, $kind", $kind);

	restart();
	$lost_without{$kind} = lost(%seen) ? 1 : 0;
}
is_deeply(
	\%lost_without,
	{ map { $_ => 1 } @kinds },
	'acknowledged changes are lost with idem_tool.durable = off');

# with a process that is stopped it would not shut down
crash($node);
done_testing();
