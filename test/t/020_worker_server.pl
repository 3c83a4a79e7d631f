# The worker on one server: it sweeps, obeys its settings, comes back after it
# was killed, and leaves nothing open.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', conf => "idem_tool.naptime = 1h\n");
my ($offset, $psql);

# --- SIGHUP and CREATE EXTENSION: a server that is busy with other things
# naps long, yet hears of both at once

wait_launcher($node, 0);
$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM idem_stats WHERE datname = 'postgres' AND rounds = 1"
	),
	'CREATE EXTENSION wakes the launcher');
$node->append_conf('postgresql.conf', "idem_tool.naptime = 100ms\n");
$node->reload;
ok(wait_rounds($node, 'postgres', 3), 'a changed naptime takes effect');

# --- what it is for

$node->safe_psql('postgres', lapsed('lapsed', 1000));
$node->safe_psql('postgres', forgotten('old', 1000));
$node->safe_psql('postgres', rows_sql('live', 10, 'done', '-1 hour'));
$node->safe_psql('postgres', rows_sql('running', 10, 'in_progress', '-1 hour'));
$node->safe_psql('postgres', rows_sql('unknown', 3, 'in_progress', '31 days'));
$node->safe_psql('postgres', rows_sql('unknown_marked', 2, 'expired', '1 day'));
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 1020 FROM idempotency_keys WHERE status <> 'in_progress' OR key LIKE 'running%'"
	),
	'rows past their memory are deleted, lapsed ones marked');
is( $node->safe_psql('postgres',
		"SELECT status, count(*) FROM idempotency_keys GROUP BY status ORDER BY status"
	),
	"done|10\nexpired|1000\nin_progress|10",
	'and nothing else');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM idempotency_keys WHERE status = 'expired' AND expires_at BETWEEN now() + interval '719 hours -10 minutes' AND now() + interval '719 hours'"
	),
	'1000',
	'a marked row is remembered for unknown_ttl from the end of its lease');
is( $node->safe_psql('postgres',
		"SELECT swept_expired, swept_deleted, swept_forgotten, sweep_refused FROM idem_stats WHERE datname = 'postgres'"
	),
	'1000|1005|5|0',
	'it is counted');
is(count_in_log($node, qr/unknown outcome was forgotten: key "unknown/),
	5, 'forgetting an unknown outcome is logged');
is(count_in_log($node, qr/was forgotten/), 5, 'forgetting a result is not');
ok( $node->poll_query_until('postgres',
		"SELECT n_tup_del > 0 FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'"
	),
	'deletions reach the statistics');	# 17

# --- what others see of it

is( $node->safe_psql('postgres',
		"SELECT state, query, backend_xmin IS NULL, xact_start IS NULL, datname IS NULL FROM pg_stat_activity WHERE backend_type = 'idem_tool launcher'"
	) =~ s/^active\|sweeping database "postgres"/idle|/r,
	'idle||t|t|t',
	'an idle launcher has no transaction and no stale query');	# 12
my $event = $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000
  ? 'IdemToolLauncherMain' : 'Extension';
ok( $node->poll_query_until('postgres',
		"SELECT wait_event = '$event' FROM pg_stat_activity WHERE backend_type = 'idem_tool launcher'"
	),
	"its wait event is $event");
is( $node->safe_psql('postgres',
		"SELECT position <= table_pages, table_pages > 0, revolution > '0', last_duration < '1 minute', last_round > now() - interval '1 minute' FROM idem_stats WHERE datname = 'postgres'"
	),
	't|t|t|t|t',
	'idem_stats says where it is');

# --- counters of the callers

$node->safe_psql('postgres', <<'SQL');
SELECT status FROM idem_reserve('c1', '1 hour', '{"a": 1}');
SELECT status FROM idem_reserve('c1', '1 hour');
DO $$ BEGIN PERFORM idem_reserve('c1', '1 hour', '{"a": 2}');
EXCEPTION WHEN SQLSTATE 'IK001' THEN END $$;
SELECT idem_extend('c1', '1 hour', token) FROM idempotency_keys WHERE key = 'c1';
DO $$ BEGIN PERFORM idem_complete('c1', '1', 1);
EXCEPTION WHEN SQLSTATE 'IK002' THEN END $$;
SELECT idem_complete('c1', '1', token) FROM idempotency_keys WHERE key = 'c1';
SELECT status FROM idem_reserve('c1', '1 hour');
SELECT status FROM idem_reserve('c1', '1 hour');
SELECT status FROM idem_reserve('c2', '1 hour');
SELECT idem_release('c2', token) FROM idempotency_keys WHERE key = 'c2';
SELECT status FROM idem_reserve('c2', '1 hour');
SELECT idem_abandon('c2', token) FROM idempotency_keys WHERE key = 'c2';
SELECT status FROM idem_reserve('c2', '1 hour', takeover => '0');
SELECT status FROM idem_reserve('c2', '1 hour');
SELECT idem_fail('c2', '1', token) FROM idempotency_keys WHERE key = 'c2';
SELECT status FROM idem_reserve('c2', '1 hour');
SQL
is( $node->safe_psql('postgres',
		"SELECT reserved, taken_over, replayed, in_progress, unknown, mismatched, completed, failed, released, abandoned, extended, lost FROM idem_stats WHERE datname = 'postgres'"
	),
	'3|1|3|1|1|1|1|1|1|1|1|1',
	'every call is counted as what it came to');

# --- settings: off per database, and read only

# what is under way when it is turned off may go on
add_witness($node);
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET idem_tool.worker = off');
wait_rounds($node, 'witness', 3);
$node->safe_psql('postgres', lapsed('off', 1));
$node->reload;
wait_rounds($node, 'witness', 5);
is( $node->safe_psql('postgres',
		"SELECT status FROM idempotency_keys WHERE key = 'off1'"),
	'in_progress', 'not swept where idem_tool.worker is off');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET idem_tool.worker');
$node->reload;
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'off1'"),
	'swept again after a reload');

