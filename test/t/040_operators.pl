# What the operators' functions leave behind: a line in the server's log, not at
# the client and without the result, a row that pg_dump carries, and a commit
# that is on disk.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('operators');
$node->init;
$node->append_conf('postgresql.conf', <<'END');
log_statement = none
autovacuum = off
wal_writer_delay = 10s
synchronous_commit = off
END
$node->start;
$node->safe_psql('postgres', $_)
  foreach 'CREATE EXTENSION idem_tool', 'CREATE ROLE "the ops" LOGIN',
  q{SELECT idem_grant('"the ops"', 'operator')};

# What the statements add to the server's log, and what their client hears
sub log_of
{
	my ($sql) = @_;
	my $start = -s $node->logfile;
	my (undef, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => ['-U', 'the ops']);
	my $log = substr(slurp_file($node->logfile), $start);

	return ($log, $stdout, $stderr);
}

my $line = 'LOG:  idem_%s by role "the ops" in a session of "the ops": key "k" in scope "s" from %s to %s';

my ($log, $stdout, $stderr) = log_of(<<'END');
SET client_min_messages = debug1;
SELECT idem_resolve('k', 'done', '"secret"', create_missing => true, scope => 's');
END
is($stdout, 't', 'resolved');
is($stderr, '', 'the client hears nothing of the log line');
like($log, qr/\Q${\sprintf($line, 'resolve', 'absent', 'done')}\E\n/, 'a use is logged');
is(scalar(() = $log =~ /idem_resolve/g), 1, '... in one line');
unlike($log, qr/secret/, '... without the result');

($log, undef, undef) = log_of(<<'END');
DO $$ BEGIN EXECUTE 'SELECT idem_forget(''k'', ''s'') WHERE ''secret'' > '''''; END $$;
END
like($log, qr/\Q${\sprintf($line, 'forget', 'done', 'absent')}\E\n/, 'forgetting is logged');
unlike($log, qr/secret/, '... without the statements around it');

($log, $stdout, undef) = log_of(<<'END');
BEGIN;
SELECT idem_resolve('k', 'failed', '"secret"', create_missing => true, scope => 's');
ROLLBACK;
SELECT count(*) FROM idem_audit;
END
is($stdout, "t\n2", 'a use that is rolled back leaves no row');
like($log, qr/\Q${\sprintf($line, 'resolve', 'absent', 'failed')}\E\n/, '... but its line');

($log, undef, undef) = log_of(q{SELECT idem_resolve('k', 'done', scope => 's')});
like($log, qr/ERROR:  no reservation to resolve/, 'what is refused is an error');
like($log, qr/LOG:  idem_resolve by role "the ops" in a session of "the ops": key "k" in scope "s" refused\n/,
	'... that leaves its line, too');
($log, undef, undef) = log_of(<<'END');
SELECT idem_resolve('guessed', 'done', '"right"', create_missing => true);
SELECT idem_resolve('guessed', 'done', '"wrong"');
END
like($log, qr/key "guessed" in scope "" refused\n/, 'nobody guesses at results without a trace');
unlike($log, qr/LOG: .*wrong/, '... in which there are none');

# The role that acts is not always the one that logged in
$node->safe_psql('postgres', 'SET ROLE "the ops"; SELECT idem_forget(\'other\')');
is($node->safe_psql('postgres', q{SELECT role, session_role = session_user FROM idem_audit WHERE key = 'other'}),
	'the ops|t', 'both the role and who is behind it are recorded');

# A commit is on disk, whatever synchronous_commit says; the WAL writer, who
# would get there too, is stopped.  The end of a page makes a difference of a
# page header between the two positions, a transaction makes more.
my $walwriter = $node->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
kill 'STOP', $walwriter;

sub flushed
{
	my ($sql) = @_;

	return $node->safe_psql('postgres',
		"$sql; SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() <= 40");
}
$node->safe_psql('postgres', 'CREATE TABLE other (n int)');
my $other = 'INSERT INTO other VALUES (1)';
is(flushed($other), 'f', 'other commits are not flushed here');
is(flushed(q{SELECT FROM idem_resolve('durable', 'done', create_missing => true)}), 't', 'resolve is flushed');
is(flushed($other), 'f', 'others are still not');
is(flushed(q{SELECT FROM idem_forget('durable')}), 't', 'forget is flushed');
is(flushed("BEGIN; SELECT FROM idem_resolve('durable', 'done', create_missing => true); $other; COMMIT"),
	't', '... up to the end of the transaction');
is(flushed("BEGIN; SAVEPOINT s; SELECT FROM idem_forget('durable'); ROLLBACK TO s; $other; COMMIT"),
	'f', 'but not for what was rolled back');
kill 'CONT', $walwriter;

# The audit survives a dump
my $rows = $node->safe_psql('postgres', 'SELECT * FROM idem_audit ORDER BY at');
my $dump = $node->data_dir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', 'postgres' ], 'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', 'restored' ], 'restored');
is($node->safe_psql('restored', 'SELECT * FROM idem_audit ORDER BY at'), $rows, 'the audit is dumped and restored');
$stdout = $node->safe_psql('restored', q{SET ROLE "the ops"; SELECT idem_forget('k', 's')});
is($stdout, 'f', 'with the privileges of its operators');

$node->stop;
done_testing();
