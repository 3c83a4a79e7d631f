# The worker among people who would stop it: those who hold locks, triggers
# that raise or never end, row security.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use IdemWorker;
use PostgreSQL::Test::Cluster;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('main');
my ($offset, $rounds);

# A database with the extension
sub new_database
{
	my ($db) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION idem_tool');
	return $db;
}

# Lapsed rows of that name are swept
sub is_swept
{
	my ($db, $prefix, $what) = @_;

	$node->safe_psql($db, lapsed($prefix, 10));
	return ok(
		$node->poll_query_until($db,
			"SELECT count(*) = 10 AND bool_and(status = 'expired') FROM idempotency_keys WHERE key LIKE '$prefix%'"
		),
		$what);
}

$node->safe_psql('postgres', 'CREATE EXTENSION idem_tool');

# --- a role that may make a temporary function, and nothing else, has the
# extension's own lock

$node->safe_psql('postgres', 'CREATE ROLE nobody LOGIN');
my $nobody = $node->background_psql('postgres', extra_params => [ '-U', 'nobody' ]);
$nobody->query_safe(<<'END');
CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE sql AS '';
BEGIN;
ALTER FUNCTION pg_temp.f() DEPENDS ON EXTENSION idem_tool;
END
is( $node->safe_psql('postgres',
		"SELECT count(*) > 0 FROM pg_locks WHERE granted AND locktype = 'object' AND classid = 'pg_extension'::regclass"
	),
	't', 'somebody has locked the extension');
is_swept('postgres', 'extension', 'the worker does without that lock');
is($node->safe_psql('postgres', 'SELECT pages > 0 FROM idem_sweep()'),
	't', 'and so does idem_sweep()');
$nobody->query_safe('ROLLBACK');
$nobody->quit;

# --- a table that is not to be had

my $psql = $node->background_psql('postgres');
$psql->query_safe('BEGIN; LOCK TABLE idempotency_keys IN ACCESS EXCLUSIVE MODE');
# a round that began before may still be counted
my $other = new_database('other');
wait_rounds($node, $other, 2);
$rounds = rounds($node, 'postgres');
wait_rounds($node, $other, 3);
is(rounds($node, 'postgres'),
	$rounds, 'a round that never got the table is none');
my ($ret, $stdout, $stderr) = $node->psql('postgres', 'SELECT idem_sweep()');
like($stderr, qr/table "idempotency_keys" is locked/, 'idem_sweep() says so');
$psql->query_safe('COMMIT');
$psql->quit;

# --- sweeps by hand: one worker process for all who want one in a database

my $slow = new_database('slow');
$node->safe_psql('postgres', "ALTER DATABASE $slow SET idem_tool.worker = off");
$node->safe_psql($slow, <<'END');
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION slow();
END
$node->safe_psql($slow, lapsed('slow', 10000));

# Sessions that call idem_sweep(), and the processes that sweep for them
my $callers = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = '$slow'";
my $workers = "FROM pg_stat_activity WHERE backend_type = 'idem_tool worker' AND datname = '$slow'";
my $sweeping = "$workers AND query LIKE 'sweeping%'";
my @callers = map {
	IPC::Run::start(
		[ 'psql', '-X', '-q', '-d', $node->connstr($slow), '-c', 'SELECT idem_sweep()' ],
		'>', \my $out, '2>', \my $err)
} 1 .. 3;
ok( $node->poll_query_until('postgres',
		"SELECT (SELECT count(*) $sweeping) = 1 AND (SELECT count(*) $callers AND wait_event = 'advisory') = 2"
	),
	'one sweeps, the others wait');
my $first = $node->safe_psql('postgres', "SELECT pid $workers");
$node->safe_psql('postgres',
	"SELECT pg_cancel_backend(pid) $callers AND wait_event <> 'advisory'");
ok($node->poll_query_until('postgres',
		"SELECT count(*) = 1 AND min(pid) <> $first $sweeping"),
	'then the next one sweeps');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) $callers");
$_->finish for @callers;

# --- a trigger on the audit that raises, in words of many bytes