$offset = -s $node->logfile;
$node->safe_psql('postgres',
	'ALTER DATABASE postgres SET default_transaction_read_only = on');
ok( $node->wait_for_log(qr/does not sweep database "postgres" because "default_transaction_read_only" is on/,
		$offset),
	'a read only default is respected');
$node->safe_psql('postgres', 'BEGIN READ WRITE;' . lapsed('ro', 1) . 'COMMIT');
wait_rounds($node, 'witness', 10);
is( $node->safe_psql('postgres',
		"SELECT status FROM idempotency_keys WHERE key = 'ro1'"),
	'in_progress', 'no sweeping then');
is(count_in_log($node, qr/does not sweep/, $offset),
	1, 'and only one line about it');	# 15
is(count_in_log($node, qr/ERROR|FATAL/, $offset), 0, 'no error either');
$node->safe_psql('postgres',
	'BEGIN READ WRITE; ALTER DATABASE postgres RESET default_transaction_read_only; COMMIT');
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'ro1'"),
	'swept again when it is gone');

# --- it comes back

my $pid = launcher_pid($node);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_launcher($node, $pid), 'the launcher is back after it was terminated'); # 8
$node->safe_psql('postgres', lapsed('back', 1));
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'back1'"),
	'and works');

# A worker that is terminated at any moment, also before it is connected, stops
# neither the launcher nor, for long, the sweep.
$offset = -s $node->logfile;
for (1 .. 30)
{
	$node->safe_psql('postgres',
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idem_tool worker'"
	);
}
$node->reload;
ok(wait_rounds($node, 'postgres', 2), 'workers may be terminated');	# 19
isnt(launcher_pid($node), 0, 'the launcher does not mind');

# The same for one that is certainly not connected yet: it sleeps before that.
SKIP:
{
	skip 'no /proc', 2 unless -d '/proc/self';

	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	my $early = sub {
		for my $proc (glob '/proc/[0-9]*')
		{
			my ($cmd, $status) = ('', '');
			eval {
				$cmd = slurp_file("$proc/cmdline");
				$status = slurp_file("$proc/status");
			};
			return $proc =~ s{/proc/}{}r
			  if $cmd =~ /idem_tool worker/ && $status =~ /^PPid:\s+$postmaster$/m;
		}
		return 0;
	};
	$psql = $node->background_psql('postgres');
	$psql->query_safe('ALTER SYSTEM SET post_auth_delay = 2');
	$psql->query_safe('SELECT pg_reload_conf()');
	my $worker = 0;
	wait_until(
		sub {
			$worker = $early->();
			return $worker && $psql->query_safe(
				"SELECT count(*) FROM pg_stat_activity WHERE pid = $worker") eq '0';
		});
	kill 'TERM', $worker;
	ok($worker > 0, 'a worker is terminated before it is connected');
	$psql->query_safe('ALTER SYSTEM RESET post_auth_delay');
	$psql->query_safe('SELECT pg_reload_conf()');
	$psql->quit;
	ok(wait_rounds($node, 'postgres', 2), 'which stops nothing');
}

# A crash of another backend takes everybody down, and everybody is back.
$pid = launcher_pid($node);
$psql = $node->background_psql('postgres');
my $backend = $psql->query('SELECT pg_backend_pid()');
kill 'KILL', $backend;
$psql->{run}->finish;
$node->poll_query_until('postgres', 'SELECT true');
ok(wait_launcher($node, $pid), 'the launcher is back after a crash');	# 9
$node->safe_psql('postgres', lapsed('crash', 1));
ok( $node->poll_query_until('postgres',
		"SELECT status = 'expired' FROM idempotency_keys WHERE key = 'crash1'"),
	'and works');
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem_tool launcher'"
	),
	'1', 'there is one launcher');

# --- memory of the launcher (25, N9): the same after many loops and reloads

sub launcher_memory
{
	my $from = -s $node->logfile;
	my $launcher = launcher_pid($node);
	$node->safe_psql('postgres',
		"SELECT pg_log_backend_memory_contexts($launcher)");
	$node->wait_for_log(qr/Grand total: \d+ bytes/, $from);
	my ($bytes) = log_since($node, $from) =~ /Grand total: (\d+) bytes/;
	return $bytes;
}

wait_rounds($node, 'postgres', 5);
my $before = launcher_memory();
$node->append_conf('postgresql.conf', "idem_tool.naptime = 10ms\n");
$node->reload for 1 .. 20;
wait_rounds($node, 'postgres', 300);
my $after = launcher_memory();
cmp_ok($after, '<=', $before + 64 * 1024,
	"memory is flat: $before bytes before, $after after 300 rounds");

# --- the gentlest shutdown does not wait for the launcher

$node->stop('smart');
is(count_in_log($node, qr/still waiting for backend|PANIC|TRAP/),
	0, 'nothing alarming in the log');

done_testing();
