# What operators, monitors and callers are told and may do, and no more: no
# guessing at results, no keys for monitoring, nothing for roles that are none.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Attack;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = start_arena('operators',
	conf => "shared_preload_libraries = 'idem_tool'\nidem_tool.worker = off");
my $database = new_arena();
my $superuser = as_role($database);

# a role that is none
foreach my $call ('idem_grant(0::oid::regrole)', q{idem_grant(99999999::oid::regrole, 'operator')},
	'idem_revoke(0::oid::regrole)')
{
	is($superuser->try("SELECT idem.$call"), '42704', "$call is refused");
}

# times beyond all times
foreach my $status ('in_progress', 'expired', 'done', 'unheard of')
{
	is( $superuser->try(
			"SELECT idem.idem_memory_end('$status', t) >= t FROM (VALUES ('294276-12-31 23:59:59.999999+00'::timestamptz), ('infinity'), ('-infinity'), ('2000-01-01')) AS v (t)"),
		"t\nt\nt\nt", "memory of $status ends late enough");
}

# Whoever guesses at a result by idem_resolve leaves a trace, and a right guess
# does as well
my $ops = as_role($database, 'ops');
my $from = -s $node->logfile;
is($ops->try(q{SELECT idem.idem_resolve('treasure kept', 'done', '"gold"')}),
	'IK004', 'a wrong guess is refused');
like(slurp_file($node->logfile, $from),
	qr/LOG:  idem_resolve by role "ops" in a session of "ops": key "treasure kept" in scope "" refused/,
	'... and logged');
is($ops->try(q{SELECT idem.idem_resolve('treasure kept', 'done', '"treasure"')}),
	'f', 'a right guess is nothing to do');
is( $superuser->query(
		q{SELECT count(*) FROM idem.idem_audit WHERE key = 'treasure kept' AND old_status = 'done'}),
	'1', '... and in the trace');
foreach my $call (q{idem_resolve('treasure open', 'done')}, q{idem_resolve('nothing', 'done')},
	q{idem_forget('treasure open')})
{
	$from = -s $node->logfile;
	like($ops->try("SELECT idem.$call"), qr/^IK/, "$call is refused");
	like(slurp_file($node->logfile, $from), qr/LOG:  idem_\w+ by role "ops".* refused/,
		'... and logged');
}
$from = -s $node->logfile;
$ops->try(q{DO $$ BEGIN PERFORM idem.idem_resolve('treasure kept', 'done', '"gold"'); EXCEPTION WHEN OTHERS THEN NULL; END $$});
like(slurp_file($node->logfile, $from), qr/LOG:  idem_resolve by role "ops".* refused/,
	'also if the error is caught');

# Row security hides what an operator is no member of
is($ops->query(q{SELECT string_agg(key, ',') FROM idem.idempotency_keys WHERE owner <> 'ops'}),
	'', 'an operator sees no keys of owners that he is no member of');
is($ops->try(q{SELECT * FROM idem.idem_lookup('treasure kept')}), '42501', '... in no way');

# A monitor
$superuser->query(q{SELECT idem.idem_grant('nobody', 'monitor')});
my $monitor = as_role($database, 'nobody');
my $other = new_arena();
as_role($other, 'victim')->query(q{SELECT FROM idem.idem_reserve('elsewhere')});
as_role($database, 'victim')->query(q{SELECT FROM idem.idem_reserve('here')});
is($monitor->query('SELECT count(*) FROM idem.idempotency_keys'), '0',
	'a monitor sees no keys');
is($monitor->try('SELECT key FROM idem.idem_audit'), '42501', '... nor in the audit');
is($monitor->try('SELECT scope FROM idem.idem_audit'), '42501', '... nor their scopes');
is($monitor->try('SELECT a FROM idem.idem_audit AS a'), '42501', '... nor whole rows');
is($monitor->try('SELECT count(action) > 0 FROM idem.idem_audit'), 't', '... but that there was something');
is($monitor->query('SELECT DISTINCT datname FROM idem.idem_stats'), $database,
	'a monitor sees the figures of his database');
is($monitor->query('SELECT count(*) FROM idem.idem_stats_read() WHERE datid <> (SELECT oid FROM pg_database WHERE datname = current_database())'),
	'0', '... and of no other');
foreach my $call (
	q{idem_reserve('k')}, q{idem_complete('here', token => 3)}, q{idem_release('here', 3)},
	q{idem_resolve('here', 'done')}, q{idem_forget('here')}, 'idem_sweep()',
	q{idem_register('t')}, q{idem_unregister('honest tool')}, 'idem_start_worker()',
	'idem_wake_worker()', q{idem_grant('nobody')}, q{idem_revoke('victim')})
{
	is($monitor->try("SELECT idem.$call"), '42501', "a monitor may not $call");
}
is($monitor->try(q{INSERT INTO idem.idem_tools (tool, effect) VALUES ('t', 'read')}), '42501',
	'nor write to the registry');
is($ops->try(q{INSERT INTO idem.idem_tools (tool, effect) VALUES ('t', 'read')}), '42501',
	'nor does an operator, but by the functions');
$superuser->query('GRANT pg_read_all_stats TO nobody');
is(as_role($database, 'nobody')->query(qq{SELECT string_agg(DISTINCT datname, ',' ORDER BY datname) FROM idem.idem_stats WHERE datname IN ('$database', '$other')}),
	"$database,$other", 'who may read all statistics sees other databases');
$superuser->query('REVOKE pg_read_all_stats FROM nobody');

# the trace is what others do; nobody's name but his own is in it
$ops->query(q{SET idem_tool.scope = 'x'});
$ops->query(q{SELECT idem.idem_forget('nothing')});
is( $superuser->query(
		q{SELECT role, session_role, scope, key, old_status, new_status FROM idem.idem_audit WHERE key = 'nothing'}),
	'ops|ops|x|nothing|absent|absent', 'who did what is in the audit');
done_testing();