my $audit = new_database('audit');
wait_rounds($node, $audit, 1);
$offset = -s $node->logfile;
$node->safe_psql($audit, <<'END');
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'x%', repeat(U&'\00FC', 300); END $$;
CREATE TRIGGER keep BEFORE DELETE ON idem_audit
	FOR EACH ROW EXECUTE FUNCTION keep();
INSERT INTO idem_audit (at, role, session_role, action, scope, key, old_status,
	new_status)
VALUES (clock_timestamp() - interval '1 year', current_user, session_user,
	'resolve', '', 'old', 'expired', 'done');
END
is_swept($audit, 'audit', 'the keys are swept');
ok( $node->wait_for_log(
		qr/LOG:  old records of the audit could not be deleted: x\xC3\xBC/, $offset),
	'what the trigger said is in the log');
$rounds = rounds($node, $audit);
ok(wait_rounds($node, $audit, 3), 'the rounds go on');
is(count_in_log($node, qr/ERROR/, $offset), 0, 'without an error');
($ret, $stdout, $stderr) = $node->psql($audit,
	"SET client_encoding = 'LATIN1'; SELECT pages > 0 FROM idem_sweep()");
is("$stdout$stderr", 't', 'nor does idem_sweep() fail');
$node->safe_psql($audit, 'DROP TRIGGER keep ON idem_audit');
ok($node->poll_query_until($audit, 'SELECT count(*) = 0 FROM idem_audit'),
	'the records go once nobody objects');

# --- a trigger that never ends, and does not let itself be cancelled

my $trap = new_database('trap');
$offset = -s $node->logfile;
$node->safe_psql($trap, <<'END');
CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	LOOP
		BEGIN
			PERFORM pg_sleep(3600);
		EXCEPTION WHEN query_canceled THEN
		END;
	END LOOP;
END $$;
CREATE TRIGGER trap BEFORE UPDATE ON idempotency_keys
	FOR EACH ROW EXECUTE FUNCTION trap();
END
$node->safe_psql($trap, lapsed('trap', 1));
ok( $node->wait_for_log(
		qr/LOG:  idem_tool ended a worker in database "trap" that took longer than 4 seconds/,
		$offset),
	'a round that never ends is ended');
is_swept('postgres', 'trap', 'other databases are swept');
ok( $node->wait_for_log(
		qr/LOG:  idem_tool ended a worker in database "trap".*LOG:  idem_tool ended a worker in database "trap"/s,
		$offset),
	'it is tried again');
$node->safe_psql($trap, 'DROP TRIGGER trap ON idempotency_keys');
$node->reload;
ok( $node->poll_query_until($trap,
		"SELECT status = 'expired' FROM idempotency_keys"),
	'and swept once that is possible');

# --- who may see what

$node->safe_psql('postgres', <<'END');
CREATE ROLE owner LOGIN;
CREATE ROLE monitor LOGIN;
GRANT pg_read_all_stats TO monitor;
SELECT idem_grant('owner', 'monitor'), idem_grant('monitor', 'monitor');
END
is( $node->safe_psql('postgres',
		"SET ROLE owner; SELECT string_agg(datname, ' ') FROM idem_stats"),
	'postgres', 'a role sees what happens in its own database');
is( $node->safe_psql('postgres',
		"SET ROLE monitor; SELECT count(*) > 1 FROM idem_stats"),
	't', 'one with pg_read_all_stats sees all of them');

# --- what is the server's is not for a database's owner

$node->safe_psql('postgres',
	'GRANT EXECUTE ON FUNCTION idem_start_worker(), idem_wake_worker() TO owner');
($ret, $stdout, $stderr) = $node->psql('postgres', <<'END');
SET ROLE owner;
\set VERBOSITY sqlstate
SELECT idem_start_worker();
END
like($stderr, qr/42501/, 'a mere role cannot start a worker');
is($node->safe_psql('postgres', 'SET ROLE owner; SELECT idem_wake_worker()'),
	't', 'but may wake one');

$node->stop;
done_testing();
