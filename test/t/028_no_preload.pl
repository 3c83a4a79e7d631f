# A server that does not preload the library: the sweep by hand, a worker on
# demand, no counters; and what the sweep costs callers and itself.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main', preload => 0);
my ($ret, $stdout, $stderr);

$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION idem_tool');

is($node->safe_psql('postgres', 'TABLE idem_stats'), '', 'no counters');
is($node->safe_psql('postgres', 'SELECT idem_wake_worker()'), 'f', 'nobody to wake');

# --- by hand

$node->safe_psql('postgres', lapsed('lapsed', 5000) . forgotten('old', 5000));
is( $node->safe_psql('postgres',
		"SELECT expired, deleted, pages = pg_relation_size('idempotency_keys') / 8192 FROM idem_sweep()"
	),
	'5000|5000|t', 'idem_sweep takes everything (H7)');
is( $node->safe_psql('postgres', 'SELECT expired, deleted FROM idem_sweep()'),
	'0|0', 'once');
is( $node->safe_psql('postgres', <<'SQL'),
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM idempotency_keys WHERE status = 'expired';
SELECT expired FROM idem_sweep();
COMMIT;
SQL
	"5000\n0", 'it may be called at any isolation level');

# The caller goes away, and so does his worker
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.1); RETURN OLD; END $$;
CREATE TRIGGER slow BEFORE DELETE ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION slow();
SQL
$node->safe_psql('postgres', forgotten('slow', 1000));
($ret, $stdout, $stderr) = $node->psql('postgres',
	"SET statement_timeout = '500ms'; SELECT idem_sweep()");
like($stderr, qr/statement timeout/, 'idem_sweep can be cancelled');
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_tool worker'"
	),
	'and its worker with it');
$node->safe_psql('postgres', 'DROP TRIGGER slow ON idempotency_keys');

# --- what a caller pays for a backlog, and a round for a large table (H3, H5)

$node->safe_psql('postgres', 'SELECT idem_sweep()');
$node->safe_psql('postgres', forgotten('backlog', 50000) . 'VACUUM idempotency_keys');
my $buffers = $node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION buffers(sql text) RETURNS int LANGUAGE plpgsql AS $$
DECLARE plan jsonb;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || sql INTO plan;
	RETURN (plan #>> '{0,Plan,Shared Hit Blocks}')::int + (plan #>> '{0,Plan,Shared Read Blocks}')::int;
END $$;
SELECT status FROM idem_reserve('warm');
SELECT buffers($$SELECT * FROM idem_reserve('fresh')$$);
SQL
$buffers =~ s/.*\n//s;
cmp_ok($buffers, '<', 40, "a reservation does not pay for a backlog: $buffers buffers");
is( $node->safe_psql('postgres',
		"SELECT status, attempt, maybe_ran FROM idem_reserve('backlog7')"),
	'reserved|1|f', 'a key past its memory is new (H9)');

# --- a worker on demand

is($node->safe_psql('postgres', 'SELECT idem_start_worker()'),
	't', 'idem_start_worker starts one');
is($node->safe_psql('postgres', 'SELECT idem_start_worker()'),
	'f', 'if there is none');
ok( $node->poll_query_until('postgres',
		"SELECT count(*) = 3 FROM idempotency_keys WHERE status = 'in_progress' OR key LIKE 'backlog%'"),
	'it sweeps') or diag($node->safe_psql('postgres', 'SELECT status, count(*) FROM idempotency_keys GROUP BY 1'));
$node->safe_psql('other', lapsed('lapsed', 10));
ok( $node->poll_query_until('other',
		"SELECT bool_and(status = 'expired') FROM idempotency_keys"),
	'all databases');
my $pid = launcher_pid($node);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_launcher($node, $pid), 'it is back after it was terminated');

# An idle round in a table larger than sweep_pages
$node->safe_psql('postgres', 'DELETE FROM idempotency_keys');
$node->safe_psql('postgres',
	rows_sql('live', 20000, 'done', '-1 day') . 'VACUUM idempotency_keys');
$node->append_conf('postgresql.conf',
	"idem_tool.naptime = 50ms\nidem_tool.sweep_pages = 50\n");
my $offset = -s $node->logfile;
$node->reload;
$node->wait_for_log(qr/"idem_tool.sweep_pages" changed to "50"/, $offset);

sub heap_blocks
{
	return split /\|/, $node->safe_psql('postgres',
		"SELECT heap_blks_read + heap_blks_hit, extract(epoch FROM clock_timestamp()) FROM pg_statio_user_tables WHERE relname = 'idempotency_keys'"
	);
}

# Wait until more blocks have been read; nobody counts rounds here
sub more_blocks
{
	my ($blocks) = @_;
	return wait_until(sub { return (heap_blocks())[0] > $blocks });
}
# a round that had begun before is over
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idem_tool worker'"
);
# ... and what it read has been counted, which may come later; if later than
# this, it is still little beside what we wait for
more_blocks((heap_blocks())[0] + 100);
my ($from, $start) = heap_blocks();
ok(more_blocks($from + 3000), 'an idle worker goes round');
my ($to, $end) = heap_blocks();
# far less than the whole table each time; autovacuum may read in it too
my $most = 4 * 50 * (($end - $start) / 0.05 + 2);
cmp_ok($to - $from, '<=', $most,
	sprintf('and reads no more than sweep_pages a round: %d of %d', $to - $from, $most));

# --- nobody but a superuser may call these

$node->safe_psql('postgres', 'CREATE ROLE mere');
for my $call ('SELECT idem_sweep()', 'SELECT idem_start_worker()',
	'SELECT idem_wake_worker()', 'TABLE idem_stats', 'SELECT idem_stats_read()')
{
	($ret, $stdout, $stderr) = $node->psql('postgres', "SET ROLE mere; $call");
	like($stderr, qr/permission denied/, "$call is not for everybody");
}
# --- cached identifiers (N3)

is( $node->safe_psql('other', <<'SQL'),
DROP EXTENSION idem_tool;
BEGIN;
CREATE EXTENSION idem_tool;
SELECT status FROM idem_reserve('k');
ROLLBACK;
CREATE EXTENSION idem_tool;
SELECT status FROM idem_reserve('k', '1 ms');
SELECT pg_sleep(0.01);
SELECT pages FROM idem_sweep();
DROP EXTENSION idem_tool;
CREATE EXTENSION idem_tool;
SELECT status FROM idem_reserve('k');
SQL
	"reserved\nreserved\n\n1\nreserved", 'the extension can come and go within a session');

$node->stop('fast');
done_testing();
