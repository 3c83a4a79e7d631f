# What the tests of the worker have in common.

package IdemWorker;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use lib "$FindBin::RealBin/../perl";
use IdemTest::Clock;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(usleep);

our @EXPORT = qw(new_server rows_sql lapsed forgotten rounds wait_rounds
  add_witness launcher_pid wait_launcher wait_until log_since count_in_log);

# A running server.  "preload" (default 1) loads the library in advance, with
# "clock" its clock can be set, see IdemTest::Clock.
sub new_server
{
	my ($name, %opt) = @_;
	my $class = $opt{clock} ? 'IdemTest::Clock' : 'PostgreSQL::Test::Cluster';
	my $node = $class->new($name);
	my $preload = $opt{preload} // 1;

	$node->init(
		extra => [ '--no-sync', '--no-locale', '-E', 'UTF8' ],
		allows_streaming => $opt{allows_streaming} // 0);
	$node->append_conf('postgresql.conf', <<"CONF");
log_statement = none
log_error_verbosity = default
restart_after_crash = on
shared_buffers = 32MB
max_connections = 40
autovacuum_naptime = 1s
idem_tool.naptime = 100ms
shared_preload_libraries = '@{[ $preload ? "idem_tool" : "" ]}'
CONF
	$node->append_conf('postgresql.conf', $opt{conf}) if $opt{conf};
	$node->start unless $opt{no_start};
	return $node;
}

# An INSERT of rows as the functions would have left them a day ago
sub rows_sql
{
	my ($prefix, $n, $status, $ago) = @_;

	return <<"SQL";
INSERT INTO idempotency_keys
	(key, status, attempt, maybe_ran, token, owner, created_at, reserved_at,
	 completed_at, expires_at)
SELECT '$prefix' || i, '$status', 1, false,
	nextval('idempotency_keys_token_seq'), current_user,
	now() - interval '1 day', now() - interval '1 day',
	CASE WHEN '$status' IN ('done', 'failed') THEN now() - interval '1 day' END,
	now() - interval '$ago'
FROM generate_series(1, $n) i;
SQL
}

# Leases that lapsed an hour ago
sub lapsed
{
	my ($prefix, $n) = @_;
	return rows_sql($prefix, $n, 'in_progress', '1 hour');
}

# Results that are past their memory
sub forgotten
{
	my ($prefix, $n) = @_;
	return rows_sql($prefix, $n, 'done', '1 hour');
}

# Rounds of the worker in a database so far
sub rounds
{
	my ($node, $db) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce((SELECT rounds FROM idem_stats WHERE datname = '$db'), 0)"
	);
}

# Wait for that many further ones
sub wait_rounds
{
	my ($node, $db, $n) = @_;
	my $target = rounds($node, $db) + $n;
	return $node->poll_query_until('postgres',
		"SELECT rounds >= $target FROM idem_stats WHERE datname = '$db'");
}

# A further database, "witness": the rounds in it tell of time that has passed
# for the launcher, where those in another are not counted
sub add_witness
{
	my ($node) = @_;
	$node->safe_psql('postgres', 'CREATE DATABASE witness');
	$node->safe_psql('witness', 'CREATE EXTENSION idem_tool');
	return;
}

sub launcher_pid
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		"SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE backend_type = 'idem_tool launcher'"
	);
}

# Wait for a launcher other than "old"
sub wait_launcher
{
	my ($node, $old) = @_;
	return $node->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idem_tool launcher' AND pid <> $old"
	);
}

# Wait for a condition; false if it never comes
sub wait_until
{
	my ($condition) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	while (!$condition->())
	{
		return 0 if time > $end;
		usleep(10_000);
	}
	return 1;
}

# The log from that position on
sub log_since
{
	my ($node, $from) = @_;
	return slurp_file($node->logfile, $from);
}

sub count_in_log
{
	my ($node, $pattern, $from) = @_;
	my $log = log_since($node, $from // 0);
	my @matches = $log =~ /$pattern/g;
	return scalar @matches;
}

1;
