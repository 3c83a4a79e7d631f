# The worker where something is scarce: worker processes, or a synchronous
# standby that does not come.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time);
use Test::More;

# One place for the launcher, one for its worker
my $node = new_server('main', conf => <<'CONF');
max_worker_processes = 2
max_logical_replication_workers = 0
min_parallel_table_scan_size = 0
CONF
my ($offset, $psql, $leader);

$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
ok(wait_rounds($node, 'postgres', 2), 'two worker processes are enough');

# Have a parallel query that does not end take the other process.  If a sweep
# has it just then, the query runs without, and is tried again.
sub occupied
{
	$psql->query_until(qr/start/,
		"\\echo start\nSELECT pg_sleep(1000000) FROM pg_class LIMIT 1;\n");
	$node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep'");
	return 1
	  if $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'"
	  ) eq '1';
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($leader)");
	$node->poll_query_until('postgres',
		"SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $leader");
	return 0;
}

# A parallel query takes the second one (7)
$offset = -s $node->logfile;
my $pid = launcher_pid($node);
$psql = $node->background_psql('postgres', on_error_stop => 0);
$psql->query_safe(<<'SQL');
SELECT set_config(name, 'on', false) FROM pg_settings
	WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
SQL
$leader = $psql->query_safe('SELECT pg_backend_pid()');
ok(wait_until(\&occupied), 'a parallel query has the other one');
ok( $node->wait_for_log(qr/found no free worker process and will try again/, $offset),
	'no free worker process is logged');
my ($ret, $stdout, $stderr) =
  $node->psql('postgres', '\set VERBOSITY verbose' . "\nSELECT idem_sweep()");
like($stderr, qr/53000: no worker process is free/, 'idem_sweep says so, too');
$node->safe_psql('postgres', lapsed('starved', 1));
$node->safe_psql('postgres', "SELECT pg_cancel_backend($leader)");
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys"),
	'the sweep goes on when there is one');
is(launcher_pid($node), $pid, 'the launcher lived on');
my $told = count_in_log($node, qr/found no free worker process/, $offset);
cmp_ok($told, '<=', 2, 'with one line in the log each time');
$psql->quit;

# Commits that wait for a standby for ever (14)
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'\n");
$node->reload;
$node->safe_psql('postgres', 'SET synchronous_commit = local;' . lapsed('sync', 100));
ok( $node->poll_query_until('postgres',
		"SELECT bool_and(status = 'expired') FROM idempotency_keys"),
	'the sweep waits for no standby');
$node->stop('fast');
pass('nor does a fast shutdown');

done_testing();
