# The gate where psql's simple statements do not reach: pipelines, the server
# log, dump and restore, an extension in a schema of its own.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('gate');
$node->init;
$node->append_conf('postgresql.conf', "log_error_verbosity = verbose\n");
$node->start;
$node->safe_psql('postgres', q{
	CREATE SCHEMA idem;
	CREATE EXTENSION idem_tool SCHEMA idem;
	CREATE SCHEMA app;
	CREATE TABLE app.ledger (what text);
	CREATE FUNCTION app.act(args jsonb) RETURNS jsonb LANGUAGE sql AS
		'INSERT INTO app.ledger VALUES (args ->> 0) RETURNING args';
	CREATE FUNCTION app."Act"(args jsonb) RETURNS jsonb LANGUAGE sql AS
		'INSERT INTO app.ledger VALUES (args ->> 0) RETURNING args';
	SELECT idem.idem_register('act', 'app.act(jsonb)');
	SELECT idem.idem_register('"Act"', 'app."Act"(jsonb)', 'read');
	SELECT idem.idem_register('mail', takeover => '20 hours', description => 'x');
});

# run a pgbench script once: exit status and what it printed
sub bench
{
	my ($name, $script) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$name.sql";
	PostgreSQL::Test::Utils::append_to_file($file, $script);
	my ($out, $err);
	my $ok = IPC::Run::run([ $node->installed_command('pgbench'), '-n', '-c1',
			'-t1', '-M', 'extended', '-h', $node->host, '-p', $node->port,
			'-f', $file, 'postgres' ], '>', \$out, '2>', \$err);
	return ($ok, $out . $err);
}

sub status_of
{
	my ($key) = @_;
	return $node->safe_psql('postgres',
		"SELECT status FROM idem.idem_lookup('$key')");
}

#
# Pipelines: the extended protocol opens no transaction block until its second
# command, and commits at the end
#
my ($ok, $output) = bench('later', q{\startpipeline
SELECT 1;
SELECT idem.idem_begin('mail', '{}', 'later');
\endpipeline
});
like($output, qr/idem_begin\(\) cannot reserve inside a transaction block/,
	'refused behind another command of the pipeline');
is(status_of('later'), '', 'nothing was reserved');

($ok, $output) = bench('first', q{\startpipeline
SELECT idem.idem_begin('mail', '{}', 'first');
SELECT 1 / 0;
\endpipeline
});
like($output, qr/division by zero/, 'a later command of the pipeline fails');
is(status_of('first'), 'in_progress', 'the reservation was committed before');

# idem_reserve with two_phase does the same, by its argument or the setting
foreach my $call ("idem_reserve('%s', two_phase => true)",
	"idem_reserve('%s') FROM set_config('idem_tool.two_phase', 'on', false)")
{
	my $later = sprintf("SELECT idem.$call;", 'later');
	my $first = sprintf("SELECT idem.$call;", 'first ' . length($call));

	(undef, $output) = bench('later' . length($call),
		"\\startpipeline\nSELECT 1;\n$later\n\\endpipeline\n");
	like($output, qr/idem_reserve\(\) cannot reserve inside a transaction block/,
		"$call: refused behind another command of the pipeline");
	(undef, $output) = bench('first' . length($call),
		"\\startpipeline\n$first\nSELECT 1 / 0;\n\\endpipeline\n");
	like($output, qr/division by zero/, '... where it is the first, the next fails');
	is(status_of('first ' . length($call)), 'in_progress', '... and it was committed before');
}
is(status_of('later'), '', 'what was refused is not reserved');
(undef, $output) = bench('plain', q{\startpipeline
SELECT idem.idem_reserve('plain');
SELECT 1 / 0;
\endpipeline
});
is(status_of('plain'), '', 'without two_phase the pipeline takes it back');

($ok, $output) = bench('alone', q{SELECT idem.idem_begin('mail', '{}', 'alone');
});
ok($ok, 'accepted as a command of its own');
is(status_of('alone'), 'in_progress', 'and reserved');

#
# The server log: the stored error is for the caller alone
#
$node->safe_psql('postgres', q{
	SELECT idem.idem_fail('declined', '{"holder": "J. Doe 4711"}', token)
	FROM idem.idem_reserve('declined')});
