# How long a call waits is measured by a clock that nobody sets: when the
# system's clock is set while callers wait, they wait no longer and no shorter.
# Bounds are far below the steps, and far above what a slow machine needs.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use Test::More;
use Time::HiRes qw(clock_gettime usleep CLOCK_MONOTONIC);

my $node = new_node('clock_steps', clock => 1);
my $observer = session($node);
my $rival = session($node);
my @waiters = map { session($node) } 1 .. 2;
my $number = 0;

sub monotonic
{
	return clock_gettime(CLOCK_MONOTONIC);
}

# Keys that a rival has, committed and not, for a day: a step of an hour does
# not end the lease.  The rival's transaction is left open.
sub new_keys
{
	my @keys = map { "$_ " . ++$number } 'committed', 'uncommitted';

	$rival->query("SELECT FROM idem_reserve('$keys[0]', '1 day')");
	$rival->query('BEGIN');
	$rival->query("SELECT FROM idem_reserve('$keys[1]', '1 day')");
	return @keys;
}

# Set the clock, but not in a moment in which those who wait for a transaction
# stand in its queue (wait.c): there PostgreSQL's timers count.
sub step_clock
{
	my ($seconds) = @_;
	my $period = 0.2;
	my $into_period = monotonic() - $period * int(monotonic() / $period);

	usleep(($period - $into_period + $period / 4) * 1e6);
	$node->step_clock($seconds);
	return;
}

# Start to wait for both keys, and come back when that is seen
sub start_waiting
{
	my ($wait, @keys) = @_;
	my $pids = join(',', map { $_->pid } @waiters);

	foreach my $i (0, 1)
	{
		$waiters[$i]->send(<<"END");
SELECT concat_ws(' ', status, attempt)
FROM idem_reserve('$keys[$i]', '1 day', wait => '$wait')
END
	}
	eventually($observer, <<"END") or die 'they do not wait';
SELECT count(*) = 2 FROM pg_stat_activity
WHERE pid IN ($pids) AND state = 'active'
AND wait_event IN ('Extension', 'transactionid')
END
	return;
}

sub told
{
	my ($waiter) = @_;
	my $answer = $waiter->answer;

	return $answer->{sqlstate} || $answer->{rows}[0][0];
}

# --- a step neither lengthens nor shortens a wait

foreach my $step (-8, -3600, 3600)
{
	my @keys = new_keys();
	my $start = monotonic();

	start_waiting('2 s', @keys);
	step_clock($step);
	my @told = map { told($_) } @waiters;
	my $waited = monotonic() - $start;

	is("@told", 'in_progress 1 in_progress',
		"a step of $step s: the wait ends without an answer");
	cmp_ok($waited, '>=', 2, '... no sooner than it may');
	cmp_ok($waited, '<', $step == -8 ? 8 : 60, '... and no later for it');
	$rival->query('ROLLBACK');
}

# --- who waits is woken, as if nothing had happened

foreach my $step (-3600, 3600)
{
	my @keys = new_keys();

	start_waiting('1 hour', @keys);
	step_clock($step);
	my $start = monotonic();
	$observer->query(<<"END");
SELECT idem_release(key, token) FROM idempotency_keys WHERE key = '$keys[0]'
END
	$rival->query('ROLLBACK');
	is(join(' ', map { told($_) } @waiters),
		'reserved 2 reserved 1', "a step of $step s: the waiters are woken");
	cmp_ok(monotonic() - $start, '<', 60, '... at once');
}

# --- lock_timeout ends our waits, by our clock

{
	my @keys = new_keys();
	my $start = monotonic();

	$_->query("SET lock_timeout = '2 s'") foreach @waiters;
	start_waiting('1 hour', @keys);
	step_clock(-3600);
	is(join(' ', map { told($_) } @waiters),
		'55P03 55P03', 'lock_timeout ends the waits');
	cmp_ok(monotonic() - $start, '<', 60, '... in time');
	$_->query('RESET lock_timeout') foreach @waiters;
	$rival->query('ROLLBACK');
}

# --- no wait at all: a rival that seems to tidy up is waited for briefly

{
	my ($key) = 'past ' . ++$number;
	$rival->query("SELECT FROM idem_reserve('$key', '1 day')");
	$rival->query(<<"END");
UPDATE idempotency_keys SET status = 'done',
	expires_at = clock_timestamp() - interval '1 day' WHERE key = '$key'
END
	$rival->query('BEGIN');
	$rival->query("DELETE FROM idempotency_keys WHERE key = '$key'");

	# steps come all the time while the calls are made
	my $start = monotonic();
	foreach (1 .. 20)
	{
		$waiters[0]->send("SELECT status FROM idem_reserve('$key', '1 day')");
		$node->step_clock(-60);
		is(told($waiters[0]), 'in_progress', 'an answer at once');
	}
	cmp_ok(monotonic() - $start, '<', 60, '... whatever the clock does');
	$rival->query('ROLLBACK');
}

$node->stop;
done_testing();
