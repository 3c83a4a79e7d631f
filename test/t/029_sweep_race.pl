# The sweep in the middle of a transaction, and every function on the row that
# it holds.  A trigger makes it slow enough to be met.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use IPC::Run;
use Time::HiRes qw(time);
use Test::More;

my $node = new_server('main', preload => 0);
$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION idem_tool;
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
	IF session_user <> 'tester' THEN PERFORM pg_sleep(0.6); END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER slow AFTER DELETE OR UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION slow();
-- to reserve a key of another role, even a superuser has to be a member of it
CREATE ROLE tester SUPERUSER LOGIN IN ROLE postgres;
SQL

# Is the sweep at the row?  Its sleep is short, and a slow machine may miss it.
sub sweep_sleeps
{
	for (1 .. 15)
	{
		return 1
		  if $node->safe_psql('postgres',
			"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem_tool worker' AND wait_event = 'PgSleep'"
		  ) eq '1';
	}
	return 0;
}

# Have the sweep at the row of the key "k", call the function meanwhile
sub during_sweep
{
	my ($row, $call, $tries) = @_;

	$node->safe_psql('postgres',
		"SET session_replication_role = replica; DELETE FROM idempotency_keys; $row");
	my $out = '';
	my $sweep = IPC::Run::start(
		[   'psql', '-XAtq', '-h', $node->host, '-p', $node->port, 'postgres',
			'-c', 'SELECT expired, deleted FROM idem_sweep()' ],
		'>&', \$out);
	if (!sweep_sleeps())
	{
		$sweep->finish;
		die "no sweep: $out" if ($tries // 0) > 20;
		return during_sweep($row, $call, ($tries // 0) + 1);
	}
	my $start = time;
	my ($ret, $stdout, $stderr) = $node->psql(
		'postgres', "\\set VERBOSITY verbose\n$call",
		extra_params => [ '-U', 'tester' ]);
	my $took = time - $start;
	$sweep->finish;
	my ($state) = $stderr =~ /ERROR:  (\w{5})/;
	my $after = $node->safe_psql('postgres',
		'SELECT status, attempt, maybe_ran FROM idempotency_keys');
	return ($state // $stdout, $after, $took, $out =~ s/\n//r);
}

sub is_during_sweep
{
	my ($name, $row, $call, $answer, $after, $swept) = @_;
	my @got = during_sweep($row, $call);
	is("$got[0], $got[1], $got[3]", "$answer, $after, $swept", $name);
	return $got[2];
}

my $lapsed = lapsed('', 1) =~ s/'' \|\| i/'k'/r;
my $old = forgotten('', 1) =~ s/'' \|\| i/'k'/r;
my $token = '(SELECT token FROM idempotency_keys)';
my $took;

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
$took = is_during_sweep('reserve without', $lapsed,
	"SELECT status, token, retry_after FROM idem_reserve('k', takeover => '10 days')",
	'in_progress||', 'expired|1|f', '1|0');
cmp_ok($took, '<', 0.5, sprintf('which does not wait, %.2f s', $took));
is_during_sweep('lookup', $lapsed,
	"SELECT status, attempt FROM idem_lookup('k')", 'expired|1', 'expired|1|f', '1|0');

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
	"SELECT status FROM idem_reserve('k')", 'in_progress', '', '0|1');
is_during_sweep('lookup', $old, "SELECT status FROM idem_lookup('k')", '', '', '0|1');

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