my $offset = -s $node->logfile;
my ($ret, $out, $err) = $node->psql('postgres',
	q{SELECT idem.idem_run('declined', 'app.act(jsonb)')});
like($err, qr/DETAIL:  \{"holder": "J. Doe 4711"\}/, 'the caller gets it');
($ret, $out, $err) = $node->psql('postgres', q{
	DO $$
	BEGIN
		PERFORM idem.idem_call('act', '{}', 'declined');
	EXCEPTION WHEN SQLSTATE 'IK007' THEN
		RAISE;
	END $$});
like($err, qr/J. Doe 4711/, 'also when raised again');
my $log = slurp_file($node->logfile, $offset);
my $count = () = $log =~
	/ERROR:  IK007: action failed definitively\n.*DETAIL:  Key "declined" in scope "" is failed, attempt 1/g;
is($count, 2, 'the log has the key and its state');
unlike($log, qr/J. Doe/, 'and not the stored error');

#
# Dump and restore: registry, functions and recorded results go together
#
$node->safe_psql('postgres', q{
	SELECT idem.idem_run('run', 'app.act(jsonb)', '["a"]');
	SELECT idem.idem_run('run 2', 'app."Act"(jsonb)', '["a"]');
	SELECT idem.idem_call('act', '["b"]', 'call');
	CREATE ROLE operator;
	SELECT idem.idem_grant('operator', 'operator');
});
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr('postgres') ],
	'dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $dump,
		$node->connstr('restored') ], 'restore');
my $registry = 'SELECT t.* FROM idem.idem_tools AS t ORDER BY tool';
is($node->safe_psql('restored', $registry),
	$node->safe_psql('postgres', $registry), 'the registry is the same');
is($node->safe_psql('restored', q{
	SELECT idem.idem_run('run', 'app.act(jsonb)', '["a"]');
	SELECT idem.idem_run('run 2', 'app."Act"(jsonb)', '["a"]');
	SELECT idem.idem_call('act', '["b"]', 'call');
	SELECT string_agg(what, ' ' ORDER BY what) FROM app.ledger;
	SELECT has_function_privilege('operator',
		'idem.idem_register(text, regprocedure, text, interval, interval, interval, interval, text)',
		'EXECUTE');
}), qq{["a"]\n["a"]\n["b"]\na a b\nt}, 'what ran before is replayed');
is($node->safe_psql('restored', q{
	SELECT idem.idem_call('"Act"', '["c"]');
	SELECT string_agg(what, ' ' ORDER BY what) FROM app.ledger}),
	qq{["c"]\na a b c}, 'and tools run');

#
# After ALTER SCHEMA RENAME: nothing goes on looking under the old name
#
$node->safe_psql('postgres', q{
	ALTER SCHEMA idem RENAME TO renamed;
	CREATE SCHEMA idem;
	CREATE TABLE idem.idem_tools (LIKE renamed.idem_tools INCLUDING ALL);
	CREATE FUNCTION idem.trap() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RAISE ''runs as %'', current_user; END';
	CREATE TRIGGER trap BEFORE INSERT OR DELETE ON idem.idem_tools
		FOR EACH ROW EXECUTE FUNCTION idem.trap();
	CREATE FUNCTION idem.idem_call_key(text, jsonb, text DEFAULT NULL)
		RETURNS text LANGUAGE plpgsql AS
		'BEGIN RAISE ''runs as %'', current_user; END';
});
is($node->safe_psql('postgres', q{
	SELECT renamed.idem_register('late', 'app.act(jsonb)');
	SELECT function FROM renamed.idem_tools WHERE tool = 'late';
	SELECT renamed.idem_call('late', '["d"]', 'late');
	SELECT renamed.idem_unregister('late');
	SELECT count(*) FROM renamed.idem_tools WHERE tool = 'late';
	SELECT count(*) FROM idem.idem_tools;
}), qq{\napp.act(jsonb)\n["d"]\nt\n0\n0}, 'the registry works under its new name');

$node->stop('fast');
done_testing();
