# pg_dump and pg_restore into a new cluster: the same answers afterwards, and
# tokens that go on rising.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = new_node('source');
my $target = new_node('target');
my $dir = PostgreSQL::Test::Utils::tempdir();

# In a schema of its own, as an administrator may have it
sub connect_to
{
	my ($node, $database, $role) = @_;
	my $session = session($node, dbname => $database);

	$session->query('SET search_path = idem, public');
	$session->query("SET ROLE $role") if defined $role;
	return $session;
}

session($source)->query('CREATE DATABASE shop');
session($source, dbname => 'shop')->query($_)
  foreach 'CREATE SCHEMA idem', 'CREATE EXTENSION idem_tool SCHEMA idem',
  'CREATE ROLE app', 'GRANT app TO CURRENT_USER', 'CREATE ROLE gone';
my $session = connect_to($source, 'shop');
$session->query($_)
  foreach q{SELECT idem_grant('app')}, q{SELECT idem_grant('gone')};

# One key of each kind: its arguments, and how it is settled
my %kinds = (
	'done' => [ '', q{complete('done', '{"n": 12345678901234567890.10}'} ],
	'no result' => [ '', q{complete('no result', NULL} ],
	'long' => [
		'', q{complete('long', (SELECT jsonb_agg(md5(i::text))
			FROM generate_series(1, 2000) AS i)}
	],
	'failed' => [ '', q{fail('failed', '"no funds"', ttl => '1000 years'} ],
	'running' => [''],
	'released' => [ '', q{release('released'} ],
	'released while unsure' => [''],
	'abandoned' => [ '', q{abandon('abandoned'} ],
	'lapsed' => [q{, ttl => '1 us'}],
	'forgotten' => [ '', q{complete('forgotten', '1', ttl => '1 us'} ],
	'bound' => [q{, request => '{"amount": 1}'}],
	'scoped' => [
		q{, scope => 'elsewhere'},
		q{complete('scoped', '"there"', scope => 'elsewhere'}
	]);
my %token;
foreach my $key (sort keys %kinds)
{
	my ($arguments, $settle) = @{ $kinds{$key} };

	$token{$key} = $session->query(
		"SELECT token FROM idem_reserve('$key', holder => 'me'$arguments)");
	$session->query("SELECT idem_$settle, token => $token{$key})")
	  if defined $settle;
}

# an attempt that may have run, given back by the next one
$session->query(<<'END');
SELECT idem_release('released while unsure', token)
FROM idem_reserve('released while unsure', holder => 'me')
END

# keys of a role that works on, and of one that is gone
my $app = connect_to($source, 'shop', 'app');
$app->query(q{SELECT FROM idem_reserve('of app', '1 hour')});
my $gone = connect_to($source, 'shop', 'gone');
my $token_of_gone =
  $gone->query(q{SELECT token FROM idem_reserve('of gone', '1 hour')});
$gone->query('RESET ROLE');
$gone->query('DROP OWNED BY gone');
$gone->query('DROP ROLE gone');

# What a caller hears of every key whose owner is there, without leaving a
# trace
sub answers
{
	my ($session) = @_;

	return $session->query(<<'END');
BEGIN;
SELECT k.scope, k.key, r.status, r.attempt, r.maybe_ran, md5(r.result::text),
	CASE WHEN r.status <> 'reserved' THEN r.expires_at END
FROM idempotency_keys AS k,
	CAST(CASE k.key WHEN 'bound' THEN '{"amount": 1.0}' END AS jsonb) AS b,
	idem_reserve(k.key, request => b, scope => k.scope) AS r
WHERE k.owner <> 'gone'
ORDER BY k.scope, k.key;
ROLLBACK;
END
}

my $answers = answers($session);
my $rows = 'SELECT * FROM idempotency_keys ORDER BY scope, key';
my $before = $session->query($rows);
my %before = (
	'done' => 'done|1|f',
	'no result' => 'done|1|f',
	'failed' => 'failed|1|f',
	'running' => 'in_progress|1|f',
	'released' => 'reserved|2|f',
	'released while unsure' => 'reserved|3|t',
	'abandoned' => 'reserved|2|t',
	'lapsed' => 'reserved|2|t',
	'forgotten' => 'reserved|1|f');
foreach my $key (sort keys %before)
{
	like($answers, qr/^\|$key\|\Q$before{$key}|/m, "before: $key");
}

my $highest = $session->query(
	'SELECT last_value FROM idempotency_keys_token_seq');

$source->command_ok([ 'pg_dump', '-f', "$dir/plain", 'shop' ], 'plain dump');
$source->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/custom", 'shop' ],
	'dump in custom format');
$source->stop;

# roles are pg_dumpall's business
session($target)->query($_)
  foreach 'CREATE ROLE app', 'GRANT app TO CURRENT_USER', 'CREATE DATABASE plain',
  'CREATE DATABASE custom';
$target->command_ok(
	[
		'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', 'plain', '-f',
		"$dir/plain"
	],
	'restored from plain');
$target->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', 'custom', "$dir/custom" ],
	'restored from custom');

foreach my $database ('plain', 'custom')
{
	$session = connect_to($target, $database);
	is($session->query($rows), $before, "$database: the same rows");
	cmp_ok($session->query("SELECT token FROM idem_reserve('new')"),
		'>', $highest, "$database: tokens go on");
	$session->query("DELETE FROM idempotency_keys WHERE key = 'new'");
	is(answers($session), $answers, "$database: the same answers");
	is( $session->try(
			q{SELECT FROM idem_reserve('bound', request => '{"amount": 2}')}),
		'IK001',
		"$database: keys are bound to their requests");
}

foreach my $database ('plain', 'custom')
{
	$session = connect_to($target, $database);
	foreach my $key ('running', 'lapsed')
	{
		is( $session->try("SELECT idem_complete('$key', '1', $token{$key})"),
			't', "$database: $key, the holder settles with its token");
	}
	is( $session->try("SELECT idem_complete('of gone', '1', $token_of_gone)"),
		't', "$database: a superuser settles for a role that is gone");

	my $caller = connect_to($target, $database, 'app');
	is(heard($caller, 'of app'), 'in_progress 1 f',
		"$database: a caller has his privileges and his keys");
	is(heard($caller, 'of gone'), '42501', "$database: but not others'");
}

$target->stop;
done_testing();
