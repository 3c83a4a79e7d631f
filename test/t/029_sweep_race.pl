# The sweep in the middle of a transaction, and every function on the row that
# it holds.  A trigger makes it slow enough to be met.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib", "$FindBin::RealBin/../perl";
use IdemTest qw(session);
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IPC::Run;
use Test::More;

my $node = new_server('main', preload => 0);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem_tool;
-- the sweep stays at a row for as long as there is a row in here
CREATE TABLE gate (closed boolean);
GRANT SELECT ON gate TO PUBLIC;
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
	WHILE session_user <> 'tester' AND EXISTS (SELECT FROM public.gate) LOOP
		PERFORM pg_sleep(0.01);
	END LOOP;
	RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER DELETE OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION slow();
-- to reserve a key of another role, even a superuser has to be a member of it
CREATE ROLE tester SUPERUSER LOGIN IN ROLE postgres;
SQL
my $admin = session($node);
my $sweeper = session($node);
my $caller = session($node, user => 'tester');

# Wait until the call was answered or waits for something
sub answered_or_waits
{
	until ($caller->answered)
	{
		last
		  if $admin->query(
			"SELECT wait_event_type IN ('Lock', 'Extension') FROM pg_stat_activity WHERE pid = "
			  . $caller->pid) eq 't';
	}
	return;
}

# Have the sweep at the row of the key "k", call the function meanwhile.  What
# is to answer at once must do so before the sweep goes on.
sub during_sweep
{
	my ($row, $call, $at_once) = @_;

	$admin->query(
		"SET session_replication_role = replica; DELETE FROM idempotency_keys; $row; INSERT INTO gate VALUES (true)");
	$sweeper->send('SELECT expired, deleted FROM idem_sweep()');
	wait_until(sub {
		return $sweeper->answered || $admin->query(
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem_tool worker' AND wait_event = 'PgSleep'"
		) eq '1';
	});
	$caller->send($call);
	$at_once ? $caller->answer : answered_or_waits();
	$admin->query('DELETE FROM gate');
	my $answer = IdemTest::Session::outcome($caller->answer);
	my $swept = IdemTest::Session::outcome($sweeper->answer);
	my $after = $admin->query('SELECT status, attempt, maybe_ran FROM idempotency_keys');
	return "$answer, $after, $swept";
}

sub is_during_sweep
{
	my ($name, $row, $call, $answer, $after, $swept, $at_once) = @_;
	my $got;

	# the sweep cancels itself if it hangs; a slow machine may make it seem so
	foreach (1 .. 10)
	{
		$got = during_sweep($row, $call, $at_once);
		last if $got =~ /\Q$swept\E$/;
	}
	return is($got, "$answer, $after, $swept", $name);
}

my $lapsed = lapsed('', 1) =~ s/'' \|\| i/'k'/r;
my $old = forgotten('', 1) =~ s/'' \|\| i/'k'/r;
my $token = '(SELECT token FROM idempotency_keys)';

# --- it marks a lapsed lease: whoever comes waits, and finds what he knows

is_during_sweep('complete while it is marked', $lapsed,
	"SELECT idem_complete('k', '1', $token)", 't', 'done|1|f', '1|0');
is_during_sweep('fail', $lapsed,
	"SELECT idem_fail('k', '1', $token)", 't', 'failed|1|f', '1|0');
is_during_sweep('release', $lapsed,
	"SELECT idem_release('k', $token)", 't', 'released|1|f', '1|0');
is_during_sweep('abandon', $lapsed,
	"SELECT idem_abandon('k', $token)", 't', 'expired|1|f', '1|0');
is_during_sweep('extend', $lapsed,
	"SELECT idem_extend('k', '1 hour', $token) > now()", 't', 'in_progress|1|f', '1|0');
is_during_sweep('reserve with a wait', $lapsed,
	"SELECT status, attempt, maybe_ran FROM idem_reserve('k', wait => '10 s', takeover => '10 days')",
	'reserved|2|t', 'in_progress|2|t', '1|0');
is_during_sweep('reserve without', $lapsed,
	"SELECT status, token, retry_after FROM idem_reserve('k', takeover => '10 days')",
	'in_progress||', 'expired|1|f', '1|0', 'at once');
is_during_sweep('lookup', $lapsed,
	"SELECT status, attempt FROM idem_lookup('k')", 'expired|1', 'expired|1|f', '1|0', 'at once');

# --- it deletes what is past its memory

is_during_sweep('complete while the row is deleted', $old,
	"SELECT idem_complete('k', '1', $token)", 'IK003', '', '0|1');
is_during_sweep('release', $old,
	"SELECT idem_release('k', $token)", 'f', '', '0|1');
is_during_sweep('extend', $old,
	"SELECT idem_extend('k', '1 hour', $token)", 'IK003', '', '0|1');
is_during_sweep('reserve with a wait', $old,
	"SELECT status, attempt, maybe_ran FROM idem_reserve('k', wait => '10 s')",
	'reserved|1|f', 'in_progress|1|f', '0|1');
is_during_sweep('reserve without', $old,
	"SELECT status FROM idem_reserve('k')", 'in_progress', '', '0|1', 'at once');
is_during_sweep('lookup', $old, "SELECT status FROM idem_lookup('k')", '', '', '0|1', 'at once');

# The usual sweep is so quick that nobody notices
$node->safe_psql('postgres', 'DROP TRIGGER slow ON idempotency_keys');

# --- how long rows are locked: every caller of a key past its memory gets it

$node->safe_psql('postgres', 'DELETE FROM idempotency_keys;' . forgotten('', 20000));
my $dir = PostgreSQL::Test::Utils::tempdir;
append_to_file("$dir/sweep.sql", 'SELECT * FROM idem_sweep();');
my $out = '';
my $sweep = IPC::Run::start(
	[ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-t', 1, '-f', "$dir/sweep.sql", 'postgres' ],
	'>&', \$out);
my $answers = $node->safe_psql('postgres', <<'SQL');
DO $$
DECLARE r record; reserved int := 0; other int := 0;
BEGIN
	FOR i IN REVERSE 20000..10001 LOOP
		SELECT * INTO r FROM idem_reserve(i::text);
		IF r.status = 'reserved' THEN reserved := reserved + 1; ELSE other := other + 1; END IF;
		COMMIT;
	END LOOP;
	RAISE NOTICE '% %', reserved, other;
	CREATE TABLE answers AS SELECT reserved, other;
END $$;
SELECT reserved, other FROM answers;
SQL
$sweep->finish;
# a machine that stalls for longer than the brief wait is no fault of ours
my ($reserved, $other) = split /\|/, $answers;
cmp_ok($other, '<=', 100, "hardly anybody is told \"in_progress\" because of the sweep: $other");
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM idempotency_keys WHERE status = 'in_progress'"),
	$reserved, 'and nothing is lost');

$node->stop('fast');
done_testing();
