# Somebody's lock on the table, or his wait for one, does not hold up callers
# of idem_reserve for as long as anybody's transaction is open.  PostgreSQL
# locks before it looks at privileges: a role that may do nothing is enough.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime usleep CLOCK_MONOTONIC);

my $node = new_node('table_lock', clock => 1);
my $admin = session($node);
my $holder = session($node);
my $caller = session($node);

$admin->query(<<'END');
CREATE ROLE nobody LOGIN;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
SELECT FROM idem_reserve('open');
SELECT FROM idem_reserve('done');
SELECT idem_complete('done', '1', token)
FROM idempotency_keys WHERE key = 'done';
END
my $token =
  $admin->query("SELECT token FROM idempotency_keys WHERE key = 'open'");
my $nobody = session($node, user => 'nobody');

# Wait until a session stands in a lock's queue, or waits as our calls do
sub waits
{
	my ($session) = @_;

	return eventually($admin, <<"END") || die 'it does not wait';
SELECT count(*) > 0 FROM pg_stat_activity
WHERE pid = @{[$session->pid]} AND state = 'active'
AND wait_event IN ('relation', 'Extension')
END
}

# One who has no privilege waits for a lock, behind whoever reserves a key
sub stand_in_the_way
{
	my ($object) = @_;

	$holder->query('BEGIN');
	$holder->query("SELECT FROM idem_reserve('held')");
	$nobody->send(<<"END");
CREATE TRIGGER t BEFORE INSERT ON $object
	FOR EACH ROW EXECUTE FUNCTION nothing()
END
	waits($nobody);
	return;
}

sub get_out_of_the_way
{
	$holder->query('ROLLBACK');
	like($nobody->answer->{sqlstate}, qr/^42/, '... he may not do it');
	return;
}

foreach my $object (
	'idempotency_keys', 'idempotency_keys_pkey',
	'idempotency_keys_token_seq')
{
	# a session's first write locks more than later ones
	($holder, $caller) = (session($node), session($node));
	my $start = clock_gettime(CLOCK_MONOTONIC);

	stand_in_the_way($object);
	is(heard($caller, 'new'), '55P03', "$object: a new key is refused");
	cmp_ok(clock_gettime(CLOCK_MONOTONIC) - $start,
		'>=', 1, '... after a second');
	is(heard($caller, 'done'), 'done 1 f 1', '... a replay is answered');
	get_out_of_the_way();
	is($caller->query("SELECT count(*) FROM idem_lookup('new')"),
		0, '... and nothing is left of it');
}

# who has written before locks the index as a reader does: only its owner can
# stand in his way there
$caller->query("SELECT FROM idem_reserve('ready')");
$holder->query('BEGIN');
$holder->query("SELECT FROM idem_reserve('held')");
$nobody->query("SET lock_timeout = '1 min'");
like(
	$nobody->try(<<'END'), qr/^42/, 'a writer does not hold up a stranger');
CREATE TRIGGER t BEFORE INSERT ON idempotency_keys_pkey
	FOR EACH ROW EXECUTE FUNCTION nothing()
END
$nobody->query('RESET lock_timeout');
my $owner = session($node);
$owner->send('ALTER INDEX idempotency_keys_pkey SET TABLESPACE pg_default');
waits($owner);
is(heard($caller, 'new'), '55P03', 'the owner in the way: a new key is refused');
is(heard($caller, 'done'), 'done 1 f 1', '... a replay seen lately is answered');
$holder->query('ROLLBACK');
is($owner->answer->{sqlstate}, '', '... and he gets his turn');
is(heard($caller, 'done'), 'done 1 f 1', '... after which all is as before');

# who has nothing to write does not wait for those who keep writers out
my $done =
  $admin->query("SELECT token FROM idempotency_keys WHERE key = 'done'");
$owner->query('BEGIN');
$owner->query('LOCK TABLE idempotency_keys IN SHARE MODE');
$caller->query("SET lock_timeout = '1 min'");
is($caller->query("SELECT idem_complete('done', '1', $done)"),
	'f', 'a completion that is repeated is answered');
is($caller->query("SELECT idem_release('open', $token + 1000)"),
	'f', '... and a release with a wrong token');
$caller->query('RESET lock_timeout');
$owner->query('ROLLBACK');

# what is said
stand_in_the_way('idempotency_keys');
$caller->send("SELECT FROM idem_reserve('new')");
my $answer = $caller->answer;
is( $answer->{message},
	'could not obtain lock on relation "idempotency_keys"',
	'the message names the table');
like($answer->{hint}, qr/pg_blocking_pids/, '... the hint helps');

# who wants to wait does, and goes on when the way is free
$caller->send(<<'END');
SELECT status FROM idem_reserve('new', wait => '1 hour')
END
waits($caller);
get_out_of_the_way();
is($caller->answer->{rows}[0][0], 'reserved', 'who waits gets the key');

# lock_timeout is everybody's
stand_in_the_way('idempotency_keys');
$caller->query("SET lock_timeout = '10ms'");
is( heard($caller, 'another', "wait => '1 hour'"),
	'55P03', 'lock_timeout ends a wait');
$caller->query('RESET lock_timeout');

# who settles waits as any UPDATE
$caller->send("SELECT idem_complete('open', '1', $token)");
waits($caller);
get_out_of_the_way();
is($caller->answer->{rows}[0][0], 't', 'who settles waits for his turn');

# the clock is set back meanwhile, while nobody stands in the queue (wait.c)
stand_in_the_way('idempotency_keys');
my $start = clock_gettime(CLOCK_MONOTONIC);
$caller->send("SELECT FROM idem_reserve('another', wait => '2 s')");
waits($caller);
my $now = clock_gettime(CLOCK_MONOTONIC);
usleep((0.25 - ($now - 0.2 * int($now / 0.2))) * 1e6);
$node->step_clock(-3600);
is($caller->answer->{sqlstate}, '55P03', 'a wait ends');
cmp_ok(clock_gettime(CLOCK_MONOTONIC) - $start,
	'<', 60, '... although the clock was set back');
get_out_of_the_way();

# a change of the table itself holds up readers as well
$holder->query('BEGIN');
$holder->query('LOCK TABLE idempotency_keys');
is(heard($caller, $_), '55P03', "locked: $_ is refused") foreach 'new', 'done';
my $newcomer = session($node);
is(heard($newcomer, 'done', "wait => '1200 ms'"),
	'55P03', "... and so is a session's first call, when it has waited");
$holder->query('COMMIT');
is(heard($caller, 'done'), 'done 1 f 1', '... until it is free again');

# nobody is told that the key is not ours when another index takes its place
# while he looks for it, as a session's first call does
my $script = $node->basedir . '/first_call.sql';
append_to_file($script, "SELECT FROM idem_lookup('done');\n");
my $complaints = '';
my $callers = IPC::Run::start(
	[
		'pgbench', '--no-vacuum', '--connect', '--client=4',
		'--transactions=250', "--file=$script", $node->connstr('postgres')
	],
	'>', \my $report, '2>', \$complaints);
while ($callers->pumpable)
{
	$owner->query('REINDEX INDEX CONCURRENTLY idempotency_keys_pkey');
	$callers->pump_nb;
}
ok($callers->finish, 'first calls while the key is indexed anew')
  or diag $complaints;

$node->stop;
done_testing();
